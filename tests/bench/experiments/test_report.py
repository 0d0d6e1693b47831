"""The report: nothing in it is markup that a text brought along, and nothing is loaded from elsewhere."""

import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.charts import IntervalBar, interval_bars
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.experiments.breakdown import BREAKDOWN, BreakdownConfig
from crossdraft_lab.bench.experiments.drafters import DRAFTERS
from crossdraft_lab.bench.experiments.markdown import outcome_page
from crossdraft_lab.bench.experiments.quality import QUALITY
from crossdraft_lab.bench.experiments.record import ExperimentOutcome, FigureTable, Findings
from crossdraft_lab.bench.experiments.registry import EXPERIMENTS
from crossdraft_lab.bench.experiments.report import (
    LEADERBOARD,
    has_experiments,
    html_report,
    leaderboard,
    markdown_report,
    sort_key,
    write_report,
)  # fmt: skip
from crossdraft_lab.bench.experiments.runner import kept_outcome, write_outcome
from crossdraft_lab.bench.experiments.runs import RUNS, RunLine, RunsFile
from crossdraft_lab.outputs import write_json

HOSTILE = '<script>alert("x")</script>|<img src="https://elsewhere.example/x.png">'
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Tags, what they load, and whether they are closed as they were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href", "data", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def read(page: str) -> Page:
    found = Page()
    found.feed(page)
    assert not found.open
    return found


def outcome(text: str = HOSTILE) -> ExperimentOutcome:
    table = FigureTable(text, ("", text), ((text, "1.98 [1.77, 2.21]"), ("b", "–")), text)
    figure = interval_bars(text, [IntervalBar(text, 1.0, 0.5, 1.5, 9)], text)
    summary = Findings(text, text, (table,), figure, {}, (text,))
    return ExperimentOutcome(BREAKDOWN, BreakdownConfig(), summary, {"cpu": text}, 1, 2.0, (text,))


def test_all_texts_are_escaped_and_nothing_is_loaded():
    page = html_report([outcome()])
    found = read(page)
    assert "script" not in found.tags
    assert "img" not in found.tags
    assert all(link.startswith("#") for link in found.loaded)
    assert not re.search(r"@import|url\(", page)
    assert page.count("alert(") == page.count("&lt;script&gt;alert(")


def test_dark_pages_and_paper_are_thought_of():
    page = html_report([outcome("plain")])
    assert "prefers-color-scheme:dark" in page
    assert "@media print" in page


def test_the_leaderboard_sorts_by_numbers_and_has_one_script_of_its_own():
    page = leaderboard(outcome())
    found = read(page)
    assert found.tags.count("script") == 1
    assert 'data-key="1.98"' in page
    assert found.loaded == ["report.html"]
    assert sort_key("–") == "–"


def test_the_markdown_twin_says_the_same_and_holds_no_markup():
    page = markdown_report([outcome()])
    assert "<script>" not in page
    assert "<img" not in page
    assert "Negative results" in page
    assert BREAKDOWN.asked in page
    assert r"\|" in page
    assert outcome_page(outcome()).startswith("# 2. ")


def keep_quality(out):
    """An experiment of which the summary is there."""
    (out / QUALITY.name).mkdir()
    write_outcome(replace(outcome("plain"), experiment=QUALITY, config=QUALITY.full), out / QUALITY.name)


def test_a_report_is_made_of_what_is_there(tmp_path):
    with pytest.raises(CrossdraftError, match="holds no experiment"):
        write_report(tmp_path)
    keep_quality(tmp_path)
    names = [path.name for path in write_report(tmp_path)[0]]
    assert names == ["report.html", "report.md"]
    assert QUALITY.title in (tmp_path / "report.html").read_text()


def test_an_experiment_that_is_not_finished_is_left_out_and_named(tmp_path):
    (tmp_path / BREAKDOWN.name).mkdir()
    (tmp_path / BREAKDOWN.name / RUNS).touch()
    with pytest.raises(CrossdraftError, match="holds no unit of the experiment breakdown yet"):
        write_report(tmp_path)
    (tmp_path / LEADERBOARD).write_text("of another report")
    file = RunsFile(tmp_path / BREAKDOWN.name, BREAKDOWN.name, BREAKDOWN.full)
    units = BREAKDOWN.units(BREAKDOWN.full)
    file.append(RunLine(BREAKDOWN.name, units[0], file.config, (), environment(), 1.0, {}))
    said = f"holds 1 of {len(units)} units of the experiment breakdown; run it again, and it goes on"
    with pytest.raises(CrossdraftError, match=said):
        write_report(tmp_path)
    keep_quality(tmp_path)
    files, left_out = write_report(tmp_path)
    assert not (tmp_path / LEADERBOARD).exists()
    assert [said in sentence for sentence in left_out] == [True]
    for path in files:
        page = path.read_text()
        assert said in page
        assert BREAKDOWN.asked not in page


def test_sections_of_several_machines_say_which(tmp_path):
    first = replace(outcome("plain"), machines=("one, commit a",))
    second = replace(first, experiment=DRAFTERS, config=DRAFTERS.full, machines=("one, commit a", "two, commit b"))
    page, text = html_report([first, second]), markdown_report([first, second])
    for shown in (page, text):
        assert ["Machine 1: one, commit a." in shown, "Machine 2: two, commit b." in shown] == [True, True]
        assert [shown.count("; machine 1)"), shown.count("; machine 1 and 2)")] == [1, 1]
    assert "machine 1" not in markdown_report([first])
    assert "Machine: one, commit a." in markdown_report([first])


def test_a_report_of_summaries_says_the_same_as_that_of_the_runs_and_that_it_is_one(tmp_path):
    """A repository keeps summary.json and figure.svg of each experiment; its report is made of those again."""
    found = outcome()
    write_outcome(found, tmp_path / BREAKDOWN.name)
    kept = kept_outcome(BREAKDOWN, tmp_path)
    assert kept is not None
    assert kept.summary == replace(found.summary, figure=None)
    assert (kept.size, kept.quick, kept.machines) == (found.size, found.quick, found.machines)
    own, of_summary = markdown_report([found]).splitlines(), markdown_report([kept]).splitlines()
    (differs,) = [(one, other) for one, other in zip(own, of_summary, strict=True) if one != other]
    assert differs[1] == differs[0].replace(")", "; from its summary, for the raw runs are not in this folder)")
    page = html_report([kept])
    assert "script" not in read(page).tags
    assert page.count("data:image/svg+xml;base64,") == 1  # as an image, a foreign picture runs and loads nothing
    assert has_experiments(tmp_path)


def test_a_summary_that_is_none_or_of_another_version_is_refused(tmp_path):
    path = tmp_path / BREAKDOWN.name / "summary.json"
    path.parent.mkdir()
    for content in ("", "[" * 100_000, "\ud800".encode("utf-8", "surrogatepass"), "[]", '{"figures": []}'):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(CrossdraftError, match=r"no (JSON|summary of an experiment); run breakdown again"):
            kept_outcome(BREAKDOWN, tmp_path)
    whole = outcome().to_json()
    for changed in (
        {"size": None}, {"tables": [{"title": "T"}]}, {"faults": {"unknown": []}}, {"seconds": "x"}, {"machines": [{}]},
        {"negative": "a text"}, {"tables": [{"title": "T", "heads": ["a"], "rows": [[1]], "note": ""}]},
    ):  # fmt: skip
        write_json(whole | changed, path)
        with pytest.raises(CrossdraftError, match=r"summary\.json is another version's summary; run breakdown again"):
            kept_outcome(BREAKDOWN, tmp_path)


def test_the_pages_of_this_repository_are_those_of_its_summaries(tmp_path):
    results = Path(__file__).parents[3] / "docs" / "results"
    for name in EXPERIMENTS:
        (tmp_path / name).mkdir()
        for file in ("summary.json", "figure.svg"):
            shutil.copyfile(results / name / file, tmp_path / name / file)
    for path in write_report(tmp_path)[0]:
        assert path.read_text() == (results / path.name).read_text(), "crossdraft experiment report --out docs/results"
