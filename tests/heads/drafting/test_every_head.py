"""What holds of every head: it drafts as it is trained, within its budget, and answers stay the target's own."""

from dataclasses import replace
from functools import partial

import pytest

from crossdraft.drafters.trees.static import fill
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.heads.drafting.head_drafter import TREES
from crossdraft.heads.drafting.recurrent import RecurrentDrafter
from crossdraft.heads.registry import HEADS
from crossdraft_lab.train.heads.ranks import shape_of
from tests.heads.consistency import check_branches, check_consistency, some_batch, some_head, state_at
from tests.heads.drafting.conftest import REQUESTS

METHODS = tuple({record.network: name for name, record in HEADS.items()}.values())  # one of each network
STATIC = partial(fill, shape_of([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 0, 0]]))
BUILDERS = {**TREES, "static": STATIC}
SMALL = {"pool": 2, "prune": 2, "conv": 3, "width": 24, "token_size": 6, "layers": 2}


def some(method, tree="dynamic"):
    return HEADS[method].drafter_class(some_head(HEADS[method].network, SMALL), BUILDERS[tree])


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_drafts_are_as_trained(method, pieces):
    drafter = some(method)
    assert check_consistency(drafter, some_batch(drafter.head), pieces) > 20


@pytest.mark.parametrize("method", ["eagle2", "eagle3"])
def test_wrong_positions_in_drafting_would_be_noticed(method, monkeypatch):
    """The planted bug: rotary positions of drafted tokens that do not increase."""
    drafter = some(method)
    batch, cos_sin = some_batch(drafter.head), drafter.head.rotary.cos_sin
    predictions = drafter.head(batch)
    monkeypatch.setattr(drafter.head, "forward", lambda batch: predictions)
    monkeypatch.setattr(drafter.head.rotary, "cos_sin", lambda positions: cos_sin(positions.clamp(max=5)))
    with pytest.raises(AssertionError):
        check_consistency(drafter, batch)


@pytest.mark.parametrize("method", METHODS)
def test_branches_do_not_attend_to_each_other(method):
    check_branches(some(method))


@pytest.mark.parametrize("tree", BUILDERS)
@pytest.mark.parametrize("method", METHODS)
def test_drafts_stay_within_the_budget_and_leave_nothing_behind(method, tree):
    drafter = some(method, tree)
    state = state_at(drafter, some_batch(drafter.head), 6)
    shown: list[int] = []
    draft = drafter.propose([state], [Budget(20, on_token=shown.append)])[0]
    assert 0 < len(draft.tree) <= 20
    assert set(draft.tree.tokens) <= set(drafter.head.config.draft_ids)
    assert len(draft.path_probs) == len(draft.tree)
    assert tuple(shown[: len(draft.tree.main_path)]) == draft.tree.main_path_tokens[: len(shown)]
    fork = drafter.fork([state])[0]
    drafter.propose([fork], [Budget(30)])
    assert drafter.propose([state], [Budget(20)])[0].tree == draft.tree
    assert drafter.propose([fork], [Budget(20)])[0].tree == draft.tree


@pytest.mark.parametrize("method", METHODS)
def test_a_fork_changes_independently(method):
    drafter, budgets = some(method), [Budget(12)]
    batch = some_batch(drafter.head)
    state, longer = state_at(drafter, batch, 6), state_at(drafter, batch, 7)
    fork = drafter.fork([state])[0]
    features = {layer: rows[0, 7:8] for layer, rows in batch.hidden.items()}
    drafter.propose([fork], budgets)  # a draft leaves nothing in what is read next
    drafter.commit([fork], [VerifyOutput((), (int(batch.tokens[0, 8]),), features)])
    assert drafter.propose([fork], budgets)[0].tree == drafter.propose([longer], budgets)[0].tree
    own = state_at(drafter, batch, 6)
    assert drafter.propose([state], budgets)[0].tree == drafter.propose([own], budgets)[0].tree


@pytest.mark.parametrize("tree", ["dynamic", "chain"])
@pytest.mark.parametrize("method", ["eagle3", "peagle", "dspark"])
def test_seeded_answers_of_four_at_once_are_the_targets_own(target, small_head, method, tree):
    sampled = [replace(one, sampling=Sampling(temperature=1.0, seed=5 + row)) for row, one in enumerate(REQUESTS)]
    record, alone = HEADS[method], [answer.tokens for answer in DecodeLoop(target).generate(sampled)]
    drafter = record.drafter_class(small_head(record.network, layers=2), TREES[tree], target.eos, target.reserved)
    loop = DecodeLoop(target, DraftRunner(drafter, "off"), cost=CostModel(), adaptive=False, max_batch=4)
    answers = loop.generate(sampled)
    assert [answer.tokens for answer in answers] == alone
    assert sum(answer.stats.accepted for answer in answers) > 0
    assert not any(answer.other_notes for answer in answers)


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("method", METHODS)
def test_greedy_answers_are_the_targets_own(target, expected, small_head, answers_with, method, batch):
    record = HEADS[method]
    builder = STATIC if issubclass(record.drafter_class, RecurrentDrafter) else TREES["dynamic"]
    head = small_head(record.network, width=64, layers=2)
    drafter = record.drafter_class(head, builder, target.eos, target.reserved)
    assert record.sees == bool(drafter.needs.visual_layers)
    answers = answers_with(drafter, batch)
    assert [answer.tokens for answer in answers] == expected
    assert sum(answer.stats.drafted for answer in answers) > 50
    assert all(answer.stats.rounds and not answer.other_notes for answer in answers)
