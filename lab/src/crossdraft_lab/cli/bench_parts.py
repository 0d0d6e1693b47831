"""`crossdraft bench events`, `raw` and `recordings`: parts measured by themselves."""

from pathlib import Path
from typing import Annotated

import typer

from crossdraft.cli.options import option_groups
from crossdraft.cli.reporting import progress
from crossdraft_lab.bench.common import numbers
from crossdraft_lab.cli.bench_options import BenchModels, Blind, MaxTokens, Nodes, ReportOptions, loaded_target


@option_groups
def events(
    output: ReportOptions,
    recording: Annotated[
        Path | None, typer.Option(help="A real recording of at least 50 ms instead of a made-up one.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Length of the file that is sliced.")] = 3.0,
    repeats: Annotated[int, typer.Option(help="Runs of each measurement.")] = 20,
) -> None:
    """Time event frames, slices of a recording, and the simulator."""
    output.check()
    from crossdraft_lab.bench.environment import environment
    from crossdraft_lab.bench.events import ROWS, lines, run_events, to_json

    found = environment()
    with progress("measuring", ROWS) as tick:
        timings = run_events(recording, seconds, repeats, tick)
    output.lines(lines(timings, recording))
    output.write({"environment": found, **to_json(timings, recording)})


@option_groups
def raw(
    output: ReportOptions,
    recording: Annotated[
        Path | None, typer.Option(help="A real recording of at least 50 ms instead of a made-up one.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Length of the recording that the first 50 ms are repeated to.")] = 2.0,
    repeats: Annotated[int, typer.Option(help="Runs of each measurement.")] = 9,
) -> None:
    """Time the decoding of Prophesee RAW on one core: events a second, ours and faery's."""
    output.check()
    from crossdraft_lab.bench.environment import environment
    from crossdraft_lab.bench.events import source_of
    from crossdraft_lab.bench.raw import ROWS, raw_json, raw_lines, run_raw

    found = environment()
    with progress("measuring", ROWS) as tick:
        rates = run_raw(recording, seconds, repeats, tick)
    output.lines(raw_lines(rates))
    output.write({"environment": found, "recording": source_of(recording), **raw_json(rates)})


@option_groups
def recordings(
    models: BenchModels,
    output: ReportOptions,
    seconds: Annotated[str, typer.Option(help="Lengths of the recordings, comma-separated.")] = "1,4,16",
    clips: Annotated[int, typer.Option(help="How many scenes.")] = 20,
    each: Annotated[int, typer.Option("--questions", help="How many questions about each.")] = 2,
    drafters: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter", metavar="SPEC", help="A drafter; repeated. The others' time is compared with the first's."
        ),
    ] = None,
    nodes: Nodes = 48,
    max_new_tokens: MaxTokens = 96,
    blind: Blind = "blind",
) -> None:
    """Compare what event drafters make of long recordings: the accepted hidden prefix, as drafted and at equal time."""
    output.check()
    from crossdraft_lab.bench.recordings import COLUMNS, DRAFTERS, RecordingsBench, compare_recordings
    from crossdraft_lab.bench.study import rows_json, rows_table

    plan = RecordingsBench(
        models.models(blind), numbers("--seconds", seconds), clips, each, drafters or DRAFTERS, nodes,
        max_new_tokens=max_new_tokens,
    )  # fmt: skip
    with loaded_target(plan.models) as (where, target), progress("drafting", plan.runs) as tick:
        found = compare_recordings(plan, target, tick)
    output.console.print(rows_table(COLUMNS, found))
    rows = [rows_json(COLUMNS, row) for row in found]
    output.write({"environment": where, "clips": clips, "questions": each, "nodes": nodes, "recordings": rows})
