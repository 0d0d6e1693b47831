"""Drafting with recurrent heads: Medusa, Hydra, Hydra++, ReDrafter."""

import pytest
import torch

from crossdraft.drafters.trees.builder import TopK
from crossdraft.engine.drafter import Budget
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import ROOT
from crossdraft.heads.drafting.head_drafter import TREES
from crossdraft.heads.drafting.recurrent import RecurrentDrafter
from crossdraft.heads.registry import HEADS
from crossdraft.specs import parse
from tests.heads.consistency import check_consistency, some_batch, some_head, state_at

METHODS = ("medusa", "hydra", "hydra++", "redrafter")
MORE = {"token_size": 6, "width": 10, "layers": 2}


def some(method, tree="beams", **options):
    return RecurrentDrafter(some_head(HEADS[method].network, MORE), TREES[tree], **options)


@pytest.mark.parametrize("method", ["hydra", "hydra++", "redrafter"])
def test_a_draft_with_states_of_other_tokens_would_be_noticed(method, monkeypatch):
    """The planted bug: the state after a node is that of another token."""
    drafter, batch = some(method), some_batch(some_head(method, MORE))
    predictions, next_state = drafter.head(batch), drafter.head.next_state
    monkeypatch.setattr(drafter.head, "forward", lambda batch: predictions)
    monkeypatch.setattr(drafter.head, "next_state", lambda states, tokens: next_state(states, tokens * 0 + 3))
    with pytest.raises(AssertionError):
        check_consistency(drafter, batch)


@pytest.mark.parametrize("method", METHODS)
def test_a_draft_from_the_feature_one_position_earlier_would_be_noticed(method, monkeypatch):
    """The planted bug: the feature in front of the last one."""
    drafter, batch = some(method), some_batch(some_head(method, MORE))
    update = drafter.update

    def stale(state, output, hidden):
        before = None if state.head_state is None else drafter.step_fn(state.head_state) and state.head_state.feature
        update(state, output, hidden)
        if before is not None:
            state.head_state.pending, state.head_state.feature = [], before

    monkeypatch.setattr(drafter, "update", stale)
    with pytest.raises(AssertionError):
        check_consistency(drafter, batch)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(repetition_penalty=1.3), Sampling(temperature=1.0, seed=1)])
@pytest.mark.parametrize("method", ["medusa", "hydra", "hydra++"])
def test_drafts_are_no_deeper_than_the_number_of_heads(method, sampling):
    drafter = some(method, "chain")
    state = state_at(drafter, some_batch(drafter.head), 6, sampling=sampling)
    assert drafter.propose([state], [Budget(20)])[0].tree.is_chain
    assert drafter.propose([state], [Budget(20)])[0].tree.depth == drafter.head.config.steps == 4


def test_redrafter_drafts_to_any_depth():
    drafter = some("redrafter", "chain")
    state = state_at(drafter, some_batch(drafter.head), 6)
    assert drafter.propose([state], [Budget(20)])[0].tree.depth == 20


def test_behind_the_last_depth_no_logits_are_computed():
    calls = []

    def expand(tree, nodes):
        calls.append(list(nodes))
        return torch.tensor([[0.6, 0.4]]).expand(len(nodes), 2)

    drafter = RecurrentDrafter(some_head("medusa", steps=2), TREES["dynamic"])
    grown = drafter.grow(drafter._open_nodes(expand, frozenset()), TopK(), Budget(30))
    assert calls == [[ROOT], [0, 1]]
    assert len(grown.tree) == 6


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_drafted_behind_the_end_of_an_answer(method):
    drafter = some(method, "dynamic", ends=range(3, 20))
    state = state_at(drafter, some_batch(drafter.head), 6)
    tree = drafter.propose([state], [Budget(30)])[0].tree
    assert all(tree.parents[node] == ROOT or tree.tokens[tree.parents[node]] >= 20 for node in range(len(tree)))


@pytest.mark.parametrize("method", METHODS)
def test_the_name_can_be_written_in_a_spec(method):
    spec = parse(f"union:{method},memory")
    assert spec.parts[0].name == method
    assert parse(f"{method}:tree=chain").settings == {"tree": "chain"}
