"""`crossdraft bench live`: live sources on loopback."""

from typing import Annotated

import typer

from crossdraft.checks import choice, positive
from crossdraft.cli.options import option_groups
from crossdraft.cli.reporting import hush, saying
from crossdraft_lab.bench.common import numbers
from crossdraft_lab.cli.bench_options import ReportOptions


@option_groups
def live(
    output: ReportOptions,
    source: Annotated[
        str, typer.Option(help="evt (EVT3 words over a socket), or dv (dv-processing's writer).")
    ] = "evt",
    rates: Annotated[str, typer.Option(help="Million events a second, comma-separated: a run each.")] = "1,2,5,10",
    seconds: Annotated[float, typer.Option(help="Length of a run.")] = 10.0,
    minutes: Annotated[float, typer.Option(help="One more run, of so many minutes, at the first rate.")] = 0.0,
    fps: Annotated[float, typer.Option(help="Frames a second, of 640x360, that come beside the events.")] = 30.0,
) -> None:
    """Receive live events and frames on loopback: what is borne without a drop, its processor time, and its memory."""
    output.check()
    choice("source", source, ("evt", "dv"))
    positive("--fps", fps)
    asked = [(positive("--rates", one), positive("--seconds", seconds)) for one in numbers("--rates", rates)]
    asked += [(asked[0][0], positive("--minutes", 60 * minutes))] if minutes else []
    from crossdraft_lab.bench.environment import environment
    from crossdraft_lab.bench.live import run_live

    hush()
    runs = []
    with saying("receiving") as tick:
        for rate, length in asked:
            runs.append(run_live(source, rate, length, fps, tick))
    for run in runs:
        output.console.print(", ".join(f"{name} {value}" for name, value in run.items()))
    output.write({"runs": runs, "environment": environment()})
