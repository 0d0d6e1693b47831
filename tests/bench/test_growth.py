"""Growth curves: small points on small models, and the arithmetic by hand."""

import json

import pytest

from crossdraft.cli.main import main
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.growth import (
    SIZES,
    Case,
    GrowthResult,
    Point,
    Side,
    Way,
    chosen,
    growth_table,
    peak_of,
    run_case,
    run_curve,
    sizes,
)
from crossdraft_lab.bench.growth_curves import CURVES, make_curve
from crossdraft_lab.bench.growth_plot import draw_growth, plot_growth

SMALL = {"frames": (1, 2), "prompt": (20, 50), "answer": (3, 6), "requests": (1, 3), "memory": (500, 1000)}


@pytest.mark.parametrize("of", [name for name in SIZES if name != "memory"])
def test_both_sides_say_the_same(of, pair):
    found = run_curve(make_curve(of, SMALL[of], Models(str(pair.target), device="cpu", dtype="float32")), 1)
    assert [point.size for point in found.points] == list(SMALL[of])
    assert all(point.identical for point in found.points)
    assert all(side is not None and side.seconds > 0 for point in found.points for side in (point.ours, point.hf))


def test_random_weights_are_named(pair):
    models = Models(str(pair.target), device="cpu", dtype="float32")
    weights = {of: make_curve(of, SMALL[of], models).weights for of in ("frames", "prompt", "answer")}
    assert [of for of, words in weights.items() if "random weights" in words] == ["frames", "prompt"]


def test_a_memory_and_a_lookup():
    found = run_curve(make_curve("memory", SMALL["memory"], Models()), 1)
    assert [point.hf.bytes for point in found.points] == [4000, 8000]
    assert all(point.identical is None for point in found.points)
    assert found.points[0].ours.bytes < found.points[1].ours.bytes


def test_another_answer_shows():
    """A planted fault: the last token of one of two answers."""
    point = run_case(Case(2, Way(lambda: [[1, 2], [3]]), Way(lambda: [[1, 2], [4]])), 1)
    assert point.identical is False
    assert run_case(Case(2, Way(lambda: [[1], [3]]), Way(lambda: [(1,), (3,)])), 1).identical is True


def test_the_peak_is_that_of_the_run():
    peak, kept = peak_of(lambda: len(bytearray(40_000_000)))
    assert kept == 40_000_000
    if peak is not None:  # Linux alone says
        assert 39_000_000 < peak < 80_000_000


def test_calls_of_a_run_are_counted_and_what_was_timed_is_taken():
    point = run_case(Case(1, Way(seconds=3.0, calls=2, held_bytes=7), None), 1)
    assert point == Point(1, Side(1.5, 7), None, None)


def test_names_and_sizes():
    assert chosen("all") == tuple(SIZES) == tuple(CURVES)
    assert sizes("answer", 50) == (5, 15, 50)
    with pytest.raises(CrossdraftError, match="Unknown curve 'frame'"):
        chosen("frame")
    with pytest.raises(CrossdraftError, match="--largest is 4, and answer begins at 5"):
        sizes("answer", 4)


def result():
    points = [
        Point(10, Side(0.010, 2_000_000), Side(0.025, None), True),
        Point(100, Side(1.5, 20_000_000), None, None),
        Point(1000, Side(2.0, 0), Side(1.0, 1), False),
    ]
    return GrowthResult("prompt", "random weights, small", "a", "b", points)


def test_the_table_says_where_answers_differ():
    shown = growth_table(result())
    cells = [list(column.cells) for column in shown.columns]
    assert cells[0] == ["10", "100", "1,000"]
    assert cells[1] == ["10 ms", "1.50 s", "2.00 s"]
    assert cells[3] == ["2.50", "-", "0.50"]
    assert cells[4] == ["2.0 MB", "20.0 MB", "0.0 MB"]
    assert cells[6] == ["yes", "-", "NO"]


def test_the_picture_has_the_points(tmp_path):
    times, memory = draw_growth([result()]).axes
    assert [list(line.get_xdata()) for line in times.lines] == [[10, 100, 1000], [10, 1000]]
    assert list(times.lines[0].get_ydata()) == [10.0, 1500.0, 2000.0]
    assert [list(line.get_ydata()) for line in memory.lines] == [[2.0, 20.0], [1e-6]]
    plot_growth([result(), result()], tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")


def test_the_command(tmp_path, capsys):
    out, picture = tmp_path / "a.json", tmp_path / "a.svg"
    command = ["bench", "growth", "--of", "memory", "--largest", "1000", "--json-out", str(out), "--plot", str(picture)]
    assert main(command) == 0
    assert "tokens in the memory" in capsys.readouterr().out
    (curve,) = json.loads(out.read_text())["curves"]
    assert (curve["of"], [point["size"] for point in curve["points"]]) == ("memory", [1000])
    assert picture.exists()
