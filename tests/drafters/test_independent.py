"""The drafter reads its old text again instead of writing it anew, and says the same in fewer passes."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from crossdraft.drafters import WORDS
from crossdraft.drafters.event.load import load_drafter
from crossdraft.drafters.independent import DraftReuse, IndependentDrafter, IndependentState, top_tokens
from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.reference import full_forward
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling

GREEDY, WARM = Sampling(), Sampling(temperature=1.0, seed=3)
QUESTIONS = ("Describe the scene.", "What is the vehicle in front doing?", "What should the driver watch for?")
LENGTH = 24


@pytest.fixture(scope="module")
def twin() -> IndependentDrafter:
    """The reference pair's blind twin: it asks for nothing but a question."""
    return load_drafter("blind")


def overruled(twin: IndependentDrafter, question: str, sampling: Sampling, *, forget: bool) -> tuple[int, ...]:
    """What is drafted where, twice over, the target puts the drafter's next best word in the place of the sixth."""
    request = Request(question, max_new_tokens=64, sampling=sampling)
    prompt, answer = twin.model.prepare(request), ()
    state: IndependentState = twin.begin([request])[0]
    drafted: tuple[int, ...] = ()
    for _ in range(3):
        first = twin.propose([state], [Budget(LENGTH)])[0].tree.tokens
        drafted += first
        if len(first) <= 5:  # the answer ends before
            break
        best = full_forward(twin.model, prompt, (*answer, *first[:5])).topk(2).indices.tolist()
        tokens = (*first[:5], next(token for token in best if token != first[5]))
        answer += tokens
        twin.commit([state], [VerifyOutput((0, 1, 2, 3, 4), tokens)])
        if forget:
            state.reuse = DraftReuse()
    return drafted


@dataclass(frozen=True)
class Drafted:
    """What was drafted, and the passes that it took."""

    tokens: tuple[int, ...]
    passes: int


@pytest.fixture(scope="module")
def drafted(twin):
    """`overruled`, by question, sampling and whether the drafter forgets, done once."""

    @cache
    def run(question: str, sampling: Sampling, *, forget: bool) -> Drafted:
        widths, extend = [], twin.model.extend
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(twin.model, "extend", lambda cache, rows: widths.append(len(rows)) or extend(cache, rows))
            return Drafted(overruled(twin, question, sampling, forget=forget), len(widths))

    return run


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_draft_is_the_one_written_word_by_word(drafted, question, sampling):
    assert drafted(question, sampling, forget=False).tokens == drafted(question, sampling, forget=True).tokens


def test_it_takes_fewer_passes(drafted):
    again, word_by_word = (
        sum(drafted(question, GREEDY, forget=forget).passes for question in QUESTIONS) for forget in (False, True)
    )
    assert again < 0.9 * word_by_word  # a third of them is the first draft, which nothing can spare


def test_a_planted_bug_in_the_bookkeeping_is_seen(twin, drafted, monkeypatch):
    """The control: keeping one word too few of what came true must change the draft."""
    keep = KVCache.keep
    honest = drafted(QUESTIONS[0], GREEDY, forget=True).tokens
    monkeypatch.setattr(KVCache, "keep", lambda cache, row, path: keep(cache, row, path[:-1]))
    assert overruled(twin, QUESTIONS[0], GREEDY, forget=False) != honest


def test_likely_words_row_by_row():
    scores = torch.randn(6, 30, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    scores[2, 7] = scores[2, 19] = 9.0  # of equals the first, as argmax has it
    for slot, row in zip(top_tokens(scores), scores, strict=True):
        assert slot.tokens[0] == int(row.argmax())
        assert set(slot.tokens) <= set(row.topk(WORDS + 1).indices.tolist())
        assert slot.probs == pytest.approx(row.softmax(-1)[list(slot.tokens)].tolist())
        assert list(slot.probs) == sorted(slot.probs, reverse=True)


def test_words_that_must_not_be_said_are_no_alternatives():
    scores = torch.full((2, 8), float("-inf"))
    scores[0, 5] = 1.0
    scores[1, [2, 4]] = torch.tensor([1.0, 3.0])
    one, two = top_tokens(scores)
    assert (one.tokens, one.probs) == ((5,), (1.0,))
    assert two.tokens == (4, 2)


PICKY = Sampling(repetition_penalty=1.6, logit_bias=((11, -3.0), (40, 2.0)))


@pytest.mark.parametrize("sampling", [PICKY, replace(PICKY, temperature=0.8, top_p=0.9, seed=5)])
def test_penalties_count_the_words_of_a_draft(twin, sampling, monkeypatch):
    """Old text that is read again is judged as if it had been written word by word."""
    again = drafts(twin, sampling)
    monkeypatch.setattr(twin, "_candidates", lambda state, written, most: [])
    assert drafts(twin, sampling) == again


def drafts(twin: IndependentDrafter, sampling: Sampling) -> list[tuple[int, ...]]:
    """A draft, and the one after it when its third word was overruled."""
    (state,) = twin.begin([Request(QUESTIONS[0], max_new_tokens=64, sampling=sampling)])
    (first,) = twin.propose([state], [Budget(LENGTH)])
    twin.commit([state], [VerifyOutput((0, 1), (*first.tree.tokens[:2], 300))])
    (second,) = twin.propose([state], [Budget(LENGTH)])
    return [first.tree.tokens, second.tree.tokens]


def test_an_answer_of_any_length_asks_for_no_cache_of_any_size(twin):
    """The target refuses such a request, but maybe only when the drafter has begun."""
    (state,) = twin.begin([Request(QUESTIONS[0], max_new_tokens=10**12)])
    assert state.cache.capacity <= 3 * twin.model.context
    assert twin.room(state) > 0
