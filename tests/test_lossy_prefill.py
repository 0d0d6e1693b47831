"""An engine whose target reads less of a clip, by an option: what its answers say of themselves. Lossy."""

import json
from dataclasses import replace

import pytest

import crossdraft as cd
from crossdraft.cli.main import main
from crossdraft.drawing.figures import figures
from crossdraft.engine.stats import Stats
from tests.align.some_gate import predicted_spec
from tests.support import encodes_clips

MARK = "Lossy: the target reads its clip compressed (pool:factor=2)."


@pytest.fixture(scope="module")
def question(clip):
    return cd.Request("What is ahead?", str(clip.video), str(clip.events), max_new_tokens=16)


@pytest.fixture(scope="module")
def whole(pair, question):
    with cd.Engine.load(str(pair.target), None, cd.Options(device="cpu")) as engine:
        return engine.generate(question)


@pytest.fixture(scope="module")
def adapter(pair, tmp_path_factory):
    """A random one, whose gate says 0.5."""
    return predicted_spec(pair, tmp_path_factory.mktemp("adapter"))


def marks(answer):
    return answer.stats.lossless, answer.stats.lossy_prefill


@encodes_clips
def test_an_answer_says_that_its_clip_was_not_read_whole(pair, question, whole):
    """With a drafter, too, which drafts losslessly for the target that reads so; a text alone is read whole."""
    options = cd.Options(device="cpu", lossy_prefill="pool:factor=2", placement="inline", adaptive=False)
    with cd.Engine.load(str(pair.target), str(pair.event), options) as engine:
        answer, alone = engine.generate(question), engine.alone(question)
        again = engine.generate(question)  # of which the prefix cache knows the clip
        text = engine.generate(cd.Request(messages=[{"role": "user", "content": "What?"}], max_new_tokens=4))
    assert answer.tokens == alone.tokens == again.tokens != whole.tokens
    assert again.stats.cached_tokens > 0
    assert {marks(one) for one in (answer, alone, again)} == {(False, "pool:factor=2")}
    assert all(MARK in one.other_notes for one in (answer, alone, again))
    assert answer.stats.prompt_tokens < whole.stats.prompt_tokens
    assert marks(text) == marks(whole) == (True, None)
    assert MARK not in text.other_notes


@encodes_clips
@pytest.mark.parametrize(("confidence", "lossless"), [("0.4", False), ("0.6", True)])
def test_what_the_gate_has_read_whole_is_not_called_lossy(pair, question, whole, adapter, confidence, lossless):
    spec = f"{adapter},confidence={confidence}"
    with cd.Engine.load(str(pair.target), None, cd.Options(device="cpu", lossy_prefill=spec)) as engine:
        answer, other = engine.generate(question), engine.generate(replace(question, events=None))
    assert answer.stats.lossless == lossless
    assert (answer.tokens == whole.tokens) == lossless
    assert any(note.startswith("Lossy:") for note in answer.other_notes) != lossless
    assert other.tokens == whole.tokens
    assert other.stats.lossless
    assert other.other_notes == ("Read whole: it takes one clip with events to predict what it looks like.",)


@encodes_clips
def test_ask_says_it(pair, clip, capsys):
    command = ["ask", "--video", str(clip.video), "--target", str(pair.target), "--drafter", "none", "--device", "cpu"]
    command += ["--max-new-tokens", "6", "--json", "What is ahead?"]
    assert main([*command, "--lossy-prefill", "frames:count=2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["stats"]["lossless"], found["stats"]["lossy_prefill"]) == (False, "frames:count=2")
    assert found["notes"] == ["Lossy: the target reads its clip compressed (frames:count=2)."]
    assert main([*command, "--lossy-prefill", "frame"]) == 2
    assert "There is no compression 'frame' (did you mean 'frames'?)" in capsys.readouterr().err


def test_ask_says_how_a_budget_is_kept(pair, clip, adapter, capsys):
    """What warms the engine up counts as nothing."""
    command = ["ask", "--video", str(clip.video), "--events", str(clip.events), "--target", str(pair.target)]
    command += ["--drafter", "ngram", "--device", "cpu", "--max-new-tokens", "6", "--json", "What is ahead?"]
    command += ["--lossy-prefill", f"{adapter},budget=0.5,check=1.0,rate=0.001,confidence=0.4"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    loss = found["stats"]["prefill_loss"]
    assert found["stats"]["lossless"]
    assert found["stats"]["check_ms"] > 0
    assert found["speculative_prefill"] == {
        "budget": 0.5, "threshold": pytest.approx(0.4 + 0.001 * (loss - 0.5), abs=1e-6), "predicted": 0, "checked": 1,
        "whole": 0, "unpredictable": 0, "compared": 1, "mean_loss": loss,
    }  # fmt: skip
    assert main([*command, "--compare"]) == 2
    assert "name a confidence in --lossy-prefill, not a budget" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stats", "shown"),
    [
        (Stats(), []),
        (Stats(rule="greedy", lossless=False, lossy_prefill="pool"), [("prefill", "lossy: pool")]),
        (Stats(rule="relaxed", lossless=False, lossy_rule=True), [("rule", "lossy: relaxed")]),
        (
            Stats(rule="relaxed", lossless=False, lossy_rule=True, lossy_prefill="pool"),
            [("rule", "lossy: relaxed"), ("prefill", "lossy: pool")],
        ),
    ],
)
def test_each_that_is_lossy_is_named(stats, shown, whole):
    rows = figures(replace(whole, stats=stats))
    assert [row for row in rows if row[0] in {"rule", "prefill"}] == shown


@pytest.mark.parametrize("other", [{"compile": True}])
def test_what_reads_whole_prompts_is_refused(other):
    with pytest.raises(cd.CrossdraftError, match=f"lossy_prefill and {next(iter(other))} exclude each other"):
        cd.Options(lossy_prefill="pool", **other)


def test_a_spec_that_cannot_be_read_is_refused_before_anything_is_loaded():
    for spec, part in (("fastw", "did you mean 'fastv'"), ("predicted:check=0.1", "write budget=0.05")):
        with pytest.raises(cd.CrossdraftError, match=part):
            cd.Engine.load("nowhere", None, cd.Options(lossy_prefill=spec))
