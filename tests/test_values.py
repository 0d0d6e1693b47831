"""The check of the pages: a figure that is not its JSON's is found and mended, and so is a page that is too long."""

import doctest
import json

import pytest

from tools import values

JSON = {
    "tau": 8.7561,
    "speedup": {"value": 1.984, "ci95": [1.77, 2.21]},
    "methods": [{"name": "hf", "ms": 610.2, "tau": 1.0}, {"name": "a b", "ms": 208.4, "tau": None}],
}
PAGE = """# One page

Here τ is <!--v kept:tau .2f-->8.76<!--/v-->, and it is <!--v kept:speedup .1f-->2.0 [1.8, 2.2]<!--/v--> times as fast.
That is <!--v kept:methods/hf/tau 100*.0f-->100<!--/v--> %.

<!--t kept:methods/{} | | ms .0f
| tau .1f-->
| | cores | ms | τ |
|---|---|---|---|
| `hf` | 1 | 610 | 1.0 |
| **ours**<!--a b--> | 1 + 1 | **208** | |
| no key | 2 | 3 | |
"""


@pytest.fixture
def root(tmp_path):
    (tmp_path / "docs/results").mkdir(parents=True)
    (tmp_path / "docs/results/kept.json").write_text(json.dumps(JSON))
    (tmp_path / "docs/page.md").write_text(PAGE)
    values.source.cache_clear()
    return tmp_path


def test_a_page_that_is_right_passes(root, capsys):
    assert values.main(write=False, root=root) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("wrong", [("8.76", "8.77"), ("2.2]", "2.3]"), ("610", "611"), ("**208**", "**207**")])
def test_a_wrong_figure_is_found_and_mended(root, capsys, wrong):
    page = root / "docs/page.md"
    page.write_text(PAGE.replace(*wrong))
    assert values.main(write=False, root=root) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("docs/page.md:")
    assert wrong[0] in line
    assert values.main(write=True, root=root) == 0
    assert page.read_text() == PAGE


@pytest.mark.parametrize(
    "wrong",
    [
        ("kept:tau", "kept:rho"),
        ("kept:tau", "lost:tau"),
        ("methods/hf", "methods/hg"),
        ("methods/hf", "methods/name=hf,ms=1"),
    ],
)
def test_a_marker_that_names_nothing_is_found(root, capsys, wrong):
    (root / "docs/page.md").write_text(PAGE.replace(*wrong))
    assert values.main(write=False, root=root) == 1
    assert "docs/page.md: a marker names what is not there" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "words"), [("README.md", 900), ("docs/page.md", 1500)])
def test_a_page_s_words_are_counted_without_comments(root, capsys, name, words):
    (root / name).write_text("word\n" * words + "<!-- not read -->\n")
    assert values.main(write=False, root=root) == 0
    (root / name).write_text("word\n" * (words + 1))
    assert values.main(write=False, root=root) == 1
    assert f"{name} has {words + 1} words, {words} are allowed" in capsys.readouterr().out


def test_a_long_line_is_found(root, capsys):
    (root / "CHANGELOG.md").write_text(f"{'x' * 140}\n{'x' * 141}\n")
    assert values.main(write=False, root=root) == 1
    assert capsys.readouterr().out == "CHANGELOG.md:2: 141 characters\n"


def test_examples_of_the_docstrings():
    assert doctest.testmod(values).failed == 0
