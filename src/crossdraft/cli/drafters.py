"""`crossdraft drafters`: lists every drafter that `--drafter` takes, with advice on which to choose."""

from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.cli.options import AsJson

if TYPE_CHECKING:
    from crossdraft.records import Method

app = typer.Typer(help="List the drafters, and say which one to take.", add_completion=False)


@app.command()
def drafters(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List every drafter: what it drafts from, whether it needs training, drafts trees and sees the clip."""
    from crossdraft.cli.drafter_table import show_drafters
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
