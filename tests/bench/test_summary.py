"""From runs to figures: exact by hand, and a method that is not lossless must be caught."""

from dataclasses import replace

import pytest

from crossdraft.api import Engine, Options
from crossdraft.bench.contestants import EngineContestant, Models
from crossdraft.bench.divergence import first_difference
from crossdraft.bench.measure import Results, Run, measure
from crossdraft.bench.report import method_json
from crossdraft.bench.summary import summarise
from crossdraft.bench.workload import Workload, items
from crossdraft.engine.cost import CostModel


@pytest.fixture(scope="module")
def target(pair):
    return Models(
        str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32"
    ).load_target()


@pytest.fixture(scope="module")
def pairs():
    return list(items(Workload(pairs=2, max_new_tokens=12)))


class Lossy:
    """A contestant that writes one wrong token at a known place of its second answer."""

    def __init__(self, honest, place):
        self.honest, self.place, self.calls = honest, place, 0

    def answer(self, item):
        run = self.honest.answer(item)
        self.calls += 1
        if self.calls != 2:
            return run
        wrong = [*run.tokens]
        wrong[self.place] = (wrong[self.place] + 1) % 200
        return replace(run, tokens=tuple(wrong))

    def close(self):
        pass


def test_a_planted_lossy_method_is_reported(target, pairs):
    own = EngineContestant(Engine(target, None, Options(), CostModel()))
    results = measure({"target": own, "lossy": Lossy(own, 5)}, pairs, 1)
    honest, lossy = summarise(results, pairs, target)
    assert (honest.equal, honest.total, honest.lossless) == (2, 2, True)
    assert (lossy.equal, lossy.total, lossy.lossless) == (1, 2, False)
    divergence = lossy.divergences[0]
    assert (divergence.seed, divergence.position) == (pairs[1].seed, 5)
    assert divergence.gap > 0
    assert method_json(lossy)["identical"] == {"equal": 1, "total": 2}
    assert method_json(lossy)["lossless"] is False


def test_figures_by_hand(target, pairs):
    tokens = (5, 6, 7, 8)
    alone = Run(tokens, 4.0, 1.0, {"prefill": 1.0, "verify": 3.0}, rounds=4, accepted=0, reading_s=1.0)
    method = Run(
        tokens,
        2.0,
        1.1,
        {"prefill": 1.1, "verify": 0.9},
        rounds=2,
        accepted=2,
        accepted_at=(1, 1),
        offered_at=(2, 1),
        reading_s=1.1,
        hidden_drafting_s=1.0,
        hidden_inside_s=0.9,
        rounds_s=0.9,
        overhead_s=0.09,
    )
    results = Results({"target": [[alone], [alone]], "event": [[method], [method]]})
    _, found = summarise(results, pairs, target)
    assert found.speedups["target"].value == pytest.approx(2)
    assert found.tau == pytest.approx(2)
    assert found.per_position == pytest.approx((0.5, 1.0))
    assert found.hidden_share == pytest.approx(0.9)
    assert found.prefill_slowdown == pytest.approx(0.1)
    assert found.overhead_share == pytest.approx(0.1)
    assert found.tokens_per_s == pytest.approx(2)
    assert found.ttft.median == pytest.approx(1.1)
    assert sum(found.stage_means.values()) == pytest.approx(2)


def test_sampled_tokens_are_not_compared(target):
    pairs = list(items(Workload(pairs=1, temperature=1.0)))
    one, other = (Run(tokens, 1.0, 0.5, {"other": 1.0}, rounds=1, accepted=0) for tokens in ((1, 2), (3, 4)))
    _, found = summarise(Results({"target": [[one]], "hf": [[other]]}), pairs, target)
    assert found.equal is None
    assert method_json(found)["identical"] is None


@pytest.mark.parametrize(
    ("left", "right", "place"), [([1, 2, 3], [1, 5, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [1], 0)]
)
def test_first_difference(left, right, place):
    assert first_difference(left, right) == place
