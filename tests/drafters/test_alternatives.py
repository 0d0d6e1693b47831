"""A tree from a chain whose writer knows what else it might have said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.drafters.alternatives import HOLDS, TokenAlternatives, alternatives_of, tree_from_topk
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.drafter import Outcome
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from tests.engine.zoo import ZOO, as_target, noisy

TEXT = [TokenAlternatives((1, 7), (0.6, 0.4)), TokenAlternatives((2, 8), (0.9, 0.1))]


def test_nodes_come_best_first_and_old_words_hold_a_little_less():
    draft = tree_from_topk(TEXT, 4)
    assert draft.tree.tokens == (1, 2, 7, 2)
    assert draft.tree.parents == (-1, 0, -1, 2)
    assert draft.path_probs == pytest.approx((0.6, 0.54, 0.4, 0.4 * HOLDS * 0.9))


def test_one_word_a_position_is_the_chain_and_its_outcomes_are_the_others():
    draft = tree_from_topk(TEXT, 4, words=1)
    assert draft.tree.is_chain
    assert draft.tree.tokens == (1, 2)
    assert [outcome.tokens for outcome in draft.outcomes] == [(7,), (1, 8)]
    assert [outcome.prob for outcome in draft.outcomes] == pytest.approx([0.4, 0.06])


def test_what_finds_no_room_is_an_outcome_too():
    draft = tree_from_topk(TEXT, 1)
    assert draft.tree.tokens == (1,)
    assert [outcome.tokens for outcome in draft.outcomes] == [(1, 2), (7,), (1, 8)]


def test_nothing_stands_behind_an_end():
    draft = tree_from_topk([TokenAlternatives((1, 0), (0.5, 0.5)), TokenAlternatives((2,), (1.0,))], 9, ends={0})
    assert sorted(map(tuple, (draft.tree.path_tokens(node) for node in range(len(draft.tree))))) == [(0,), (1,), (1, 2)]


def test_no_text_no_tree():
    assert len(tree_from_topk([], 5).tree) == 0
    assert tree_from_topk([], 5).outcomes == ()


slots = st.lists(
    st.integers(1, 3).flatmap(
        lambda n: st.builds(
            lambda words, raw: TokenAlternatives(tuple(words), tuple(x / (sum(raw) + 0.1) for x in raw)),
            st.lists(st.integers(0, 9), min_size=n, max_size=n, unique=True),
            st.lists(st.floats(0.01, 1), min_size=n, max_size=n),
        )
    ),
    min_size=1,
    max_size=6,
)


@given(slots, st.integers(1, 30))
def test_it_is_the_best_tree_of_its_size(text, nodes):
    """Against all paths, enumerated: none that was left out is likelier than one that was taken."""
    found = tree_from_topk(text, nodes)
    every: dict[tuple[int, ...], float] = {(): 1.0}
    for position, slot in enumerate(text):
        for path, chance in [entry for entry in every.items() if len(entry[0]) == position]:
            as_written = all(word == text[i].tokens[0] for i, word in enumerate(path))
            for word, share in zip(slot.tokens, slot.probs, strict=True):
                every[(*path, word)] = chance * share * (1.0 if as_written else HOLDS)
    taken = {tuple(found.tree.path_tokens(node)) for node in range(len(found.tree))}
    assert len(taken) == min(nodes, len(every) - 1)
    worst = min(every[path] for path in taken)
    assert all(chance <= worst * (1 + 1e-9) for path, chance in every.items() if path and path not in taken)


@given(slots)
def test_slots_can_be_read_from_a_chain_and_its_outcomes(text):
    draft = tree_from_topk(text, 99, words=1)
    again = alternatives_of(draft)
    assert [slot.tokens[0] for slot in again] == [slot.tokens[0] for slot in text]
    for slot, found in zip(text, again, strict=True):
        assert dict(zip(found.tokens, found.probs, strict=True)) == pytest.approx(
            dict(zip(slot.tokens, slot.probs, strict=True))
        )


def test_an_outcome_elsewhere_is_no_slots():
    draft = tree_from_topk(TEXT, 2, words=1)
    stray = Outcome((5, 6), 0.1)
    assert alternatives_of(type(draft)(draft.tree, draft.path_probs, outcomes=(stray,))) == [
        TokenAlternatives((1,), (0.6,)),
        TokenAlternatives((2,), (pytest.approx(0.9),)),
    ]


def test_alternatives_save_passes_and_change_nothing():
    model, prompt = ZOO["video_llava"]()
    target = as_target(model, prompt)
    requests = [Request("x" * i, max_new_tokens=30) for i in (2, 3, 4, 5)]
    alone = [answer.tokens for answer in DecodeLoop(target).generate(requests)]
    rounds = {}
    for words in (1, 3):
        other = noisy(ZOO["video_llava"]()[0], 3e-3)
        drafter = IndependentDrafter(as_target(other, prompt), words=words)
        cost = CostModel()
        answers = DecodeLoop(
            target, DraftRunner(drafter, "before"), cost=cost, adaptive=False, nodes=24, hidden_nodes=24
        ).generate(requests)
        assert [answer.tokens for answer in answers] == alone
        rounds[words] = sum(answer.stats.rounds for answer in answers)
    assert rounds[3] < rounds[1]
