"""Event drafters on long recordings."""

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.recordings import RecordingsBench, compare_recordings


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"drafters": ["event", "event"]}, "named twice"),
        ({"drafters": ["evnt"]}, "did you mean 'event'"),
        ({"clips": 0}, "number of clips"),
        ({"seconds": [0.5]}, "from 1 to 60 s"),
        ({"seconds": []}, "No length of recordings is named"),
        ({"clips": 10**9}, r"1000000000 from 0 on are not all in it"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
    ],
)
def test_what_cannot_be_compared_is_refused_first(options, part):
    with pytest.raises(CrossdraftError, match=part):
        RecordingsBench(Models("nowhere"), **options)


def test_a_second_is_filled_in_one_way_only():
    plan = RecordingsBench(Models("nowhere"), seconds=[1.0, 4.0], clips=3, questions=2)
    assert plan.recordings == [(1.0, "spread"), (4.0, "spread"), (4.0, "at its own speed")]
    assert plan.runs == 3 * 3 * 2


def test_drafters_are_compared_on_the_same_questions(pair):
    models = Models(str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32")
    plan = RecordingsBench(
        models, [1.0, 2.0], clips=1, questions=2, drafters=["event", "event:slices=10"], nodes=6,
        max_new_tokens=12,
    )  # fmt: skip
    ticks = []
    found = compare_recordings(plan, models.load_target(), ticks.append)
    assert len(ticks) == plan.runs == 6
    ways = [(row["seconds"], row["way"]) for row in found[::2]]
    assert ways == [(1, "spread"), (2, "spread"), (2, "at its own speed")]
    assert [row["drafter"] for row in found[:2]] == list(plan.drafters)
    assert all(0 <= row["accepted_at_equal_time"].value <= row["accepted"].value <= 6 for row in found)
    own = [row for row in found if row["drafter"] == "event"]
    assert all(row["accepted_at_equal_time"] == row["accepted"] and row["gained"].value == 0 for row in own)
    first, other = (row["accepted_at_equal_time"].value for row in found[:2])
    assert found[1]["gained"].value == pytest.approx(other - first)
    assert found[0]["accepted"].value > 0


def test_a_drafter_that_has_nothing_to_say_at_first_is_refused(pair):
    models = Models(str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32")
    plan = RecordingsBench(models, [1.0], clips=1, questions=1, drafters=["event", "memory"], nodes=4, max_new_tokens=4)
    with pytest.raises(CrossdraftError, match="'memory' drafts nothing before the target has spoken"):
        compare_recordings(plan, models.load_target())
