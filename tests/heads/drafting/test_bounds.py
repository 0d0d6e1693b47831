"""Banned ids and `max_positions`: drafts end there, answers do not."""

from functools import partial

import pytest
import torch

from crossdraft.drafters.trees.static import fill
from crossdraft.engine.drafter import Budget
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import ROOT
from crossdraft.errors import CrossdraftError
from crossdraft.heads.drafting.head_drafter import TREES
from crossdraft.heads.registry import HEADS
from crossdraft_lab.train.heads.ranks import shape_of
from tests.heads.consistency import IDS, LONG, START, some_batch, some_head, state_at

BANNED = IDS[::2]
GROW = {**TREES, "static": partial(fill, shape_of([[0], [1], [2], [0, 0], [1, 0], [0, 1], [0, 0, 0]]))}
SMALL = {"pool": 2, "prune": 2, "conv": 3, "width": 24, "token_size": 8}


def some(method, tree="dynamic", banned=(), **more):
    return HEADS[method].drafter_class(some_head(HEADS[method].network, SMALL, **more), GROW[tree], (), banned)


def drafted(drafter, sampling=Sampling(), nodes=24):  # noqa: B008 - frozen
    state = state_at(drafter, some_batch(drafter.head), 6, sampling=sampling)
    return drafter.propose([state], [Budget(nodes)])[0]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(repetition_penalty=1.2), Sampling(temperature=1.0)])
@pytest.mark.parametrize("tree", sorted(GROW))
@pytest.mark.parametrize("method", ["eagle3", "dflash", "hydra"])
def test_no_banned_id_is_drafted_and_q_stays_a_distribution(method, tree, sampling):
    assert set(drafted(some(method, tree), sampling).tree.tokens) & set(BANNED)  # it would draft them
    tree = drafted(some(method, tree, BANNED), sampling).tree
    assert len(tree) > 2
    assert not set(tree.tokens) & set(BANNED)
    if not sampling.greedy:
        assert float(tree.dists[:, list(BANNED)].sum()) == 0
        assert torch.allclose(tree.dists.sum(1), torch.ones(len(tree.dists), dtype=tree.dists.dtype))


def test_probabilities_are_normalised_over_the_ids_that_are_not_banned():
    drafter = some("eagle3", banned=BANNED)
    state = state_at(drafter, some_batch(drafter.head), 6)
    logits = drafter.step_fn(state.head_state)([ROOT], [], [], 0)[0]
    left = torch.tensor([position for position, token in enumerate(IDS) if token not in BANNED])
    expected = dict(zip([IDS[position] for position in left], logits[left].softmax(0).tolist(), strict=True))
    draft = drafted(drafter)
    firsts = draft.tree.children(ROOT)
    assert len(firsts) > 1
    for node in firsts:
        assert draft.path_probs[node] == pytest.approx(expected[draft.tree.tokens[node]])


def test_where_nothing_is_banned_nothing_is_masked():
    drafter = some("eagle3", banned=(0, 1))  # ids outside the draft vocabulary
    step_fn = drafter.step_fn(state_at(drafter, some_batch(drafter.head), 6).head_state)
    assert drafter._mask_banned(step_fn) is step_fn


def test_a_head_whose_ids_are_all_banned_is_refused():
    with pytest.raises(CrossdraftError, match="drafts only ids that the target must not see"):
        some("eagle3", banned=IDS)


READING = ("eagle1", "eagle3", "hydra++", "dflash", "hivis", "vispec", "eaglevlm")


@pytest.mark.parametrize("method", READING)
def test_beyond_max_positions_nothing_is_drafted(method):
    """Whatever the table's length: no error, and from some length on a draft, which is as long as one without end."""
    free = drafted(some(method, "chain"), nodes=6).tree
    found = [drafted(some(method, "chain", max_positions=m), nodes=6).tree for m in range(1, 29)]
    assert {len(tree) for tree in found} == {0, len(free)}
    lengths = [len(tree) for tree in found]
    assert lengths == sorted(lengths)
    assert found[-1] == free
    assert len(found[7]) == 0  # 8 positions: 8 tokens of text are all that there is room for


@pytest.mark.parametrize("method", READING)
def test_an_answer_beyond_max_positions_is_not_read_any_further(method):
    drafter = some(method, max_positions=LONG - 3)
    batch = some_batch(drafter.head)
    for position in range(START, LONG - 1):
        state = state_at(drafter, batch, position)
        drafter.propose([state], [Budget(1)])
    assert state.head_state is None
    assert not len(drafter.propose([state], [Budget(1)])[0].tree)


@pytest.mark.parametrize("method", READING)
def test_a_text_that_leaves_no_position_is_given_up_in_words(method):
    drafter = some(method, "chain", max_positions=8)
    draft = drafted(drafter, nodes=6)
    assert not len(draft.tree)
    assert draft.refusal is not None
    assert draft.refusal.endswith("none of the head's 8 positions")
    drafter.lengthen(64)
    lengthened = drafted(drafter, nodes=6)
    assert lengthened.refusal is None
    assert lengthened.tree == drafted(some(method, "chain"), nodes=6).tree
