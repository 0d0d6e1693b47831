"""The table of the drafters, with advice on which to choose."""

from collections.abc import Collection

from rich.console import Console
from rich.table import Table
from rich.text import Text

from crossdraft.methods import METHODS

WIDE, TABLE = 110, 150  # terminal width from which all is shown; width of the table in a file
WHICH = (
    ("events and the reference target:", "glance"),
    ("your own VLM, with training:", "redrafter or eagle2 (crossdraft capture, then crossdraft train redrafter)"),
    ("your own VLM, without training:", "union:memory,ngram (pays where answers repeat themselves or the question)"),
)


def show_drafters(names: Collection[str] | None = None) -> None:
    """Print the advice, then the table of these drafters, or of all; on wide terminals with more columns."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=TABLE)
    margin = max(len(case) for case, _ in WHICH) + 2
    console.print("Which drafter should I take?")
    for case, advice in WHICH:
        console.print(Text(f"  {case}".ljust(margin + 2), "dim") + Text(advice), soft_wrap=True)
    wide = console.width >= WIDE
    more = ("trees", "sees the clip") if wide else ()
    table = Table("drafter", "trained", *more, "what it drafts from", "source", box=None, pad_edge=False)
    for name, method in METHODS.items():
        if names and name not in names:
            continue
        flags = (method.trained, method.drafts_trees, bool(method.senses)) if wide else (method.trained,)
        table.add_row(name, *("yes" if flag else "–" for flag in flags), method.summary, method.paper)
    console.print()
    console.print(table)
    console.print(
        "\nThey can be joined, union:glance,memory, and take settings, memory:folder=DIR: docs/drafters.md.",
        markup=False,
        soft_wrap=True,
    )
