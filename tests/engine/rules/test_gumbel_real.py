"""`gumbel` on the reference target's own logits: over seeds, the first three tokens follow its distribution."""

from functools import cache

import pytest
import torch
from scipy import stats
from torch import Tensor

from crossdraft.engine.noise import Noise
from crossdraft.engine.reference import full_forward
from crossdraft.engine.request import Request
from crossdraft.engine.rules import RULES
from crossdraft.engine.sampling import Sampling, warp
from crossdraft.engine.tree import DraftTree
from crossdraft.load import load_target

SETTINGS = {"temperature 1": Sampling(temperature=1.0), "top-p 0.9": Sampling(temperature=1.0, top_p=0.9)}
PLACES = 3
LEAST = 5.0  # expected tokens of a cell of a chi-square; rarer tokens are one cell


@pytest.fixture(scope="module")
def distribution():
    """The target's distribution after a beginning of its answer, by a full pass over prompt and beginning."""
    target = load_target("reference", "cpu", "float32")
    prompt = target.prepare(Request(messages=[{"role": "user", "content": "What is the car in front doing?"}]))

    @cache
    def logits(before: tuple[int, ...]) -> Tensor:
        with torch.inference_mode():
            return full_forward(target, prompt, before)

    return lambda before, sampling: warp(logits(before), sampling)


def p_values(distribution, sampling: Sampling, seeds: int, verify) -> list[float]:
    """Of each place, given the tokens before it: p of a chi-square over all seeds."""
    texts: list[tuple[int, ...]] = [()] * seeds
    found: list[float] = []
    for place in range(PLACES):
        wanted, counts = torch.zeros(()), torch.zeros(())
        for seed, text in enumerate(texts):
            dist = distribution(text, sampling)
            token = verify(DraftTree.empty(), dist[None], Noise(seed, place)).bonus
            wanted = wanted + dist.double()
            counts = counts + torch.eye(1, len(dist), dtype=torch.float64)[0].roll(token)
            texts[seed] = (*text, token)
        often = wanted >= LEAST
        cells = [torch.cat((one[often], one[~often].sum()[None])) for one in (counts, wanted)]
        kept = cells[1] > 0
        found.append(float(stats.chisquare(*(cell[kept].numpy() for cell in cells), sum_check=False).pvalue))
    return found


@pytest.mark.parametrize("name", SETTINGS)
def test_real_tokens_follow_the_targets_distribution(distribution, name):
    assert min(p_values(distribution, SETTINGS[name], 150, RULES["gumbel"].verify)) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_real_tokens_follow_the_targets_distribution_over_2000_seeds(distribution, name, record_property):
    found = p_values(distribution, SETTINGS[name], 2_000, RULES["gumbel"].verify)
    record_property(name, found)
    print(name, found)  # noqa: T201 - what a reader asks for
    assert min(found) > 1e-3


def test_another_distribution_would_be_noticed(distribution):
    """The planted bug: the noise draws from a colder distribution."""

    def colder(tree, probs, noise):
        return RULES["gumbel"].verify(tree, probs**2 / (probs**2).sum(), noise)

    assert min(p_values(distribution, Sampling(temperature=2.0), 150, colder)) < 1e-3
