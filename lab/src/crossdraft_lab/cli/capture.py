"""`crossdraft capture`: the target's answers and hidden states, stored for training heads."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.cli.options import AsJson, Device, Dtype, LocalTarget, Quantize, check_models, check_values
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from crossdraft_lab.train.capture.plan import CaptureIndex, CapturePlan
    from crossdraft_lab.train.capture.sources import ClipSource

app = typer.Typer(help="Capture a target's answers, for heads to learn from.", add_completion=False)

CLIPS, PROMPTS = 64, 8  # defaults for scenes
Layers = Annotated[
    str | None,
    typer.Option(
        metavar="K,K…",
        help="Hidden states to keep of the text, 0 (embeddings) to L (after the final norm); what our heads read.",
    ),
]
VisualLayers = Annotated[
    str | None,
    typer.Option(metavar="K,K…", help="Hidden states to keep of the visual part, or 'none'; by default 0 and L."),
]


@app.command()
def capture(
    out: Annotated[Path, typer.Argument(help="Folder of the capture; an interrupted one is resumed.")],
    target: LocalTarget = "reference",
    layers: Layers = None,
    visual_layers: VisualLayers = None,
    clips: Annotated[int | None, typer.Option(min=1, help="How many clips; 64 scenes, or a whole list.")] = None,
    prompts: Annotated[int | None, typer.Option(help="Questions about each scene; 8 by default.")] = None,
    listed: Annotated[
        Path | None,
        typer.Option("--list", help='Clips of your own: lines of {"video": …, "prompt": …}; without video, prompts.'),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of the scenes: train (default) or validation.")] = None,
    first: Annotated[int | None, typer.Option(help="The split's first scene to take; 0 by default.")] = None,
    prompt_noise: Annotated[
        float | None, typer.Option(help="Drop or replace up to this share of a question's words, 0 to 1.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 96,
    batch: Annotated[int, typer.Option(help="Answers decoded in one batch.")] = 8,
    device: Device = None,
    dtype: Dtype = None,
    quantize: Quantize = None,
    seed: Annotated[int, typer.Option(help="Seed of the questions about scenes.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes that render the next scenes; 0 = none.")] = 1,
    shard_clips: Annotated[int, typer.Option(help="Clips in a file: what an interruption costs at most.")] = 32,
    check: Annotated[
        bool, typer.Option("--check", help="Verify what is there: hashes, and some answers anew.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Let the target alone generate the same answers, and compare the times.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how much disk it will take.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let a target answer questions about clips; store its tokens and hidden states."""
    if check:
        _check(out, target, device, as_json)
        return
    if out.exists() and not out.is_dir():
        raise CrossdraftError(f"{out} is no folder; name an empty or a new one, or that of a capture.")
    check_values(device=device, dtype=dtype, quantize=quantize, max_new_tokens=max_new_tokens)
    check_models(target, shows=listed is None)
    kept, visual = _numbers("layers", layers), _numbers("visual-layers", visual_layers)
    scenes = {"split": split, "prompts": prompts, "first": first, "prompt_noise": prompt_noise}
    source = _source(listed, clips, scenes, seed)

    from crossdraft.cli.reporting import hush
    from crossdraft.load import load_target
    from crossdraft_lab.train.capture.plan import CapturedTarget, CapturePlan, capture_spec

    hush()
    loaded = load_target(target, device, dtype, quantize=quantize)
    info = CapturedTarget.of(target, loaded, quantize)
    spec = capture_spec(info.depth, kept, visual, max_new_tokens)
    plan = CapturePlan(loaded, info, source, spec, batch, workers, shard_clips)
    _run(out, plan, plan.resume(out), compare=compare, dry_run=dry_run, as_json=as_json)


def _run(out: Path, plan: "CapturePlan", index: "CaptureIndex", *, compare: bool, dry_run: bool, as_json: bool) -> None:
    """Estimate the disk space, capture, and report."""
    from dataclasses import asdict, replace

    from crossdraft.cli.reporting import progress, report
    from crossdraft_lab.train.capture.plan import estimate_disk, format_size
    from crossdraft_lab.train.capture.recorder import CaptureComparison, FeatureRecorder, InterleavedRecorder
    from crossdraft_lab.train.capture.run import capture as run

    expected = estimate_disk(out, plan, index)
    if dry_run:
        report({"needed": expected.needed, "free": expected.free}, expected.sentence(), as_json=as_json)
        return
    expected.check()
    typer.echo(expected.sentence(), err=True)
    turns = InterleavedRecorder(plan.target, plan.spec, plan.batch) if compare else None
    if turns is not None:
        plan = replace(plan, workers=0)  # no other process may compute during the comparison
        turns.warm_up(plan.source.read(0))
    recorder = turns or FeatureRecorder(plan.target, plan.spec, plan.batch)
    with progress("capturing", max(0, len(plan.source) - index.done)) as tick:
        index, done = run(out, plan, index, recorder, lambda: tick("clips"))
    comparison = None
    if turns is not None:
        done = replace(done, seconds=done.seconds - turns.generated_s)
        comparison = CaptureComparison.of(turns, done.filing_s)
    figures = {"out": str(out), **done.to_json(), "total_answers": index.answers, "total_bytes": index.bytes}
    lines = [f"{done.sentence()} {out} holds {index.answers} answers, {format_size(index.bytes)}."]
    if comparison is not None:
        figures["compare"] = asdict(comparison)
        lines.append(comparison.sentence())
    report(figures, *lines, as_json=as_json)


def _check(out: Path, target: str, device: str | None, as_json: bool) -> None:
    """Verify the hashes, then generate some answers again and compare."""
    from dataclasses import asdict

    from crossdraft.cli.reporting import hush, report
    from crossdraft.load import load_target, target_fingerprint
    from crossdraft_lab.train.capture.check import check_sample
    from crossdraft_lab.train.capture.sources import source_of
    from crossdraft_lab.train.capture.store import CaptureStore

    hush()
    store = CaptureStore.open(out, target_fingerprint(target))
    store.check()
    owner = store.index.owner
    loaded = load_target(target, device, owner.dtype, quantize=owner.quantize or None)
    found = check_sample(store, loaded, source_of(store.index.asked, store.index.clips))
    shards = len(store.index.shards)
    line = f"{out}: {shards} {'shard' if shards == 1 else 'shards'} OK. {found.sentence()}"
    report({"shards": shards, **asdict(found)}, line, as_json=as_json)


def _source(listed: Path | None, clips: int | None, scenes: dict[str, object], seed: int) -> "ClipSource":
    """Make the source of clips: the list, or scenes with the given settings."""
    from crossdraft_lab.train.capture.sources import ListSource, SceneSource

    given = {name: value for name, value in scenes.items() if value is not None}
    if listed is None:
        settings = {"clips": clips or CLIPS, "prompts": PROMPTS, "seed": seed, **given}
        return SceneSource(**settings)  # pyright: ignore[reportArgumentType]
    if given:
        name = next(iter(given))
        raise CrossdraftError(f"--{name.replace('_', '-')} is for scenes, and --list names other clips; leave one out.")
    return ListSource(listed, clips)


def _numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    """Parse a list of numbers: (2, 4) from "2,4"; () from "none"."""
    if text is None:
        return None
    if text == "none":
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise CrossdraftError(f"--{option} is '{text}'; write numbers with commas between, such as 2,4,7.") from error
