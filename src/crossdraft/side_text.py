"""The texts of files, for `Request.predictions` and `Request.hints`."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from crossdraft.errors import CrossdraftError

NO_TEXT = re.compile(r"^(\d+|WEBVTT.*|.*-->.*)\n", re.MULTILINE)  # lines of subtitles
MOST_LETTERS = 1 << 26  # of a file; a conversation may hold clips
SINGLE_LINE = re.compile(r"(?<!\n)\n(?!\n)")


def read_text(path: Path) -> str:
    """The text of a file in UTF-8.

    Raises:
        CrossdraftError: the file cannot be read, or is no text.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            return file.read(MOST_LETTERS)  # where so many are read, they are refused
    except (OSError, UnicodeDecodeError) as error:
        why = "it is no text in UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise CrossdraftError(f"Cannot read {path}: {why}; check the path.") from None


def read_hint(path: Path) -> str:
    """A PDF's text layer, subtitles (.srt, .vtt) without their times, or the text of any other file.

    Raises:
        CrossdraftError: as `read_text`, or pypdf is not installed, or finds no text.
    """
    kind = path.suffix.lower()
    if kind == ".pdf":
        return _read_pdf(path)
    text = read_text(path)
    return joined_lines(NO_TEXT.sub("", text)) if kind in (".srt", ".vtt") else text


def joined_lines(text: str) -> str:
    r"""A text whose paragraphs are one line each, as answers write them.

    >>> joined_lines("The train\nleaves.\n\nAt noon.")
    'The train leaves.\n\nAt noon.'
    """
    return SINGLE_LINE.sub(" ", text.strip())


def _read_pdf(path: Path) -> str:
    try:
        pypdf: Any = import_module("pypdf")
    except ImportError:
        raise CrossdraftError("The text of a PDF is read by pypdf; pip install pypdf, or give a text file.") from None
    try:
        text = "\n".join(page.extract_text() for page in pypdf.PdfReader(path).pages)
    except Exception as error:  # noqa: BLE001 - whatever broken files lead to
        raise CrossdraftError(f"{path} cannot be read as a PDF ({error}); check it, or give a text file.") from None
    if not text.strip():
        raise CrossdraftError(f"{path} has no text layer; give its pages as images, with --ocr.")
    return joined_lines(text)
