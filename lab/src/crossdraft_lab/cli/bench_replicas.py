"""`crossdraft bench replicas`: several replicas on a Ray cluster against one server alone."""

from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from crossdraft.cli.options import Target, option_groups
from crossdraft.cli.reporting import ReportOptions, hush, progress
from crossdraft_lab.bench.common import counts
from crossdraft_lab.cli.bench_options import LoadedDrafter, MaxBatch, Questions


@option_groups
def replicas(
    output: ReportOptions,
    target: Target = "reference",
    drafter: LoadedDrafter = "auto",
    numbers: Annotated[
        str, typer.Option("--replicas", metavar="N,N…", help="Numbers of replicas, each a server of its own.")
    ] = "1,2",
    clients: Annotated[int, typer.Option(min=1, help="Clients that ask at once, for the throughput.")] = 8,
    pairs: Questions = 24,
    repeats: Annotated[int, typer.Option(help="Blocks of each server, all servers in turn.")] = 4,
    max_batch: MaxBatch = 4,
) -> None:
    """Measure `crossdraft serve --ray` on loopback, with a cluster of this machine for each number of replicas.

    Exit 1 on a wrong answer. Set OMP_NUM_THREADS=1, so that a replica uses one core: else one may have all of them.
    """
    output.check()
    from crossdraft_lab.bench.serving.plan import ServePlan
    from crossdraft_lab.bench.serving.replicas import lines, run_replicas

    hush()
    chosen = counts("--replicas", numbers)
    import_module("ray")  # that it is missing is said before anything is started
    with TemporaryDirectory(prefix="cd-") as folder:  # short: Ray's sockets lie below, whose names may not be long
        plan = ServePlan(Path(folder), target, drafter, pairs, repeats, max_batch=max_batch)
        with progress("measuring", len(chosen) + repeats + 2) as tick:
            report = run_replicas(plan, chosen, clients, tick)
    output.lines(lines(report))
    output.write(report)
    if not report["passed"]:
        raise typer.Exit(1)
