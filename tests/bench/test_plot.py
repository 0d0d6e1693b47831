"""The picture shows the figures of the report: bars by hand, and intervals as error bars."""

from dataclasses import replace

import pytest

from crossdraft.drawing.save import check_picture
from crossdraft.drawing.svg import to_svg
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.plot import draw, title
from crossdraft_lab.bench.statistics import Interval
from crossdraft_lab.bench.summary import BenchReport

WORK = {"pairs": 12, "repeats": 3, "mean_tokens": 50.0}


def method(name, tau, speedups):
    means = {"verify": 0.25, "draft": 0.05}
    return {"name": name, "lossy": None, "lossless": True, "per": "answer", "speedups": speedups, "tau": tau,
            "against": "target-all" if speedups else None, "stage_means": means}  # fmt: skip


@pytest.fixture
def report():
    one = Interval(1.0, 1.0, 1.0, 12)
    return BenchReport(
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
        footprints={"target": {"total_mib": 500.0}, "union:event,memory": {"total_mib": 900.0}},
    )


def test_speedup_and_tau_stand_below_the_times_with_their_intervals(report):
    picture = to_svg(draw(report))
    for part in ("Speedup over target-all", "0.80 [0.70, 0.90; n=12]", "2.00 [1.50, 2.25; n=12]", "300", "900"):
        assert part in picture
    assert "5.00 [4.00, 7.50; n=12]" in picture
    assert "decode steps" in picture, "plain decoding is not called verifying"


def test_without_a_baseline_there_is_no_speedup_to_draw(report):
    alone = BenchReport({}, WORK, [method("ngram", Interval(1.5, 1.4, 1.6, 12), {})])
    assert "Speedup over" not in to_svg(draw(alone))
    assert title(alone) == "Time of an answer by method"


def test_the_title_says_what_won(report):
    assert title(report) == "union:event,memory: 2.00x as fast as target-all [1.50, 2.25; n=12], identical tokens"
    slow = replace(report, methods=report.methods[:1])
    assert title(slow) == "No method is faster than target-all"


def test_the_slowest_stands_on_top(report):
    quick = report.methods[1] | {"name": "quick", "stage_means": {"verify": 0.1}}
    picture = to_svg(draw(replace(report, methods=[quick, report.methods[0]])))
    assert picture.index(">target<") < picture.index(">quick<")


def test_other_endings_are_refused(tmp_path):
    check_picture(tmp_path / "a.svg")
    with pytest.raises(CrossdraftError, match=r"\.svg or \.png"):
        check_picture(tmp_path / "a.gif")
