"""`crossdraft bench watch`: a standing question on a replayed stream."""

from typing import Annotated

import typer

from crossdraft.cli.options import DraftDevice, check_values, duration, option_groups
from crossdraft.cli.reporting import hush, progress
from crossdraft_lab.cli.bench_options import CoreOptions, Float32Models, MaxTokens, ReportOptions


@option_groups
def watch(
    models: Float32Models,
    cores: CoreOptions,
    output: ReportOptions,
    drafter: Annotated[str, typer.Option(metavar="SPEC", help="The pair's drafter.")] = "glance",
    every: Annotated[str, typer.Option(metavar="TIME", help="From window to window, as 500ms or 0.5s.")] = "500ms",
    window: Annotated[str, typer.Option(metavar="TIME", help="What a window shows, up to its last frame.")] = "1s",
    seconds: Annotated[int, typer.Option(help="Length of the stream: a held-out scene each second.")] = 8,
    ask: Annotated[
        list[str] | None,
        typer.Option(
            "--ask", metavar="QUESTION", help="The question of a run; repeatable. By default one of each kind in turn."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each question.")] = 1,
    speed: Annotated[float, typer.Option(help="1 = in real time, 2 = twice as fast.")] = 1.0,
    max_new_tokens: MaxTokens = 96,
    draft_device: DraftDevice = None,
) -> None:
    """Ask a standing question of a replayed stream: the pair, and the target alone on its own core and on all.

    Latest window wins: those that are not answered in time are dropped. Times count from a window's last frame.
    """
    output.check()
    every_s, length_s = duration("--every", every), duration("--window", window)
    check_values(device=models.device, dtype=models.dtype, max_new_tokens=max_new_tokens, draft_device=draft_device)
    from crossdraft.streams import Windowing
    from crossdraft_lab.bench.environment import environment
    from crossdraft_lab.bench.study import terminal_table
    from crossdraft_lab.bench.watch import StreamBench, results_table, rows, run_watch, to_json

    plan = StreamBench(
        models.models(draft_device=draft_device),
        Windowing(every_s, length_s),
        drafter,
        tuple(ask or ()),
        repeats,
        seconds,
        max_new_tokens,
        speed,
        cores.cores(models.device),
    )
    hush()
    surroundings = environment()
    with progress("watching", plan.runs) as tick:
        found = rows(run_watch(plan, tick))
    output.console.print(terminal_table(results_table(plan, found)))
    output.write(to_json(plan, found, surroundings))
