"""The picture shows the figures of the report: bars by hand, and intervals as error bars."""

from dataclasses import replace
from itertools import combinations

import pytest

from crossdraft.cli.outputs import check_plot
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.plot import draw, plot, title
from crossdraft_lab.bench.statistics import Interval, Quartiles
from crossdraft_lab.bench.suite import BenchReport, Footprint
from crossdraft_lab.bench.summary import MethodSummary

WORK = {"pairs": 12, "repeats": 3, "mean_tokens": 50.0}


def method(name, tau, speedups):
    times = Quartiles(0.2, 0.1, 0.3)
    return MethodSummary(
        name, 12, 12, "answer", (), times, times, times, 100.0, speedups, "target-all" if speedups else None, tau, (),
        None, None, None, {"verify": times}, {"verify": 0.25, "draft": 0.05}, (),
    )  # fmt: skip


@pytest.fixture
def report():
    one = Interval(1.0, 1.0, 1.0, 12)
    return BenchReport(
        12,
        {},
        WORK,
        [
            method("target", one, {"target": one, "target-all": Interval(0.8, 0.7, 0.9, 12)}),
            method(
                "union:event,memory",
                Interval(5.0, 4.0, 7.5, 12),
                {"target": Interval(2.4, 2.0, 2.8, 12), "target-all": Interval(2.0, 1.5, 2.25, 12)},
            ),
        ],
        footprints={"target": Footprint(500.0), "union:event,memory": Footprint(500.0, 400.0)},
    )


def ends(axes):
    """From where to where the error bars reach, from the top row down."""
    segments = next(iter(axes.collections)).get_segments()
    return [(segment[0][0], segment[1][0]) for segment in segments][::-1]


def test_speedup_and_tau_stand_next_to_the_times_with_their_intervals(report):
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
    alone = BenchReport(12, {}, WORK, [method("ngram", Interval(1.5, 1.4, 1.6, 12), {})])
    _, tau = draw(alone).axes
    assert tau.get_xlabel().startswith("τ")
    assert title(alone) == "Time of an answer by method"
    plot(alone, tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_svg_is_written_too_and_is_the_same_every_time(report, tmp_path):
    for name in ("a.svg", "b.svg"):
        plot(report, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    check_plot(tmp_path / "a.svg")
    with pytest.raises(CrossdraftError, match=r"\.png or \.svg"):
        check_plot(tmp_path / "a.gif")


def test_the_title_says_what_won(report):
    assert title(report) == "union:event,memory: 2.00x as fast as target-all [1.50, 2.25; n=12], identical tokens"
    slow = replace(report, methods=report.methods[:1])
    assert title(slow) == "No method is faster than target-all"


def test_the_slowest_stands_on_top_and_plain_decoding_is_not_called_verifying(report):
    quick = replace(report.methods[1], name="quick", stage_means={"verify": 0.1})
    times, *_ = draw(replace(report, methods=[quick, report.methods[0]])).axes
    assert [label.get_text() for label in times.get_yticklabels()] == ["quick", "target"]
    assert {"decode steps", "verify"} <= set(times.get_legend_handles_labels()[1])


def test_a_wide_interval_does_not_stretch_the_axis(report):
    wide = replace(report.methods[1], tau=Interval(5.0, 4.0, 500.0, 12))
    tau = draw(replace(report, methods=[report.methods[0], wide], footprints={})).axes[-1]
    assert tau.get_xlim()[1] < 20


def test_figures_stand_next_to_each_other_and_not_over_each_other(report):
    figure = draw(report)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for axes in figure.axes for text in axes.texts]
    assert len(boxes) == 8
    for one, other in combinations(boxes, 2):
        assert not one.overlaps(other)
