"""Targets that read fewer visual tokens, alone and drafted for."""

import pytest

from crossdraft.bench.assembly import Models
from crossdraft.bench.compression import CompressionBench, compare_compressions
from crossdraft.bench.workload import Workload
from crossdraft.errors import CrossdraftError


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"compressions": ["fastv", "fastv"]}, "named twice"),
        ({"compressions": ["fastw"]}, "did you mean 'fastv'"),
        ({"compressions": ["pool:factor=0"]}, "a whole number of 2 or more"),
        ({"drafter": "eaglevml"}, "did you mean 'eaglevlm'"),
        ({"nodes": 0}, "number of nodes"),
    ],
)
def test_what_cannot_be_compared_is_refused_first(options, part):
    with pytest.raises(CrossdraftError, match=part):
        CompressionBench(Models("nowhere"), Workload(2), **options)


def test_drafting_is_lossless_to_each_target(pair):
    models = Models(str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32")
    plan = CompressionBench(
        models, Workload(pairs=2, max_new_tokens=16), ["fastv:layer=1,keep=0.5", "pool"], "event", nodes=6
    )
    ticks = []
    found = compare_compressions(plan, models.load_target(), ticks.append)
    assert len(ticks) == plan.runs == 18
    assert [(row.target, row.drafter) for row in found] == [
        (name, drafter) for name in ("target", "fastv:layer=1,keep=0.5", "pool") for drafter in (None, "event")
    ]
    assert [row.lossless for row in found] == [True, True, False, False, False, False]
    assert all(row.own == row.total == 2 for row in found)
    assert all(row.tau.value == 1 for row in found if row.drafter is None)
    prompts = [row.prompt_tokens for row in found]
    assert prompts[0] == prompts[2] > prompts[4]
    assert found[0].facts_gained.value == 0
