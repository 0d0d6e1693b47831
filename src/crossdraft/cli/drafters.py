"""`crossdraft drafters`: every drafter that `--drafter` takes, and which one to take."""

from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.cli.options import AsJson

if TYPE_CHECKING:
    from collections.abc import Collection

    from crossdraft.records import Method

app = typer.Typer(help="List the drafters, and say which one to take.", add_completion=False)

WIDE, TABLE = 110, 150  # from how many columns on a terminal shows all; how wide a file gets the table
WHICH = (
    ("events and the reference target:", "glance"),
    ("your own VLM, with training:", "eagle2 or eagle3 (crossdraft capture, then crossdraft train eagle3)"),
    ("your own VLM, without training:", "union:memory,ngram (pays where answers repeat themselves or the question)"),
)


@app.command()
def drafters(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List every drafter: what it drafts from, whether it needs training, drafts trees and sees the clip."""
    from crossdraft.cli.reporting import report
    from crossdraft.methods import METHODS, method_of

    for name in names or ():
        method_of(name)
    if as_json:
        rows = [row_of(name, method) for name, method in METHODS.items() if not names or name in names]
        report(rows, as_json=True)
        return
    show_drafters(names)


def row_of(name: str, method: "Method") -> dict[str, object]:
    """Properties of a drafter, as plain values."""
    return {
        "name": name,
        "what": method.summary,
        "trained": method.trained,
        "trees": method.drafts_trees,
        "sees": bool(method.senses),
        "joins": method.joins[0],
        "source": method.paper,
    }


def show_drafters(names: "Collection[str] | None" = None) -> None:
    """The advice, then the table of these drafters, or of all; on wide terminals with more columns."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from crossdraft.methods import METHODS

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
