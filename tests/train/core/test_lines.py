"""Growing files after an interruption."""

from pathlib import Path

import pytest

from crossdraft.train.core.lines import whole_lines


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (b"a\nb\nc", ["a\n", "b\n"]),
        (b"a\nb\n", ["a\n", "b\n"]),
        (b"a", []),
        (b"", []),
        ("a\né".encode()[:-1], ["a\n"]),  # cut within a letter
    ],
)
def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path, written: bytes, lines: list[str]) -> None:
    (tmp_path / "log").write_bytes(written)
    assert whole_lines(tmp_path / "log") == lines


def test_no_file_holds_no_lines(tmp_path: Path) -> None:
    assert whole_lines(tmp_path / "none") == []
