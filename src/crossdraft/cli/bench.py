"""`crossdraft bench`: how fast, against what, and is it still the same text."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.bench.common import counts, listed, numbers, table
from crossdraft.bench.specs import ALL_METHODS, METHODS, POLICIES, check_methods, usual_methods
from crossdraft.checks import whole
from crossdraft.cli.bench_align import align
from crossdraft.cli.bench_edge import edge
from crossdraft.cli.bench_load import soak, throughput
from crossdraft.cli.bench_options import BenchModels, Blind, CoreOptions, Float32Models, MaxTokens
from crossdraft.cli.bench_replicas import replicas
from crossdraft.cli.bench_serve import serve
from crossdraft.cli.bench_watch import watch
from crossdraft.cli.options import Device, DraftDevice, Dtype, Quantize, check_values, option_groups
from crossdraft.cli.reporting import ReportOptions, hush, progress
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from crossdraft.bench.assembly import Models
    from crossdraft.bench.cores import Cores
    from crossdraft.engine.target import Target as LoadedTarget

app = typer.Typer(add_completion=False)
app.command()(align)
app.command()(throughput)
app.command()(soak)
app.command()(serve)
app.command()(replicas)
app.command()(edge)
app.command()(watch)

OTHERS = [name for name in ALL_METHODS if name not in (*METHODS, *POLICIES)]
Pairs = Annotated[int, typer.Option(help="(scene, question) pairs, each about a held-out scene of its own.")]
Repeats = Annotated[int, typer.Option(help="Runs of each pair.")]
Answers = Annotated[str, typer.Option(help="any (every kind of question in turn), or long (the longest only).")]
Kinds = Annotated[str | None, typer.Option(help="Kinds of question, comma-separated; all by default.")]
Nodes = Annotated[int, typer.Option(help="Nodes of a draft tree.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw the result (.png, .svg).")]
MoreDrafters = Annotated[
    list[str] | None,
    typer.Option("--drafter", metavar="SPEC", help="One more drafter, such as union:ngram,memory. May be repeated."),
]


@app.callback(invoke_without_command=True)
@option_groups
def bench(
    ctx: typer.Context,
    models: BenchModels,
    cores: CoreOptions,
    output: ReportOptions,
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"Methods, comma-separated: {', '.join(METHODS)} (these by default; glance for the shipped pair), "
            f"{', '.join(POLICIES)} (other policies; see --parallel of ask), {', '.join(OTHERS)}; or 'all'. "
            "target-all and hf-all use every core that the pair uses."
        ),
    ] = None,
    drafters: MoreDrafters = None,
    pairs: Pairs = 40,
    repeats: Repeats = 3,
    warm_ups: Annotated[int, typer.Option(help="Pairs answered before the clock starts.")] = 3,
    max_new_tokens: MaxTokens = 96,
    temperature: Annotated[
        float, typer.Option(help="0 = greedy. Above, no tokens are compared, and speedups are per token.")
    ] = 0.0,
    answers: Answers = "any",
    kinds: Kinds = None,
    files: Annotated[
        bool, typer.Option("--files/--in-memory", help="Read the clip's files inside the clock, or before it.")
    ] = True,
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Measure each method's peak memory, in a process of its own.")
    ] = True,
    plot_file: Plot = None,
    record: Annotated[
        Path | None, typer.Option("--record", metavar="FILE", help="Write the target's answers as traces, for replay.")
    ] = None,
    blind: Blind = "blind",
    frames: Annotated[
        int | None, typer.Option(help="Frames of each clip that the target and Hugging Face read; 8 by default.")
    ] = None,
    draft_device: DraftDevice = None,
    quantize: Quantize = None,
) -> None:
    """How fast, against what, and is it still the same text.

    Compares the engine with itself without a drafter, a blind drafter and Hugging Face generate, interleaved.

    On a CPU the target gets one core and a drafter's own process another. The headline ratio is against the faster of
    the target alone on its own core and on both.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_options(ctx)
        return
    output.check(record, plot=plot_file)
    check_values(
        device=models.device,
        draft_device=draft_device,
        dtype=models.dtype,
        quantize=quantize,
        frames=frames,
        max_new_tokens=max_new_tokens,
        target_cores=cores.target_cores,
        draft_cores=cores.draft_cores,
    )
    named = ALL_METHODS if methods == "all" else None if methods is None else listed(methods)
    if named is not None:
        check_methods(named, tuple(drafters or ()))
    from crossdraft.bench.workload import Workload
    from crossdraft.video.clip import DEFAULT_FRAMES

    work = Workload(pairs, answers, listed(kinds), max_new_tokens, temperature, frames=frames or DEFAULT_FRAMES)
    # After what can be refused without them: these take seconds.
    from crossdraft.bench.plot import plot
    from crossdraft.bench.report import tables, to_json
    from crossdraft.bench.suite import Suite, run_suite
    from crossdraft.bench.traces import write_traces

    with TemporaryDirectory(prefix="crossdraft-") if files else nullcontext() as folder:
        chosen = cores.cores(models.device)
        usual = usual_methods(
            shipped=(models.target, models.event) == ("reference", "event"),
            more_cores=chosen is not None and chosen.pair != chosen.target,
        )
        suite = Suite(
            models=models.models(blind, draft_device, frames, quantize),
            work=replace(work, files=Path(folder) if folder else None),
            methods=usual if named is None else named,
            repeats=repeats,
            cores=chosen,
            warm_ups=warm_ups,
            drafters=tuple(drafters or ()),
            memory=memory,
        )
        hush()
        with progress("measuring", suite.runs) as tick:
            report = run_suite(suite, tick)
    output.console.print(*tables(report))
    output.write(to_json(report))
    if record is not None:
        write_traces(report.traces, record)
    if plot_file is not None:
        plot(report, plot_file)


@app.command()
@option_groups
def identity(
    models: Float32Models,
    cores: CoreOptions,
    output: ReportOptions,
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
    blind: Blind = "blind",
    each: Annotated[
        int,
        typer.Option(
            "--questions",
            help="Ask so many questions about each clip, with prefix caches, large ones and such that are always full; "
            "from two namespaces, and about clips that differ in one pixel.",
        ),
    ] = 1,
    quantize: Quantize = None,
) -> None:
    """Check that every placement, and batches that join and leave, give the target's own tokens. Exit 1 if not.

    The event drafter in nine ways. With --drafters, each one named: in a process of its own (what looks into the
    target, such as pass and guided: in the target's process), inline, and in batches of 2 to 4. Quantised models
    compute in bfloat16.
    """
    output.check()
    check_values(quantize=quantize)
    from rich.markup import escape

    from crossdraft.bench.identity import about_shared_clips, choose_configs, run_identity
    from crossdraft.bench.workload import Workload, describe, items

    work = Workload(pairs, "any", listed(kinds), max_new_tokens, questions=each)
    groups = choose_configs(drafters or (), cached=each > 1)
    chosen, pair = cores.cores(models.device), models.models(blind, quantize=quantize)
    if pair.quantize is not None:
        pair = replace(pair, dtype=None)
    answers = pairs * (1 + sum(map(len, groups)))
    with _loaded(pair, chosen) as (found, target), progress("comparing", answers) as tick:
        asked = items(work) if each == 1 else about_shared_clips(items(work))
        checks = run_identity(target, pair, chosen, groups, asked, tick)
    rows = table(None, "checked against the target alone", ("identical", "drafted", "accepted"))
    rows.add_column("", overflow="fold")
    for check in checks:
        counts = f"{check.equal}/{check.total}", str(check.drafted), str(check.accepted)
        rows.add_row(escape(check.name), *counts, escape(check.remark))
    output.console.print(rows)
    results = [check.to_json() for check in checks]
    output.write({"environment": found, "workload": describe(work), "checks": results})
    if any(check.divergences or check.notes for check in checks):
        raise typer.Exit(1)


@app.command()
@option_groups
def policy(
    models: BenchModels,
    cores: CoreOptions,
    output: ReportOptions,
    pairs: Pairs = 40,
    repeats: Repeats = 1,
    loads: Annotated[str | None, typer.Option(help="easy, hard, mixed, hopeless; all by default.")] = None,
    draft_device: DraftDevice = None,
) -> None:
    """Compare the policy that budgets each round with fixed budgets and the target alone, under four loads."""
    output.check()
    from crossdraft.bench.policy import LOADS, Sweep, results_table, run_sweep, sentences

    chosen, pair = cores.cores(models.device), models.models(draft_device=draft_device)
    sweep = Sweep(pair, pairs, repeats, tuple(LOADS) if loads is None else listed(loads), chosen)
    with _loaded(pair, chosen) as (found, target), progress("measuring", sweep.runs) as tick:
        results = run_sweep(sweep, target, tick)
    output.console.print(results_table(results), *sentences(results), sep="\n")
    each = [result.to_json() for result in results]
    output.write({"environment": found, "pairs": pairs, "repeats": repeats, "loads": each})


@app.command()
@option_groups
def acceptance(
    models: BenchModels,
    output: ReportOptions,
    pairs: Pairs = 100,
    drafters: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            metavar="SPEC",
            help="A drafter; repeated. The first is compared with the best of the others. Default: event, blind.",
        ),
    ] = None,
    nodes: Nodes = 8,
    max_new_tokens: MaxTokens = 96,
    answers: Answers = "any",
    kinds: Kinds = None,
    blind: Blind = "blind",
) -> None:
    """Compare τ of drafters under the same rounds: does seeing help, is a union more than its parts?"""
    output.check()
    from rich.markup import escape

    from crossdraft.bench.acceptance import DRAFTERS, check_drafters, compare_acceptance
    from crossdraft.bench.workload import Workload, describe, items

    specs = tuple(drafters or DRAFTERS)
    check_drafters(specs)
    work, pair = Workload(pairs, answers, listed(kinds), max_new_tokens), models.models(blind)
    with _loaded(pair) as (where, target), progress("accepting", len(specs) * pairs) as tick:
        found = compare_acceptance(target, pair, list(items(work)), nodes, specs, tick)
    rows = table(None, "kind", [*(f"τ {escape(spec)}" for spec in specs), "first / best other"], fold=True)
    for kind, ratio in found.ratio_by_kind.items():
        rows.add_row(kind, *(str(found.drafters[spec].by_kind[kind]) for spec in specs), str(ratio))
    rows.add_row("all", *(str(found.drafters[spec].tau) for spec in specs), str(found.ratio))
    output.console.print(rows)
    output.write({"environment": where, "workload": describe(work), **found.to_json()})


@app.command()
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
    from crossdraft.bench.rules import RulesBench, compare_rules, results_table
    from crossdraft.bench.workload import Workload, describe

    work = Workload(pairs, answers, listed(kinds), max_new_tokens, temperature)
    plan = RulesBench(models.models(blind), work, rule, drafter, nodes)
    with _loaded(plan.models) as (where, target), progress("answering", plan.runs) as tick:
        found = compare_rules(plan, target, tick)
    output.console.print(results_table(found))
    each = [row.to_json() for row in found]
    output.write({"environment": where, "workload": describe(work), "drafter": drafter, "nodes": nodes, "rules": each})


@app.command()
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
) -> None:
    """Compare targets that read fewer visual tokens (lossy): alone, and drafted for (by EagleVLM, as SpecVLM does)."""
    output.check()
    from crossdraft.bench.compression import CompressionBench, compare_clips, compare_compressions, results_table
    from crossdraft.bench.workload import Workload, describe

    work = Workload(pairs, answers, listed(kinds), max_new_tokens)
    drafts = None if drafter == "none" else drafter
    plan = CompressionBench(models.models(), work, compress, drafts, nodes, tuple(budget or ()), check)
    with _loaded(plan.models) as (where, target), progress("answering", plan.runs) as tick:
        found, cosines = compare_compressions(plan, target, tick), compare_clips(plan, target)
    output.console.print(results_table(found))
    output.lines([f"Cosine of {one.name}: {one.same}; with another clip {one.other}." for one in cosines])
    each, other = [row.to_json() for row in found], [one.to_json() for one in cosines]
    output.write({"environment": where, "workload": describe(work), "nodes": nodes, "targets": each, "cosines": other})


@app.command()
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
) -> None:
    """Measure every trained drafter: τ of trees and chains, time a draft, size, training, and is it the same text?"""
    output.check(plot=plot_file)
    from crossdraft.bench.heads import HeadsBench, HeadsSettings, run_heads
    from crossdraft.bench.heads_report import lines, plot, tables, to_json
    from crossdraft.bench.heads_select import select_heads
    from crossdraft.bench.workload import Workload

    measurement = HeadsBench(
        models.models(blind),
        Workload(pairs, answers, listed(kinds), max_new_tokens),
        select_heads(None if methods is None else listed(methods), tuple(drafters or ())),
        HeadsSettings(nodes, chain, numbers("--temperatures", temperatures), timed, speed),
        cores.cores(models.device),
    )
    hush()
    with progress("measuring", measurement.ticks) as tick:
        report = run_heads(measurement, tick)
    output.console.print(*tables(report))
    output.lines(lines(report))
    output.write(to_json(report))
    if plot_file is not None:
        plot(report, plot_file)


@app.command()
@option_groups
def questions(
    models: BenchModels,
    cores: CoreOptions,
    output: ReportOptions,
    drafters: MoreDrafters = None,
    clips: Annotated[int, typer.Option(help="How many clips.")] = 8,
    each: Annotated[int, typer.Option("--questions", help="How many questions about each.")] = 10,
    repeats: Repeats = 1,
    max_new_tokens: MaxTokens = 96,
    blind: Blind = "blind",
    draft_device: DraftDevice = None,
) -> None:
    """Ask several questions about each clip: with the prefix cache, without it, and Hugging Face generate.

    Clips are read from files. Drafters: glance, event and eagle2, or those named.
    """
    output.check()
    from crossdraft.bench.questions import DRAFTERS, Questions, results_table, run_questions, to_json
    from crossdraft.bench.workload import Workload

    with TemporaryDirectory(prefix="crossdraft-") as folder:
        chosen = cores.cores(models.device)
        work = Workload(
            whole("--clips", clips) * whole("--questions", each),
            max_new_tokens=max_new_tokens,
            files=Path(folder),
            questions=each,
        )
        named = DRAFTERS if drafters is None else tuple(drafters)
        plan = Questions(models.models(blind, draft_device), work, named, repeats, chosen)
        hush()
        with progress("measuring", plan.runs) as tick:
            found = run_questions(plan, tick)
    output.console.print(results_table(found, work))
    output.write(to_json(plan, found))


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})
def scale(ctx: typer.Context) -> None:
    """Measure shapes of any size with random weights, on CPU and CUDA; see `crossdraft bench scale --help`."""
    from crossdraft.bench.scale import main

    main(ctx.args, prog="crossdraft bench scale")


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})
def compiled(ctx: typer.Context) -> None:
    """Time compiled decode passes against the lean path, in turn; see `crossdraft bench compiled --help`."""
    from crossdraft.bench.compiled import main

    main(ctx.args, prog="crossdraft bench compiled")


@app.command()
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
    from crossdraft.bench.encode import EncodeBench, lines, time_encoding
    from crossdraft.bench.environment import environment

    plan = EncodeBench(target, where, frames, whole("--repeats", repeats), device, dtype)
    found = environment()
    hush()
    with progress("encoding", plan.runs) as tick:
        times = time_encoding(plan, tick)
    output.lines(lines(plan, times))
    asked = {"target": target, "encode_devices": where, "frames": frames, "repeats": repeats, "dtype": dtype}
    output.write({"environment": found, **asked, **times.to_json()})


@app.command()
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
    from crossdraft.bench.environment import environment
    from crossdraft.bench.events import ROWS, lines, run_events, to_json

    found = environment()
    with progress("measuring", ROWS) as tick:
        timings = run_events(recording, seconds, repeats, tick)
    output.lines(lines(timings, recording))
    output.write({"environment": found, **to_json(timings, recording)})


@app.command()
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
    from crossdraft.bench.recordings import DRAFTERS, RecordingsBench, compare_recordings, results_table

    plan = RecordingsBench(
        models.models(blind), numbers("--seconds", seconds), clips, each, drafters or DRAFTERS, nodes,
        max_new_tokens=max_new_tokens,
    )  # fmt: skip
    with _loaded(plan.models) as (where, target), progress("drafting", plan.runs) as tick:
        found = compare_recordings(plan, target, tick)
    output.console.print(results_table(found))
    rows = [row.to_json() for row in found]
    output.write({"environment": where, "clips": clips, "questions": each, "nodes": nodes, "recordings": rows})


@app.command()
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
    from crossdraft.bench.partial import PartialBench, compare_partial, results_table
    from crossdraft.drafters.settings import PartialSettings

    part = PartialSettings(blocks=whole("--blocks", blocks))
    plan = PartialBench(models.models(), counts("--frames", frames), pairs, nodes, part)
    with _loaded(plan.models) as (where, target), progress("answering", plan.runs) as tick:
        found = compare_partial(plan, target, tick)
    output.console.print(results_table(found))
    rows = [row.to_json() for row in found]
    output.write({"environment": where, "pairs": pairs, "nodes": nodes, "part": asdict(part), "prompts": rows})


@app.command()
@option_groups
def memory(
    output: ReportOptions,
    tokens: Annotated[int, typer.Option(help="How full the memory is.")] = 1_000_000,
    nodes: Nodes = 32,
) -> None:
    """Time how the drafter 'memory' drafts and learns when it is full."""
    output.check()
    from crossdraft.bench.environment import environment
    from crossdraft.bench.memory import answers_in, lines, time_memory

    found = environment()
    with progress("filling the memory", answers_in(tokens)) as tick:
        timing = time_memory(tokens, nodes, tick=lambda: tick(""))
    output.lines(lines(timing))
    output.write({"environment": found, **timing.to_json()})


@app.command()
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
    from crossdraft.bench.growth import chosen, growth_table, run_curve, sizes, to_json
    from crossdraft.bench.growth_curves import make_curve
    from crossdraft.bench.growth_plot import plot_growth

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


@contextmanager
def _loaded(models: "Models", cores: "Cores | None" = None) -> "Iterator[tuple[dict[str, object], LoadedTarget]]":
    """The environment before anything is loaded, and the target; pinned to its cores."""
    from crossdraft.bench.environment import environment
    from crossdraft.engine.fast.pinning import pinned

    hush()
    with pinned(None if cores is None else cores.target):
        found = environment()
        yield found, models.load_target()


def _refuse_options(ctx: typer.Context) -> None:
    """Options in front of a subcommand belong to `bench` itself, and would be lost."""
    for option in ctx.command.params:
        source = ctx.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise CrossdraftError(
                f"{option.opts[0]} stands before '{ctx.invoked_subcommand}', which does not read it there; write it "
                "behind."
            )
