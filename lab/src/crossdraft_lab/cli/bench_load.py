"""`crossdraft bench throughput` and `bench soak`: many requests at once."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from crossdraft.cli.options import DraftDevice, option_groups
from crossdraft.cli.reporting import hush, progress
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.common import counts, listed
from crossdraft_lab.cli.bench_options import (
    Blind,
    ChoiceSeed,
    CoreOptions,
    Float32Models,
    Kills,
    Kinds,
    LoadedDrafter,
    LoadedPeers,
    MaxBatch,
    MaxTokens,
    Prompts,
    ReportOptions,
    asked_prompts,
    check_asked,
    python_at,
)

QUICK = (1, 4)


@option_groups
def throughput(
    models: Float32Models,
    cores: CoreOptions,
    output: ReportOptions,
    peers: LoadedPeers,
    requests: Annotated[str, typer.Option(help="How many requests at once, comma-separated.")] = "1,2,4,8,16,32",
    drafter: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Our engine's drafter; glance by default, ngram for prompts.")
    ] = None,
    baselines: Annotated[
        str | None,
        typer.Option(
            help="Who else answers, comma-separated: target, hf-batch, hf-continuous (clips), llama.cpp (prompts), "
            "vllm; by default all that can."
        ),
    ] = None,
    prompts: Prompts = None,
    kinds: Kinds = None,
    warm_ups: Annotated[int, typer.Option(help="Batches of every size before the clock starts.")] = 3,
    repeats: Annotated[int, typer.Option(help="Batches of every size, each of other questions.")] = 5,
    least: Annotated[int, typer.Option(help="Questions that every size asks at least.")] = 20,
    max_new_tokens: MaxTokens = 96,
    chunked: Annotated[
        bool, typer.Option("--chunked", help="Our engine reads prompts chunk by chunk between rounds, as by default.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="1 and 4 requests, 2 batches, short answers: does it run?")] = (
        False
    ),
    blind: Blind = "blind",
    draft_device: DraftDevice = None,
) -> None:
    """Answer N requests at once: our engine, the target alone in the same batches, Hugging Face, llama.cpp, vLLM.

    Every request is about a clip of its own, read from a file, or with --prompts a prompt of its own, in words; nothing
    is kept between requests. Hugging Face answers by generate on a padded batch, and about clips by continuous
    batching; llama.cpp's server has a slot for each request. Baselines run on one core and on all that the pair uses:
    --target-cores 0-1 --draft-cores 0-1 leaves the first out.
    """
    output.check()
    peers.check_files()
    lines_asked = asked_prompts(prompts, kinds)
    drafter = drafter or ("ngram" if lines_asked else "glance")
    check_asked(models, None if prompts is None else lines_asked, [drafter])
    if any(one.shows or one.structure for one in lines_asked):
        raise CrossdraftError("Requests at once are asked in words, without structures; choose others by --kinds.")
    from crossdraft_lab.bench.study import terminal_table
    from crossdraft_lab.bench.throughput import BASELINES, Throughput, lines, results_table, run_throughput
    from crossdraft_lab.bench.workload import Workload

    named, longest = listed(baselines), 24 if quick else max_new_tokens
    sizes = QUICK if quick else counts("--requests", requests)
    work = Workload(len(lines_asked) or 1, kinds=listed(kinds), max_new_tokens=longest, prompts=prompts)
    with TemporaryDirectory(prefix="crossdraft-") as folder:
        plan = Throughput(
            models.models(blind, draft_device, asked=lines_asked),
            replace(work, files=None if lines_asked else Path(folder)),
            sizes,
            drafter,
            2 if quick else repeats,
            2 if quick else least,
            cores.cores(models.device),
            python_at(peers.vllm_python),
            named or BASELINES,
            None if chunked else 0,
            peers.llama,
            warm_ups,
        )
        hush()
        with progress("measuring", plan.runs) as tick:
            report = run_throughput(plan, tick)
    output.console.print(terminal_table(results_table(report)))
    output.lines(lines(plan, report))
    output.write(report)


@option_groups
def soak(
    models: Float32Models,
    output: ReportOptions,
    requests: Annotated[int, typer.Option(help="How many.")] = 5000,
    drafter: LoadedDrafter = "auto",
    threads: Annotated[int, typer.Option(help="Threads that ask.")] = 8,
    clips: Annotated[int, typer.Option(help="Clips that are asked about.")] = 24,
    cancelled: Annotated[float, typer.Option(help="Share of the requests that are cancelled.")] = 0.1,
    wrong: Annotated[float, typer.Option(help="Share that cannot be answered: a missing clip, a bad prompt …")] = 0.05,
    kills: Kills = 3,
    max_batch: MaxBatch = 4,
    seed: ChoiceSeed = 0,
) -> None:
    """Ask thousands of mixed requests from many threads, cancel some, kill the drafter. Exit 1 if anything is wrong.

    Every answer must be the target's own, errors must be the right ones, memory must stay flat, and nothing may be left
    over: rows, processes, threads, files.
    """
    output.check()
    from crossdraft.options import Options
    from crossdraft_lab.bench.soak import Soak, lines, run_soak

    hush()
    with TemporaryDirectory(prefix="crossdraft-") as folder:
        plan = Soak(
            Path(folder),
            models.target,
            drafter.replace("event", models.event) if drafter != "auto" else drafter,
            Options(device=models.device, dtype=models.dtype),
            requests,
            threads,
            clips,
            cancelled,
            wrong,
            kills,
            max_batch,
            seed,
        )
        with progress("asking", plan.requests) as tick:
            report = run_soak(plan, tick)
    output.lines(lines(report))
    output.write(report)
    if not report["passed"]:
        raise typer.Exit(1)
