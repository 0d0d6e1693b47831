"""The clock of a live source by the arrival of what it sends: anchors, jumps, drift."""

import numpy as np
import pytest

from crossdraft.streams.live.clock import ArrivalClock


@pytest.mark.parametrize(
    ("first_s", "at", "jumps"),
    [
        (100.0, 7.1, False),
        (99.999, 7.1, True),  # falls
        (102.05, 7.1, False),
        (102.2, 7.1, True),  # runs ahead by more than 2 s
        (160.0, 67.0, False),  # silence, here and there
        (100.5, 60.0, False),  # stutters: late, which is no jump
    ],
)
def test_a_fall_or_a_leap_begins_a_new_segment(first_s, at, jumps):
    clock = ArrivalClock()
    clock.saw(99.0, 100.0, at=7.0)
    assert clock.saw(first_s, first_s + 0.01, at) == jumps
    assert clock.segments == 1 + jumps
    if jumps:
        assert clock.source_s(at) == pytest.approx(first_s + 0.01)


@pytest.mark.parametrize(("behind_s", "segments"), [(1.9, 1), (16.8, 2)])
def test_a_clock_that_stays_behind_is_measured_anew(behind_s, segments):
    """A camera that was away, whose decoder counts wraps of its clock anew; a backlog is gone within `LATE_S`."""
    clock = ArrivalClock()
    clock.saw(10.0, 10.0, at=0.0)
    for step in range(60):
        clock.saw(40.0 + step / 10, 40.0 + step / 10, at=30.0 + behind_s + step / 10)
        assert step > 50 or clock.segments == 1
    assert clock.segments == segments
    assert clock.source_s(36.0) == pytest.approx(46.0 - (behind_s if segments > 1 else 0.0))


def test_the_first_two_seconds_tell_the_offset_by_the_least_delay():
    """What waited somewhere is late: of that the newest counts."""
    clock = ArrivalClock()
    for source_s, at, offset_s in (
        (100.0, 7.0, 100.0), (101.5, 8.0, 100.5), (101.7, 8.5, 100.5), (102.6, 9.0, 100.6), (103.3, 9.01, 100.6),
    ):  # fmt: skip
        assert clock.saw(source_s - 0.1, source_s, at) == (at == 7.0)
        assert clock.source_s(7.0) == pytest.approx(offset_s)
    assert clock.saw(50.0, 50.0, at=20.0)
    assert (clock.segments, clock.source_s(20.0)) == (2, 50.0)


def test_a_jump_is_seen_in_the_first_time_of_what_arrives_and_none_follows_it_at_once():
    clock = ArrivalClock()
    clock.saw(99.0, 100.0, at=7.0)
    assert not clock.saw(100.1, 103.0, at=7.1)  # three seconds at once, the first of which are due
    for step in range(52):
        clock.saw(130.0 + step / 10, 130.0 + step / 10, at=43.0 + step / 10)
    assert clock.segments == 2  # with the last one, for all came late since 43 s
    assert not clock.saw(136.0, 136.0, at=55.0)  # late again, only now


def test_catching_up_is_no_jump():
    clock = ArrivalClock()
    for second in range(10):
        clock.saw(second, second, at=float(second))
    clock.saw(10.0, 10.0, at=14.0)  # stood somewhere, and the rest was lost
    assert not clock.saw(14.1, 14.1, at=14.1)
    clock.saw(15.0, 15.0, at=19.0)
    assert not clock.saw(20.0, 20.0, at=20.0)
    assert not clock.saw(21.0, 21.0, at=25.0)  # late again, but not since 14 s


@pytest.mark.parametrize("rate", [0.999, 1.001])
def test_drift_is_never_beyond_the_jump(rate):
    clock = ArrivalClock()
    for second in range(6000):
        clock.saw(second * rate, second * rate, at=float(second))
        assert abs(clock.source_s(second) - second * rate) <= 2.01
    assert clock.segments in (3, 4)


@pytest.mark.parametrize("ppm", [-120.0, 0.0, 80.0])
def test_drift_is_measured_in_spite_of_waits_of_the_network(ppm):
    clock, rng = ArrivalClock(), np.random.default_rng(3)
    for step in range(6000):  # 60 s
        second = step / 100
        clock.saw(second, second, at=5.0 + second * (1 + ppm / 1e6) + rng.exponential(0.004))
        if step == 2000:
            assert clock.drift_ppm is None  # too short
    assert clock.drift_ppm == pytest.approx(ppm, abs=15)
    clock.saw(0.0, 0.0, at=70.0)
    assert clock.drift_ppm is None  # a segment of its own
