"""The check of the docs' figures: pages that are right pass, and each wrong, missing or untied number is named."""

import doctest
import json
import re
from pathlib import Path

import pytest

import tools.figures
from docs.figures import TIES, by_question, growth, head_card, readme
from docs.untied import EARLIER_RUNS, SETTINGS
from tools.figures import (
    ANY,
    Said,
    all_said,
    block_text,
    check,
    compare,
    compare_blocks,
    corrected,
    figures,
    lowered,
    main,
    pages,
    with_blocks,
)

ROOT = Path(__file__).parents[1]
TABLE = """text

| | cores | same tokens | first provisional, ms | TTFT, ms | E2E, ms | τ | speedup |
|---|---|---|---|---|---|---|---|
| the target alone, our engine | 2 | 32/32 | | 49 | 165 | 1.00 | 1 |
| Hugging Face `generate` | 1 | 32/32 | | 120 | 322 | 1.00 | 0.52 [0.49, 0.55] |
| Hugging Face `generate` | 2 | 32/32 | | 80 | 303 | 1.00 | 0.58 [0.54, 0.62] |
| **`glance`** | 1 + 1 | 32/32 | 22 | 71 | 81 | 17.36 | **1.98 [1.77, 2.21]** |
| `event_medusa` | 1 + 1 | 32/32 | 15 | 69 | 99 | 11.47 | 1.69 [1.50, 1.85] |

Answers: answers of 39 tokens
on average. Against the faster `generate` `glance` is **3.4** times as fast. And the drafter's process needs 410 MiB
more (860 MiB in all, where the target alone needs 450). So: 2.0× here, or `event_medusa` without the frames, 1.7×.
It comes 1.4 to 1.4 times as late as from the target alone. Of three runs (`glance` 1.68, 1.98, 2.01).
"""


def method(name, ttft, total, tau, speedup, provisional=None, mib=450.0):
    value, low, high = speedup
    return {
        "name": name,
        "identical": {"equal": 32, "total": 32},
        "first_provisional_ms": None if provisional is None else {"median": provisional},
        "ttft_ms": {"median": ttft},
        "total_ms": {"median": total},
        "tau": tau,
        "speedup": {"value": value, "ci95": [low, high], "against": "target-all"},
        "speedups": [{"against": "hf", "value": 3.95}, {"against": "hf-all", "value": 3.41}],
        "memory": {"total_mib": mib},
    }


REPORT = {
    "workload": {"mean_tokens": 39.1},
    "methods": [
        method("target-all", 49.2, 164.9, 1.0, (1.0, 1.0, 1.0)),
        method("hf", 119.8, 322.1, 1.0, (0.521, 0.49, 0.549)),
        method("hf-all", 80.1, 302.9, 1.0, (0.58, 0.543, 0.62)),
        method("glance", 71.1, 81.4, 17.36, (1.984, 1.77, 2.21), provisional=21.8, mib=860.0),
        method("event_medusa", 69.4, 99.1, 11.47, (1.686, 1.499, 1.847), provisional=15.2),
    ],
}


def said(report=REPORT):
    return list(readme(report))


def test_a_page_that_is_right_passes_and_only_what_is_not_tied_is_left():
    wrong, left = compare("README.md", TABLE, said())
    assert wrong == []
    assert figures(left) == ["1.68", "1.98", "2.01"], "three runs of which nothing is kept"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("1.98 [", "1.99 ["), ("2.21]", "2.22]"), ("| 71 |", "| 70 |"), ("17.36", "17.37"), ("| 22 |", "| |"),
     ("| 120 |", "| 121 |"), ("1.00 | 1 |", "1.00 | 1.01 |"), ("32/32 | 22", "31/32 | 22"), ("**3.4**", "**3.3**"),
     ("410 MiB", "400 MiB"), ("2.0× here", "1.9× here"), ("of 39 tokens", "of 40 tokens")],
)  # fmt: skip
def test_a_number_that_is_wrong_is_named(right, wrong):
    assert TABLE.count(right) == 1
    (sentence,) = compare("README.md", TABLE.replace(right, wrong), said())[0]
    assert "the JSON gives" in sentence
    assert sentence.startswith("README.md: ")


@pytest.mark.parametrize("more", ["8", ".5", ",500"])
def test_a_number_at_the_end_of_a_sentence_does_not_go_on(more):
    page = f"With an acceptance of 0.75{more}. And 3 more."
    assert compare("p", page, ["an acceptance of 0.75"])[0], page
    assert compare("p", page, ["With an acceptance of 0.75", f"{ANY} more"])[0], page
    assert compare("p", "an acceptance of **0.75**. And 3", ["an acceptance of 0.75"])[0] == []
    assert corrected(page, ["an acceptance of 0.75"]) == "With an acceptance of 0.75. And 3 more."


def test_the_bound_of_a_question_is_of_the_plans_stages():
    row = {"first_token_accepted": 1, "answers": 2, "hidden_accepted": {"value": 0.5}, "mean_tokens": 11.0}
    row |= {"tau": {"value": 1.5}}
    found = {name: {"by_question": {"What?": row}} for name in ("trace", "memory", "ngram")}
    (shown,) = by_question(found, {"prefill": 200.0, "step": 10.0})
    assert shown == "| What? | 1 of 2 | 0.5 | 11.0 | 1.50 | 1.50 | 1.50 | 1.50 |", "(200 + 10 · 10) / 200"


def test_another_run_makes_the_page_wrong():
    report = json.loads(json.dumps(REPORT))
    report["methods"][3]["identical"]["equal"] = 31
    report["methods"][3]["total_ms"]["median"] = 90.0
    (sentence,) = compare("README.md", TABLE, said(report))[0]
    assert "31/32" in sentence
    assert "it says '| **`glance`** | 1 + 1 | 32/32" in sentence


def test_new_numbers_are_written_where_the_words_are_the_same():
    report = json.loads(json.dumps(REPORT))
    report["methods"][3] |= {"tau": 15.5, "speedup": {"value": 1.9, "ci95": [1.7, 2.1], "against": "target-all"}}
    now = corrected(TABLE, said(report))
    assert "| 22 | 71 | 81 | 15.50 | **1.90 [1.70, 2.10]** |" in now
    assert "1.9× here" in now
    assert compare("README.md", now, said(report))[0] == []
    gone = TABLE.replace("Against the faster", "Over the faster")
    assert "nothing like it is there" in compare("README.md", corrected(gone, said()), said())[0][0]


def test_rows_that_differ_in_numbers_alone_are_written_in_their_order():
    page = "| | `a` | 1.0 |\n| | `b` | 2.0 |\n| | `a` | 3.0 |\n"
    assert corrected(page, ["| | `a` | 1.5 |", "| | `a` | 3.5 |"]) == page.replace("1.0", "1.5").replace("3.0", "3.5")


def test_figures_may_become_fewer_and_never_more():
    texts, listed = {"docs/a.md": "It took 5.1 ms and 7 MiB, with torch 2.13."}, {"docs/a.md": 2}
    assert check(texts, {}, listed) == []
    assert "2 figures that are tied to no JSON, and 0 are listed" in check(texts, {}, {})[0]
    assert "has 2 figures left that are not tied" in check(texts, {}, {"docs/a.md": 3})[0]
    said = {"docs/a.md": Said(["took 5.1 ms"])}
    assert "has 1 figures that are tied to no JSON, and 0 are listed" in check(texts, said, {})[0]
    assert check(texts, said, {"docs/a.md": 1}) == []
    assert "no such page" in check(texts, {}, listed | {"docs/b.md": 1})[0]


BLOCK = """It took 7 MiB.

<!-- figures: times -->
It took 5.1 ms, which is
more than 3.
<!-- end -->

<!-- table: other -->| 5 |<!-- end -->
"""


def test_a_block_is_compared_whole_and_its_figures_are_tied():
    right = {"times": "It took 5.1 ms, which is more than 3."}
    wrong, left = compare_blocks("docs/a.md", BLOCK, right)
    assert (wrong, figures(left)) == ([], ["7 MiB"])
    for other in ("It took 5.2 ms, which is more than 3.", "It took 5.1 ms, which is less than 3.", "It took 5.1 ms"):
        wrong, left = compare_blocks("docs/a.md", BLOCK, {"times": other})
        assert len(wrong) == 1
        assert "its block 'times' is not what the JSON gives" in wrong[0]
        assert figures(left) == ["7 MiB", "5.1 ms"], "what is wrong counts as tied to nothing"
    assert "has no block '<!-- figures: time -->'" in compare_blocks("docs/a.md", BLOCK, {"time": "It"})[0][0]
    said = {"docs/a.md": Said(blocks=right)}
    assert check({"docs/a.md": BLOCK}, said, {"docs/a.md": 1}) == []
    assert "has 1 figures that are tied to no JSON" in check({"docs/a.md": BLOCK}, said, {})[0]


def test_a_block_is_written_whole_whatever_its_words_were():
    now = with_blocks(BLOCK, {"times": "Nothing fell short.", "elsewhere": "x"})
    assert now == BLOCK.replace("It took 5.1 ms, which is\nmore than 3.", "Nothing fell short.")
    assert with_blocks(BLOCK, {"times": "It took 5.1 ms, which is more than 3."}) == BLOCK, "line breaks stay"
    empty = "<!-- figures: times -->\n<!-- end -->"
    assert with_blocks(empty, {"times": "| 1 |"}) == "<!-- figures: times -->\n| 1 |\n<!-- end -->"


def test_lines_of_a_block_are_never_broken_behind_a_number():
    words = "within 9.5 % " * 30
    lines = block_text([words]).splitlines()
    assert len(lines) > 1
    assert not any(line.endswith("9.5") for line in lines)
    assert " ".join(lines) == words.strip()


def test_counts_of_figures_that_are_not_tied_are_lowered_and_never_raised():
    listing = 'A = {\n    "docs/a.md": 9,\n    "docs/b.md": 3,  # why\n    "docs/c.md": 2,\n}\n'
    now = lowered(listing, {"docs/a.md": 11, "docs/b.md": 1, "docs/c.md": 0})
    assert now == 'A = {\n    "docs/a.md": 9,\n    "docs/b.md": 1,  # why\n}\n'


def test_what_is_no_figure():
    assert figures("`1.5` and torch 2.13 or 2.14, [x](a-1.5.md)\n\n    1.5 ms\n\n```\n2.5 ms\n```\n") == []
    assert figures("A 640×480 sensor, 127.0.0.1, a 95 % bootstrap interval, <!-- table: a -->| 7 |<!-- end -->") == []
    assert figures("| 210 | 1.12 [0.97, 1.34] | −0.5 | 3 of 4 |") == ["210", "1.12", "0.97", "1.34", "−0.5", "3 of 4"]


def test_what_is_not_tied_in_a_row_is_left():
    assert figures(compare("p", "| `a` | 8.15 | 1.44 M |", [f"| `a` | {ANY} | 1.44 M |"])[1]) == ["8.15"]


def test_growth_and_cards_by_hand():
    point = {"ours": {"ms": 51.6, "bytes": 1e6}, "hf": {"ms": 94.7, "bytes": 2e6}}
    curves = {of: [1, 10_000, 30_000, 32] for of in ("frames", "prompt", "requests")}
    found = {
        "curves": [{"of": of, "points": [point | {"size": size} for size in sizes]} for of, sizes in curves.items()]
    }
    rows = list(growth(found))
    assert rows[0] == "| frames of a clip, 1 → 32 | 52 ms, 1.8 × as fast as Hugging Face | 52 ms, 1.8 × |"
    assert "(1 and 2 MB at 32 requests)" in rows
    figures_of = {"parameters": 1280, "wall_s": 466.4, "engine": {"pass": {"tau": 1.146, "per_position": [0.13, 0.0]}}}
    card = list(head_card({"figures": figures_of}))
    assert card == ["1,280 parameters of its own", "in 8 minutes", "| pass | 1.15 | 0.13 0.00 |"]


def test_the_pages_are_what_was_measured(capsys):
    """As `make check` looks at them."""
    assert main([]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("page", ["README.md", "docs/growth.md", "docs/real_pair.md", "docs/results/report.md",
                                  "src/crossdraft/reference/heads/glance/README.md"])  # fmt: skip
def test_a_digit_that_is_changed_in_a_page_is_found(page):
    text = pages()[page]
    sentences = all_said(tie for tie in TIES if tie.page == page)[page].sentences
    row = next(line for line in text.splitlines() if re.match(r"\| .*\d\.\d", line) and "`" not in line[:4])
    digit = re.search(r"\d\.\d", row).end() - 1
    planted = row[:digit] + str((int(row[digit]) + 1) % 10) + row[digit + 1 :]
    assert compare(page, text, sentences)[0] == []
    assert compare(page, text.replace(row, planted, 1), sentences)[0]


def test_the_examples_of_the_check():
    ran = doctest.testmod(tools.figures)
    assert (ran.attempted > 2, ran.failed) == (True, 0)


def test_every_page_is_known():
    assert not EARLIER_RUNS.keys() & SETTINGS.keys()
    assert {"README.md", "docs/heads.md", "src/crossdraft/reference/target/README.md"} <= pages().keys()
