"""Sampled drafts, verified: the target's own distribution, whatever the head's."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from scipy import stats

from crossdraft.engine.accept import Acceptance
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.noise import Noise
from crossdraft.engine.request import Request
from crossdraft.engine.rules import RULES, rule_for
from crossdraft.engine.sampling import Sampling, warp_tree
from crossdraft.heads.drafting.head_drafter import TREES, HeadDrafter
from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights

TARGET_PROBS = torch.tensor([0.05, 0.15, 0.3, 0.3, 0.2])
SEEDS = 1000


class Even(HeadDrafter[bool]):
    """Uniform over five tokens, everywhere."""

    def update(self, state, output: VerifyOutput, hidden) -> None:
        state.head_state = True

    def step_fn(self, head_state: bool):
        return lambda nodes, tokens, parents, depth: torch.zeros(len(nodes), len(TARGET_PROBS))


def even(tree: str) -> Even:
    rows = torch.eye(len(TARGET_PROBS))
    config = HeadConfig(hidden_size=5, vocab_size=5, num_layers=2, draft_ids=tuple(range(5)))
    return Even(Head(config, SharedWeights(rows, rows)), TREES[tree])


def first_tokens(drafter: Even, nodes: int, rule: str | None, seed_of: Callable[[int], int | None]) -> torch.Tensor:
    """How often each token is emitted first, over many seeds; `seed_of` one is what the drafter is told."""
    counts = torch.zeros(len(TARGET_PROBS))
    for seed in range(SEEDS):
        sampling = Sampling(temperature=1.0, seed=seed_of(seed))
        states = drafter.begin([Request("?", sampling=sampling)])
        drafter.commit(states, [VerifyOutput((), (0,))])
        tree = drafter.propose(states, [Budget(nodes)])[0].tree
        warped = warp_tree(TARGET_PROBS.log().expand(1 + len(tree), -1), tree, [0], sampling)
        output = rule_for(rule, sampling)(tree, warped, Noise(seed, 1))
        counts[tree.tokens[output.path[0]] if output.path else output.bonus] += 1
    return counts


def pvalue(counts: torch.Tensor) -> float:
    return stats.chisquare(counts.numpy(), (SEEDS * TARGET_PROBS).numpy(), sum_check=False).pvalue


@pytest.mark.parametrize(("rule", "seed_of"), [("gumbel", int), ("rejection", lambda seed: None)])
@pytest.mark.parametrize(("tree", "nodes"), [("chain", 1), ("dynamic", 3)])
def test_sampled_drafts_leave_the_targets_distribution_unchanged(tree, nodes, rule, seed_of):
    assert pvalue(first_tokens(even(tree), nodes, rule, seed_of)) > 1e-5  # without a seed it is drawn anew each time


def test_a_rule_that_trusts_the_noise_of_the_draft_would_be_noticed(monkeypatch):
    """The planted bug: what was drawn with the noise from the drafter's distribution is taken for the target's."""
    trusting = replace(RULES["gumbel"], verify=lambda tree, probs, noise: Acceptance((0,), 0))
    monkeypatch.setattr("crossdraft.engine.rules.RULES", {**RULES, "gumbel": trusting})
    assert pvalue(first_tokens(even("chain"), 1, "gumbel", int)) < 1e-6
