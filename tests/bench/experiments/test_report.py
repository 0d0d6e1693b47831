"""The report: nothing in it is markup that a text brought along, and nothing is loaded from elsewhere."""

import json
import re
from html.parser import HTMLParser

import pytest

from crossdraft.bench.experiments.breakdown import BREAKDOWN, BreakdownConfig
from crossdraft.bench.experiments.claims import CLAIMS
from crossdraft.bench.experiments.markdown import outcome_page
from crossdraft.bench.experiments.record import ExperimentOutcome, FigureTable, Findings
from crossdraft.bench.experiments.report import html_report, leaderboard, markdown_report, sort_key, write_report
from crossdraft.bench.experiments.runner import run_experiment
from crossdraft.drawing.charts import IntervalBar, interval_bars
from crossdraft.errors import CrossdraftError

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


def test_a_report_is_made_of_the_runs_that_are_there(tmp_path):
    with pytest.raises(CrossdraftError, match="holds no experiment"):
        write_report(tmp_path)
    run_experiment(CLAIMS, CLAIMS.full, tmp_path, None)
    names = [path.name for path in write_report(tmp_path)]
    assert names == ["report.html", "report.md"]
    assert "proposal documents" in (tmp_path / "report.html").read_text()


def test_a_report_shows_what_the_experiments_say_now(tmp_path):
    """Claims stand beside figures of other experiments; those may have run again since."""
    drafters = tmp_path / "drafters"
    drafters.mkdir()
    for speedup in (1.25, 7.75):
        figures = {"eagle3": {"speedup": {"value": speedup, "ci95": [1.0, 8.0], "n": 32}}}
        (drafters / "summary.json").write_text(json.dumps({"figures": figures, "size": "full size"}))
        if speedup == 1.25:
            run_experiment(CLAIMS, CLAIMS.full, tmp_path, None)
    write_report(tmp_path)
    page = (tmp_path / "report.md").read_text()
    assert "| speed-up of eagle3: 7.75 [1.00, 8.00; n=32] |" in page
    assert "1.25 [1.00" not in page
