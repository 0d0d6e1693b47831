"""The commands beside the rows of docs/results/claims.md, against the figures of their rows."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crossdraft.engine.estimates import expected_accepted
from crossdraft_lab.bench import formulas
from crossdraft_lab.bench.experiments.registry import EXPERIMENTS
from crossdraft_lab.cli.plan import app

PAGE = (Path(__file__).parents[1] / "docs/results/claims.md").read_text(encoding="utf-8")
LINES = [line for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]
ROWS = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in LINES]


def figure(cell: str) -> float:
    """The number of a cell, which stands there with three digits."""
    return float(cell.split(maxsplit=1)[0].replace(",", ""))


def test_the_counts_at_the_head_are_those_of_the_rows():
    counts = [sum(row[2] == status for row in ROWS) for status in ("refuted", "confirmed", "not testable here")]
    head = f"{len(ROWS)} quantitative claims: {counts[0]} are refuted, {counts[1]} are confirmed, and {counts[2]}"
    assert head in PAGE
    assert [int(row[0]) for row in ROWS] == list(range(1, sum(counts) + 1))


def test_arithmetic_gives_the_figure_of_its_row():
    calculated = [(row, match[1]) for row in ROWS if (match := re.search(r"`calc (.*?)`", row[6]))]
    assert len(calculated) > 60
    for row, expression in calculated:
        found = eval(expression, {**vars(formulas), "expected_accepted": expected_accepted})
        assert found == pytest.approx(figure(row[3]), rel=0.006), row[1]


def test_plans_give_the_figure_of_their_rows():
    planned = [row for row in ROWS if "`crossdraft plan" in row[6] and row[3]]
    assert len(planned) > 10
    for row in planned:
        done = CliRunner().invoke(app, [*row[6].strip("`").split()[2:], "--json"])
        assert done.exit_code == 0, (row[1], done.output)
        found = json.loads(done.stdout)
        alone, *_ = found["ways"]
        said = [*(way["speedup"] for way in found["ways"]), found["least_alpha"], alone["shares"]["prefill"]]
        assert any(value == pytest.approx(figure(row[3]), rel=0.006) for value in said), (row[1], said)


def test_experiments_are_there_and_figures_of_ours_have_intervals_or_counts():
    for row in ROWS:
        if match := re.search(r"`crossdraft experiment (\S+)", row[6]):
            assert match[1] in EXPERIMENTS, row[1]
        assert not row[4] or re.search(r"\[.*; n=\d+\]|\d+/\d+", row[4]), row[1]
        assert row[6], row[1]
