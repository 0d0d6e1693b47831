"""Line budgets: `python tools/size.py` fails where a room of the repository has more lines than `[tool.house]` allows.

A budget only falls: whoever makes a room smaller lowers its number, which this prints.
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SPARE = 200  # lines that a room may be below its budget before the number is to be lowered


def lines(folder: Path) -> int:
    """Lines of all Python files below a folder, or of one file."""
    files = folder.rglob("*.py") if folder.is_dir() else [folder]
    return sum(path.read_text(encoding="utf-8").count("\n") for path in files)


def complaints(root: Path, budgets: dict[str, int]) -> list[str]:
    """Every room above its budget, far below it, or not there."""
    found = []
    for room, budget in budgets.items():
        if not (root / room).exists():
            found.append(f"{room} is not there; take it out of [tool.house] in pyproject.toml.")
        elif (count := lines(root / room)) > budget:
            found.append(f"{room} has {count:,} lines, and its budget is {budget:,}; look what can leave.")
        elif count < budget - SPARE:
            found.append(f"{room} has {count:,} lines; lower its budget of {budget:,} in pyproject.toml.")
    return found


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        found = complaints(ROOT, tomllib.load(file)["tool"]["house"])
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
