"""`crossdraft align` from the command line: three lists in, a drafter and its figures out; and what is refused."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from crossdraft.cli.main import main
from crossdraft.drafters.event.load import load_drafter
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.align import _generate
from crossdraft_lab.bench.align_rows import HELD_OUT, IDENTITY, TRAINED, UNTRAINED
from crossdraft_lab.cli.align import BEFORE, TUNED, WITH_MEMORY
from tests.support import tiny_clip, tiny_pair

SMALL = (
    "rank=4", "optim.steps=20", "optim.decay_steps=0", "optim.warmup_steps=1", "optim.clips=4", "optim.ema=0",
    "optim.checkpoint_every=10", "optim.learning_rate=0.01", "threads=1",
)  # fmt: skip
ASKED = {"train": ["what?", "is it dark?"], "validation": ["what?", "who?"], "test": ["is it dark?", "where?"]}


@dataclass(frozen=True)
class Lists:
    """A list for each split, of one clip each."""

    folder: Path

    def line(self, split: str, **changes) -> None:
        """Write a list anew; a key that is `None` is left out."""
        entry = {"video": f"{split}/clip.mp4", "events": f"{split}/clip.h5", "prompt": ASKED[split]} | changes
        kept = {key: value for key, value in entry.items() if value is not None}
        self.path(split).write_text(json.dumps(kept) + "\n")

    def path(self, split: str) -> Path:
        return self.folder / f"{split}.jsonl"


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for number, split in enumerate(ASKED):
        (folder / split).mkdir()
        tiny_clip(folder / split, top=8 + 16 * number)
    return folder


@pytest.fixture
def lists(clips, tmp_path) -> Lists:
    shutil.copytree(clips, tmp_path / "lists")
    made = Lists(tmp_path / "lists")
    for split in ASKED:
        made.line(split)
    return made


def align(pair, lists, out, *more, drafter=None, train=None) -> int:
    splits = ["--validation", str(lists.path("validation")), "--test", str(lists.path("test"))]
    where = [str(pair.target), str(drafter or pair.blind), str(train or lists.path("train")), str(out)]
    return main(["align", *where, *splits, "--max-new-tokens", "10", "--device", "cpu", "--json", *SMALL, *more])


def interrupted(*args) -> None:
    """In place of a stage that does not come to its end."""
    raise CrossdraftError("The light went out.")


def test_one_command_from_lists_to_a_drafter_and_its_figures(pair, lists, tmp_path, capsys, monkeypatch):
    """It is interrupted when the drafters are measured, and goes on with the controls."""
    out = tmp_path / "out"
    drafter = str(out / "drafter")
    with monkeypatch.context() as patch:
        patch.setattr("crossdraft_lab.bench.align._controls", interrupted)
        assert align(pair, lists, out) == 2
    assert set(json.loads((out / "rows.json").read_text())["rows"]) == {
        str(pair.blind), drafter, f"union:{drafter},(memory:seed={out / 'captures' / 'train'})"
    }  # fmt: skip
    saved, asked = (out / "drafter" / "model.safetensors").stat().st_mtime_ns, []
    with monkeypatch.context() as patch:
        patch.setattr("crossdraft_lab.bench.align._generate", lambda *args: asked.append(args[-1]) or _generate(*args))
        patch.setattr("crossdraft_lab.train.align.tuned.load_tuned", interrupted)  # nothing is left to learn
        capsys.readouterr()
        assert align(pair, lists, out) == 0
    assert set(asked) == {"memory", "blind", UNTRAINED}
    assert (out / "drafter" / "model.safetensors").stat().st_mtime_ns == saved
    assert not (out / "rows.json").exists()
    found = json.loads(capsys.readouterr().out)
    assert found["out"] == drafter
    assert load_drafter(drafter, "cpu", "float32").model.vocab_size == 320
    rows = found["results"]
    assert set(rows) == {BEFORE, TUNED, WITH_MEMORY, "constant", "template", "memory", "blind", IDENTITY, UNTRAINED}
    assert set(rows[TUNED]) == {HELD_OUT, TRAINED}  # "where?" was never asked in training, "is it dark?" was
    assert all(row[wordings]["equal"] in (None, 1) for row in rows.values() for wordings in (HELD_OUT, TRAINED))
    for wordings in (HELD_OUT, TRAINED):
        united, alone = (rows[name][wordings]["accepted_prefix"]["value"] for name in (WITH_MEMORY, TUNED))
        assert united >= alone, wordings
    assert [(step["drafter"], step["than"]) for step in found["ladder"][HELD_OUT]] == [
        (TUNED, BEFORE), (WITH_MEMORY, TUNED)
    ]  # fmt: skip
    assert found["learned"] == 2
    written = json.loads((out / "align.json").read_text())
    assert written["results"] == found["results"]
    kept = {path: path.stat().st_mtime_ns for path in (out / "captures").rglob("shard-*.safetensors")}
    assert len(kept) == 2  # of the test split no answers are captured

    assert align(pair, lists, out) == 2
    assert "holds a finished alignment; add --force" in capsys.readouterr().err
    assert align(pair, lists, out / "align.json") == 2
    assert "align.json is a file; name another folder." in capsys.readouterr().err
    assert align(pair, lists, out, "--force", drafter=out / "drafter") == 2  # it would take away what it learns from
    assert "is where the tuned drafter goes" in capsys.readouterr().err
    assert (out / "drafter" / "config.json").is_file()
    assert (out / "align.json").is_file()

    (out / "align.json").unlink()  # as if it had been interrupted while it measured
    log = (out / "train.log.jsonl").read_text()
    assert align(pair, lists, out, "--no-measure") == 0
    assert (out / "train.log.jsonl").read_text() == log
    assert {path: path.stat().st_mtime_ns for path in kept} == kept

    assert align(pair, lists, out, "--no-measure", "--force", "optim.steps=10") == 0
    assert len((out / "train.log.jsonl").read_text().splitlines()) == 10 + 1
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_what_was_tuned_alone_is_measured_by_the_same_command_and_not_tuned_again(pair, lists, captured, capsys):
    out = captured.parent
    learned = [out / "train.log.jsonl", *(out / "drafter").iterdir()]
    before = [path.stat().st_mtime_ns for path in learned]
    assert align(pair, lists, out, "optim.steps=1") == 0
    assert "results" in json.loads((out / "align.json").read_text())
    assert [path.stat().st_mtime_ns for path in learned] == before
    assert align(pair, lists, out, "optim.steps=1") == 2
    assert "holds a finished alignment" in capsys.readouterr().err


@pytest.mark.parametrize("tune", ["qlora", "full"])
def test_every_way_of_tuning_gives_a_drafter(pair, lists, tmp_path, capsys, tune):
    more = ["rank=0"] if tune == "full" else []
    assert align(pair, lists, tmp_path / "out", "--tune", tune, "--no-measure", *more) == 0
    recipe = json.loads((tmp_path / "out" / "drafter" / "provenance.json").read_text())["recipe"]
    assert (recipe["base"], recipe["rank"]) == (("int4", 4) if tune == "qlora" else ("float32", 0))
    assert load_drafter(str(tmp_path / "out" / "drafter"), "cpu", "float32")


def test_a_quantised_target_is_another_one(pair, lists, tmp_path, capsys):
    out = tmp_path / "out"
    assert align(pair, lists, out, "--quantize", "int4", "--no-measure") == 0
    owner = json.loads((out / "captures" / "train" / "index.json").read_text())["owner"]
    assert (owner["quantize"], owner["dtype"]) == ("int4", "bfloat16")
    (out / "align.json").unlink()
    assert align(pair, lists, out, "--no-measure") == 2
    assert "holds a capture with other settings" in capsys.readouterr().err


def refused(code: int, capsys, out: Path, sentence: str) -> None:
    """Exit status 2, one sentence, and nothing was written."""
    error = capsys.readouterr().err.strip()
    assert code == 2
    assert sentence in error.replace("\n", " ")
    assert "Traceback" not in error
    assert not out.exists()


def test_clips_without_recordings_are_refused(pair, lists, tmp_path, capsys):
    lists.line("validation", events=None)
    refused(align(pair, lists, tmp_path / "out"), capsys, tmp_path / "out", "names no event recording")


def test_a_missing_recording_is_refused(pair, lists, tmp_path, capsys):
    lists.line("test", events="test/gone.h5")
    refused(align(pair, lists, tmp_path / "out"), capsys, tmp_path / "out", "the events 'test/gone.h5' is no file")


@pytest.mark.parametrize("how", ["name", "copy"])
def test_splits_that_overlap_are_refused(pair, lists, tmp_path, capsys, how):
    if how == "name":
        lists.line("test", events="train/clip.h5")
    else:
        shutil.copy(lists.folder / "train" / "clip.h5", lists.folder / "test" / "other.h5")
        lists.line("test", events="test/other.h5")
    sentence = f"The splits overlap: Line 1 of {lists.path('test')} and Line 1 of {lists.path('train')}"
    refused(align(pair, lists, tmp_path / "out"), capsys, tmp_path / "out", sentence)


def test_parts_of_a_sequence_that_overlap_in_two_splits_are_refused(pair, lists, tmp_path, capsys):
    lists.line("train", sequence="zurich", start_s=0.0, end_s=10.0)
    lists.line("test", sequence="zurich", start_s=5.0, end_s=15.0)
    sentence = "are parts of the sequence zurich that overlap in time; leave it in one only"
    refused(align(pair, lists, tmp_path / "out"), capsys, tmp_path / "out", sentence)


@pytest.mark.parametrize(
    ("model", "weight"),
    [("target", "language_model.lm_head.weight"), ("drafter", "model.language_model.layers.1.mlp.up_proj.weight")],
)
def test_weights_that_are_no_numbers_are_refused_before_anything_is_captured(
    pair, lists, tmp_path, capsys, model, weight
):
    broken = shutil.copytree(pair.target if model == "target" else pair.blind, tmp_path / model)
    weights = load_file(broken / "model.safetensors")
    weights[weight][3, 4] = float("nan")
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    changed = replace(pair, target=broken) if model == "target" else replace(pair, blind=broken)
    code = align(changed, lists, tmp_path / "out")
    refused(code, capsys, tmp_path / "out", f"The weight {weight} of the {model} {broken} is not finite")


@pytest.mark.parametrize("name", ["a,b", "pair (2)", "x:1"])
def test_a_folder_that_cannot_stand_in_a_spec_is_refused_before_anything_is_captured(
    pair, lists, tmp_path, capsys, name
):
    refused(align(pair, lists, tmp_path / name), capsys, tmp_path / name, "cannot be measured: a folder's name has")


def test_a_folder_that_reads_as_a_setting_is_refused(pair, lists, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(align(pair, lists, Path("x=1")), capsys, Path("x=1"), "cannot be measured: a folder's name has")


def test_without_a_device_training_goes_where_the_target_goes(pair, lists, tmp_path, capsys, monkeypatch):
    """As on a machine with a GPU, which this one need not have."""
    asked = []

    def without_ranks(device, wait) -> None:
        asked.append(str(device))
        interrupted()

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("crossdraft_lab.train.core.dist.init_distributed", without_ranks)
    where = [str(pair.target), str(pair.blind), "scenes", str(tmp_path / "out")]
    refused(main(["align", *where, *SMALL]), capsys, tmp_path / "out", "The light went out")
    assert asked == ["cuda:0"]


def test_one_list_for_two_splits_is_refused(pair, lists, tmp_path, capsys):
    code = align(pair, lists, tmp_path / "out", train=lists.path("test"))
    refused(code, capsys, tmp_path / "out", "One list is named for two splits")


def test_a_list_alone_is_refused(pair, lists, tmp_path, capsys):
    where = [str(pair.target), str(pair.blind), str(lists.path("train")), str(tmp_path / "out")]
    refused(main(["align", *where]), capsys, tmp_path / "out", "--validation is lacking")


def test_options_of_scenes_are_not_those_of_lists(pair, lists, tmp_path, capsys):
    refused(align(pair, lists, tmp_path / "out", "--prompts", "3"), capsys, tmp_path / "out", "--prompts is for scenes")
    code = align(pair, lists, tmp_path / "out", train="scenes")
    refused(code, capsys, tmp_path / "out", "scenes have splits of their own")


def test_another_vocabulary_is_refused(pair, lists, tmp_path, capsys):
    other = tmp_path / "event"
    shutil.copytree(pair.blind, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    (one, a), (two, b) = list(vocabulary.items())[40:42]
    vocabulary[one], vocabulary[two] = b, a
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    code = align(pair, lists, tmp_path / "out", drafter=other)
    refused(code, capsys, tmp_path / "out", "has another vocabulary than the target: 2 of its")


def test_a_drafter_that_is_no_eventgpt_is_refused(pair, lists, tmp_path, capsys):
    code = align(pair, lists, tmp_path / "out", drafter=pair.target)
    refused(code, capsys, tmp_path / "out", "the drafter must be an 'eventgpt'")


@pytest.mark.parametrize(
    ("drafter", "sentence"),
    [
        ("glance", "'glance' cannot be aligned, tuned or built upon: only an event model can, that is event, blind"),
        ("evnt", "did you mean 'event'?"),
    ],
)
def test_a_drafter_that_is_no_event_model_is_refused_and_those_named_that_are(
    pair, lists, tmp_path, capsys, drafter, sentence
):
    refused(align(pair, lists, tmp_path / "out", drafter=drafter), capsys, tmp_path / "out", sentence)


def test_a_quantised_drafter_is_refused(pair, lists, tmp_path, capsys):
    other = tmp_path / "event"
    shutil.copytree(pair.blind, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "bitsandbytes"}}))
    code = align(pair, lists, tmp_path / "out", drafter=other)
    refused(code, capsys, tmp_path / "out", "is quantised already (bitsandbytes)")


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("foo", "'foo' must read key=value, for example optim.steps=20."),
        ("loss={mse: 1.0}", "cannot learn by 'mse'"),
        ("optim.step=3", "unknown key 'optim.step'"),
        ("steps=3", "unknown key 'steps'; did you mean 'optim.steps'?"),
        ("base=int4; rank=0", "which base=int4 would freeze"),
        ("loss={kll: 1.0}", "an unknown loss 'kll'; did you mean 'kl'?"),
        ("loss={kl: .nan}", "The loss 'kl' weighs nan; give it a number"),
        ("optim.watch=prefx", "The checks give no figure 'prefx', which optim.watch names; did you mean 'prefix'?"),
        ("optim.accumulate=2", "answers is about 1 clips with 2 each, which cannot be shared out among 2 passes"),
    ],
)
def test_recipes_that_cannot_be_followed_are_refused(pair, lists, tmp_path, capsys, override, sentence):
    refused(align(pair, lists, tmp_path / "out", *override.split("; ")), capsys, tmp_path / "out", sentence)


@pytest.fixture
def captured(pair, lists, tmp_path, capsys) -> Path:
    """Captures of both splits, and nothing learned yet."""
    out = tmp_path / "first"
    assert align(pair, lists, out, "--no-measure", "optim.steps=1") == 0
    capsys.readouterr()
    return out / "captures"


def test_what_is_finished_stays_where_a_new_run_is_refused(pair, lists, captured, capsys):
    out = captured.parent
    there = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert {out / "align.json", out / "drafter"} <= there.keys()
    for option, value, sentence in (("--batch", "0", "'--batch'"), ("--max-new-tokens", "64", "other settings")):
        assert align(pair, lists, out, "--force", option, value) == 2
        assert sentence in capsys.readouterr().err
        assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == there, option


def test_captures_of_one_model_are_not_those_of_another(pair, lists, captured, tmp_path, capsys):
    """Answers of one target for training, of another for validation."""
    other = tiny_pair(tmp_path / "other", seed=5)
    index = captured / "validation" / "index.json"
    record = json.loads(index.read_text())
    before = index.read_text()
    record["owner"]["sha256"] = "0" * 64
    index.write_text(json.dumps(record))
    code = align(pair, lists, tmp_path / "out", "--captures", str(captured))
    refused(code, capsys, tmp_path / "out", "holds a capture with other settings (another target)")
    index.write_text(before)
    more = ["--captures", str(captured)]
    where = [str(other.target), str(other.blind), str(lists.path("train")), str(tmp_path / "out")]
    splits = ["--validation", str(lists.path("validation")), "--test", str(lists.path("test"))]
    code = main(["align", *where, *splits, "--max-new-tokens", "10", "--device", "cpu", *SMALL, *more])
    refused(code, capsys, tmp_path / "out", "holds a capture with other settings (another target)")


def test_other_questions_than_those_captured_are_refused(pair, lists, captured, tmp_path, capsys):
    lists.line("train", prompt=["another question?"])
    code = align(pair, lists, tmp_path / "out", "--captures", str(captured))
    refused(code, capsys, tmp_path / "out", "holds a capture with other settings (sha256")


def test_another_width_is_refused(pair, lists, captured, tmp_path, capsys):
    index = captured / "train" / "index.json"
    record = json.loads(index.read_text())
    record["owner"]["hidden_size"] = 48
    index.write_text(json.dumps(record))
    code = align(pair, lists, tmp_path / "out", "--captures", str(captured))
    refused(code, capsys, tmp_path / "out", "holds features of width 48, and the target's head reads 32")


def test_features_that_are_no_numbers_stop_it_before_the_first_step(pair, lists, captured, tmp_path, capsys):
    (shard,) = (captured / "train").glob("*.safetensors")
    tensors = load_file(shard)
    name = next(name for name in tensors if name.startswith("hidden."))
    tensors[name][:] = float("nan")
    save_file(tensors, shard)
    assert align(pair, lists, tmp_path / "out", "--captures", str(captured)) == 2
    assert "has a feature that is not finite" in capsys.readouterr().err
    assert not (tmp_path / "out" / "drafter").exists()
    assert not (tmp_path / "out" / "train.ckpt").exists()
