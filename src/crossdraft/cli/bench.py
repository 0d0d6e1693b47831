"""`crossdraft bench`: how fast, against what, and is it still the same text."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from crossdraft.bench.common import check_outputs, write_json
from crossdraft.cli.options import AsJson, Force, JsonOut, check_values
from crossdraft.cli.reporting import console_for, core_each, hush, progress
from crossdraft.errors import CrossdraftError

app = typer.Typer(add_completion=False)

Pairs = Annotated[int, typer.Option(help="(scene, question) pairs, each about a held-out scene of its own.")]
MaxTokens = Annotated[int, typer.Option("--max-new-tokens", help="Longest answer, in tokens.")]
Kinds = Annotated[str | None, typer.Option(help="Kinds of question, comma-separated; all by default.")]
TargetDir = Annotated[str, typer.Option("--target", help="'reference', or the folder of a checkpoint.")]
EventDir = Annotated[str, typer.Option("--event", help="Event drafter: 'event', or the folder of an EventGPT.")]
BlindDir = Annotated[
    str, typer.Option("--blind", help="Ablation without events: 'blind', or the folder of an EventGPT.")
]
Device = Annotated[str | None, typer.Option(help="Device of the target; by default CUDA if there is a GPU.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 …; float32 on a CPU, bfloat16 on a GPU.")]
Frames = Annotated[
    int | None,
    typer.Option("--frames", help="Frames of each clip that the target and Hugging Face read; 8 by default."),
]
Drafters = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter",
        metavar="SPEC",
        help="One more contestant: a drafter of yours, such as union:ngram,memory. May be repeated.",
    ),
]
DraftDevice = Annotated[str | None, typer.Option(help="Device of the drafter; by default the target's.")]
TargetCores = Annotated[str | None, typer.Option(help="CPU cores of the target, as 0 or 0-3; by default one.")]
DraftCores = Annotated[str | None, typer.Option(help="CPU cores of a drafter's own process; by default one other.")]


@app.callback(invoke_without_command=True)
def bench(
    ctx: typer.Context,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Contestants, comma-separated: target, target-all, hf, hf-all, hf-lookup, hf-assisted, blind, "
            "event-inline, event, glance (these by default; glance for the shipped pair), event-sync, event-pipespec, "
            "event-pearl, event-ssd (other policies; see --ahead of ask), ngram, memory, text, "
            "union (of event and memory), phased, choose, lookahead, view, cascade, pyramid, guided; or 'all'. "
            "target-all and hf-all use every core that the pair uses."
        ),
    ] = None,
    drafters: Drafters = None,
    pairs: Pairs = 40,
    repeats: Annotated[int, typer.Option(help="Runs of each pair.")] = 3,
    warm_ups: Annotated[int, typer.Option(help="Pairs answered before the clock starts.")] = 3,
    max_new_tokens: MaxTokens = 96,
    temperature: Annotated[
        float, typer.Option(help="0 = greedy. Above, no tokens are compared, and speedups are per token.")
    ] = 0.0,
    answers: Annotated[
        str, typer.Option(help="any (every kind of question in turn), or long (the longest answers alone).")
    ] = "any",
    kinds: Kinds = None,
    files: Annotated[
        bool, typer.Option("--files/--in-memory", help="Read the clip's files inside the clock, or before it.")
    ] = True,
    memory: Annotated[
        bool,
        typer.Option("--memory/--no-memory", help="Measure each contestant's peak memory, in a process of its own."),
    ] = True,
    as_json: AsJson = False,
    json_out: JsonOut = None,
    force: Force = False,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw time per stage, speedup and τ (.png, .svg).")
    ] = None,
    record: Annotated[
        Path | None, typer.Option("--record", metavar="FILE", help="Write the target's answers as traces, for replay.")
    ] = None,
    target: TargetDir = "reference",
    event: EventDir = "event",
    blind: BlindDir = "blind",
    device: Device = None,
    dtype: Dtype = None,
    frames: Frames = None,
    draft_device: DraftDevice = None,
    target_cores: TargetCores = None,
    draft_cores: DraftCores = None,
) -> None:
    """How fast, against what, and is it still the same text.

    Races the engine against itself without a drafter, a blind drafter and Hugging Face generate, interleaved.

    On a CPU the target gets one core and a drafter's own process another. The headline ratio is against the faster of
    the target alone on its own core and on both.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_options(ctx)
        return
    from crossdraft.bench.plot import check_plot, plot

    check_outputs(json_out, plot_file, record, force=force)
    if plot_file is not None:
        check_plot(plot_file)
    check_values(
        device=device,
        draft_device=draft_device,
        dtype=dtype,
        frames=frames,
        max_new_tokens=max_new_tokens,
        target_cores=target_cores,
        draft_cores=draft_cores,
    )
    from crossdraft.bench.common import listed
    from crossdraft.bench.specs import ALL_METHODS, check_methods, usual_methods

    named = ALL_METHODS if methods == "all" else None if methods is None else listed(methods)
    if named is not None:
        check_methods(named, tuple(drafters or ()))
    from crossdraft.bench.workload import Workload
    from crossdraft.video.clip import DEFAULT_FRAMES

    sampled = DEFAULT_FRAMES if frames is None else frames
    work = Workload(pairs, answers, listed(kinds), max_new_tokens, temperature, frames=sampled)
    # Behind what can be refused without them: these take seconds.
    from crossdraft.bench.assembly import Models
    from crossdraft.bench.replay import write_traces
    from crossdraft.bench.report import tables, to_json
    from crossdraft.bench.suite import Suite, run_suite

    with TemporaryDirectory(prefix="crossdraft-") if files else nullcontext() as folder:
        cores = core_each(device, target_cores, draft_cores)
        usual = usual_methods(
            shipped=(target, event) == ("reference", "event"),
            more_cores=cores is not None and cores.pair != cores.target,
        )
        suite = Suite(
            models=Models(target, event, blind, device, dtype, draft_device, num_frames=frames),
            work=replace(work, files=Path(folder) if folder else None),
            methods=usual if named is None else named,
            repeats=repeats,
            cores=cores,
            warm_ups=warm_ups,
            drafters=tuple(drafters or ()),
            memory=memory,
        )
        hush()
        with progress("measuring", suite.runs) as tick:
            report = run_suite(suite, tick)
    console_for(as_json=as_json).print(*tables(report))
    write_json(to_json(report), json_out, stdout=as_json)
    if record is not None:
        write_traces(report.traces, record)
    if plot_file is not None:
        plot(report, plot_file)


@app.command()
def identity(
    pairs: Pairs = 300,
    drafters: Annotated[
        list[str] | None,
        typer.Option(
            metavar="all|SPEC",
            help="Check these instead of the event drafter: 'all', or a spec such as union:ngram,memory. Repeatable.",
        ),
    ] = None,
    max_new_tokens: MaxTokens = 96,
    kinds: Kinds = None,
    as_json: AsJson = False,
    json_out: JsonOut = None,
    force: Force = False,
    target: TargetDir = "reference",
    event: EventDir = "event",
    blind: BlindDir = "blind",
    device: Device = None,
    dtype: Dtype = "float32",
    target_cores: TargetCores = None,
    draft_cores: DraftCores = None,
) -> None:
    """Check that every placement, and batches that join and leave, give the target's own tokens. Exit 1 if not.

    The event drafter in nine ways. With --drafters, each one named: in a process of its own (what looks into the
    target, such as pass and guided: in the target's process), inline, and in batches of 2 to 4.
    """
    from rich.markup import escape
    from rich.table import Table

    check_outputs(json_out, force=force)
    from crossdraft.bench.assembly import Models
    from crossdraft.bench.common import listed
    from crossdraft.bench.environment import environment
    from crossdraft.bench.identity import run_identity
    from crossdraft.bench.run_configs import choose_configs
    from crossdraft.bench.workload import Workload, describe, items
    from crossdraft.engine.fast.pinning import pinned

    work, groups = Workload(pairs, "any", listed(kinds), max_new_tokens), choose_configs(drafters or ())
    models, cores = Models(target, event, blind, device, dtype), core_each(device, target_cores, draft_cores)
    hush()
    with pinned(None if cores is None else cores.target):
        found = environment()
        adapter = models.load_target()
        with progress("comparing", pairs * (1 + sum(map(len, groups)))) as tick:
            checks = run_identity(adapter, models, cores, groups, items(work), tick)
    rows = Table("checked against the target alone", "identical", "drafted", "accepted", "")
    for check in checks:
        same = f"{check.equal}/{check.total}"
        rows.add_row(escape(check.name), same, str(check.drafted), str(check.accepted), escape(check.remark))
    console_for(as_json=as_json).print(rows)
    told = [check.to_json() for check in checks]
    write_json({"environment": found, "workload": describe(work), "checks": told}, json_out, stdout=as_json)
    if any(check.divergences or check.notes for check in checks):
        raise typer.Exit(1)


@app.command()
def policy(
    pairs: Pairs = 40,
    repeats: Annotated[int, typer.Option(help="Runs of each pair.")] = 1,
    loads: Annotated[str | None, typer.Option(help="easy, hard, mixed, hopeless; all by default.")] = None,
    as_json: AsJson = False,
    json_out: JsonOut = None,
    force: Force = False,
    target: TargetDir = "reference",
    event: EventDir = "event",
    device: Device = None,
    dtype: Dtype = None,
    draft_device: DraftDevice = None,
    target_cores: TargetCores = None,
    draft_cores: DraftCores = None,
) -> None:
    """Race the policy that budgets each round against fixed budgets and the target alone, under four loads."""
    check_outputs(json_out, force=force)
    from crossdraft.bench.assembly import Models
    from crossdraft.bench.common import listed
    from crossdraft.bench.environment import environment
    from crossdraft.bench.policy import LOADS, Sweep, outputs, run_sweep, table
    from crossdraft.engine.fast.pinning import pinned

    models = Models(target, event, device=device, dtype=dtype, draft_device=draft_device)
    cores = core_each(device, target_cores, draft_cores)
    sweep = Sweep(models, pairs, repeats, tuple(LOADS) if loads is None else listed(loads), cores)
    hush()
    with pinned(None if cores is None else cores.target):
        found = environment()
        adapter = models.load_target()
        with progress("racing", sweep.runs) as tick:
            outcomes = run_sweep(sweep, adapter, tick)
    console_for(as_json=as_json).print(table(outcomes), *outputs(outcomes), sep="\n")
    told = [outcome.to_json() for outcome in outcomes]
    write_json({"environment": found, "pairs": pairs, "repeats": repeats, "loads": told}, json_out, stdout=as_json)


@app.command()
def acceptance(
    pairs: Pairs = 100,
    drafters: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            metavar="SPEC",
            help="A drafter; repeated. The first is compared with the best of the others. Default: event, blind.",
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(help="Most nodes offered in every round.")] = 8,
    max_new_tokens: MaxTokens = 96,
    answers: Annotated[str, typer.Option(help="long or any.")] = "any",
    kinds: Kinds = None,
    as_json: AsJson = False,
    json_out: JsonOut = None,
    force: Force = False,
    target: TargetDir = "reference",
    event: EventDir = "event",
    blind: BlindDir = "blind",
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Compare τ of drafters under the same rounds: does seeing help, is a union more than its parts?"""
    from rich.markup import escape
    from rich.table import Table

    check_outputs(json_out, force=force)
    from crossdraft.bench.acceptance import DRAFTERS, check_drafters, compare_acceptance
    from crossdraft.bench.assembly import Models
    from crossdraft.bench.common import listed
    from crossdraft.bench.environment import environment
    from crossdraft.bench.workload import Workload, describe, items

    specs = tuple(drafters or DRAFTERS)
    check_drafters(specs)
    work = Workload(pairs, answers, listed(kinds), max_new_tokens)
    models = Models(target, event, blind, device, dtype)
    hush()
    where = environment()
    adapter = models.load_target()
    with progress("accepting", len(specs) * pairs) as tick:
        found = compare_acceptance(adapter, models, list(items(work)), nodes, specs, tick)
    rows = Table("kind", *(f"τ {escape(spec)}" for spec in specs), "first / best other")
    for kind, ratio in found.ratio_by_kind.items():
        rows.add_row(kind, *(f"{found.drafters[spec].by_kind[kind]:.2f}" for spec in specs), f"{ratio:.2f}")
    rows.add_row("all", *(f"{found.drafters[spec].tau.value:.2f}" for spec in specs), str(found.ratio))
    console_for(as_json=as_json).print(rows)
    write_json({"environment": where, "workload": describe(work), **found.to_json()}, json_out, stdout=as_json)


@app.command()
def heads(
    methods: Annotated[
        str | None,
        typer.Option(help="Trained drafters, comma-separated: eagle3, medusa …; all whose weights ship by default."),
    ] = None,
    drafters: Annotated[
        list[str] | None,
        typer.Option("--drafter", metavar="SPEC", help="One more drafter, such as eagle2:dir=FOLDER. May be repeated."),
    ] = None,
    pairs: Pairs = 100,
    nodes: Annotated[int, typer.Option(help="Nodes of a tree.")] = 60,
    chain: Annotated[int, typer.Option(help="Tokens of a chain; 0 = no chains.")] = 5,
    temperatures: Annotated[str, typer.Option(help="At which trees are measured, comma-separated.")] = "0,1",
    timed: Annotated[int, typer.Option(help="Answers along which drafts are clocked; 0 = none.")] = 6,
    speed: Annotated[
        int, typer.Option(metavar="PAIRS", help="Race whole answers against the target alone on so many pairs, too.")
    ] = 0,
    max_new_tokens: MaxTokens = 96,
    answers: Annotated[str, typer.Option(help="long or any.")] = "any",
    kinds: Kinds = None,
    as_json: AsJson = False,
    json_out: JsonOut = None,
    force: Force = False,
    plot_file: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw τ of trees and chains, and ms a draft (.png, .svg)."),
    ] = None,
    target: TargetDir = "reference",
    event: EventDir = "event",
    blind: BlindDir = "blind",
    device: Device = None,
    dtype: Dtype = None,
    target_cores: TargetCores = None,
    draft_cores: DraftCores = None,
) -> None:
    """Measure every trained drafter: τ of trees and chains, time a draft, size, training, and is it the same text?"""
    check_outputs(json_out, plot_file, force=force)
    from crossdraft.bench.assembly import Models
    from crossdraft.bench.common import listed, numbers
    from crossdraft.bench.heads import HeadsBench, HeadsSettings, run_heads
    from crossdraft.bench.heads_report import lines, plot, tables, to_json
    from crossdraft.bench.heads_select import select_heads
    from crossdraft.bench.plot import check_plot
    from crossdraft.bench.workload import Workload

    if plot_file is not None:
        check_plot(plot_file)
    bench = HeadsBench(
        Models(target, event, blind, device, dtype),
        Workload(pairs, answers, listed(kinds), max_new_tokens),
        select_heads(None if methods is None else listed(methods), tuple(drafters or ())),
        HeadsSettings(nodes, chain, numbers("--temperatures", temperatures), timed, speed),
        core_each(device, target_cores, draft_cores),
    )
    hush()
    with progress("measuring", bench.ticks) as tick:
        report = run_heads(bench, tick)
    console = console_for(as_json=as_json)
    console.print(*tables(report))
    console.print(*lines(report), sep="\n", markup=False, highlight=False)
    write_json(to_json(report), json_out, stdout=as_json)
    if plot_file is not None:
        plot(report, plot_file)


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})
def scale(ctx: typer.Context) -> None:
    """Measure shapes of any size with random weights, on CPU and CUDA; see `crossdraft bench scale --help`."""
    from crossdraft.bench.scale import main

    main(ctx.args, prog="crossdraft bench scale")


@app.command()
def events(
    recording: Annotated[
        Path | None, typer.Option(help="A real recording of at least 50 ms instead of a made-up one.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Length of the file that is sliced.")] = 3.0,
    repeats: Annotated[int, typer.Option(help="Runs of each measurement.")] = 20,
    as_json: AsJson = False,
    json_out: JsonOut = None,
    force: Force = False,
) -> None:
    """Time event frames, slices of a recording, and the simulator."""
    check_outputs(json_out, force=force)
    from crossdraft.bench.environment import environment
    from crossdraft.bench.events import ROWS, lines, run_events, to_json

    found = environment()
    with progress("measuring", ROWS) as tick:
        timings = run_events(recording, seconds, repeats, tick)
    console_for(as_json=as_json).print(
        *lines(timings, recording), sep="\n", markup=False, highlight=False, soft_wrap=True
    )
    write_json({"environment": found, **to_json(timings, recording)}, json_out, stdout=as_json)


@app.command()
def memory(
    tokens: Annotated[int, typer.Option(help="How full the memory is.")] = 1_000_000,
    nodes: Annotated[int, typer.Option(help="Nodes of a draft tree.")] = 32,
    as_json: AsJson = False,
    json_out: JsonOut = None,
    force: Force = False,
) -> None:
    """Time how the drafter 'memory' drafts and learns when it is full."""
    check_outputs(json_out, force=force)
    from crossdraft.bench.environment import environment
    from crossdraft.bench.memory import answers_in, time_memory

    found = environment()
    with progress("filling the memory", answers_in(tokens)) as tick:
        recall = time_memory(tokens, nodes, tick=lambda: tick(""))
    draft, add = recall.draft.ms(), recall.add.ms()
    console_for(as_json=as_json).print(
        f"{recall.tokens:,} tokens held in {recall.megabytes:.0f} MB, made-up answers",
        f"a draft of up to {nodes} nodes: {draft['median']:.3f} ms ({draft['q1']:.3f} to {draft['q3']:.3f})",
        f"an answer added: {add['median']:.3f} ms ({add['q1']:.3f} to {add['q3']:.3f})",
        sep="\n",
        highlight=False,
    )
    write_json({"environment": found, **recall.to_json()}, json_out, stdout=as_json)


def _refuse_options(ctx: typer.Context) -> None:
    """Options in front of a subcommand are the race's, and would be lost."""
    for option in ctx.command.params:
        source = ctx.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise CrossdraftError(
                f"{option.opts[0]} stands before '{ctx.invoked_subcommand}', which does not read it there; write it "
                "behind."
            )
