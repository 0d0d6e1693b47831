"""What a head draws, as the engine judges it: the target's own law, however far the head's is from it."""

import pytest
import torch
from scipy import stats

from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.rules import rule_for
from crossdraft.engine.sampling import Sampling, warp_tree
from crossdraft.heads.drafting.head_drafter import TREES, HeadDrafter
from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights

LAW = torch.tensor([0.05, 0.15, 0.3, 0.3, 0.2])
SEEDS = 2500


class Even(HeadDrafter[bool]):
    """Finds all five words equally likely, wherever it is asked."""

    def update(self, state, output: VerifyOutput) -> None:
        state.head_state = True

    def step_fn(self, head_state: bool):
        return lambda nodes, tokens, parents: torch.zeros(len(nodes), len(LAW))


def even(tree: str) -> Even:
    rows = torch.eye(len(LAW))
    config = HeadConfig(hidden_size=5, vocab_size=5, num_layers=2, draft_ids=tuple(range(5)))
    return Even(Head(config, SharedWeights(rows, rows)), TREES[tree])


def first_words(drafter: Even, nodes: int, judge_apart: int = 0) -> torch.Tensor:
    """How often each word comes first, over many seeds; the judge's stream begins at the request's seed."""
    counts = torch.zeros(len(LAW))
    for seed in range(SEEDS):
        sampling = Sampling(temperature=1.0, seed=seed)
        states = drafter.begin([Request("?", sampling=sampling)])
        drafter.commit(states, [VerifyOutput((), (0,))])
        tree = drafter.propose(states, [Budget(nodes)])[0].tree
        warped = warp_tree(LAW.log().expand(1 + len(tree), -1), tree, [0], sampling)
        judge = torch.Generator().manual_seed(seed + judge_apart)
        output = rule_for(None, sampling)(tree, warped, judge)
        counts[tree.tokens[output.path[0]] if output.path else output.bonus] += 1
    return counts


def pvalue(counts: torch.Tensor) -> float:
    return stats.chisquare(counts.numpy(), (SEEDS * LAW).numpy(), sum_check=False).pvalue


@pytest.mark.parametrize(("tree", "nodes"), [("chain", 1), ("dynamic", 3)])
def test_what_a_head_draws_follows_the_targets_law(tree, nodes):
    assert pvalue(first_words(even(tree), nodes)) > 1e-3


def test_one_stream_for_both_would_be_noticed():
    """The planted bug: the judge reads the numbers that the words were drawn by."""
    assert pvalue(first_words(even("chain"), 1, judge_apart=1)) < 1e-6
