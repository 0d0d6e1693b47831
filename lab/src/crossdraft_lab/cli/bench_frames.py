"""`crossdraft bench frames`: what reusing features of shared frames saves."""

from dataclasses import asdict
from typing import Annotated

import typer

from crossdraft.checks import whole
from crossdraft.cli.options import Device, Dtype, check_values, duration, option_groups
from crossdraft.cli.reporting import ReportOptions, hush, progress
from crossdraft_lab.bench.common import counts
from crossdraft_lab.cli.bench_options import MaxTokens


@option_groups
def frames(
    output: ReportOptions,
    target: Annotated[
        str,
        typer.Option(
            help="'reference', a checkpoint's folder, or 'video-llava-7b': an encoder of that shape, random weights."
        ),
    ] = "reference",
    drafter: Annotated[
        str, typer.Option(metavar="SPEC", help="The pair's drafter; none = the target alone.")
    ] = "glance",
    every: Annotated[str, typer.Option(metavar="TIME", help="From window to window, as 500ms or 0.5s.")] = "250ms",
    window: Annotated[str, typer.Option(metavar="TIME", help="What a window shows, up to its last frame.")] = "1s",
    seconds: Annotated[int, typer.Option(help="Length of the stream: a held-out scene each second.")] = 8,
    ask: Annotated[
        list[str] | None, typer.Option("--ask", metavar="QUESTION", help="Repeatable; by default one of each kind.")
    ] = None,
    new: Annotated[
        str, typer.Option(metavar="LIST", help="With video-llava-7b: frames of a clip that were not shown before.")
    ] = "2,4",
    repeats: Annotated[int, typer.Option(help="With video-llava-7b: clips.")] = 9,
    device: Device = None,
    dtype: Dtype = "float32",
    max_new_tokens: MaxTokens = 96,
) -> None:
    """Answer all windows of a stream with features of shared frames reused, and with each window encoded whole.

    With --target video-llava-7b clips are encoded alone, of 8 frames, some of which were in the clip before.
    """
    output.check()
    every_s, length_s = duration("--every", every), duration("--window", window)
    check_values(device=device, dtype=dtype, max_new_tokens=max_new_tokens)
    shifts = counts("--new", new)
    from crossdraft.options import Options
    from crossdraft.streams import Windowing
    from crossdraft_lab.bench.encode import TOWER, EncodeBench
    from crossdraft_lab.bench.environment import environment
    from crossdraft_lab.bench.frames import FrameBench, lines, time_shifts, time_windows

    hush()
    surroundings = environment()
    if target == TOWER:
        plan = EncodeBench(repeats=whole("--repeats", repeats), device=device, dtype=dtype)
        with progress("encoding", len(shifts) * plan.runs) as tick:
            found = time_shifts(plan, shifts, tick)
        output.lines([f"{target}, clips of noise; medians and quartiles of {repeats}", *map(str, found)])
        output.write({"environment": surroundings, "target": target, "shifts": [one.to_json() for one in found]})
        return
    windowing = Windowing(every_s, length_s)
    options = Options(device=device, dtype=dtype)
    bench = FrameBench(target, drafter, windowing, seconds, tuple(ask or ()), max_new_tokens, options)
    with progress("asking", bench.runs) as tick:
        times = time_windows(bench, tick)
    output.lines(lines(bench, times))
    asked = {"target": target, "drafter": drafter, **asdict(windowing), "seconds": seconds, "questions": bench.asked}
    output.write({"environment": surroundings, **asked, **times.to_json()})
