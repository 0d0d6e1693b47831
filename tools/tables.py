"""Writes the lists of the docs that the code has: `python tools/tables.py`.

A list stands between `<!-- table: NAME -->` and `<!-- end -->`; NAME is one of `TABLES`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import fill

from crossdraft.compressions import COMPRESSIONS
from crossdraft.engine.rules import RULES
from crossdraft.methods import METHODS
from crossdraft.options import OPTIONS
from crossdraft.serve.settings import all_settings
from crossdraft_lab.datasets.catalogue import DATASETS

PAGES = Path(__file__).parents[1] / "docs"
MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Entry = tuple[str, str]  # what stands in backquotes, and what is said of it


def drafters() -> Iterator[Entry]:
    """Every drafter: what it does, what it needs, where it comes from."""
    for name, method in METHODS.items():
        traits = {"trained": method.trained, "trees": method.drafts_trees, "sees the scene": bool(method.senses)}
        yield name, _joined(method.summary, *(trait for trait, has in traits.items() if has), method.paper)


def rules() -> Iterator[Entry]:
    """Every acceptance rule: whether it is lossless, at which temperature, what it verifies, where it comes from."""
    for name, rule in RULES.items():
        takes = rule.takes if rule.drafter is None else f"{rule.takes}, of the drafter `{rule.drafter}`"
        lossless = "lossless" if rule.lossless else "**lossy**"
        temperature = "temperature 0" if rule.greedy else "temperature above 0"
        yield name, _joined(lossless, temperature, f"verifies {takes}", rule.paper)


def compressions() -> Iterator[Entry]:
    """Every way to compress what a target sees."""
    for name, one in COMPRESSIONS.items():
        yield name, _joined(one.summary, one.paper)


def settings() -> Iterator[Entry]:
    """Every setting of the server's own, with its default."""
    for name, field in all_settings().items():
        if name not in OPTIONS:
            yield name, f"{field.description or ''}{_default(field.default)}"


def options() -> Iterator[Entry]:
    """Every option of the engine, with its default, and its flag where that is named otherwise, or there is none."""
    for name, option in OPTIONS.items():
        flag = f" · `--{option.flag}`" if option.flag else " · no flag of `ask`" if option.shared else ""
        yield name, f"{option.sentence}{_default(option.default)}{flag}"


def _default(value: object) -> str:
    shown = {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value
    return "" if shown in (None, (), {}, "") else f" (default {shown})"


def datasets() -> Iterator[Entry]:
    """Every data set: the layout of its folder, its licence, its paper."""
    for name, one in DATASETS.items():
        yield name, _joined(one.title, f"folder with `{one.layout}`", one.licence, one.paper)


def models() -> Iterator[Entry]:
    """Every class that was tried: by inputs made by hand, and from a folder with its own processor."""
    folders = json.loads((PAGES / "results" / "processors.json").read_text(encoding="utf-8"))["classes"]
    classes = json.loads((PAGES / "results" / "models.json").read_text(encoding="utf-8"))["classes"]
    for name, folder in folders.items():
        tried = classes.get(name, {})
        said = [f"{what} {_error(tried[what])}" for what in ("text", "image", "clip") if what in tried]
        yield name, _joined(*said, f"from its folder: {_folder(folder)}")


def clients() -> Iterator[Entry]:
    """Every client that was run against the server: its version, and what it did."""
    for name, one in json.loads((PAGES / "results" / "clients.json").read_text(encoding="utf-8")).items():
        failed = [f"**{way}**: {result}" for way, result in one["ways"].items() if result != "ok"]
        done = ", ".join(way for way, result in one["ways"].items() if result == "ok")
        yield f"{name} {one['version']}", _joined(done, *failed)


def _folder(found: Mapping[str, Mapping[str, str]]) -> str:
    """The inputs that a class reads from its folder as Hugging Face does, and the reasons for those it does not."""
    same = ", ".join(what for what, one in found.items() if one["status"] == "same")
    return "; ".join([same, *(f"no {what}: {one['why']}" for what, one in found.items() if one["status"] != "same")])


def _error(result: Mapping[str, object]) -> str:
    if result["passes"]:
        return f"{result['error']:.0e}"
    return f"{'not tried' if result['error'] is None else 'wrong'}: {result['why']}"


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


TABLES: Mapping[str, Callable[[], Iterator[Entry]]] = {
    "drafters": drafters,
    "rules": rules,
    "compressions": compressions,
    "options": options,
    "settings": settings,
    "datasets": datasets,
    "models": models,
    "clients": clients,
}


def with_tables(page: str) -> str:
    """A page's text with its lists as the code has them now."""
    return MARKED.sub(lambda found: found[1] + _markdown(TABLES[found[2]]()) + found[3], page)


def _markdown(entries: Iterator[Entry]) -> str:
    lines = (f"- `{name}`: {said}" for name, said in entries)
    return "".join(f"{fill(line, 120, subsequent_indent='  ', break_long_words=False)}\n" for line in lines)


def main() -> None:
    """Rewrite every page whose lists are out of date."""
    for page in PAGES.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        if (now := with_tables(text)) != text:
            page.write_text(now, encoding="utf-8")


if __name__ == "__main__":
    main()
