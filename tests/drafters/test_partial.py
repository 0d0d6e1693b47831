"""The target over a part of its keys and values: which part, and that answers stay the target's own."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from crossdraft.drafters.combine.cascade import CascadeDrafter
from crossdraft.drafters.ngram.drafter import NgramDrafter
from crossdraft.engine.drafter import Budget
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.prefill import prefill
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target
from crossdraft_lab.drafters.partial import PartialSettings
from crossdraft_lab.drafters.partial.drafter import BLOCK, PartialDrafter, kept_tokens, take
from tests.engine.zoo import ZOO, as_target

ALL, FEW = PartialSettings(blocks=99), PartialSettings(sinks=1, blocks=2, window=1)
FRAMES = torch.zeros(8, 28, 28, 3, dtype=torch.uint8).numpy()
QUESTIONS = ["What is the car in front doing? " * 12, "Is the light red? " * 20]


@pytest.fixture(scope="module")
def target(pair):
    return load_target(str(pair.target), "cpu", "float64", packed=False)


@pytest.fixture(scope="module")
def requests():
    return [Request(question, FRAMES, max_new_tokens=24) for question in QUESTIONS]


@pytest.fixture(scope="module")
def alone(target, requests):
    return [answer.tokens for answer in DecodeLoop(target).generate(requests)]


class Keeping(PartialDrafter):
    """Remembers the state of its last request."""

    def __init__(self, target, part):
        super().__init__(target, sorted(target.reserved), part)

    def _commit(self, state, output):
        super()._commit(state, output)
        self.last: Any = state


def chunk(token: int) -> Chunk:
    return Chunk(torch.tensor([token]))


def answers(target, drafter, requests, batch=1):
    return DecodeLoop(target, DraftRunner(drafter, "off"), adaptive=False, nodes=5, max_batch=batch).generate(requests)


def test_sinks_the_best_blocks_and_the_end_are_kept_by_hand():
    """One dimension, blocks of keys 0, 5, 1, -6, 2, 0, and 3 keys more. First and last stay; of the four in between a
    query of 1 likes 5 and 2 best, a query of -1 likes -6 and 1.
    """
    values = [0.0, 5.0, 1.0, -6.0, 2.0, 0.0]
    keys = torch.tensor([[value] for value in values for _ in range(BLOCK)] + [[9.0]] * 3)[None]
    part = PartialSettings(sinks=1, blocks=2, window=1)
    likes_large = kept_tokens(torch.tensor([[[1.0]]]), keys, part)[0].tolist()
    first, last = [*range(16)], [*range(80, 99)]
    assert likes_large == [*first, *range(16, 32), *range(64, 80), *last]
    likes_small = kept_tokens(torch.tensor([[[-1.0]]]), keys, part)[0].tolist()
    assert likes_small == [*first, *range(32, 64), *last]
    assert take(keys, torch.tensor([[16, 98]])).flatten().tolist() == [5, 9]


def test_a_block_scores_by_its_corners_and_heads_choose_for_themselves():
    """Two key heads of two query heads each; a block's largest and smallest keys count, not its mean (0 everywhere)."""
    keys = torch.zeros(2, 5 * BLOCK, 1)
    keys[0, BLOCK], keys[0, BLOCK + 1] = 3, -3
    keys[1, 3 * BLOCK], keys[1, 3 * BLOCK + 1] = 3, -3
    queries = torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None, None]
    kept = kept_tokens(queries, keys, PartialSettings(sinks=1, blocks=1, window=1))
    assert kept[0].tolist() == [*range(32), *range(64, 80)]
    assert kept[1].tolist() == [*range(16), *range(48, 80)]


def test_blocks_score_as_in_specpv_s_own_code():
    """Its `refresh_retrieval`: maxima and minima of each block, repeated for the query heads, the larger product."""
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(*size, generator=generator) for size in ((4, 5, 8), (2, 12 * BLOCK, 8)))
    kept = kept_tokens(queries, keys, PartialSettings(sinks=2, blocks=3, window=2))
    blocks = keys[:, 2 * BLOCK : 10 * BLOCK].reshape(2, 8, BLOCK, 8)
    most, least = (corner.repeat_interleave(2, 0) for corner in (blocks.max(2).values, blocks.min(2).values))
    products = (torch.einsum("hqd,hnd->hqn", queries, corner) for corner in (most, least))
    scores = torch.maximum(*products).mean(1).reshape(2, 2, 8).mean(1)
    best = scores.topk(3, dim=-1).indices.sort(-1).values
    for head in range(2):
        middle = [2 * BLOCK + int(block) * BLOCK + at for block in best[head] for at in range(BLOCK)]
        assert kept[head].tolist() == [*range(2 * BLOCK), *middle, *range(10 * BLOCK, 12 * BLOCK)]


def test_with_everything_kept_the_target_accepts_every_token(target, requests, alone):
    found = answers(target, PartialDrafter(target, sorted(target.reserved), ALL), requests)
    assert [answer.tokens for answer in found] == alone
    for answer in found:
        if not target.reserved & {*answer.tokens}:
            assert answer.stats.accepted == answer.stats.drafted > 0


@pytest.mark.parametrize("batch", [1, 2])
def test_with_few_blocks_answers_are_still_the_target_s_own(target, requests, alone, batch):
    found = answers(target, PartialDrafter(target, sorted(target.reserved), FEW), requests, batch)
    assert [answer.tokens for answer in found] == alone
    assert any(answer.stats.accepted < answer.stats.drafted for answer in found)


def test_its_keys_of_verified_tokens_are_the_target_s_own(target, requests):
    """After some rounds: what the drafter holds is a part of what the target's cache would."""
    request = requests[0]
    decoder = DecodeLoop(target, DraftRunner(keeping := Keeping(target, FEW), "off"), adaptive=False, nodes=5)
    answer = decoder.generate([request])[0]
    state = keeping.last
    prompt = target.prepare(request)
    length = len(prompt) + state.exact
    cache = target.new_cache(capacity=length + 8)
    prefill(target, cache, prompt, target.encode(prompt), length + 8)
    with torch.inference_mode():
        for token in answer.tokens[: state.exact]:
            target.extend(cache, [PassRow(0, chunk(token))])
    assert cache.rows == 1
    assert state.exact > 5
    whole, part = (one.span(0, 0, one.lengths[0]).layers for one in (cache, state.cache))
    count = len(state.prompt)
    for (keys, values), (few_keys, few_values) in zip(whole.values(), part.values(), strict=True):
        own = slice(len(prompt), len(prompt) + state.exact)
        assert torch.allclose(few_keys[:, count : count + state.exact], keys[:, own], atol=1e-9)
        assert torch.allclose(few_values[:, count : count + state.exact], values[:, own], atol=1e-9)
        assert torch.allclose(few_keys[:, :BLOCK], keys[:, :BLOCK], atol=1e-9)  # the sinks
        assert torch.allclose(few_keys[:, count - 8 : count], keys[:, len(prompt) - 8 : len(prompt)], atol=1e-9)


def test_keys_that_were_not_corrected_would_be_seen(target, requests, monkeypatch):
    """The planted bug: what a partial pass wrote stays."""
    monkeypatch.setattr(PartialDrafter, "_correct", lambda self, state, hidden: None)
    with pytest.raises(AssertionError):
        test_its_keys_of_verified_tokens_are_the_target_s_own(target, requests)


def test_a_cheaper_drafter_may_draft_for_it(target, requests, alone):
    """SpecPV's hierarchy: what the cascade drafts is what `partial` drafts."""
    partial = PartialDrafter(target, sorted(target.reserved), FEW)
    cascade = CascadeDrafter(partial, NgramDrafter())
    found = answers(target, cascade, requests)
    assert [answer.tokens for answer in found] == alone
    plain = answers(target, partial, requests)
    assert [answer.stats.accepted for answer in found] == [answer.stats.accepted for answer in plain]


def test_sampled_answers_and_forks(target, requests):
    drafter = PartialDrafter(target, sorted(target.reserved), FEW)
    sampled = replace(requests[0], sampling=Sampling(temperature=0.8, seed=3))
    found = answers(target, drafter, [sampled])[0]
    assert len(found.tokens)
    assert found.stats.lossless
    (state,) = drafter.begin([requests[0]])
    (other,) = drafter.fork([state])
    assert other.cache is not state.cache
    assert len(drafter.propose([other], [Budget(4)])[0].tree) == 0  # the target has not read the prompt


def test_positions_of_their_own_are_refused():
    with pytest.raises(CrossdraftError, match="plain positions"):
        PartialDrafter(as_target(*ZOO["qwen2_5_vl"]()))
