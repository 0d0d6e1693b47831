"""Several drafters as one: the tree, the verdicts each is told, and what is learned of their estimates."""

import pytest
import torch

from crossdraft.drafters.combine.union import UnionDrafter
from crossdraft.drafters.memory.drafter import MemoryDrafter
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError


class Scripted:
    """Proposes the same draft always, and keeps the verdicts it is told."""

    needs = Needs()

    def __init__(self, draft):
        self.draft, self.received, self.budgets, self.ended = draft, [], [], 0

    def begin(self, requests):
        return [None for _ in requests]

    def propose(self, states, budgets):
        self.budgets += budgets
        return [self.draft for _ in states]

    def commit(self, states, outputs):
        self.received += outputs

    def fork(self, states):
        return [*states]

    def end(self, states):
        self.ended += len(states)


def chain(*tokens, path_probs=()):
    return Draft(DraftTree.chain(tokens), path_probs)


def test_both_opinions_as_one_trie():
    """They agree on 1; after it each has a word of its own, and both weigh the same."""
    one, two = chain(1, 2, 3, path_probs=(0.9, 0.54, 0.1)), chain(1, 4, path_probs=(0.8, 0.64))
    union = UnionDrafter([Scripted(one), Scripted(two)])
    (draft,) = union.propose(union.begin([Request("?")]), [Budget(3)])
    assert draft.tree.tokens == (1, 4, 2)
    assert draft.tree.parents == (-1, 0, 0)
    assert draft.path_probs == pytest.approx((0.85, 0.85 * 0.8 / 2, 0.85 * 0.6 / 2))


def test_each_receives_what_became_of_its_own_tree():
    one, two = (
        Scripted(chain(1, 2, 3, path_probs=(0.9, 0.5, 0.1))),
        Scripted(chain(1, 4, 5, path_probs=(0.8, 0.6, 0.5))),
    )
    union = UnionDrafter([one, two])
    states = union.begin([Request("?")])
    (draft,) = union.propose(states, [Budget(8)])
    path = (draft.tree.tokens.index(1), draft.tree.tokens.index(4))
    union.commit(states, [VerifyOutput(path, (1, 4, 9))])
    assert one.received[0].path == (0,)
    assert two.received[0].path == (0, 1)
    assert one.received[0].tokens == two.received[0].tokens == (1, 4, 9)
    union.end(states)
    assert (one.ended, two.ended) == (1, 1)


def test_sampled_answers_share_the_budget_before_anything_is_drawn():
    row = torch.full((2, 4), 0.25)
    one, two = Scripted(Draft(DraftTree.chain([1, 2], row))), Scripted(chain(3))
    union = UnionDrafter([one, two])
    states = union.begin([Request("?", sampling=Sampling(temperature=1.0))])
    (draft,) = union.propose(states, [Budget(5)])
    assert (one.budgets[0].nodes, two.budgets[0].nodes) == (3, 2)
    assert draft.tree.tokens == (1, 2, 3)
    assert draft.tree.drawn_from == (0, 1, -1)  # what was drawn keeps its law, what was not is a point mass
    assert draft.path_probs == ()


class Refusing(Scripted):
    """Begins no request whose prompt says so, and is called for none that it did not begin."""

    def begin(self, requests):
        if any("not" in request.prompt for request in requests):
            raise CrossdraftError("It cannot be read.")
        return super().begin(requests)

    def commit(self, states, outputs):
        assert states
        super().commit(states, outputs)

    def fork(self, states):
        assert states
        return super().fork(states)

    def end(self, states):
        assert states
        super().end(states)


def test_who_refuses_to_begin_is_left_out_and_the_others_draft():
    one, two = Refusing(chain(1, 2)), Scripted(chain(3, 4))
    union = UnionDrafter([one, two])
    states = union.begin([Request("not you"), Request("you")])
    alone, both = union.propose(states, [Budget(8), Budget(8)])
    assert (alone.tree.tokens, alone.refusal) == ((3, 4), None)
    assert sorted(both.tree.tokens) == [1, 2, 3, 4]
    assert [len(part.budgets) for part in (one, two)] == [1, 2]
    forks = union.fork(states)
    union.commit(forks, [VerifyOutput((0,), (3, 9))] * 2)
    union.commit(states, [VerifyOutput((0,), (3, 9))] * 2)
    assert [len(part.received) for part in (one, two)] == [2, 4]
    assert union.propose(states[:1], [Budget(8)])[0].tree.tokens == (3, 4)
    union.commit(union.fork(states[:1]), [VerifyOutput((), (5,))])
    union.end(states[:1])
    union.end(states[1:])
    assert (one.ended, two.ended) == (1, 2)


def test_a_union_refuses_what_all_of_it_refuses():
    """At the beginning, and by drafts."""
    with pytest.raises(CrossdraftError, match="It cannot be read"):
        UnionDrafter([Refusing(chain(1)), Refusing(chain(2))]).begin([Request("not you")])
    union = UnionDrafter([Refusing(chain(1)), Scripted(Draft(DraftTree.empty(), refusal="It is lost."))])
    (draft,) = union.propose(union.begin([Request("not you")]), [Budget(8)])
    assert draft.refusal == "It cannot be read."


def test_whoever_proves_wrong_counts_for_less():
    boaster, modest = Scripted(chain(1, path_probs=(0.9,))), Scripted(chain(2, path_probs=(0.5,)))
    union = UnionDrafter([boaster, modest])
    states = union.begin([Request("?")])
    assert union.propose(states, [Budget(1)])[0].tree.tokens == (1,)
    for _ in range(20):
        union.propose(states, [Budget(2)])
        union.commit(states, [VerifyOutput((), (2,))])
    assert union.propose(states, [Budget(1)])[0].tree.tokens == (2,)
    assert union.merger.weights[0].calibration < 0.5 < union.merger.weights[1].calibration
    assert union.merger.weights[0].wins < 1 < union.merger.weights[1].wins


def test_what_cannot_be_joined():
    with pytest.raises(CrossdraftError, match="two drafters"):
        UnionDrafter([MemoryDrafter()])


def test_a_union_needs_what_any_part_needs():
    parts = [
        Needs(hidden_layers=(3, 1)),
        Needs(hidden_layers=(2, 3), visual_layers=(0,)),
        Needs(video=True, runs_in=frozenset({"process"})),
    ]
    assert Needs.of_all(parts) == Needs((1, 2, 3), (0,), video=True, hides=True, runs_in=frozenset({"here", "process"}))
