"""The picture shows the figures of the report: bars by hand, and intervals as error bars."""

import pytest

from crossdraft.bench.footprint import Footprint
from crossdraft.bench.plot import draw, plot
from crossdraft.bench.statistics import Interval, Quartiles
from crossdraft.bench.suite import Report
from crossdraft.bench.summary import Method

WORK = {"pairs": 12, "repeats": 3, "mean_tokens": 50.0}


def method(name, tau, speedups):
    times = Quartiles(0.2, 0.1, 0.3)
    return Method(
        name, 12, 12, "answer", (), times, times, times, 100.0, speedups, "target-all" if speedups else None, tau, (),
        None, None, None, {"verify": times}, {"verify": 0.25, "draft": 0.05}, (),
    )  # fmt: skip


@pytest.fixture
def report():
    one = Interval(1.0, 1.0, 1.0)
    return Report(
        12,
        {},
        WORK,
        [
            method("target", one, {"target": one, "target-all": Interval(0.8, 0.7, 0.9)}),
            method(
                "union:event,memory",
                Interval(5.0, 4.0, 7.5),
                {"target": Interval(2.4, 2.0, 2.8), "target-all": Interval(2.0, 1.5, 2.25)},
            ),
        ],
        footprints={"target": Footprint(500.0), "union:event,memory": Footprint(500.0, 400.0)},
    )


def ends(axes):
    """From where to where the error bars reach, from the top row down."""
    segments = next(iter(axes.collections)).get_segments()
    return [(segment[0][0], segment[1][0]) for segment in segments][::-1]


def test_speedup_and_tau_stand_beside_the_times_with_their_intervals(report):
    times, speedup, tau, memory = draw(report).axes
    assert "speedup over target-all" in speedup.get_xlabel()
    assert [bar.get_width() for bar in speedup.patches][::-1] == [0.8, 2.0]
    assert ends(speedup) == [(0.7, 0.9), pytest.approx((1.5, 2.25))]
    assert [bar.get_width() for bar in memory.patches][::-1] == [500.0, 900.0]
    assert [bar.get_width() for bar in tau.patches][::-1] == [1.0, 5.0]
    assert ends(tau) == [(1.0, 1.0), (4.0, 7.5)]
    assert [text.get_text().strip() for text in times.texts] == ["300 ms", "300 ms"]
    assert [label.get_text() for label in times.get_yticklabels()] == ["union:event,memory", "target"]


def test_without_a_baseline_there_is_no_speedup_to_draw(report, tmp_path):
    alone = Report(12, {}, WORK, [method("ngram", Interval(1.5, 1.4, 1.6), {})])
    _, tau = draw(alone).axes
    assert tau.get_xlabel().startswith("τ")
    plot(alone, tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")
