"""Tables of the docs that are written from the code: `python docs/tables.py` brings them up to date.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; NAME is one of `TABLES`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from crossdraft.compressions import COMPRESSIONS
from crossdraft.engine.accept import Rule
from crossdraft.engine.rules import RULES
from crossdraft.methods import METHODS
from crossdraft.serve.settings import ServerSettings
from crossdraft_lab.datasets.catalogue import DATASETS

PAGES = Path(__file__).parent
MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def drafters() -> list[tuple[str, ...]]:
    """Every drafter: what it does, what it needs, where it comes from."""
    yes = {True: "yes", False: "no"}
    head = ("name", "what it does", "needs training", "drafts trees", "sees the scene", "source")
    return [head] + [
        (f"`{name}`", m.summary, yes[m.trained], yes[m.drafts_trees], yes[bool(m.senses)], m.paper)
        for name, m in METHODS.items()
    ]


def rules() -> list[tuple[str, ...]]:
    """Every acceptance rule: whether it is lossless, what it verifies, where it comes from."""
    head = ("rule", "lossless", "temperature", "draft it asks for", "source")
    return [head] + [
        (f"`{name}`", "yes" if r.lossless else "**no**", "0" if r.greedy else "above 0", _takes(r), r.paper)
        for name, r in RULES.items()
    ]


def _takes(rule: Rule) -> str:
    """The drafts that a rule asks for."""
    return rule.takes if rule.drafter is None else f"{rule.takes}, of the drafter `{rule.drafter}`"


def compressions() -> list[tuple[str, ...]]:
    """Every way to compress what a target sees."""
    head = ("compression", "what it does", "source")
    return [head] + [(f"`{name}`", one.summary, one.paper) for name, one in COMPRESSIONS.items()]


def settings() -> list[tuple[str, ...]]:
    """Every setting of the server."""
    head = ("setting", "default", "what it says")
    fields = ServerSettings.model_fields.items()
    return [head] + [(f"`{name}`", _default(one.default), one.description or "") for name, one in fields]


def _default(value: object) -> str:
    """A setting's default as the table has it; nothing where nothing is set."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "" if value is None or value in ((), {}) else str(value)


def datasets() -> list[tuple[str, ...]]:
    """Every data set: what a folder is told by, and its licence."""
    head = ("name", "data set", "told by", "licence", "paper")
    return [head] + [
        (f"`{name}`", one.title, f"`{one.layout}`", one.licence, one.paper) for name, one in DATASETS.items()
    ]


TABLES: Mapping[str, Callable[[], list[tuple[str, ...]]]] = {
    "drafters": drafters,
    "rules": rules,
    "compressions": compressions,
    "settings": settings,
    "datasets": datasets,
}


def with_tables(page: str) -> str:
    """A page's text with its tables as the code has them now."""
    return MARKED.sub(lambda found: found[1] + _markdown(TABLES[found[2]]()) + found[3], page)


def _markdown(rows: Iterable[tuple[str, ...]]) -> str:
    head, *body = ["| " + " | ".join(row) + " |\n" for row in rows]
    return head + "|" + "---|" * (head.count("|") - 1) + "\n" + "".join(body)


def main() -> None:
    """Rewrite every page whose tables are out of date."""
    for page in PAGES.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        if (now := with_tables(text)) != text:
            page.write_text(now, encoding="utf-8")


if __name__ == "__main__":
    main()
