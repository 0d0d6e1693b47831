"""Compares the README's table of speeds with the JSON that it comes from: `python tools/readme_numbers.py`.

The JSON is what `crossdraft bench … --json-out docs/results/readme.json` wrote in the same run. Where it is not there
(a checkout in which nobody measured), nothing can be compared, and that is said.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README, RESULTS = ROOT / "README.md", ROOT / "docs" / "results" / "readme.json"
# row of the table, and its cores: the method that `crossdraft bench` calls so
BASELINES = {
    ("Hugging Face generate", "1"): "hf",
    ("Hugging Face generate", "2"): "hf-all",
    ("the target alone, our engine", "1"): "target",
    ("the target alone, our engine", "2"): "target-all",
}
HEADS = ("cores", "same tokens", "first provisional, ms", "TTFT, ms", "E2E, ms", "τ", "speedup")
NUMBER = re.compile(r"\d+(?:\.(\d+))?")


def rows(text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Name and cells of every row of the table whose head is `HEADS`, marks of Markdown left out."""
    lines = iter(text.splitlines())
    for line in lines:
        if tuple(_cells(line)[1:]) == HEADS:
            next(lines)
            for row in lines:
                if not row.startswith("|"):
                    return
                name, *cells = _cells(row)
                yield name, dict(zip(HEADS, cells, strict=True))


def _cells(line: str) -> list[str]:
    return [re.sub(r"[*`]", "", cell).strip() for cell in line.strip().strip("|").split("|")]


def expected(method: Mapping[str, Any]) -> dict[str, list[float]]:
    """The numbers of a method's cells, by column, in the order in which they stand there."""
    speedup, first = method["speedup"], method["first_provisional_ms"]
    return {
        "same tokens": [method["identical"]["equal"], method["identical"]["total"]],
        "first provisional, ms": [] if first is None else [first["median"]],
        "TTFT, ms": [method["ttft_ms"]["median"]],
        "E2E, ms": [method["total_ms"]["median"]],
        "τ": [method["tau"]],
        "speedup": [speedup["value"], *speedup["ci95"]],
    }


def shown_as(found: str, values: Sequence[float]) -> bool:
    """Whether a cell shows these numbers, each rounded as it stands there; the baseline itself may stand as 1.

    >>> shown_as("1.66 [1.55, 1.77]", [1.6612, 1.549, 1.77]), shown_as("72", [71.4]), shown_as("1", [1.0, 1.0, 1.0])
    (True, False, True)
    """
    shown = list(NUMBER.finditer(found))
    if found == "1":
        return set(values) == {1.0}
    if len(shown) != len(values):
        return False
    return all(f"{value:.{len(one[1] or '')}f}" == one[0] for one, value in zip(shown, values, strict=True))


def differences(text: str, report: Mapping[str, Any]) -> list[str]:
    """A sentence for each cell that is not what the JSON says, and for each row that it has not."""
    methods = {method["name"]: method for method in report["methods"]}
    table = list(rows(text))
    if not table:
        return [f"No table with the columns {', '.join(HEADS)} was found."]
    found = []
    for name, cells in table:
        method = methods.get(BASELINES.get((name, cells["cores"]), name))
        if method is None:
            found.append(f"The row '{name}' ({cells['cores']}) is no method of the JSON.")
            continue
        for column, values in expected(method).items():
            if not shown_as(cells[column], values):
                said = ", ".join(f"{value:g}" for value in values) or "nothing"
                found.append(
                    f"'{name}' ({cells['cores']}), {column}: the table says '{cells[column]}', the JSON {said}."
                )
    return found


def main() -> int:
    """Compare, and say what differs; exit status 1 if anything does."""
    if not RESULTS.exists():
        print(f"{RESULTS.relative_to(ROOT)} is not there: the README's table was compared with nothing.")
        return 0
    wrong = differences(README.read_text(encoding="utf-8"), json.loads(RESULTS.read_text(encoding="utf-8")))
    for sentence in wrong:
        print(sentence)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
