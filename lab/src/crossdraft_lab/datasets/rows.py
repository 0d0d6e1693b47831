"""Rows of JSON files, one at a time: a list of any length, or an object a line, in bounded memory."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from crossdraft.errors import CrossdraftError

BLOCK = 1 << 16  # characters read at a time
MOST_CHARACTERS = 1 << 24  # characters of one row
MOST_ROWS = 20_000_000
SPACE = " \t\r\n"  # white space in JSON
BETWEEN = re.compile(r"[ \t\r\n,]*")  # separator of two values


def json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a JSON list, or of JSON lines.

    Raises:
        CrossdraftError: the file is missing, no JSON, has a row that is no object or is too long, too many rows, or
            more text behind the end of a list.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, row in enumerate(_values(file, path), 1):
                if not isinstance(row, dict):
                    raise CrossdraftError(f"{path}: row {number} is no object; this is no list of annotations.")
                if number > MOST_ROWS:
                    raise CrossdraftError(f"{path} has more than {MOST_ROWS:,} rows, the limit; divide it.")
                yield row
    except (OSError, UnicodeDecodeError) as error:
        raise CrossdraftError(f"The annotations {path} cannot be read: {error}; copy them again.") from error


def _values(file: TextIO, path: Path) -> Iterator[Any]:
    """Yield every value between the brackets of a list, or every value of a file without brackets."""
    decoder, held, at, ended = json.JSONDecoder(), "", 0, False
    listed: bool | None = None
    while True:
        at = BETWEEN.match(held, at).end()  # pyright: ignore[reportOptionalMemberAccess] (it matches nothing, too)
        if listed is None and at < len(held):
            listed = held[at] == "["
            at += listed
            continue
        if listed and held.startswith("]", at):
            _check_rest(held[at + 1 :], file, path)
            return
        value: Any = None
        try:
            value, end = decoder.raw_decode(held, at) if at < len(held) else (None, at)
        except (ValueError, RecursionError) as error:
            if ended or len(held) - at > MOST_CHARACTERS:
                raise CrossdraftError(f"{path} is no whole JSON ({error}); copy it again.") from error
            end = at
        # A value that reaches the end of the buffer may continue, as a number can.
        if end > at and (end < len(held) or ended):
            yield value
            at = end
            continue
        if ended:
            if listed:
                raise CrossdraftError(f"{path} is no whole JSON: its list does not end; copy it again.")
            return
        held = held[at:]
        more = file.read(max(BLOCK, len(held)))
        held, at, ended = held + more, 0, not more


def _check_rest(held: str, file: TextIO, path: Path) -> None:
    """Refuse anything but space after a list: the file is then damaged."""
    while not held.strip(SPACE):
        if not (held := file.read(BLOCK)):
            return
    raise CrossdraftError(f"{path} is no whole JSON: more follows the end of its list; copy it again.")


def field(row: Mapping[str, Any], name: str, path: Path, *, numbers: bool = True) -> str:
    """Field of a row as text; a whole number is converted to digits if `numbers`.

    Raises:
        CrossdraftError: the field is missing, or neither text nor a whole number.
    """
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int if numbers else str):
        raise CrossdraftError(f"{path}: a row lacks '{name}', or it is no text: {str(dict(row))[:120]}")
    return str(value)
