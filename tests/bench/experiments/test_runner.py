"""The runner: what is there is not run again, and what is missing is."""

import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from crossdraft.cli.main import main
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.charts import BarPart, StackedBar, stacked_bars
from crossdraft_lab.bench.experiments import registry
from crossdraft_lab.bench.experiments.record import Experiment, FigureTable, Findings, Setting, UnitResult
from crossdraft_lab.bench.experiments.runner import read_outcome, run_experiment
from crossdraft_lab.bench.experiments.runs import RUNS
from crossdraft_lab.bench.forking import start_method


@dataclass(frozen=True)
class Squares:
    numbers: tuple[int, ...] = (1, 2, 3, 4)


class Interrupted(Exception):
    pass


RAN: list[str] = []


def measure(config: Squares, keys: Sequence[str], setting: Setting) -> Iterator[UnitResult]:
    for key in keys:
        if (setting.work.parent / "stop").exists() and key == "3":
            raise Interrupted
        RAN.append(key)
        yield UnitResult(key, (int(key),), {"square": int(key) ** 2})


def summarise(config: Squares, found: Sequence[UnitResult]) -> Findings:
    squares = [unit.found["square"] for unit in found]
    table = FigureTable("Squares", ("", "square"), tuple((unit.key, str(unit.found["square"])) for unit in found))
    bars = [StackedBar("sum", tuple(BarPart(unit.key, "draft", unit.found["square"]) for unit in found))]
    return Findings(str(sum(squares)), "quite", (table,), stacked_bars("Squares", bars, "1"), {"sum": sum(squares)})


SQUARES = Experiment(
    "squares", 1, "Squares", "How large?", Squares(), Squares((1, 2)),
    lambda config: [str(number) for number in config.numbers], measure, summarise,
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_ran():
    RAN.clear()


def test_an_interrupted_experiment_goes_on_where_it_stopped(tmp_path):
    folder = tmp_path / "squares"
    folder.mkdir()
    (folder / "stop").touch()
    with pytest.raises(Interrupted):
        run_experiment(SQUARES, SQUARES.full, tmp_path, None)
    assert RAN == ["1", "2"]
    with pytest.raises(CrossdraftError, match="holds 2 of 4 units"):
        read_outcome(SQUARES, tmp_path)
    (folder / "stop").unlink()
    with (folder / RUNS).open("ab") as file:
        file.write(b'{"experiment": "squ')  # as a process leaves it that dies while it writes
    ticks: list[str] = []
    found = run_experiment(SQUARES, SQUARES.full, tmp_path, None, ticks.append)
    assert (RAN, ticks) == (["1", "2", "3", "4"], ["1", "2", "3", "4"])
    assert found.summary.figures == {"sum": 30}
    run_experiment(SQUARES, SQUARES.full, tmp_path, None)
    assert RAN == ["1", "2", "3", "4"]


def test_everything_is_written_and_made_of_the_runs_anew(tmp_path):
    run_experiment(SQUARES, SQUARES.quick, tmp_path, None)
    folder = tmp_path / "squares"
    assert {"runs.jsonl", "table.md", "figure.svg", "figure.png", "summary.json"} <= {
        one.name for one in folder.iterdir()
    }
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["size"], summary["figures"], summary["units"]) == ("quick size", {"sum": 5}, 2)
    assert "| 2 | 4 |" in (folder / "table.md").read_text()
    lines = [json.loads(line) for line in (folder / RUNS).read_text().splitlines()]
    assert [line["seeds"] for line in lines] == [[1], [2]]
    assert {"torch", "cpu", "crossdraft", "transformers"} <= lines[0]["environment"].keys()
    found = read_outcome(SQUARES, tmp_path)
    assert found is not None
    assert found.quick
    assert found.summary.found == "5"


def test_other_sizes_do_not_mix_unless_forced(tmp_path):
    run_experiment(SQUARES, SQUARES.quick, tmp_path, None)
    with pytest.raises(CrossdraftError, match="another configuration"):
        run_experiment(SQUARES, SQUARES.full, tmp_path, None)
    trained = tmp_path / "squares" / "work" / "trained"  # by the first one
    trained.touch()
    assert run_experiment(SQUARES, SQUARES.full, tmp_path, None, force=True).units == 4
    assert not trained.exists()
    assert RAN == ["1", "2", "1", "2", "3", "4"]


def test_a_summary_whose_runs_are_gone_is_replaced_by_force_alone(tmp_path):
    run_experiment(SQUARES, SQUARES.full, tmp_path, None)
    summary = tmp_path / "squares" / "summary.json"
    (tmp_path / "squares" / RUNS).unlink()
    before = summary.read_text()
    with pytest.raises(CrossdraftError, match=r"whose runs are gone; .* --force"):
        run_experiment(SQUARES, SQUARES.full, tmp_path, None)
    assert summary.read_text() == before
    (tmp_path / "squares" / "stop").touch()
    with pytest.raises(Interrupted):
        run_experiment(SQUARES, SQUARES.full, tmp_path, None, force=True)
    assert not summary.exists(), "it is no result of a run that was cut off"


def test_what_never_ran_has_no_outcome(tmp_path):
    assert read_outcome(SQUARES, tmp_path) is None


def wait_at_three(config: Squares, keys: Sequence[str], setting: Setting) -> Iterator[UnitResult]:
    for unit in measure(config, keys, setting):
        if unit.key == "3":
            (setting.work / "waiting").touch()
            time.sleep(60)
        yield unit


def run_and_wait(out: Path) -> None:
    run_experiment(replace(SQUARES, measure=wait_at_three), SQUARES.full, out, None)


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path, monkeypatch, capsys):
    """Its lines would be among those of the first; with --force it would take away the file that the first writes."""
    monkeypatch.setattr(registry, "EXPERIMENTS", {"squares": SQUARES})
    folder, again = tmp_path / "squares", ["experiment", "squares", "--out", str(tmp_path)]
    first = multiprocessing.get_context(start_method()).Process(target=run_and_wait, args=(tmp_path,))
    first.start()
    try:
        end = time.monotonic() + 60
        while not (folder / "work" / "waiting").exists():
            assert first.is_alive()
            assert time.monotonic() < end
            time.sleep(0.01)
        before = (folder / RUNS).read_bytes()
        for more in ([], ["--force"], ["--quick"]):
            assert main([*again, *more]) == 2
            assert capsys.readouterr().err == (
                f"crossdraft: Another process fills {folder}; wait for it, or name another.\n"
            )
            assert (folder / RUNS).read_bytes() == before
            assert RAN == []
    finally:
        first.kill()
        first.join()
    assert main(again) == 0, "the lock is gone with its holder, and what it measured is kept"
    assert RAN == ["3", "4"]
