"""What may be set, and what a request may name: one sentence for everything else."""

from types import SimpleNamespace

import pytest
from transformers import AutoConfig, AutoTokenizer

from crossdraft.errors import CrossdraftError
from crossdraft_vllm.compatibility import WORKER, check_config
from crossdraft_vllm.requests import RequestReader
from crossdraft_vllm.settings import LONGEST, HostSettings


def test_settings_are_read_from_vllms_additional_config(tmp_path):
    found = HostSettings.of({"crossdraft": {"drafter": "event", "media_root": str(tmp_path), "dtype": "bf16"}})
    assert (found.drafter, found.media_root, found.dtype, found.wait_ms) == ("event", str(tmp_path), "bfloat16", 0.0)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "names no drafter"),
        ({}, "names no drafter"),
        ({"crossdraft": {"media_root": "/"}}, "names no drafter"),
        ({"crossdraft": {"drafter": "event", "media_rot": "/"}}, "did you mean 'media_root'"),
        ({"crossdraft": {"drafter": "evnt"}}, "no drafter 'evnt'"),
        ({"crossdraft": {"drafter": "union:event,eagle3"}}, "let vLLM run it"),
        ({"crossdraft": {"drafter": "event", "media_root": "/no/such/folder"}}, "no folder"),
        ({"crossdraft": {"drafter": "event", "hidden_tokens": LONGEST + 1}}, "at most"),
        ({"crossdraft": {"drafter": "event", "wait_ms": -1}}, "above 0"),
        ({"crossdraft": {"drafter": "event", "requests": 0}}, "at least 1"),
        ({"crossdraft": {"drafter": "event", "parallel": "ssd"}}, "no setting 'parallel'"),
        ({"crossdraft": {"drafter": "event", "cores": [10_000]}}, "core 10000"),
    ],
)
def test_what_is_wrong_is_one_sentence(given, why):
    with pytest.raises(CrossdraftError, match=why):
        HostSettings.of(given)


@pytest.fixture
def root(tmp_path):
    """A folder with a recording, and another one beside it with a secret."""
    for name in ("media/drive/a.h5", "media/clip.mp4", "media-secret/a.h5"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (tmp_path / "media" / "link.h5").symlink_to(tmp_path / "media-secret" / "a.h5")
    return tmp_path / "media"


@pytest.fixture
def reader(pair, root):
    return reader_of(pair, root)


def reader_of(pair, root):
    config = AutoConfig.from_pretrained(pair.target)
    return RequestReader(config, AutoTokenizer.from_pretrained(pair.target), root, 512)


def read(reader, prompt=(), **extra):
    return reader.read(list(prompt), {f"crossdraft_{key}": value for key, value in extra.items()}, 24, "")


def test_files_lie_below_the_media_root(reader, root):
    found = read(reader, question="what?", events="drive/a.h5", video="clip.mp4")
    assert (found.events, found.video) == (str(root / "drive" / "a.h5"), str(root / "clip.mp4"))
    assert found.prompt == "what?"
    assert found.max_new_tokens == 24
    assert found.sampling.greedy


@pytest.mark.parametrize(
    "path",
    [
        "../media-secret/a.h5",
        "/etc/passwd",
        "link.h5",
        "drive",
        "none.h5",
        "drive/../../media-secret/a.h5",
        "a\0b",
        "x" * 9999,
    ],
)
def test_no_other_file_is_read(reader, path):
    with pytest.raises(CrossdraftError, match="names no file in the media_root"):
        read(reader, question="what?", events=path)


def test_absolute_paths_and_links_within_the_root_are_followed(reader, root):
    assert read(reader, question="what?", events=str(root / "drive" / "a.h5")).events.endswith("a.h5")
    (root / "today").symlink_to(root / "drive")
    assert read(reader, question="what?", events="today/a.h5").events == str(root / "drive" / "a.h5")


def test_without_a_media_root_no_file_is_read(pair):
    reader = reader_of(pair, None)
    with pytest.raises(CrossdraftError, match="no media_root was set"):
        read(reader, question="what?", events="a.h5")
    assert read(reader, question="what?").events is None


@pytest.mark.parametrize("value", [3, ["a"], "", True])
def test_values_are_strings(reader, value):
    with pytest.raises(CrossdraftError, match="give a string"):
        read(reader, question=value)


def test_a_question_is_no_longer_than_the_context(reader):
    with pytest.raises(CrossdraftError, match="ask a shorter question"):
        read(reader, question="what? " * 10_000)


def test_a_request_that_names_nothing_is_not_ours(reader):
    assert reader.read([1, 2], None, 8, "") is None
    assert reader.read([1, 2], {"kv_transfer_params": {}}, 8, "") is None


def test_the_question_is_what_stands_behind_the_last_visual_token(reader):
    tokenizer, visual = reader.tokenizer, reader.config.video_token_id
    front = tokenizer.encode("USER: ", add_special_tokens=False)
    behind = tokenizer.encode("\nwhat is the car doing? ASSISTANT:", add_special_tokens=False)
    found = read(reader, [*front, visual, visual, *behind], events="drive/a.h5")
    assert found.prompt == "what is the car doing?"
    with pytest.raises(CrossdraftError, match="knows no question"):
        read(reader, [*front, visual], events="drive/a.h5")


def vllm_config(**changed):
    """As much of vLLM's config as is looked at; `custom_class` on Model Runner V1."""
    given = {"method": "custom_class", "draft_sample_method": "greedy", "num_speculative_tokens": 8}
    given |= {"async_scheduling": False, "v2": False, "worker_cls": "auto", "pipeline_parallel_size": 1} | changed
    speculative = None if given["method"] is None else SimpleNamespace(**given)
    return SimpleNamespace(
        speculative_config=speculative,
        scheduler_config=SimpleNamespace(**given),
        parallel_config=SimpleNamespace(**given),
        use_v2_model_runner=given["v2"],
    )


@pytest.mark.parametrize(
    "changed", [{}, {"method": "eagle3"}, {"v2": True, "worker_cls": WORKER, "method": "ngram"}], ids=str
)
def test_configurations_that_take_drafts(changed):
    check_config(vllm_config(**changed), 8)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"method": None}, "add --speculative-config"),
        ({"async_scheduling": True}, "add --no-async-scheduling"),
        ({"method": "eagle3", "draft_sample_method": "probabilistic"}, "leave it at 'greedy'"),
        ({"v2": True}, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ({"v2": True, "worker_cls": WORKER, "pipeline_parallel_size": 2}, "without pipeline parallelism"),
        ({"v2": True, "worker_cls": WORKER, "num_speculative_tokens": 4}, "Model Runner V2 verifies"),
    ],
)
def test_configurations_that_take_none_are_refused(changed, why):
    with pytest.raises(CrossdraftError, match=why):
        check_config(vllm_config(**changed), 8)
