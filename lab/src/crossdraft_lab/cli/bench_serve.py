"""`crossdraft bench serve`: the server over the engine, many clients, cancels, a drafter that is killed."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from crossdraft.cli.options import Target, option_groups
from crossdraft.cli.reporting import hush, progress
from crossdraft_lab.cli.bench_options import (
    ChoiceSeed,
    Kills,
    LoadedDrafter,
    MaxBatch,
    Questions,
    ReportOptions,
    VllmPython,
    python_at,
)


@option_groups
def serve(
    output: ReportOptions,
    target: Target = "reference",
    drafter: LoadedDrafter = "auto",
    pairs: Questions = 24,
    repeats: Annotated[int, typer.Option(help="Starts whose throughput is compared; blocks beside vLLM.")] = 4,
    max_batch: MaxBatch = 4,
    max_queue: Annotated[int, typer.Option(help="Requests that may wait.")] = 8,
    clients: Annotated[int, typer.Option(help="Clients that ask at once; 0 leaves this out, as below.")] = 50,
    minutes: Annotated[float, typer.Option(help="How long they do.")] = 5.0,
    cancels: Annotated[int, typer.Option(help="Streams that are left before their end.")] = 200,
    kills: Kills = 3,
    vllm_python: VllmPython = None,
    seed: ChoiceSeed = 0,
) -> None:
    """Measure `crossdraft serve` on loopback. Exit 1 if anything is not as it should be.

    At most 3 ms (p50) and 2 % of throughput over the engine called directly; of many clients only 200 and 503, and
    memory that stays; nothing left of cancelled streams; no wrong or lost answer when the drafter is killed.
    """
    output.check()
    from crossdraft_lab.bench.serving.plan import ServePlan
    from crossdraft_lab.bench.serving.run import lines, run_serve

    hush()
    with TemporaryDirectory(prefix="crossdraft-") as folder:
        plan = ServePlan(
            Path(folder),
            target,
            drafter,
            pairs,
            repeats,
            max_batch=max_batch,
            max_queue=max_queue,
            clients=clients,
            seconds=60 * minutes,
            cancels=cancels,
            kills=kills,
            seed=seed,
            vllm_python=python_at(vllm_python),
        )
        parts = bool(clients) + bool(cancels) + bool(kills)
        blocks = 0 if vllm_python is None else repeats * len(plan.levels)
        with progress("measuring", pairs + repeats + parts + blocks) as tick:
            report = run_serve(plan, tick)
    output.lines(lines(report))
    output.write(report)
    if not report["passed"]:
        raise typer.Exit(1)
