"""The alignment bench: controls and figures by hand, and a run on a tiny pair."""

import json

import pytest
import torch

from crossdraft.bench.align import HELD_OUT, IDENTITY, TRAINED, UNTRAINED, AlignBench, SceneQuestions
from crossdraft.bench.align_controls import accepted, best_text, templates
from crossdraft.bench.align_features import figures_of
from crossdraft.bench.assembly import Models
from crossdraft.bench.workload import Workload, items
from crossdraft.cli.main import main
from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import save_head
from crossdraft.load import load_drafter, target_fingerprint
from tests.align.small import some_adapter


def test_the_best_text_is_the_one_of_which_most_is_accepted():
    answers = [(1, 2, 3), (1, 2, 4), (1, 2, 4, 5), (6, 7, 8, 9, 9, 9)]
    best = best_text(answers)
    assert best == (1, 2, 4, 5)  # 2 + 3 + 4 + 0 of 9, more than any other
    totals = {text: sum(accepted(text, answer) for answer in answers) for text in answers}
    assert max(totals.values()) == totals[best] == 9
    assert best_text([]) == ()
    assert templates([("a", (1, 2)), ("a", (1, 3)), ("b", (4,)), ("a", (1, 3))]) == {"a": (1, 3), "b": (4,)}


def test_figures_along_answers_by_hand():
    """Three features of one answer, two of another; the LM head reads each feature's largest part."""
    own = [torch.eye(3), torch.eye(3)[:2]]
    predicted = [torch.tensor([[1.0, 0, 0], [0, 1, 0.6], [1, 0, 0]]), torch.tensor([[0.6, 0.8, 0.0], [0, 1, 0]])]
    found = figures_of(list(zip(predicted, own, strict=True)), torch.eye(3), [(0, 1, 2), (0, 1)], [0, 1])
    cosines = [1, 1 / 1.36**0.5, 0, 0.6, 1]  # 1/√1.36 = 0.857
    assert found.cosine.value == pytest.approx(sum(cosines) / 5)
    assert [share.value for share in found.above] == pytest.approx([3 / 5, 2 / 5])
    assert (found.consecutive.value, found.consecutive.n) == ((1 + 0) / 2, 2)
    assert found.same.value == pytest.approx(3 / 5)  # 0, 1, not 2; not 0, 1
    assert found.shifted.value == pytest.approx(1 / 3)  # after 0 comes 1, after 1 comes 2; what stands there: 0, 1 | 1


def test_training_wordings_can_be_asked_of_test_clips():
    held, seen = (list(items(Workload(4, questions=2, trained_wordings=flag))) for flag in (False, True))
    assert [item.seed for item in held] == [item.seed for item in seen]
    assert [item.kind for item in held] == [item.kind for item in seen]
    assert all(a.request.prompt != b.request.prompt for a, b in zip(held, seen, strict=True))


@pytest.mark.filterwarnings("error::RuntimeWarning")  # a control that drafts nothing has no mean
def test_from_the_command_line(pair, tmp_path, capsys):
    event = load_drafter(str(pair.event), "cpu", "float64", packed=False).model
    adapter = some_adapter("l5", pair.target, pair.event, event)
    save_head(tmp_path, adapter, "l5", target_fingerprint(str(pair.target)), torch.float32)
    spec, out = f"aligned:dir={tmp_path},model={pair.event}", tmp_path / "found.json"
    where = f"--target {pair.target} --event {pair.event} --blind {pair.blind} --device cpu --dtype float32"
    sizes = "--clips 2 --questions 2 --learned 4 --nodes 4 --max-new-tokens 12"
    line = ["bench", "align", *where.split(), *sizes.split(), "--drafter", spec, "--drafter", "event"]
    assert main([*line, "--json-out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "Every answer was the target's own." in text
    found = json.loads(out.read_text())["results"]
    assert set(found) == {spec, "event", "constant", "template", "memory", "blind", IDENTITY, UNTRAINED}
    assert (
        found["event"][HELD_OUT]["accepted_prefix"]["value"] > found["constant"][HELD_OUT]["accepted_prefix"]["value"]
    )
    assert found[IDENTITY][HELD_OUT]["accepted_prefix"] is None
    own = found[IDENTITY][TRAINED]["features"]
    assert (own["cosine"]["value"], own["same_position"]["value"]) == (1.0, 1.0)
    assert own["shifted"]["value"] < 1
    assert found[spec][HELD_OUT]["equal"] == 4
    assert found[spec][HELD_OUT]["features"]["cosine"]["value"] < 1


@pytest.mark.parametrize("drafters", [(), ("event", "event"), ("evnt",)])
def test_what_cannot_be_compared_is_refused(drafters):
    with pytest.raises(CrossdraftError, match=r"each once|evnt"):
        AlignBench(Models(), SceneQuestions(Workload(2), 4), drafters).check()
    with pytest.raises(CrossdraftError, match="1 or more"):
        AlignBench(Models(), SceneQuestions(Workload(2), 0), ("event",)).check()
