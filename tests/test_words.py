"""The check of words finds what is planted, and nothing in words that only look alike."""

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "words.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("words_tool", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "line", ["shelf = 1", "def open_shelf(): ...", "class ShelfOfTokens: ...", "def f(a_shelf=0): ..."]
)
def test_a_retired_word_in_an_identifier_is_found(tool, tmp_path, line, capsys):
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "bad.py").write_text(f"import os\n{line}\n")
    assert tool.main([str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "bad.py:2" in said
    assert "retired word 'shelf'" in said


def test_prose_and_longer_words_are_free(tool, tmp_path, capsys):
    (tmp_path / "good.py").write_text('"""A shelf."""\n\nbookshelf = "shelf"  # a shelf\nshelfless = bookshelf\n')
    assert tool.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""


def test_a_class_name_in_two_files_is_found(tool, tmp_path, capsys):
    (tmp_path / "a.py").write_text("class Same: ...\n")
    (tmp_path / "b.py").write_text("class Other:\n    class Same: ...\n")
    assert tool.main([str(tmp_path)]) == 0
    (tmp_path / "c.py").write_text("class Same: ...\n")
    assert tool.main([str(tmp_path)]) == 1
    assert "class Same stands in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        (
            'def f(a, *b):\n    """F.\n\n    Args:\n        a, b: what it takes.\n        c: what it took.\n    """\n',
            "'c'",
        ),
        ('class C:\n    """C.\n\n    Args:\n        x: a field.\n        y: none.\n    """\n\n    x: int = 0\n', "'y'"),
        ('class C:\n    """C.\n\n    Args:\n        x: none.\n\n    y: no name.\n    """\n', "'x'"),
    ],
)
def test_a_docstring_that_describes_what_is_not_there_is_found(tool, tmp_path, capsys, code, wrong):
    (tmp_path / "bad.py").write_text(code)
    assert tool.main([str(tmp_path)]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert wrong in line


@pytest.mark.slow  # it is a part of `make check`
def test_our_own_source_and_tests_pass(tool):
    assert tool.main([]) == 0


@pytest.mark.parametrize(
    "line", ["Of these.", "What it does.", "Whether it is so.", "Nobody has it.", "The same of runs."]
)
def test_a_docstring_that_begins_as_no_sentence_is_found(tool, tmp_path, line, capsys):
    (tmp_path / "a.py").write_text(f'"""A module."""\n\n\ndef f():\n    """{line}"""\n\n\ndef g():\n    """Offer."""\n')
    assert tool.main([str(tmp_path)]) == 1
    (said,) = capsys.readouterr().out.splitlines()
    assert "a.py:4: a docstring begins with" in said
