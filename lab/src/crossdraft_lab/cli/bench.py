"""`crossdraft bench`: speed against other methods, and equality of the text."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from crossdraft.checks import whole
from crossdraft.cli.options import DraftDevice, DraftQuantize, Quantize, check_values, option_groups
from crossdraft.cli.reporting import hush, progress
from crossdraft.errors import CrossdraftError
from crossdraft.methods import check_drafter_files
from crossdraft_lab.bench.common import listed, table
from crossdraft_lab.bench.specs import ALL_METHODS, METHODS, check_methods, needs_events, spec_of, usual_methods
from crossdraft_lab.cli.bench_accept import compression, heads, rules
from crossdraft_lab.cli.bench_align import align
from crossdraft_lab.cli.bench_edge import edge
from crossdraft_lab.cli.bench_live import live
from crossdraft_lab.cli.bench_load import soak, throughput
from crossdraft_lab.cli.bench_options import (
    Answers,
    BenchModels,
    Blind,
    CompilePasses,
    CoreOptions,
    Float32Models,
    Kinds,
    MaxTokens,
    MoreDrafters,
    Pairs,
    PeerOptions,
    Plot,
    Prompts,
    Repeats,
    ReportOptions,
    asked_prompts,
    check_asked,
    loaded_target,
    python_at,
)
from crossdraft_lab.cli.bench_parts import events, raw, recordings
from crossdraft_lab.cli.bench_serve import serve
from crossdraft_lab.cli.bench_watch import watch

app = typer.Typer(add_completion=False)
LOADS = (align, throughput, soak, serve, edge, watch, live)
MORE = (*LOADS, rules, compression, heads, events, raw, recordings)
for command in MORE:
    app.command()(command)

OTHERS = [name for name in ALL_METHODS if name not in METHODS]


@app.callback(invoke_without_command=True)
@option_groups
def bench(
    ctx: typer.Context,
    models: BenchModels,
    cores: CoreOptions,
    output: ReportOptions,
    peers: PeerOptions,
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"Methods, comma-separated: {', '.join(METHODS)} (these by default; glance for the shipped pair), "
            f"{', '.join(OTHERS)}; or 'all'. "
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
        Path | None,
        typer.Option(
            "--record",
            metavar="FILE",
            help="Write the target's answers as traces, for replay; with the method event, what it writes alone, too.",
        ),
    ] = None,
    blind: Blind = "blind",
    prompts: Prompts = None,
    frames: Annotated[
        int | None, typer.Option(help="Frames of each clip that the target and Hugging Face read; 8 by default.")
    ] = None,
    draft_device: DraftDevice = None,
    quantize: Quantize = None,
    draft_quantize: DraftQuantize = None,
    compile_passes: CompilePasses = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep every answered pair here; the same command goes on there.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="With --out: begin no pair that may end later; the same command goes on.")
    ] = None,
) -> None:
    """Measure the speed against other methods, and check that the text is the same.

    Compares the engine with itself without a drafter, a blind drafter, Hugging Face, llama.cpp and vLLM, interleaved.

    On a CPU the target gets one core and a drafter's own process another; a drafter without one, both. The headline
    ratio is against the fastest of target, target-all, hf, hf-all, llama.cpp and vLLM that ran.
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
        draft_quantize=draft_quantize,
        frames=frames,
        max_new_tokens=max_new_tokens,
        target_cores=cores.target_cores,
        draft_cores=cores.draft_cores,
    )
    if minutes is not None and (out is None or minutes <= 0):
        raise CrossdraftError("--minutes is a time above 0 for a run that goes on later; name its folder by --out.")
    every = ALL_METHODS if prompts is None else tuple(name for name in ALL_METHODS if not needs_events(name))
    named = every if methods == "all" else None if methods is None else listed(methods)
    if named is not None:
        check_methods(named, tuple(drafters or ()))
    lines = asked_prompts(prompts, kinds)
    peers.check(lines)
    assisted = ("hf-assisted",) if peers.assistant is not None else ()
    reading = [name for name in (*(named or ()), *(drafters or ())) if name not in assisted]
    check_asked(models, None if prompts is None else lines, reading)
    for drafter in drafters or ():
        check_drafter_files(spec_of(drafter), models.target)
    from crossdraft.video.clip import DEFAULT_FRAMES
    from crossdraft_lab.bench.workload import Workload

    frames_shown, files = frames or DEFAULT_FRAMES, files and prompts is None
    pairs = min(pairs, len(lines) or pairs)
    work = Workload(pairs, answers, listed(kinds), max_new_tokens, temperature, frames=frames_shown, prompts=prompts)
    # Imported after the checks that need no import: these imports take seconds.
    from crossdraft_lab.bench.plot import draw
    from crossdraft_lab.bench.suite import Suite, run_suite
    from crossdraft_lab.bench.summary import tables, to_json
    from crossdraft_lab.bench.traces import write_traces

    with TemporaryDirectory(prefix="crossdraft-") if files else nullcontext() as folder:
        chosen = cores.cores(models.device)
        usual = usual_methods(
            shipped=(models.target, models.event) == ("reference", "event"),
            more_cores=chosen is not None and chosen.pair != chosen.target,
            in_words=prompts is not None,
            structured=any(one.structure for one in lines),
        )
        usual = tuple(dict.fromkeys((*usual, *assisted)))
        suite = Suite(
            models=replace(
                models.models(blind, draft_device, frames, quantize, asked=lines, assistant=peers.assistant),
                draft_quantize=draft_quantize,
                compiled=compile_passes,
            ),
            work=replace(work, files=Path(folder) if folder else None),
            methods=tuple(name for name in usual if name not in (drafters or ())) if named is None else named,
            repeats=repeats,
            cores=chosen,
            warm_ups=warm_ups,
            drafters=tuple(drafters or ()),
            memory=memory,
            record=record is not None,
            llama=peers.llama and replace(peers.llama, draft=peers.draft_gguf, speculation=peers.llama_speculation),
            vllm_python=python_at(peers.vllm_python),
            out=out,
            minutes=minutes,
        )
        hush()
        with progress("measuring", suite.runs) as tick:
            report = run_suite(suite, tick)
    output.console.print(*tables(report))
    output.write(to_json(report))
    if record is not None:
        write_traces(report.traces, record)
    if plot_file is not None:
        from crossdraft.drawing.save import save_drawing

        save_drawing(draw(report), plot_file)


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
    prompts: Prompts = None,
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
    structured: Annotated[
        bool,
        typer.Option(
            "--structured",
            help="Ask for structured answers (schemas, expressions, choices, a grammar), and compare the target with "
            "Hugging Face generate, too.",
        ),
    ] = False,
    quantize: Quantize = None,
) -> None:
    """Check that every placement, and batches that join and leave, give the target's own tokens.

    Exit status 1 if one differs, a drafter failed, or nothing was drafted at all.

    The event drafter in nine ways. With --drafters, each one named: in a process of its own (what looks into the
    target, such as eagle2: in the target's process), inline, in batches of 2 to 4, and sampled, alone and in batches
    of 4. With 'all', the drafters that come with a checkpoint too, for small random targets made on the spot. Quantised
    models compute in bfloat16.
    """
    output.check()
    check_values(quantize=quantize)
    from rich.markup import escape

    from crossdraft_lab.bench.identity import (
        ALL,
        MADE,
        MADE_ANSWERS,
        MADE_GROUPS,
        about_shared_clips,
        choose_configs,
        run_identity,
        run_made_pairs,
    )
    from crossdraft_lab.bench.workload import Workload, describe, items

    lines = asked_prompts(prompts, kinds)
    check_asked(models, None if prompts is None else lines, [name for name in drafters or () if name != "all"])
    pairs = min(pairs, len(lines) or pairs)
    if structured and (prompts is not None or each > 1):
        raise CrossdraftError("--structured is for questions about one clip each; leave out --prompts or --questions.")
    work = Workload(pairs, "any", listed(kinds), max_new_tokens, questions=each, prompts=prompts, structured=structured)
    in_words = prompts is not None
    structured |= any(one.structure for one in lines)
    groups = choose_configs(drafters or (), models.target, cached=each > 1, in_words=in_words, structured=structured)
    chosen, pair = cores.cores(models.device), models.models(blind, quantize=quantize, asked=lines)
    if pair.quantize is not None:
        pair = replace(pair, dtype=None)
    made = min(pairs, MADE) if ALL in (drafters or ()) and models.target == "reference" and quantize is None else 0
    sampled = any(one.sampled for group in groups for one in group)
    answers = pairs * (1 + sampled + structured + sum(map(len, groups))) + made * MADE_ANSWERS
    answers += len(groups) + (MADE_GROUPS if made else 0)
    with loaded_target(pair, chosen) as (found, target), progress("comparing", answers) as tick:
        asked = items(work) if each == 1 else about_shared_clips(items(work))
        checks = run_identity(target, pair, chosen, groups, asked, tick)
        if made:
            with TemporaryDirectory(prefix="crossdraft-") as folder:
                few = [*items(replace(work, pairs=made))]
                checks += run_made_pairs(Path(folder), pair, chosen, few, tick)
    rows = table(None, "checked against the target alone", ("identical", "drafted", "accepted"))
    rows.add_column("", overflow="fold")
    for check in checks:
        counts = f"{check.equal}/{check.total}", str(check.drafted), str(check.accepted)
        rows.add_row(escape(check.name), *counts, escape(check.remark))
    output.console.print(rows)
    results = [check.to_json() for check in checks]
    output.write({"environment": found, "workload": describe(work), "checks": results})
    if any(check.failed for check in checks) or not any(check.drafted for check in checks):
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
    from crossdraft_lab.bench.policy import LOADS, load_json, loads_table, policy_studies, run_policy, sentences
    from crossdraft_lab.bench.study import terminal_table

    chosen, pair = cores.cores(models.device), models.models(draft_device=draft_device)
    studies = policy_studies(pair, pairs, repeats, tuple(LOADS) if loads is None else listed(loads))
    runs = sum(study.runs for study in studies.values())
    with loaded_target(pair, chosen) as (found, target), progress("measuring", runs) as tick:
        results = run_policy(studies, target, chosen, tick)
    each = [load_json(load, answers) for load, answers in results.items()]
    output.console.print(terminal_table(loads_table(results)), *sentences(each), sep="\n")
    output.write({"environment": found, "pairs": pairs, "repeats": repeats, "loads": each})


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
    from crossdraft_lab.bench.assembly import cores_of
    from crossdraft_lab.bench.environment import environment
    from crossdraft_lab.bench.questions import DRAFTERS, questions_study
    from crossdraft_lab.bench.study import terminal_table
    from crossdraft_lab.bench.workload import Workload, describe

    with TemporaryDirectory(prefix="crossdraft-") as folder:
        chosen = cores.cores(models.device)
        count = whole("--clips", clips) * whole("--questions", each)
        work = Workload(count, max_new_tokens=max_new_tokens, files=Path(folder), questions=each)
        named = DRAFTERS if drafters is None else tuple(drafters)
        study = questions_study(models.models(blind, draft_device), work, named, repeats, chosen)
        hush()
        with progress("measuring", study.runs) as tick:
            found = study.run(cores=chosen, tick=tick)
    output.console.print(terminal_table(study.table(found)))
    shares = {one.name: cores_of(one.drafts, chosen) for one in study.variants}
    output.write(
        {
            "environment": environment(),
            "workload": describe(work),
            "repeats": repeats,
            "cores": {name: None if own is None else str(own) for name, own in shares.items()},
            "methods": study.rows(found),
        }
    )


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})
def scale(ctx: typer.Context) -> None:
    """Measure shapes of any size with random weights, on CPU and CUDA; see `crossdraft bench scale --help`."""
    from crossdraft_lab.bench.scale import main

    main(ctx.args, prog="crossdraft bench scale")


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})
def compiled(ctx: typer.Context) -> None:
    """Time compiled decode passes against the executor `fast`, in turn; see `crossdraft bench compiled --help`."""
    from crossdraft_lab.bench.compiled import main

    main(ctx.args, prog="crossdraft bench compiled")


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})
def predictions(ctx: typer.Context) -> None:
    """Measure answers that are drafted from predictions, or by OCR; see `crossdraft bench predictions --help`."""
    from crossdraft_lab.bench.predictions import main

    main(ctx.args, prog="crossdraft bench predictions")


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})
def recurrent(ctx: typer.Context) -> None:
    """Time passes over recurrent layers, in turn with Hugging Face's steps; see `crossdraft bench recurrent --help`."""
    from crossdraft_lab.bench.recurrent import main

    main(ctx.args, prog="crossdraft bench recurrent")


def _refuse_options(ctx: typer.Context) -> None:
    """Refuse options in front of a subcommand: they belong to `bench` itself, and would be lost."""
    for option in ctx.command.params:
        source = ctx.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise CrossdraftError(
                f"{option.opts[0]} stands before '{ctx.invoked_subcommand}', which does not read it there; write it "
                "behind."
            )
