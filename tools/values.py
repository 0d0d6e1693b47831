"""Ties figures of the pages to the JSON that they were measured in: `python tools/values.py [--write]`.

One figure: `<!--v readme:methods/glance/tau .2f-->8.76<!--/v-->`. A table: the comment before it says what each column
after the first shows; a row's key, in place of {}, stands in its first cell, in backquotes or as a comment:

    <!--t readme:methods/{} | | identical/equal d | ttft_ms/median .0f | speedup .2f -->

A source is a JSON file below docs/results or, with a slash in front, anywhere in the repository, without its ending. A
path's parts are keys, indices, or an entry of a list: by its `name`, or as in `n=8` and `requests=8,name=hf`. A format
is one of Python's, perhaps after a factor (`100*.0f`); a value with an interval is shown with it. The command also
holds pages to their length.
"""

import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
VALUE = re.compile(r"(<!--v ([^:>]+):([^>]+) ([^\s>]+)-->).*?<!--/v-->", re.DOTALL)
TABLE = re.compile(r"(<!--t ([^:>]+):([^|>]*?)\s*\|([^>]+)-->\n)((?:\|.*\n)+)")
KEYS = re.compile(r"<!--(?!/?v)(.+?)-->"), re.compile(r"`([^`]+)`")
UNREAD = re.compile(r"<!-- table: \w+ -->.*?<!-- end -->|<!--.*?-->", re.DOTALL)  # written from the code, or not shown
WORDS, README_WORDS, LINE = 1500, 900, 140


@cache
def source(root: Path, name: str) -> Any:
    """Content of the JSON file that a marker names."""
    path = root / name[1:] if name.startswith("/") else root / "docs/results" / name
    return json.loads(path.with_name(f"{path.name}.json").read_text(encoding="utf-8"))


def find(value: Any, path: str) -> Any:
    """The value at a path.

    >>> find({"methods": [{"name": "a", "times": [1, 2]}]}, "methods/a/times/1")
    2
    """
    while path and value is not None:  # no value: such as the first provisional token of a method that has none
        if isinstance(value, dict):  # a key may have slashes of its own
            part = max((key for key in value if f"{path}/".startswith(f"{key}/")), key=len)
            value = value[part]
        else:
            part = path.partition("/")[0]
            value = value[int(part)] if part.lstrip("-").isdigit() else entry(value, part)
        path = path[len(part) + 1 :]
    return value


def entry(values: list[dict[str, Any]], part: str) -> dict[str, Any]:
    """The first entry of that name, or the first whose fields are those of `n=8,name=hf`."""
    for one in values:
        if one.get("name") == part or all(
            str(one.get(key)) == wanted for key, _, wanted in (pair.partition("=") for pair in part.split(","))
        ):
            return one
    raise KeyError(part)


def shown(value: Any, form: str) -> str:
    """A value as a page shows it; no value is shown as nothing.

    >>> shown({"value": 1.984, "ci95": [1.77, 2.21]}, ".1f"), shown(0.123, "100*.0f"), shown(None, ".1f")
    ('2.0 [1.8, 2.2]', '12', '')
    """
    if isinstance(value, dict):
        return "{} [{}, {}]".format(*(shown(one, form) for one in (value["value"], *value["ci95"])))
    factor, _, form = form.rpartition("*")
    return "" if value is None else format(value * float(factor) if factor else value, form)


def figure(root: Path, place: str, form: str) -> str:
    """The value that stands at SOURCE:PATH as a page shows it; after `~` with the interval that stands beside it."""
    name, _, path = place.replace(":/", ":").partition(":")
    value = find(source(root, name), path)
    if form.startswith("~"):
        value = {"value": value, "ci95": find(source(root, name), path.rpartition("/")[0])["ci95"]}
    return shown(value, form.lstrip("~"))


def corrected(root: Path, text: str) -> str:
    """A page with each tied figure as its JSON has it."""

    def one(found: re.Match[str]) -> str:
        marker, name, path, form = found.groups()
        return f"{marker}{figure(root, f'{name}:{path}', form)}<!--/v-->"

    def table(found: re.Match[str]) -> str:
        marker, name, path, recipe, rows = found.groups()
        columns = [column.strip().rpartition(" ") for column in recipe.split("|")]
        lines = rows.splitlines(keepends=True)
        return marker + "".join([*lines[:2], *(row(root, f"{name}:{path}", columns, line) for line in lines[2:])])

    return TABLE.sub(table, VALUE.sub(one, text))


def row(root: Path, place: str, columns: list[tuple[str, str, str]], line: str) -> str:
    """A table's row with the values of its key; a row without a key is left as it is."""
    cells = line.strip().strip("|").split("|")
    key = next(filter(None, (pattern.search(cells[0]) for pattern in KEYS)), None)
    if key is None:
        return line
    for at, (where, _, form) in enumerate(columns, 1):
        if form:
            of = where if ":" in where else f"{place}/{where}"  # a column may have a source of its own
            bold = "**" if "**" in cells[at] else ""
            value = figure(root, of.replace("{}", key[1]), form)
            cells[at] = f" {bold}{value}{bold} " if value else " "
    return f"|{'|'.join(cells)}|\n"


def lengths(name: str, text: str) -> list[str]:
    """Every line of a page that is too long, and the page if it is."""
    found = [f"{name}:{at}: {len(line)} characters" for at, line in enumerate(text.splitlines(), 1) if len(line) > LINE]
    count, most = len(UNREAD.sub("", text).split()), README_WORDS if name == "README.md" else WORDS
    return found + ([f"{name} has {count} words, {most} are allowed"] if count > most else [])


def main(write: bool, root: Path = ROOT) -> int:
    """Print what is wrong with the pages, or mend their figures; 1 if anything is wrong."""
    found: list[str] = []
    for page in sorted([*root.glob("*.md"), *root.glob("docs/*.md")]):
        text, name = page.read_text(encoding="utf-8"), str(page.relative_to(root))
        try:
            right = corrected(root, text)
        except (OSError, LookupError, TypeError, ValueError) as error:
            found.append(f"{name}: a marker names what is not there: {error!r}")
            continue
        if write:
            page.write_text(right, encoding="utf-8")
        elif right != text:
            pairs = zip(text.splitlines(), right.splitlines(), strict=False)
            found += [f"{name}:{at}: the JSON gives {new}" for at, (old, new) in enumerate(pairs, 1) if old != new]
        found += lengths(name, right)
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv[1:]))
