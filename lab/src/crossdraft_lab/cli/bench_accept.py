"""`crossdraft bench rules`, `compression`, `heads`: measurements of accepted tokens."""

from typing import Annotated

import typer

from crossdraft.cli.options import option_groups
from crossdraft.cli.reporting import hush, progress
from crossdraft_lab.bench.common import listed, numbers
from crossdraft_lab.cli.bench_options import (
    Answers,
    BenchModels,
    Blind,
    CoreOptions,
    Kinds,
    MaxTokens,
    MoreDrafters,
    Nodes,
    Pairs,
    Plot,
    Prompts,
    ReportOptions,
    asked_prompts,
    check_asked,
    loaded_target,
)


@option_groups
def rules(
    models: BenchModels,
    output: ReportOptions,
    pairs: Pairs = 100,
    rule: Annotated[
        list[str] | None,
        typer.Option("--rule", metavar="SPEC", help="An acceptance rule; repeated. Default: all for sampled answers."),
    ] = None,
    drafter: Annotated[str, typer.Option(metavar="SPEC", help="What drafts, in chains.")] = "event",
    temperature: Annotated[float, typer.Option(help="Answers are sampled at this temperature.")] = 1.0,
    nodes: Nodes = 8,
    max_new_tokens: MaxTokens = 96,
    answers: Answers = "any",
    kinds: Kinds = None,
    blind: Blind = "blind",
) -> None:
    """Compare acceptance rules under the same rounds: how much each keeps, and what lossy ones do to the answers."""
    output.check()
    from crossdraft_lab.bench.rules import rules_study
    from crossdraft_lab.bench.study import terminal_table
    from crossdraft_lab.bench.workload import Workload, describe

    work = Workload(pairs, answers, listed(kinds), max_new_tokens, temperature)
    study = rules_study(models.models(blind), work, rule, drafter, nodes)
    with loaded_target(study.models) as (where, target), progress("answering", study.runs) as tick:
        found = study.run(target, tick=tick)
    output.console.print(terminal_table(study.table(found)))
    asked = {"environment": where, "workload": describe(work), "drafter": drafter, "nodes": nodes}
    output.write({**asked, "rules": study.rows(found)})


@option_groups
def compression(
    models: BenchModels,
    output: ReportOptions,
    pairs: Pairs = 100,
    compress: Annotated[
        list[str] | None,
        typer.Option(metavar="SPEC", help="A compression, such as fastv:keep=0.25; repeated. Default: one of each."),
    ] = None,
    drafter: Annotated[
        str, typer.Option(metavar="SPEC", help="What drafts for every target; none: each answers alone.")
    ] = "eaglevlm",
    nodes: Nodes = 60,
    budget: Annotated[
        list[float] | None,
        typer.Option(help="A loss (1 - ROUGE-L) within which checks keep a speculative prefill; repeated."),
    ] = None,
    check: Annotated[float, typer.Option(help="Share of its requests that are checked.")] = 0.25,
    max_new_tokens: MaxTokens = 96,
    answers: Answers = "any",
    kinds: Kinds = None,
    plot_file: Plot = None,
) -> None:
    """Compare targets that read fewer visual tokens (lossy): alone, and drafted for (by EagleVLM, as SpecVLM does)."""
    output.check(plot=plot_file)
    from crossdraft_lab.bench.compression import compression_study, quality_curves
    from crossdraft_lab.bench.study import terminal_table
    from crossdraft_lab.bench.workload import Workload, describe

    work = Workload(pairs, answers, listed(kinds), max_new_tokens)
    drafts = None if drafter == "none" else drafter
    study = compression_study(models.models(), work, compress, drafts, nodes, tuple(budget or ()), check)
    with loaded_target(study.models) as (where, target), progress("answering", study.runs) as tick:
        found = study.run(target, tick=tick)
    output.console.print(terminal_table(study.table(found)))
    rows = study.rows(found)
    output.write({"environment": where, "workload": describe(work), "nodes": nodes, "targets": rows})
    if plot_file is not None:
        from crossdraft.drawing.save import save_drawing

        save_drawing(quality_curves(rows), plot_file)


@option_groups
def heads(
    models: BenchModels,
    cores: CoreOptions,
    output: ReportOptions,
    methods: Annotated[
        str | None,
        typer.Option(help="Trained drafters, comma-separated: eagle3, medusa …; all whose weights ship by default."),
    ] = None,
    drafters: MoreDrafters = None,
    pairs: Pairs = 100,
    nodes: Nodes = 60,
    chain: Annotated[int, typer.Option(help="Tokens of a chain; 0 = no chains.")] = 5,
    temperatures: Annotated[str, typer.Option(help="At which trees are measured, comma-separated.")] = "0,1",
    timed: Annotated[int, typer.Option(help="Answers along which drafts are timed; 0 = none.")] = 6,
    speed: Annotated[
        int, typer.Option(metavar="PAIRS", help="Time whole answers against the target alone on so many pairs, too.")
    ] = 0,
    max_new_tokens: MaxTokens = 96,
    answers: Answers = "any",
    kinds: Kinds = None,
    plot_file: Plot = None,
    blind: Blind = "blind",
    prompts: Prompts = None,
) -> None:
    """Measure every trained drafter: τ of trees and chains, time a draft, size, training, and is it the same text?"""
    output.check(plot=plot_file)
    from crossdraft_lab.bench.heads import HeadsBench, draw, lines, run_heads, tables
    from crossdraft_lab.bench.heads_select import select_heads, short_labels
    from crossdraft_lab.bench.study import terminal_table
    from crossdraft_lab.bench.workload import Workload

    chosen, notes = select_heads(None if methods is None else listed(methods), tuple(drafters or ()))
    asked = asked_prompts(prompts, kinds)
    check_asked(models, None if prompts is None else asked, list(chosen))
    pairs = min(pairs, len(asked) or pairs)
    work = Workload(pairs, answers, listed(kinds), max_new_tokens, prompts=prompts)
    warm = numbers("--temperatures", temperatures)
    pair, share = models.models(blind, asked=asked), cores.cores(models.device)
    measurement = HeadsBench(pair, work, chosen, nodes, chain, warm, timed, speed, share, notes)
    hush()
    with progress("measuring", measurement.ticks) as tick:
        report = run_heads(measurement, tick)
    labels = short_labels(chosen)
    output.console.print(*map(terminal_table, tables(report, labels)))
    output.lines(lines(report, labels))
    output.write(report)
    if plot_file is not None:
        from crossdraft.drawing.save import save_drawing

        save_drawing(draw(report, labels), plot_file)
