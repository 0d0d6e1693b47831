"""`crossdraft bench encode`, `events`, `recordings`, `partial`, `memory`, `growth`: parts measured by themselves."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from crossdraft.checks import whole
from crossdraft.cli.options import Device, Dtype, check_values, option_groups
from crossdraft.cli.reporting import ReportOptions, hush, progress
from crossdraft_lab.bench.common import counts, numbers
from crossdraft_lab.cli.bench_options import (
    BenchModels,
    Blind,
    Float32Models,
    MaxTokens,
    Nodes,
    Pairs,
    Plot,
    loaded_target,
)


@option_groups
def encode(
    output: ReportOptions,
    target: Annotated[
        str,
        typer.Option(
            help="'reference', a checkpoint's folder, or 'video-llava-7b': an encoder of that shape, random weights."
        ),
    ] = "video-llava-7b",
    where: Annotated[
        str, typer.Option("--encode-devices", metavar="LIST", help="Groups of CPU cores, or GPUs: cuda:0,cuda:1.")
    ] = "cpu:0,cpu:1",
    frames: Annotated[int, typer.Option(help="Frames of the clip.")] = 8,
    repeats: Annotated[int, typer.Option(help="Runs of each way.")] = 9,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Time a vision encoder spread over core groups or GPUs, against one process on one core and on all of them."""
    output.check()
    check_values(device=device, dtype=dtype, frames=frames, encode_devices=where)
    from crossdraft_lab.bench.encode import EncodeBench, lines, time_encoding
    from crossdraft_lab.bench.environment import environment

    plan = EncodeBench(target, where, frames, whole("--repeats", repeats), device, dtype)
    found = environment()
    hush()
    with progress("encoding", plan.runs) as tick:
        times = time_encoding(plan, tick)
    output.lines(lines(plan, times))
    asked = {"target": target, "encode_devices": where, "frames": frames, "repeats": repeats, "dtype": dtype}
    output.write({"environment": found, **asked, **times.to_json()})


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
    from crossdraft_lab.bench.recordings import DRAFTERS, RecordingsBench, compare_recordings, results_table

    plan = RecordingsBench(
        models.models(blind), numbers("--seconds", seconds), clips, each, drafters or DRAFTERS, nodes,
        max_new_tokens=max_new_tokens,
    )  # fmt: skip
    with loaded_target(plan.models) as (where, target), progress("drafting", plan.runs) as tick:
        found = compare_recordings(plan, target, tick)
    output.console.print(results_table(found))
    rows = [row.to_json() for row in found]
    output.write({"environment": where, "clips": clips, "questions": each, "nodes": nodes, "recordings": rows})


@option_groups
def partial(
    models: Float32Models,
    output: ReportOptions,
    frames: Annotated[str, typer.Option(help="Frames of the clips, comma-separated.")] = "2,8,18,40,80,160",
    pairs: Pairs = 4,
    nodes: Nodes = 8,
    blocks: Annotated[int, typer.Option(help="Blocks of 16 keys that are chosen by the question.")] = 8,
) -> None:
    """Draft with the target over a part of its keys and values, on longer and longer prompts."""
    output.check()
    from crossdraft_lab.bench.partial import PartialBench, compare_partial, results_table
    from crossdraft_lab.drafters.settings import PartialSettings

    part = PartialSettings(blocks=whole("--blocks", blocks))
    plan = PartialBench(models.models(), counts("--frames", frames), pairs, nodes, part)
    with loaded_target(plan.models) as (where, target), progress("answering", plan.runs) as tick:
        found = compare_partial(plan, target, tick)
    output.console.print(results_table(found))
    rows = [row.to_json() for row in found]
    output.write({"environment": where, "pairs": pairs, "nodes": nodes, "part": asdict(part), "prompts": rows})


@option_groups
def memory(
    output: ReportOptions,
    tokens: Annotated[int, typer.Option(help="How full the memory is.")] = 1_000_000,
    nodes: Nodes = 32,
) -> None:
    """Time how the drafter 'memory' drafts and learns when it is full."""
    output.check()
    from crossdraft_lab.bench.environment import environment
    from crossdraft_lab.bench.memory import answers_in, lines, time_memory

    found = environment()
    with progress("filling the memory", answers_in(tokens)) as tick:
        timing = time_memory(tokens, nodes, tick=lambda: tick(""))
    output.lines(lines(timing))
    output.write({"environment": found, **timing.to_json()})


@option_groups
def growth(
    models: BenchModels,
    output: ReportOptions,
    of: Annotated[
        str, typer.Option(help="frames, prompt, answer, requests, memory: one, several with commas, or all.")
    ] = "all",
    largest: Annotated[int | None, typer.Option(help="Leave out what is larger.")] = None,
    repeats: Annotated[int, typer.Option(help="Timed runs of each side, but for long ones.")] = 3,
    plot_file: Plot = None,
) -> None:
    """Draw how time and memory grow with frames, prompt, answer, requests and memory: ours and Hugging Face's."""
    output.check(plot=plot_file)
    check_values(device=models.device, dtype=models.dtype)
    from crossdraft_lab.bench.growth import chosen, growth_table, run_curve, sizes, to_json
    from crossdraft_lab.bench.growth_curves import make_curve
    from crossdraft_lab.bench.growth_plot import plot_growth

    wanted = {name: sizes(name, largest) for name in chosen(of)}
    whole("--repeats", repeats)
    hush()
    found, loaded = [], replace(models, dtype=models.dtype or "float32").models()
    with progress("measuring", sum(map(len, wanted.values()))) as tick:
        for name, points in wanted.items():
            found.append(run_curve(make_curve(name, points, loaded), repeats, tick))
    for result in found:
        output.console.print(growth_table(result))
    output.write(to_json(found))
    if plot_file is not None:
        plot_growth(found, plot_file)
