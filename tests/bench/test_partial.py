"""The target over a part of its keys, on longer and longer prompts."""

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.partial import PartialBench, PartialResult, compare_partial
from crossdraft_lab.bench.statistics import Interval
from crossdraft_lab.drafters.settings import PartialSettings


@pytest.mark.parametrize("options", [{"pairs": 0}, {"nodes": 0}, {"frames": (0,)}])
def test_what_cannot_be_measured_is_refused(options):
    with pytest.raises(CrossdraftError, match="The number of"):
        PartialBench(Models("nowhere"), **options)


def test_the_computed_speedup_by_hand():
    """5 tokens a round: alone 5 passes of 2 ms; with the draft a verify pass of 4 ms and 6 drafted tokens of 1 ms."""
    row = PartialResult(
        1000,
        224,
        3,
        3,
        tau=Interval(5.0, 4.0, 6.0, 3),
        refused=Interval(0.1, 0.0, 0.2, 3),
        lossy_own=2,
        lossy_tau=Interval(7.0, 6.0, 8.0, 3),
        lossy_rouge_l=Interval(0.9, 0.8, 1.0, 3),
        drafted=6.0,
        one_ms=2.0,
        verify_ms=4.0,
        step_ms=1.0,
        faster=Interval(0.75, 0.7, 0.8, 3),
    )
    assert row.speedup == pytest.approx(1.0)
    assert row.to_json()["computed_speedup"] == 1.0


def test_longer_prompts_than_the_context_are_measured_and_answers_stay_the_target_s(pair):
    models = Models(str(pair.target), device="cpu", dtype="float32")
    plan = PartialBench(models, (2, 130), 2, 4, PartialSettings(sinks=1, blocks=2, window=1), max_new_tokens=16)
    ticks = []
    short, long = compare_partial(plan, models.load_target(), ticks.append)
    assert len(ticks) == plan.runs == 12
    assert long.prompt - short.prompt == 128 * 5  # features of a frame of the tiny pair
    assert long.prompt > 512  # its context
    assert long.kept < 5 * 16 < long.prompt
    assert all(row.own == row.total == 2 for row in (short, long))
    assert short.lossy_own == 2  # all is kept, so nothing is lost
    assert (short.lossy_rouge_l.value, short.lossy_rouge_l.n) == (1, 2)
    assert long.lossy_tau.value > long.tau.value  # a token that would have been refused stood
    assert long.lossy_rouge_l.value < 1
    assert short.tau.value > long.tau.value > 1  # of the short one all is kept, so nothing is refused
    assert all(min(row.one_ms, row.faster.value) > 0 for row in (short, long))
