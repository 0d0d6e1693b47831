"""The report and the leaderboard in a real browser: they fit, on paper too, are dark where asked to be, and sort.

Pages are made of a planted outcome, and where CROSSDRAFT_REPORT names a folder that `crossdraft experiment all` wrote,
as CI does, they are those in it, too.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from crossdraft_lab.bench.experiments.drafters import COLUMNS, DRAFTERS
from crossdraft_lab.bench.experiments.record import FigureTable
from crossdraft_lab.bench.experiments.registry import EXPERIMENTS
from crossdraft_lab.bench.experiments.report import HTML, LEADERBOARD, html_report, leaderboard
from crossdraft_lab.bench.experiments.runner import kept_outcome
from crossdraft_lab.scenes import KINDS
from tests.bench.experiments.test_report import HOSTILE, outcome

pytestmark = pytest.mark.slow

FULL_RUN = Path(__file__).parents[3] / "docs" / "results"
A4 = {"width": 718, "height": 1047}  # 190 x 277 mm, what the margins leave, in CSS pixels of 1/96 inch
TOO_WIDE = """[...document.querySelectorAll("table")].filter(one => {
  const {left, right} = one.getBoundingClientRect();
  return left < 0 || right > document.documentElement.clientWidth;
}).map(one => one.caption.textContent)"""


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page from a file; it may ask for nothing else, open no dialog, and no script may fail."""
    contexts, faults = [], []

    def begin(content: str, **more):
        path = tmp_path / "page.html"
        path.write_text(content, encoding="utf-8")
        contexts.append(browser.new_context(**more))
        page = contexts[-1].new_page()
        page.on("request", lambda asked: faults.append(asked.url) if asked.url != path.as_uri() else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
        page.goto(path.as_uri())
        return page

    yield begin
    for context in contexts:
        context.close()
    assert faults == []


@pytest.mark.parametrize("width", [390, 1280])
def test_the_report_fits_and_runs_nothing(opened, width):
    page = opened(html_report([outcome()]), viewport={"width": width, "height": 800})
    assert page.locator("h2").count() >= 5
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert HOSTILE in page.locator("#breakdown p").first.text_content() + page.locator("#breakdown").text_content()


def pages() -> dict[str, str]:
    """Report and leaderboard: those that were built, or planted ones."""
    if built := os.environ.get("CROSSDRAFT_REPORT"):
        return {name: (Path(built) / name).read_text(encoding="utf-8") for name in (HTML, LEADERBOARD)}
    return {HTML: html_report([outcome("plain")]), LEADERBOARD: leaderboard(outcome("plain"))}


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", [HTML, LEADERBOARD])
def test_what_was_built_fits_and_shows_every_figure(opened, name, width):
    page = opened(pages()[name], viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    tables = page.locator("table")
    assert tables.count() >= 1
    assert all(table.locator("tbody tr").count() >= 1 for table in tables.all())
    drawn = page.evaluate("[...document.querySelectorAll('svg')].map(one => one.getBoundingClientRect().width)")
    assert (name == LEADERBOARD) == (not drawn)
    assert all(wide > 100 for wide in drawn)


def printed() -> dict[str, str]:
    """Report and leaderboard: those that were built, or those of the full run that this repository keeps."""
    if os.environ.get("CROSSDRAFT_REPORT"):
        return pages()
    kept = [found for one in EXPERIMENTS.values() if (found := kept_outcome(one, FULL_RUN)) is not None]
    (ranked,) = [found for found in kept if found.experiment is DRAFTERS]
    return {HTML: html_report(kept), LEADERBOARD: leaderboard(ranked)}


def too_wide_on_paper(opened, content: str) -> list[str]:
    page = opened(content, viewport=A4)
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    return page.evaluate(TOO_WIDE)


@pytest.mark.parametrize("name", [HTML, LEADERBOARD])
def test_every_table_fits_a_printed_a4(opened, name):
    assert too_wide_on_paper(opened, printed()[name]) == []


def test_a_column_for_each_kind_of_question_fits_a_printed_a4(opened):
    ranked, cell = outcome("plain"), "12.34 [10.55, 14.19; n=1,024]"
    longest = sorted(KINDS, key=len)[-COLUMNS:]
    table = FigureTable("by kind", ("", *longest), (("event_medusa", *[cell] * COLUMNS),) * 3)
    content = leaderboard(replace(ranked, summary=replace(ranked.summary, tables=(table,))))
    assert too_wide_on_paper(opened, content) == []


def test_the_paper_is_a4_with_the_margins_that_the_check_assumes(opened):
    pdf = opened(html_report([outcome("plain")])).pdf(prefer_css_page_size=True)
    width, height = map(float, re.search(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf).groups())
    assert (round(width / 72 * 25.4), round(height / 72 * 25.4)) == (210, 297)
    assert "@page{size:A4;margin:10mm}" in html_report([outcome("plain")])


def test_every_column_of_the_built_leaderboard_sorts(opened):
    page = opened(pages()[LEADERBOARD])
    for table in page.locator("table.sortable").all():
        buttons = table.locator("thead button")
        assert buttons.count() >= 2
        rows = table.locator("tbody tr").count()
        for number in range(buttons.count()):
            buttons.nth(number).click()
            assert table.locator("th[aria-sort=descending]").count() == 1
        assert table.locator("tbody tr").count() == rows


def test_dark_where_the_reader_wants_it(opened):
    ground = "getComputedStyle(document.body).backgroundColor"
    content = html_report([outcome("plain")])
    assert opened(content, color_scheme="dark").evaluate(ground) == "rgb(13, 17, 23)"
    assert opened(content, color_scheme="light").evaluate(ground) == "rgb(255, 255, 255)"


def test_the_leaderboard_sorts_by_any_column(opened):
    rows = (("b", "2.5 [2, 3]", "9/9"), ("a", "10.0 [9, 11]", "8/9"), ("c", "–", "9/9"))
    table = FigureTable("t", ("", "speed-up", "same"), rows)
    ranked = outcome("plain")
    page = opened(leaderboard(replace(ranked, summary=replace(ranked.summary, tables=(table,)))))
    names = "[...document.querySelectorAll('.sortable tbody th')].map(cell => cell.textContent)"
    assert page.evaluate(names) == ["b", "a", "c"]
    page.get_by_role("button", name="speed-up").click()
    assert page.evaluate(names) in (["c", "a", "b"], ["a", "b", "c"])
    assert page.locator("th[aria-sort=descending]").count() == 1
    page.get_by_role("button", name="speed-up").click()
    assert page.evaluate(names)[-3:] in (["b", "a", "c"], ["c", "b", "a"])
    page.get_by_role("button", name="drafter").click()
    assert page.evaluate(names) == ["c", "b", "a"]


def test_each_table_of_the_leaderboard_sorts_by_itself(opened):
    ranked, rows = outcome("plain"), (("a", "1.5 [1.0, 2.0; n=4]"), ("b", "2.5 [2.0, 3.0; n=4]"))
    tables = tuple(FigureTable(title, ("", "speed-up"), rows) for title in ("all", "by kind"))
    page = opened(leaderboard(replace(ranked, summary=replace(ranked.summary, tables=tables))))
    page.get_by_role("button", name="speed-up").nth(1).click()
    names = [table.locator("tbody th").all_inner_texts() for table in page.locator("table.sortable").all()]
    assert names == [["a", "b"], ["b", "a"]]
    assert page.locator("th[aria-sort]").count() == 1
