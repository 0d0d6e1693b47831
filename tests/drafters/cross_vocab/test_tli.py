"""Token-level drafting: laws worked by hand, and the exact law of what is emitted, by enumeration."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from crossdraft.drafters import base
from crossdraft.drafters.base import Draws
from crossdraft.drafters.cross_vocab.assistant import AssistantState, CrossVocabDrafter, DraftStep
from crossdraft.drafters.cross_vocab.tli import LONGEST, Gram, NgramCache, TokenIntersection, aligned, target_dist
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable
from crossdraft.engine.accept import Chance
from crossdraft.engine.drafter import Budget
from crossdraft.engine.sampling import Sampling, warp
from crossdraft.engine.tree import DraftTree
from tests.engine.drafting import Grow, Language
from tests.engine.exact import distribution
from tests.engine.rules.rounds import error

# -- the cache of n-grams ------------------------------------------------------------------------------------------


def test_an_ngram_is_found_whole_and_opens_with_its_beginnings():
    grams = NgramCache()
    grams.learn([4, 5, 6], 9)
    assert grams.find([4, 5, 6]) == 9
    assert grams.find([4, 5]) is None
    assert [grams.opens(ids) for ids in ([4], [4, 5], [4, 5, 6], [5])] == [True, True, False, False]


def test_the_cache_is_bounded_and_forgets_what_was_not_used():
    grams = NgramCache(limit=2)
    grams.learn([1, 2], 7)
    grams.learn([1, 3], 8)
    grams.find([1, 2])
    grams.learn([4, 5], 9)
    assert len(grams) == 2
    assert [grams.find(ids) for ids in ([1, 2], [1, 3], [4, 5])] == [7, None, 9]
    assert grams.opens([1])
    grams.learn([4, 6], 10)
    assert (grams.opens([1]), grams.opens([4])) == (False, True)
    for n in range(50):
        grams.learn([n, n + 1], n)
    assert len(grams) == 2
    assert len(grams._openings) == 2  # nothing of what was forgotten may stay


def test_neither_one_token_nor_too_many_are_an_ngram():
    grams = NgramCache()
    grams.learn([1], 7)
    grams.learn(range(LONGEST + 1), 7)
    assert len(grams) == 0


def test_tokens_are_aligned_where_both_edges_agree():
    theirs, own = [b"The", b" turning", b" left", b"."], [b" T", b"he", b" turn", b"ing", b" left", b"."]
    # Counted from the end, so that the space in front of the answer does not matter.
    assert list(aligned(theirs, own)) == [(1, 2, 4), (2, 4, 5), (3, 5, 6)]


# -- laws by hand --------------------------------------------------------------------------------------------------

TWINS = torch.tensor([2, -1, 0, -1])  # four drafter tokens; of five target tokens, 2 and 0 are shared
Q = torch.tensor([0.5, 0.2, 0.2, 0.1])


def test_the_distribution_of_the_intersection():
    assert target_dist(Q, TWINS, 5).tolist() == pytest.approx([2 / 7, 0, 5 / 7, 0, 0])


def test_an_ngram_takes_its_share_from_its_first_token():
    """0.5 · 0.4 of token 2's half go to token 3."""
    true_dist = target_dist(Q, TWINS, 5, Gram((0, 1), 3, 0.4))
    assert true_dist.tolist() == pytest.approx([0.2 / 0.7, 0, 0.3 / 0.7, 0.2 / 0.7, 0])


def test_an_ngram_whose_first_token_has_no_twin():
    """0.2 · 0.5 are said as token 4; the other half of its first token cannot be said at all."""
    true_dist = target_dist(Q, TWINS, 5, Gram((1, 3), 4, 0.5))
    assert true_dist.tolist() == pytest.approx([0.2 / 0.8, 0, 0.5 / 0.8, 0, 0.1 / 0.8])


# -- exactness, by enumeration -------------------------------------------------------------------------------------

LETTERS = (b"a", b"b", b"c", b"d")
SAID = (b"c", b"a", b"ab", b"x", b"b")  # the target's: "d" is not among them, "ab" is one token
OWN = TokenTable(LETTERS, lambda text: ["abcd".index(c) for c in text], {text: i for i, text in enumerate(LETTERS)})
THEIRS = TokenTable(SAID, lambda text: [], {text: i for i, text in enumerate(SAID)})
TARGET, DRAFTER = Language(5, 1), Language(4, 3)
WARM = Sampling(temperature=1.0)


class ToyAssistant(CrossVocabDrafter):
    """A language instead of a network."""

    def logits_behind(self, state: AssistantState, ids: Sequence[int]) -> Tensor:
        return DRAFTER(tuple(ids)).log()

    def has_room(self, state: AssistantState, count: int) -> bool:
        return True


def drafter(
    grams: NgramCache | None, kind: type[TokenIntersection] = TokenIntersection, namespace: str | None = "anna"
) -> Grow:
    """Drafts chains of two for a namespace, with draws that can be enumerated; the n-grams are those of "anna"."""
    model = SimpleNamespace(vocab_size=4, device="cpu")

    class Toy(ToyAssistant, kind):
        pass

    toy = Toy(model, OWN, THEIRS, learns=grams is not None)
    if grams is not None:
        toy.grams.set("anna", grams)

    def grow(chance: Chance) -> DraftTree:
        draws = Draws(WARM)
        draws.generator = chance
        state = AssistantState(WARM, draws, None, [], torch.empty(0), torch.empty(0), namespace=namespace)
        return toy.propose([state], [Budget(2)])[0].tree

    return grow


def grams() -> NgramCache:
    """Any two letters are one token: "ab" or "x", the one with a distribution of its own, the other without."""
    known = NgramCache()
    for first in range(4):
        for second in range(4):
            known.learn([first, second], 2 + (first + second) % 2)
    return known


@pytest.fixture(autouse=True)
def _enumerated(monkeypatch):
    """The drafter's draws are enumerated, too."""
    monkeypatch.setattr(base, "sample_one", lambda weights, chance: chance.draw(weights))


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("known", [None, grams()], ids=["tli", "omni"])
def test_what_is_emitted_has_the_targets_distribution(rule, known):
    assert error(rule, TARGET, drafter(known), 3) < 1e-12


def test_ngrams_are_drafted():
    """Otherwise the test above would say nothing about them."""
    drafts = distribution(lambda chance: drafter(grams())(chance).tokens)
    assert sum(share for tokens, share in drafts.items() if {2, 3} & set(tokens)) > 0.1


@pytest.mark.parametrize("namespace", ["otto", None])
def test_what_one_namespace_has_taught_is_not_drafted_in_another(namespace):
    drafts = [
        distribution(lambda chance, grow=grow: grow(chance).tokens)
        for grow in (drafter(grams(), namespace=namespace), drafter(None))
    ]
    assert drafts[0] == drafts[1]


class CutAfterwards(TokenIntersection):
    """Planted bug: the drafter's distribution is reported as it was before it was cut down to what is shared."""

    def _drawn(self, state: AssistantState, ids: Sequence[int], logits: Tensor, gram: Gram | None) -> DraftStep:
        step = super()._drawn(state, ids, logits, gram)
        uncut = torch.zeros(5, dtype=torch.float64)
        shared = self.to_target >= 0
        uncut[self.to_target[shared]] = logits.softmax(-1)[shared]
        return replace(step, dist=uncut)


class ForgetsTheGram(TokenIntersection):
    """Planted bug: what the n-gram took from its first token is not reported."""

    def _drawn(self, state: AssistantState, ids: Sequence[int], logits: Tensor, gram: Gram | None) -> DraftStep:
        step = super()._drawn(state, ids, logits, gram)
        q = warp(logits + self.shared, state.sampling)
        return replace(step, dist=target_dist(q, self.to_target, 5))


@pytest.mark.parametrize(("kind", "known"), [(CutAfterwards, None), (ForgetsTheGram, grams())])
def test_a_planted_bug_is_seen(kind, known):
    assert error("rejection", TARGET, drafter(known, kind), 2) > 1e-3
