"""The target drafts for itself: Lookahead's window and n-grams."""

from collections.abc import Callable

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from crossdraft.drafters.combine.union import UnionDrafter
from crossdraft.drafters.lookahead.drafter import LookaheadDrafter, moved_on, ngrams, probes_of
from crossdraft.drafters.ngram.drafter import NgramDrafter
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.drafter import Budget, Draft, VerifyOutput
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.prompt import GAP, Prompt, known_ids
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from tests.engine.zoo import EOS, ZOO, as_target

RING = (10, 11, 12, 13, 14)  # the repeating text
QUESTION = "k" * 3


def after(token: int) -> int:
    """What the scripted target says after a token: the next of the ring; from elsewhere, into it."""
    return RING[(RING.index(token) + 1) % len(RING)] if token in RING else RING[token % len(RING)]


def letters(text: str) -> list[int]:
    return [ord(letter) - 75 for letter in text]


def ring_target() -> Target:
    """A model that says `after(token)`; its layers add a little noise, so that a cache that is wrong shows."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(64))
        model.lm_head.weight.copy_(torch.eye(64)[[after(token) for token in range(64)]].T)
    return Target(model, lambda request: Prompt(torch.tensor([1, *letters(request.prompt)])), str, [EOS], [3])


def decoder(target: Target, drafter: object, hidden: str = "before", **options) -> DecodeLoop:
    cost = CostModel()
    return DecodeLoop(target, DraftRunner(drafter, hidden), cost=cost, adaptive=False, **options)


def play(drafter, request: Request, rounds: int, says: Callable[[int], int]) -> list[tuple]:
    """The drafter before a target that is a function of the last token; returns draft and window of each round."""
    (state,) = drafter.begin([request])
    root, played = 10, []
    for _ in range(rounds):
        (draft,) = drafter.propose([state], [Budget(16)])
        played.append((draft, [list(level) for level in state.levels]))
        top = tuple((says(token),) for token in draft.probes.tokens)
        drafter.commit([state], [VerifyOutput((), (says(root),), probe_top=top)])
        root = says(root)
    return [*played, (state,)]


def test_the_window_step_by_step():
    """W=2, N=3, over 10 11 12 13 14 10 …; the prompt ends with 20 21, of which the target says 10 and 11."""
    drafter = LookaheadDrafter(window=2, level=3, grams=4)
    *played, (state,) = play(drafter, Request("?", prompt_ids=known_ids([9, 20, 21])), 4, after)
    assert [window for _, window in played] == [
        [[20, 21]],  # filling: one column more; after root, 20 and 21 stand 11, 10, 11
        [[21], [10, 11]],  # the root is 11 now; after (10, 11) stand 11, 12
        [[11], [11, 12]],  # the root is 12
        [[12], [12, 13]],
    ]
    assert state.pool == {
        # the root of the first round was not known yet, and the second one's is 11
        11: [(10, 11), (12, 13)],  # column 0 of round two; column 1 of round three
        21: [(11, 12)],
        12: [(11, 12), (13, 14)],  # column 0 of round three: the guess 11 after 12 was wrong
        13: [(12, 13)],
    }
    assert played[3][0].tree == DraftTree.empty()  # 13 is not known as a first token yet
    assert state.root == 14


def test_the_newest_ngrams_are_drafted_first_and_the_oldest_go():
    drafter = LookaheadDrafter(window=1, level=3, grams=2, banned=[9])
    (state,) = drafter.begin([Request("?")])
    for gram in ((1, 2), (3, 4), (1, 5), (3, 4), (9, 1), (1, 2)):
        drafter._keep(state.pool, 7, gram)
    state.root = 7
    assert state.pool == {7: [(3, 4), (1, 2)]}
    seen = []
    (draft,) = drafter.propose([state], [Budget(3, on_token=seen.append)])
    assert (draft.tree.tokens, draft.tree.parents) == ((1, 2, 3), (-1, 0, -1))
    assert seen == [1, 2]


def test_a_window_is_a_tree_of_probes():
    """The columns' texts, by hand: level 0 is a row, every later level stands after the one above it."""
    probes = probes_of([[1, 2], [5, 6, 7], [8, 9, 10]], 2)
    fed = probes.behind(DraftTree.chain([40, 41]))
    texts = [fed.path_tokens(2 + i) for i in range(len(probes))]
    assert texts == [[1], [1, 2], [5], [1, 6], [1, 2, 7], [5, 8], [1, 6, 9], [1, 2, 7, 10]]


def test_the_smallest_window_has_no_probes_and_still_learns_bigrams():
    drafter = LookaheadDrafter(window=1, level=2, grams=1)
    (state,) = drafter.begin([Request("?")])
    drafter.commit([state], [VerifyOutput((), (10,))])
    for tokens in ((11,), (12,)):
        assert drafter.propose([state], [Budget(4)])[0].probes is None
        drafter.commit([state], [VerifyOutput((), tokens)])
    assert state.pool == {10: [(11,)], 11: [(12,)]}
    assert ngrams(None, [[]], [1]) == []
    assert moved_on([[], [4]], 1) == [[]]


@pytest.mark.parametrize(("window", "level"), [(1, 2), (1, 5), (2, 3), (4, 4), (2, 6), (7, 5)])
def test_the_most_probes_are_announced(window, level):
    drafter = LookaheadDrafter(window=window, level=level)
    (state,) = drafter.begin([Request("?")])
    sizes = []
    for _ in range(2 * level):
        (draft,) = drafter.propose([state], [Budget(0)])
        sizes.append(len(draft.probes or ()))
        top = ((5,),) * sizes[-1]
        drafter.commit([state], [VerifyOutput((), (6,), probe_top=top)])
    assert max(sizes) == drafter.needs.probes
    assert sizes[-1] == window * (level - 1) - 1


@pytest.mark.parametrize(("window", "level", "grams"), [(4, 1, 4), (0, 4, 4), (4, 4, 0)])
def test_a_window_that_cannot_be_is_refused(window, level, grams):
    with pytest.raises(CrossdraftError, match="level of 2 or more"):
        LookaheadDrafter(window, level, grams)


def test_forbidden_ids_are_neither_fed_nor_drafted():
    drafter = LookaheadDrafter(window=2, level=3, banned=[0, 9])
    *played, (state,) = play(
        drafter, Request("?", prompt_ids=known_ids([9, 9, GAP])), 4, lambda token: 9 if token == 12 else after(token)
    )
    assert all({0, 9}.isdisjoint(draft.probes.tokens) for draft, _ in played)
    assert all({0, 9}.isdisjoint(gram) for grams in state.pool.values() for gram in grams)
    assert played[0][1] == [[1, 1]]


@pytest.mark.parametrize("hidden", ["before", "off"])
def test_a_repeating_answer_is_drafted(hidden):
    target = ring_target()
    request = Request(QUESTION, max_new_tokens=40)
    (alone,) = DecodeLoop(target).generate([request])
    assert alone.tokens[:6] == tuple(after(x) for x in (letters("k")[0], *alone.tokens[:5]))
    (found,) = decoder(target, LookaheadDrafter(), hidden).generate([request])
    assert found.tokens == alone.tokens
    assert len(found.tokens) / found.stats.rounds > 2  # tau


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ["video_llava", "qwen2_5_vl"])
@pytest.mark.parametrize("kind", ["lookahead", "union"])
def test_answers_are_the_targets_own(kind, name, batch):
    target = as_target(*ZOO[name]())
    banned = sorted(target.reserved)
    drafter = {
        "lookahead": lambda: LookaheadDrafter(banned=banned),
        "union": lambda: UnionDrafter([NgramDrafter(), LookaheadDrafter(banned=banned)]),
    }[kind]()
    requests = [Request("x" * i, max_new_tokens=8 + 6 * i) for i in range(1, 5)]
    alone = [answer.tokens for answer in DecodeLoop(target).generate(requests)]
    found = decoder(target, drafter, max_batch=batch).generate(requests)
    assert [answer.tokens for answer in found] == alone


def test_in_a_union_the_window_is_read_whoever_else_drafts():
    target, request = ring_target(), Request(QUESTION, max_new_tokens=40)
    alone, window = DecodeLoop(target).generate([request])[0], LookaheadDrafter()
    silent = NgramDrafter()
    silent.propose = lambda states, budgets: [Draft(DraftTree.chain([40])) for _ in states]
    (found,) = decoder(target, UnionDrafter([silent, window])).generate([request])
    assert found.tokens == alone.tokens
    assert len(found.tokens) / found.stats.rounds > 2


def test_sampled_answers_are_drafted_too():
    """Greedy in disguise: only one token is likely enough, so the answer is known."""
    target = ring_target()
    sampling = Sampling(temperature=1.0, top_k=1)
    (alone,) = DecodeLoop(target).generate([Request(QUESTION, max_new_tokens=30)])
    (found,) = decoder(target, LookaheadDrafter()).generate([Request(QUESTION, max_new_tokens=30, sampling=sampling)])
    assert found.tokens == alone.tokens
    assert found.stats.accepted > 5
