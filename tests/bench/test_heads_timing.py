"""Drafts on the same states as the target's passes: what drafters hear there is what the engine would tell them."""

from dataclasses import replace

import pytest
import torch

from crossdraft.engine.drafter import Draft, Needs
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.heads_timing import STEP, time_drafts
from crossdraft_lab.bench.identity import reference_answers
from crossdraft_lab.bench.workload import Workload, items


class Recorder:
    """Drafts the known answer, `STEP` tokens at a time, and writes down the outputs that it gets."""

    def __init__(self, known, needs):
        self.known, self.needs, self.outputs, self.budgets = known, needs, [], []

    def begin(self, requests):
        return [[] for _ in requests]

    def propose(self, states, budgets):
        self.budgets += [budget.nodes for budget in budgets]
        return [Draft(DraftTree.chain(self.known[len(state) : len(state) + STEP])) for state in states]

    def commit(self, states, outputs):
        for state, output in zip(states, outputs, strict=True):
            state.extend(output.tokens)
            self.outputs.append(output)

    def fork(self, states):
        return [[*state] for state in states]

    def end(self, states):
        pass


@pytest.fixture(scope="module")
def scene(pair):
    models = Models(str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32")
    target = models.load_target()
    (known,) = reference_answers(target, items(Workload(1, "long", max_new_tokens=3 * (STEP + 1) + 1)))
    assert len(known.tokens) == 3 * (STEP + 1) + 1
    return models, target, known


def test_drafters_get_what_the_engine_gives_them(scene):
    _, target, known = scene
    last = target.text_config.num_hidden_layers
    needs = Needs((1, last), (last,))
    ours, theirs = Recorder(known.tokens, needs), Recorder(known.tokens, needs)
    passes, _ = time_drafts(target, {"recorder": ours}, [known], 7)
    decoder = DecodeLoop(target, DraftRunner(theirs, "off"), adaptive=False, nodes=STEP)
    decoder.generate([known.item.request])
    assert passes["positions"] == 3  # and the one after the prompt, which does not count
    assert ours.budgets == [7] * 4
    assert len(ours.outputs) == len(theirs.outputs) == 4
    for mine, real in zip(ours.outputs, theirs.outputs, strict=True):
        assert (mine.path, mine.tokens) == (real.path, real.tokens)
        assert mine.hidden.keys() == real.hidden.keys()
        for layer, features in real.hidden.items():
            assert torch.allclose(mine.hidden[layer], features, atol=1e-5)
    prompt, real = ours.outputs[0].prompt, theirs.outputs[0].prompt
    assert (prompt.tokens, prompt.visual_tokens) == (real.tokens, real.visual_tokens)
    assert torch.allclose(prompt.visual[last], real.visual[last], atol=1e-5)
    assert all(output.prompt is None for output in ours.outputs[1:])


def test_a_drafter_gets_no_more_than_it_needs(scene):
    _, target, known = scene
    last = target.text_config.num_hidden_layers
    looking, blind = Recorder(known.tokens, Needs((last,), (last,))), Recorder(known.tokens, Needs())
    time_drafts(target, {"looking": looking, "blind": blind}, [known], 4)
    assert looking.outputs[0].prompt.visual.keys() == {last}
    assert all(not output.hidden and output.prompt is None for output in blind.outputs)
    assert [output.tokens for output in blind.outputs] == [output.tokens for output in looking.outputs]


def test_the_path_is_of_the_drafters_own_tree(scene):
    """One that is wrong from the third token on had two accepted."""
    _, target, known = scene

    class Wrong(Recorder):
        def propose(self, states, budgets):
            (draft,) = super().propose(states, budgets)
            tokens = [*draft.tree.tokens[:2], *(token + 1 for token in draft.tree.tokens[2:])]
            return [Draft(DraftTree.chain(tokens))]

    wrong = Wrong(known.tokens, Needs())
    time_drafts(target, {"wrong": wrong}, [known], 4)
    assert [output.path for output in wrong.outputs] == [(), (0, 1), (0, 1), (0, 1)]


def test_real_drafters_are_clocked(scene):
    models, target, known = scene
    drafters = {"event": models.factory("event", target)(), "memory": models.factory("memory", target)()}
    ticks = []
    passes, drafting = time_drafts(target, drafters, [known, known], 6, ticks.append)
    assert passes["positions"] == 2 * 3
    assert ticks == ["timing"] * 2
    event, wide, single = drafting["event"], passes["v7_ms"], passes["t_ms"]
    assert event["mean_nodes"] == 6
    assert event["draft_ms"]["median"] >= event["of_it_commit_ms"]["median"] > 0
    median = event["draft_ms"]["median"]
    assert event["over_verifying_pass"] == pytest.approx(median / wide["median"], abs=2e-3)
    assert event["over_t"] == pytest.approx(median / single["median"], abs=2e-3)


def test_answers_too_short_to_draft_along(scene):
    _, target, known = scene
    short = replace(known, tokens=known.tokens[: STEP + 1])
    with pytest.raises(CrossdraftError, match=f"No answer has {STEP + 2} tokens"):
        time_drafts(target, {"recorder": Recorder(short.tokens, Needs())}, [short], 4)
    enough = replace(known, tokens=known.tokens[: STEP + 2])
    assert time_drafts(target, {"recorder": Recorder(enough.tokens, Needs())}, [enough], 4)[0]["positions"] == 1
