"""Warping equals transformers' own logits processors, at every node; tokens are drawn from its distribution."""

import math
from collections import Counter
from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from crossdraft.engine.sampling import Sampling, sample_children, sample_one, warp, warp_tree
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

VOCABULARY = 12


def random_logits(rows: int, seed: int) -> Tensor:
    return 3 * torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))


class Counted(LogitsProcessor):
    """OpenAI's formula, token by token: minus frequency times count, minus presence if there is one."""

    def __init__(self, presence: float, frequency: float, prompt: int) -> None:
        self.presence, self.frequency, self.prompt = presence, frequency, prompt

    def __call__(self, input_ids, scores):
        for row, ids in zip(scores, input_ids[:, self.prompt :].tolist(), strict=True):
            for token, count in Counter(ids).items():
                row[token] -= self.frequency * count + self.presence
        return scores


def reference(logits: Tensor, sampling: Sampling, seen: list[int], prompt: int | None = None) -> Tensor:
    """[V] scores by transformers' processors, in the order in which `generate` applies them."""
    chain = LogitsProcessorList()
    if sampling.logit_bias:
        chain.append(SequenceBiasLogitsProcessor([[[token], float(bias)] for token, bias in sampling.logit_bias]))
    if sampling.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if prompt is not None:
        chain.append(Counted(sampling.presence_penalty, sampling.frequency_penalty, prompt))
    if not sampling.greedy:
        chain.append(TemperatureLogitsWarper(sampling.temperature))
        if sampling.top_k:
            chain.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            chain.append(TopPLogitsWarper(sampling.top_p))
        if sampling.min_p:
            chain.append(MinPLogitsWarper(sampling.min_p))
    scores = chain(torch.tensor([seen]), logits[None].clone())[0]  # pyright: ignore[reportArgumentType]
    return scores if sampling.greedy else scores.softmax(-1)


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.integers(0, 2 * VOCABULARY),
    top_p=st.floats(0.05, 1),
    min_p=st.floats(0, 0.5),
    repetition_penalty=st.sampled_from([1.0, 0.8, 1.5]),
    presence_penalty=st.sampled_from([0.0, -1.5, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.3, 2.0]),
    logit_bias=st.dictionaries(st.integers(0, VOCABULARY - 1), st.floats(-5, 5), max_size=3).map(
        lambda bias: tuple(bias.items())
    ),
)
seens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6)


@given(samplings, seens, st.integers(0, 1000))
def test_warp_equals_transformers(sampling, seen, seed):
    logits = random_logits(1, seed)[0]
    torch.testing.assert_close(warp(logits, sampling, seen), reference(logits, sampling, seen), rtol=1e-6, atol=1e-7)


@given(
    samplings,
    seens,
    st.integers(0, 1000),
    st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=4), max_size=4),
    st.integers(0, 6),
)
def test_every_node_is_warped_as_its_own_path_would_be(sampling, context, seed, paths, prompt):
    tree = DraftTree.from_paths([path for path in paths if path])
    logits = random_logits(1 + len(tree), seed)
    warped = warp_tree(logits, tree, context, sampling, context[prompt:])
    for node in range(-1, len(tree)):
        expected = reference(logits[node + 1], sampling, [*context, *tree.path_tokens(node)], min(prompt, len(context)))
        torch.testing.assert_close(warped[node + 1], expected, rtol=1e-6, atol=1e-7)


def test_a_sibling_is_not_penalised_by_its_brother():
    """By hand: logits 2 everywhere, penalty 2, context [0], siblings 1 and 2."""
    tree = DraftTree(tokens=(1, 2), parents=(-1, -1))
    warped = warp_tree(torch.full((3, 4), 2.0), tree, [0], Sampling(repetition_penalty=2.0))
    assert warped.tolist() == [[1, 2, 2, 2], [1, 1, 2, 2], [1, 2, 1, 2]]


def test_a_token_is_penalised_by_its_count_on_its_own_path():
    """By hand: logits 2 everywhere, the answer [1], a chain 1, 2 and its sibling 3; the prompt's 0 does not count."""
    tree = DraftTree(tokens=(1, 2, 3), parents=(-1, 0, -1))
    sampling = Sampling(presence_penalty=1, frequency_penalty=0.5)
    warped = warp_tree(torch.full((4, 5), 2.0), tree, [0, 1], sampling, [1])
    assert warped.tolist() == [[2, 0.5, 2, 2, 2], [2, 0, 2, 2, 2], [2, 0, 0.5, 2, 2], [2, 0.5, 2, 0.5, 2]]


def test_greedy_ignores_the_filters_and_copies_nothing():
    logits = random_logits(3, 0)
    assert warp(logits, Sampling(top_k=1, top_p=0.1, min_p=0.9)) is logits


@pytest.mark.parametrize(("dtype", "expected"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_probabilities_have_at_least_float32(dtype, expected):
    probs = warp(random_logits(2, 1).to(dtype), Sampling(temperature=1.0))
    assert probs.dtype == expected
    torch.testing.assert_close(probs.sum(-1), torch.ones(2, dtype=expected))


def test_a_forbidden_token_has_probability_zero():
    assert warp(torch.zeros(4), Sampling(temperature=1.0, logit_bias=((2, -math.inf),)))[2] == 0


def test_placeholders_beyond_the_head_are_not_penalised():
    logits = random_logits(1, 2)[0]
    sampling = Sampling(repetition_penalty=1.5)
    assert torch.equal(warp(logits, sampling, [3, VOCABULARY + 7]), warp(logits, sampling, [3]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": 1e-9},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": math.inf},
        {"presence_penalty": 2.1},
        {"frequency_penalty": -math.inf},
        {"logit_bias": ((-1, 1.0),)},
        {"logit_bias": ((3, math.inf),)},
        {"logit_bias": ((3, math.nan),)},
        {"logit_bias": ((3, 1.0), (3, 2.0))},
        {"seed": -1},
        {"seed": 2**63},
    ],
)
def test_a_number_out_of_range_is_refused_by_name(wrong):
    with pytest.raises(CrossdraftError, match=f"^{next(iter(wrong))} is .*; it must be "):
        Sampling(**wrong)


def test_a_bias_beyond_the_vocabulary_is_refused():
    with pytest.raises(CrossdraftError, match="token 12, but the vocabulary has 12 tokens"):
        warp(random_logits(1, 0), Sampling(logit_bias=((12, 1.0),)))


# -- drawing ---------------------------------------------------------------------------------------------------------

WEIGHTS = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_sample_one_follows_its_weights_and_never_takes_a_zero():
    source = generator()
    counts = torch.bincount(torch.tensor([sample_one(7 * WEIGHTS, source) for _ in range(20_000)]), minlength=5)
    assert counts[1] == 0
    support = WEIGHTS > 0
    wanted = 20_000 * WEIGHTS[support].double()
    assert stats.chisquare(counts[support].numpy(), wanted.numpy(), sum_check=False).pvalue > 1e-3


def test_sample_one_stays_inside_at_both_ends_of_the_sum(monkeypatch):
    for edge, token in ((0.0, 1), (1.0, 2)):
        monkeypatch.setattr(torch, "rand", lambda *_, edge=edge, **__: torch.tensor(edge, dtype=torch.float64))
        assert sample_one(torch.tensor([0.0, 0.4, 0.6, 0.0]), generator()) == token


@pytest.mark.parametrize("broken", [[math.nan, 1.0], [0.0, 0.0], [math.inf, 1.0]])
def test_broken_weights_are_named_plainly(broken):
    with pytest.raises(CrossdraftError, match="not finite"):
        sample_one(torch.tensor(broken), generator())


def without_replacement(order: tuple[int, ...]) -> float:
    """P(the draws come in this order) = w_1/W · w_2/(W - w_1) · …"""
    probability, left = 1.0, WEIGHTS.double().sum().item()
    for token in order:
        probability *= WEIGHTS[token].item() / left
        left -= WEIGHTS[token].item()
    return probability


@pytest.mark.parametrize("k", [1, 2, 3])
def test_sample_children_draws_without_replacement(k):
    """All ordered outcomes of 10^6 draws; the same frequencies must not fit the reversed order."""
    draws = 10**6
    children = sample_children(WEIGHTS.expand(draws, -1), k, generator(3))
    orders = list(permutations((0, 2, 3, 4), k))
    keys = (children * 5 ** torch.arange(k)).sum(-1)
    counts = [int((keys == sum(token * 5**i for i, token in enumerate(order))).sum()) for order in orders]
    wanted = [draws * without_replacement(order) for order in orders]
    assert sum(counts) == draws
    assert stats.chisquare(counts, wanted, sum_check=False).pvalue > 1e-3
    if k > 1:
        reversed_ = [draws * without_replacement(order[::-1]) for order in orders]
        assert stats.chisquare(counts, reversed_, sum_check=False).pvalue < 1e-6


def test_sample_children_gives_fewer_where_the_support_is_smaller():
    children = sample_children(WEIGHTS, 10, generator())
    assert sorted(children.tolist()) == [0, 2, 3, 4]


def test_the_same_seed_draws_the_same():
    assert torch.equal(sample_children(WEIGHTS, 3, generator(9)), sample_children(WEIGHTS, 3, generator(9)))
    assert sample_one(WEIGHTS, generator(9)) == sample_one(WEIGHTS, generator(9))
