"""A draft that came in frames: what of it follows the committed tokens, and what it was drawn from."""

import pytest
import torch

from crossdraft.edge.branches import frame_of
from crossdraft.edge.committed import Committed
from crossdraft.edge.frames import DraftFrame, FrameError, decode, encode
from crossdraft.edge.held import HeldDraft
from crossdraft.engine.drafter import Draft
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

SESSION = bytes(16)
TREE = DraftTree.from_paths([[5, 6, 7], [5, 8], [9]])  # nodes 5 6 7 8 9


def committed(*tokens: int) -> Committed:
    made = Committed(SESSION)
    made.add(tokens)
    return made


def sent(draft: Draft, after: Committed, serial: int = 1, start: int = 0, rows: int = 0):
    return decode(encode(frame_of(draft, (len(after), after.digest()), serial, start, rows)))


def test_a_tree_arrives_as_it_was():
    probs = (0.9, 0.5, 0.25, 0.25, 0.0625)
    found = HeldDraft(sent(Draft(TREE, probs), committed())).after(committed(), 99, 16, draws=True)
    assert (found.tree.tokens, found.tree.parents, found.path_probs[1:]) == (TREE.tokens, TREE.parents, probs[1:])


@pytest.mark.parametrize(
    ("tokens", "left", "parents"),
    [
        ((5,), (6, 7, 8), (-1, 0, -1)),
        ((5, 6), (7,), (-1,)),
        ((5, 8), None, None),
        ((9,), None, None),
        ((4,), None, None),
    ],
)
def test_a_late_draft_goes_on_where_the_answer_is(tokens, left, parents):
    found = HeldDraft(sent(Draft(TREE, (0.8, 0.4, 0.2, 0.1, 0.1)), committed())).after(
        committed(*tokens), 99, 16, draws=True
    )
    assert (None if found is None else (found.tree.tokens, found.tree.parents)) == (
        None if left is None else (left, parents)
    )
    if tokens == (5,):
        assert found.path_probs == pytest.approx((0.5, 0.25, 0.125))


def test_a_draft_of_another_text_is_none():
    held = HeldDraft(sent(Draft(TREE), committed(1, 2)))
    assert held.after(committed(1, 3), 99, 16, draws=True) is None
    assert held.after(committed(1), 99, 16, draws=True) is None  # of more than is committed: an edge cannot know that
    other = Committed(bytes(15) + b"x")
    other.add((1, 2))
    assert held.after(other, 99, 16, draws=True) is None  # of another answer with the same tokens
    assert held.after(committed(1, 2), 99, 16, draws=True) is not None


def test_nodes_may_come_one_by_one_with_what_they_were_drawn_from():
    dists = torch.rand(3, 16).softmax(-1)
    dists[:, 4:] = 0
    dists /= dists.sum(-1, keepdim=True)
    whole = DraftTree.chain((1, 2, 3), dists)
    part = lambda n: Draft(DraftTree.chain((1, 2, 3)[:n], dists[:n]))  # noqa: E731
    held = HeldDraft(sent(part(1), committed()))
    assert held.extend(sent(part(2), committed(), start=1, rows=1))
    assert not held.extend(sent(part(2), committed(), start=1, rows=1))  # once more
    assert not held.extend(sent(part(3), committed(), serial=2, start=2, rows=2))
    assert held.extend(sent(Draft(whole), committed(), start=2, rows=2))
    found = held.after(committed(), 99, 16, draws=True).tree
    assert torch.equal(found.dists, dists)  # to the bit
    assert (found.tokens, found.drawn_from) == (whole.tokens, (0, 1, 2))
    rest = held.after(committed(1), 99, 16, draws=True).tree
    assert torch.equal(rest.dists, dists[1:])
    chosen = held.after(committed(), 99, 16).tree
    assert chosen.dists is None
    assert chosen.drawn_from == (-1, -1, -1)


@pytest.mark.parametrize(("ids", "counts"), [((3, 3), (2,)), ((3, -1), (2,)), ((3, 99), (2,)), ((), ())])
def test_a_distribution_that_is_none_is_no_draft(ids, counts):
    after = committed()
    frame = DraftFrame(0, after.digest(), 1, 0, (3,), (-1,), (0,), (), counts, ids, (0.5,) * len(ids))
    with pytest.raises((CrossdraftError, IndexError, RuntimeError, ValueError)):
        HeldDraft(frame).after(after, 99, 16, draws=True)


@pytest.mark.parametrize(
    ("parents", "origins", "probs", "counts"),
    [((), (), (), (2,)), ((-1,), (0, 0), (), (2,)), ((-1,), (0,), (0.5, 0.5), (2,)), ((-1,), (0,), (), (3,)),
     ((-1,), (0,), (), (3, -1)), ((-1,), (0,), (), (1, 1))],
)  # fmt: skip
def test_parts_that_differ_in_number_are_no_frame(parents, origins, probs, counts):
    with pytest.raises(FrameError):
        DraftFrame(0, bytes(8), 1, 0, (3,), parents, origins, probs, counts, (3, 4), (0.5, 0.5))
