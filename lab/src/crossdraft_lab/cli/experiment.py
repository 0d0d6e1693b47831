"""`crossdraft experiment`: runs the experiments, and writes their report."""

from pathlib import Path
from typing import Annotated

import typer

from crossdraft.cli.options import AsJson, option_groups
from crossdraft.errors import CrossdraftError
from crossdraft_lab.cli.bench_options import CoreOptions

app = typer.Typer(help="Run the experiments, and write their report.", add_completion=False)

REPORT = "report"


@app.command()
@option_groups
def experiment(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Experiments, 'all', or 'report' for the report of what ran.")
    ],
    cores: CoreOptions,
    out: Annotated[Path, typer.Option(help="Folder; an experiment that was cut off goes on.")] = Path("results"),
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: all of them in minutes.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Begin anew where there are runs.")] = False,
    traces: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="With report: recorded answers of a pair, for a page of their replay. Repeatable."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run experiments: raw runs, a table, a figure and a summary each, in OUT/NAME; after 'all' the report of them.

    Exit status 1 if a row that is lossless was not, an answer differed from the target's own, or a drafter was lost.
    """
    from crossdraft.cli.reporting import hush, progress, report
    from crossdraft_lab.bench.experiments.registry import chosen
    from crossdraft_lab.bench.experiments.report import write_report
    from crossdraft_lab.bench.experiments.runner import run_experiment

    if REPORT in names and (len(names) > 1 or quick or force):
        raise CrossdraftError("report stands alone: it is made of the runs that are there, whatever their size.")
    if traces is not None and names != [REPORT]:
        raise CrossdraftError("--traces is for the report: crossdraft experiment report --traces FILE.")
    hush()
    if names == [REPORT]:
        _report(out, traces, as_json=as_json)
        return
    found = []
    for one in chosen(tuple(names)):
        config = one.config(quick=quick)
        with progress(one.name, len(one.units(config))) as tick:
            found.append(run_experiment(one, config, out, cores.cores(None), tick, force=force))
        if not as_json:
            last = found[-1].summary
            report({}, f"{one.number}. {one.title}: {last.found}", f"   {out / one.name}", as_json=False)
    if "all" in names:
        write_report(out)
    if as_json:
        report({each.experiment.name: each.to_json() for each in found}, as_json=True)
    if any(each.summary.faults for each in found):
        raise typer.Exit(1)


def _report(out: Path, traces: list[Path] | None, *, as_json: bool) -> None:
    """Write the report's pages from the experiments in the folder, and print their paths."""
    from crossdraft.cli.reporting import report
    from crossdraft_lab.bench.experiments.real_pair import real_pair
    from crossdraft_lab.bench.experiments.report import has_experiments, write_real_pair, write_report
    from crossdraft_lab.bench.experiments.runner import UnfinishedError

    pages, left_out = [] if traces is None else write_real_pair(real_pair(traces), out), ()
    if traces is None or has_experiments(out):
        try:
            written, left_out = write_report(out)
            pages = [*pages, *written]
        except UnfinishedError as error:
            if not pages:
                raise
            left_out = (str(error),)
    lines = [*map(str, pages), *(f"Left out: {sentence}" for sentence in left_out)]
    report({"files": [str(page) for page in pages], "left_out": left_out}, *lines, as_json=as_json)
