"""Keeps retired words out of identifiers, class names unique and docstrings true: `python tools/words.py [FOLDER]`.

A reader of the field should meet the field's terms. The words below were this project's own for things that have one:
"verdict" for the output of verification, "shelf" for a datastore, "purse" for a time budget. An identifier is split at
underscores and capitals and its parts are compared as whole words, so that `bespoke` does not hold `spoke`.
"""

import ast
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

WORDS = """
affords apart apprentice aside attended beside blend camp carry comb contestant coupled courier course crowd elder
eldest eventful everywhere exchange eyes featured foregone foresaw foresee foresees frailty glancer glancers glimpse
grace guess guesses hazard hazards heard hiccup hope journal judge judged judges knock law laws lectures lesson
lessons listening lives mind numbering odds overseen pen perish placed prospect pupil purse recollection recollections
relay remembers reputation rereading roster sapling scribe seer shelf sitting spine spoken standing stiff stirred
teaching telling tells told towers unrolled verdict verdicts voice vote wear youngest
"""
ROOT = Path(__file__).parents[1]
SOURCES, TESTS = [ROOT / name for name in ("src", "lab/src", "plugins/vllm/src", "plugins/ray/src")], ROOT / "tests"
RETIRED = frozenset(WORDS.split())
FIRST_WORDS = re.compile(
    r"(Of|What|Whether|Which|Who|Whose|How|Where|When|Until|If|As|So|It|Its|Their|This|That|These|Those|Both|None|Nobody|"
    r"Nothing|The same|Likewise)\b"
)
PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def retired(path: Path) -> Iterator[str]:
    """A line for each identifier of a file that holds a retired word."""
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            words = {part.lower() for part in PARTS.findall(token.string)} if token.type == tokenize.NAME else set()
            for word in sorted(words & RETIRED):
                yield f"{path}:{token.start[0]}: '{token.string}' holds the retired word '{word}'"


def classes(path: Path) -> Iterator[str]:
    """Names of a file's classes, nested ones left out."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name


def documented(docstring: str | None) -> Iterator[str]:
    """The names below a docstring's `Args:`."""
    _, _, block = (docstring or "").partition("Args:\n")
    for names in re.findall(r"^    ([*\w][*\w, ]*):(?=\s)", block.partition("\n\n")[0], re.MULTILINE):
        yield from (name.strip(" *") for name in names.split(","))


def named(node: ast.AST) -> set[str]:
    """Names that a function takes, or that a class has for attributes or takes to be made or called."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        taken = node.args
        rest = [arg for arg in (taken.vararg, taken.kwarg) if arg is not None]
        return {arg.arg for arg in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs, *rest)}
    found = set[str]()
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            found.add(part.target.id)
        elif isinstance(part, ast.FunctionDef) and part.name in ("__init__", "__call__"):
            found |= named(part)
        elif isinstance(part, ast.FunctionDef) and part.decorator_list:
            found.add(part.name)
    return found


def misnamed(path: Path) -> Iterator[str]:
    """A line for each name below a docstring's `Args:` that is none of what it describes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for name in documented(ast.get_docstring(node)):
                if name not in named(node):
                    yield f"{path}:{node.lineno}: the docstring of '{node.name}' describes '{name}', which it has not"


def unreadable(path: Path) -> Iterator[str]:
    """Docstrings of a file whose first line is neither a noun phrase nor begins with a verb."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = FIRST_WORDS.match(ast.get_docstring(node) or "")
            if found is not None:
                line = getattr(node, "lineno", 1)
                yield f"{path}:{line}: a docstring begins with '{found[0]}'; write a noun phrase, or a verb"


def complaints(*folders: Path, tests: bool = False) -> list[str]:
    """Everything that is wrong with the Python files below folders; classes of tests may be called alike."""
    found: list[str] = []
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        found += retired(path)
        found += misnamed(path)
        found += [] if tests else unreadable(path)
        for name in () if tests else classes(path):
            homes[name].append(str(path))
    found += [f"class {name} stands in {' and '.join(paths)}" for name, paths in homes.items() if len(paths) > 1]
    return found


def main(arguments: list[str]) -> int:
    """Print what is wrong with the folder, by default with ours and `tests`; 1 if anything is."""
    found = complaints(Path(arguments[0])) if arguments else complaints(*SOURCES) + complaints(TESTS, tests=True)
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
