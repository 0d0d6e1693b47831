"""A smaller VLM drafts for a larger one: other frames and resolution, heads of other widths, in its own process."""

from pathlib import Path

import pytest
import torch
import transformers

import crossdraft as cd
from crossdraft.drafters.cross_vocab.vocabulary import read_token_table
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.drafters.language_model.load import load_model_drafter
from crossdraft.engine.drafter import Budget
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_tokenizer, text_folder
from crossdraft.methods import check_drafter_files, read_spec
from tests.engine.fast.test_static_pass import needs_compiler
from tests.engine.late_target import wait_for
from tests.tiny_families import IDS, TEXT, save_family

OPTIONS = cd.Options(device="cpu", dtype="float32", draft_dtype="float32", placement="inline", adaptive=False)
WIDTH = TEXT["vocab_size"]


def padded(folder: Path, rows: int, scale: float) -> Path:
    """Add rows to the embeddings and to the head of a stored model, rows that no token has."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder)
    torch.manual_seed(4)
    model.resize_token_embeddings(WIDTH + rows, mean_resizing=False)
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head[WIDTH:] = scale * head[5:6]
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A target, the same with a wider head, and a drafter that nearly agrees, with either head.

    The drafter's further rows win wherever they are not masked.
    """
    base = tmp_path_factory.mktemp("pair")
    return {
        "target": save_family("qwen3_vl", base / "target"),
        "wide target": padded(save_family("qwen3_vl", base / "wide target"), 16, 0),
        "drafter": save_family("qwen3_vl", base / "drafter", noise=1e-3),
        "wide drafter": padded(save_family("qwen3_vl", base / "wide drafter", noise=1e-3), 48, 50),
        "gemma3": save_family("gemma3", base / "gemma3"),
        "qwen3_5": save_family("qwen3_5", base / "qwen3_5"),
    }


@pytest.fixture(scope="module")
def vocabulary(folders):
    return read_token_table(load_tokenizer(folders["target"]), WIDTH, [IDS["</s>"]])


@pytest.mark.parametrize(
    "sampling", [cd.Sampling(), pytest.param(cd.Sampling(temperature=0.7, seed=5), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("target", "drafter"), [("target", "wide drafter"), ("wide target", "drafter")])
def test_heads_of_other_widths_draft_and_padded_rows_are_masked(target, drafter, sampling, folders, clip):
    requests = [cd.Request(text, str(clip.video), max_new_tokens=20, sampling=sampling) for text in ("why?", "and?")]
    with cd.Engine.load(folders[target], f"model:dir={folders[drafter]}", OPTIONS) as engine:
        assert isinstance(engine.drafter.drafter, IndependentDrafter)
        expected = [engine.alone(request).tokens for request in requests]
        found = engine.generate(requests)
    assert [answer.tokens for answer in found] == expected
    assert sum(answer.stats.accepted for answer in found) > 20
    assert not any(answer.stats.bad_drafts or answer.drafter_error for answer in found)


@pytest.mark.slow
def test_in_its_own_process_it_drafts_hidden_from_fewer_and_smaller_frames(folders, clip, monkeypatch):
    spec = f"(model:dir={folders['drafter']},frames=2,pixels=256)@process"
    request = cd.Request("why?", str(clip.video), max_new_tokens=20)
    with cd.Engine.load(folders["target"], spec, OPTIONS) as engine:
        expected = engine.alone(request).tokens
        wait_for(monkeypatch, engine.drafter.drafter)
        answer = engine.generate(request)
    assert answer.tokens == expected
    assert answer.stats.hidden_drafted > 0


@pytest.mark.parametrize(
    ("name", "frames", "pixels", "size"), [("drafter", 2, 144, 6), ("drafter", 4, 100, 6), ("gemma3", 3, None, 9)]
)
def test_frames_and_pixels_make_its_prompt_shorter(name, frames, pixels, size, folders, vocabulary, clip):
    def shown(**more):
        drafter = load_model_drafter(str(folders[name]), vocabulary, device="cpu", **more)
        prompt = drafter.model.prepare(cd.Request("why?", str(clip.video)))
        return int(torch.isin(prompt.input_ids, torch.tensor(sorted(drafter.model.traits.visual_ids))).sum())

    own, fewer = shown(), shown(frames=frames, pixels=pixels)
    assert 0 < fewer < own
    assert fewer <= size * frames


@pytest.mark.parametrize("name", ["gemma3", "qwen3_5"])
def test_a_vlm_whose_type_also_writes_text_alone_sees(name, folders, vocabulary):
    assert load_model_drafter(str(folders[name]), vocabulary, device="cpu").needs.video


@needs_compiler
@pytest.mark.slow
def test_a_compiled_language_model_drafts_the_same(vocabulary):
    made = [load_model_drafter(str(text_folder("text")), vocabulary, "tli", "cpu", compiled=on).model for on in (0, 1)]
    request, drafts = cd.Request("why?", max_new_tokens=20), []
    for drafter in map(IndependentDrafter, made):
        (state,) = drafter.begin([request])
        drafts.append(drafter.propose([state], [Budget(12)])[0].tree)
    assert drafts[0] == drafts[1]
    assert len(drafts[0]) == 12
    assert made[1]._static._compiled


def test_frames_of_a_text_model_or_beyond_a_context_are_refused_before_weights(folders):
    for words, sentence in (
        (f"model:dir={text_folder('text')},frames=2", "holds a text model, which sees nothing; leave out frames and"),
        (f"model:dir={folders['gemma3']},frames=99999", r"frames=99999 are more than the \d+ positions that"),
    ):
        with pytest.raises(CrossdraftError, match=sentence):
            check_drafter_files(read_spec(words))


def test_what_sees_nothing_or_one_size_is_refused(folders, vocabulary):
    for more in ({"frames": 2}, {"pixels": 256}):
        with pytest.raises(CrossdraftError, match="is a text model, which sees nothing; leave out frames and pixels"):
            load_model_drafter(str(text_folder("text")), vocabulary, device="cpu", **more)
    with pytest.raises(CrossdraftError, match="reads frames of one size; leave out pixels=256"):
        load_model_drafter(str(folders["gemma3"]), vocabulary, device="cpu", pixels=256)
