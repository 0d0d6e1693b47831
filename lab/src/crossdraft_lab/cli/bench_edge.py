"""`crossdraft bench edge`: a drafter at an edge, over slow networks."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from crossdraft.cli.options import Dtype, Target, option_groups
from crossdraft.cli.reporting import hush, progress
from crossdraft.errors import CrossdraftError
from crossdraft_lab.cli.bench_options import BenchModels, MaxTokens, Prompts, ReportOptions, asked_prompts, check_asked


@option_groups
def edge(
    output: ReportOptions,
    rtt: Annotated[str, typer.Option(metavar="MS", help="Round trips, comma-separated.")] = "0,5,20,50,100,200",
    mbit: Annotated[str, typer.Option(metavar="MBIT", help="Megabits a second, comma-separated.")] = "100",
    jitter: Annotated[float, typer.Option(help="Most jitter of each way, as a share of the round trip.")] = 0.1,
    pairs: Annotated[int, typer.Option(help="Questions, each about a clip of its own.")] = 12,
    drafter: Annotated[str, typer.Option(metavar="SPEC", help="The edge's drafter.")] = "event",
    cuts: Annotated[int, typer.Option(help="Answers whose connection is cut, over each network.")] = 2,
    max_new_tokens: MaxTokens = 96,
    cloud: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Ask a server with this drafter, too, such as union:edge,eagle2.")
    ] = None,
    recording: Annotated[
        bool, typer.Option("--recording", help="Also send the recording over the link, for the cloud to draft from.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of order, jitter and cuts.")] = 0,
    target: Target = "reference",
    dtype: Dtype = None,
    prompts: Prompts = None,
) -> None:
    """Ask a server over slow networks, while an edge here drafts. Exit 1 if an answer is not the engine's own.

    Each question is asked in three ways: sending nothing (off: the target alone over the same link), the hidden draft
    alone, and as the policy decides; with --cloud also with a drafter of the cloud's own, without the edge's drafts and
    with them. The edge has one core of this machine, the server the others.
    """
    output.check()
    asked = None if prompts is None else asked_prompts(prompts, None)
    if any(one.structure is not None for one in asked or ()):
        raise CrossdraftError(
            "An edge is asked in plain text here; leave out prompts with a schema, regex or the like."
        )
    check_asked(BenchModels(target), asked, [drafter, *([] if cloud is None else [cloud])])
    from crossdraft_lab.bench.edge.run import EdgePlan, results_table, run_edge, to_json
    from crossdraft_lab.bench.study import terminal_table

    hush()
    rtts = tuple(value / 1e3 for value in _numbers("--rtt", rtt, 0.0))
    with TemporaryDirectory(prefix="crossdraft-") as folder:
        rates = _numbers("--mbit", mbit, 1e-3)
        asked = (pairs, drafter, max_new_tokens, cuts, seed, cloud, recording, target, dtype, prompts)
        plan = EdgePlan(Path(folder), rtts, rates, jitter, *asked)
        with progress("asking", plan.runs) as tick:
            found = run_edge(plan, tick)
    output.console.print(terminal_table(results_table(found)))
    output.write(to_json(plan, found))
    if any(one["identical"] < one["answers"] for one in found):
        raise typer.Exit(1)


def _numbers(option: str, text: str, least: float) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(least <= value < 1e6 for value in found):
        raise CrossdraftError(f"{option} is '{text[:40]}'; write numbers such as 5,20,100.")
    return found
