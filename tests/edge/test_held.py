"""What is held of a draft is what may still be verified, and each node costs its way in and its way out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.edge.committed import Committed
from crossdraft.edge.frames import DraftFrame
from crossdraft.edge.held import HeldDraft
from crossdraft.engine.drafter import Draft
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError

SESSION = bytes(16)
MANY = 4096


def frame(tokens, parents, *, start=0, probs=(), **more) -> DraftFrame:
    return DraftFrame(0, Committed(SESSION).digest(), 1, start, tuple(tokens), tuple(parents), probs=probs, **more)


def below(tree: DraftTree, node: int) -> list[int]:
    under = {node}
    for child, parent in enumerate(tree.parents):
        if parent in under:
            under.add(child)
    return sorted(under - {node})


def naive(tokens, parents, probs, text) -> Draft | None:
    """The same from all that came, each time anew."""
    tree = DraftTree(tuple(tokens), tuple(parents))
    path = tree.follow(text)
    at = path[-1] if path else ROOT
    nodes = below(tree, at)
    if len(path) < len(text) or not nodes:
        return None
    index = {at: ROOT} | {node: i for i, node in enumerate(nodes)}
    above = probs[at] if path else 1.0
    made = DraftTree(tuple(tokens[n] for n in nodes), tuple(index[parents[n]] for n in nodes))
    return Draft(made, tuple(min(1.0, probs[n] / above) for n in nodes))


@st.composite
def histories(draw):
    """A tree, in frames, and commits between them."""
    count = draw(st.integers(1, 24))
    tokens = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    parents = [draw(st.integers(max(-1, node - 6), node - 1)) for node in range(count)]
    parts = draw(st.lists(st.one_of(st.integers(1, 8), st.lists(st.integers(0, 2), max_size=3)), max_size=12))
    return tokens, parents, [0.9 ** (1 + node) for node in range(count)], parts


@given(histories())
def test_it_says_what_all_of_the_draft_would_say(history):
    tokens, parents, probs, parts = history
    committed, held, sent = Committed(SESSION), None, 0
    for part in [1, *parts, len(tokens)]:
        if isinstance(part, list):
            committed.add(part)
        elif sent < len(tokens):
            end = min(len(tokens), sent + part)
            more = frame(tokens[sent:end], parents[sent:end], start=sent, probs=tuple(probs[sent:end]))
            if held is None:
                held = HeldDraft(more)
            else:
                assert held.extend(more)
            sent = end
        assert held is not None
        ahead = held.after(committed, MANY, 8)  # as a copy looks at it: nothing is dropped by that
        follows = held.follow(committed)
        found = held.after(committed, MANY, 8)
        wanted = naive(tokens[:sent], parents[:sent], probs[:sent], committed.tokens)
        if not follows:
            assert wanted is None
            return
        assert (found is None) == (ahead is None) == (wanted is None)
        if found is not None and wanted is not None and ahead is not None:
            assert found.tree == ahead.tree == wanted.tree
            assert found.path_probs == pytest.approx(wanted.path_probs)
            assert len(held.nodes) == len(found.tree), "what is held is what may be verified"


def test_a_tree_that_is_used_up_holds_nothing():
    """Its first node is right, and all else lies below a wrong one beside it."""
    held = HeldDraft(frame([1, *[7] * (MANY - 1)], [-1, -1, *range(1, MANY - 1)]))
    committed = Committed(SESSION)
    committed.add([1])
    assert held.follow(committed)
    assert held.nodes == {}
    committed.add([2, 3])
    assert held.follow(committed), "it may still grow"


class Counted(dict):
    looked = 0

    def __getitem__(self, key):
        self.looked += 1
        return super().__getitem__(key)


def test_a_round_costs_what_it_may_verify_and_not_what_came():
    held = HeldDraft(frame([7] * (MANY - 1), range(-1, MANY - 2)))
    held._children = counted = Counted(held._children)
    found = held.after(Committed(SESSION), 8, 16)
    assert found is not None
    assert len(found.tree) == 8
    assert counted.looked < 20


def test_a_node_is_dropped_once(monkeypatch):
    """However many commits follow a draft."""
    dropped = []
    drop = HeldDraft._drop
    monkeypatch.setattr(HeldDraft, "_drop", lambda self, node: dropped.append(node) or drop(self, node))
    count = 600  # each right node has a wrong one beside it, with one below
    tokens, parents = [], []
    for level in range(count // 3):
        tokens += [1, 2, 2]
        parents += [3 * level - 3 if level else -1, 3 * level - 3 if level else -1, 3 * level + 1]
    held, committed = HeldDraft(frame(tokens, parents)), Committed(SESSION)
    for _ in range(count // 3):
        committed.add([1])
        assert held.follow(committed)
    assert held.nodes == {}
    assert sorted(dropped) == list(range(count))


def test_what_is_dropped_takes_its_distribution_along():
    parts = {"origins": (0, 1, 2), "counts": (2, 2, 2), "ids": (1, 2) * 3, "values": (0.5,) * 6}
    held, committed = HeldDraft(frame((1, 2, 1), (-1, -1, 0), **parts)), Committed(SESSION)
    assert held.entries == 6
    committed.add([1])
    assert held.follow(committed)
    assert held.entries == 2
    draft = held.after(committed, 8, 4, draws=True)
    assert draft is not None
    assert draft.tree.dists is not None
    assert draft.tree.dists.tolist() == [[0, 0.5, 0.5, 0]]
    chosen = held.after(committed, 8, 4)
    assert chosen is not None
    assert (chosen.tree.dists, chosen.tree.drawn_from) == (None, (-1,))


@pytest.mark.parametrize("parent", [1, 5, -2])
def test_a_parent_that_does_not_precede_its_child_is_no_draft(parent):
    with pytest.raises(CrossdraftError, match="precede"):
        HeldDraft(frame((1, 2), (-1, parent)))
