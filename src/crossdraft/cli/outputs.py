"""Options of commands that write: `--json` is standard output and nothing else on it, `--json-out` a file."""

from pathlib import Path
from typing import Annotated

import typer

Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="The report as JSON on standard output; tables then go to stderr.")
]
JsonOut = Annotated[
    Path | None, typer.Option("--json-out", metavar="FILE", help="Write the report as JSON into a file, too.")
]
