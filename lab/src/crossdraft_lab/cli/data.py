"""`crossdraft data`: data sets checked, indexed as clips with questions, divided; simulated recordings."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.cli.options import AsJson, Force, option_groups, size_of
from crossdraft.cli.outputs import check_outputs
from crossdraft.errors import CrossdraftError
from crossdraft_lab.datasets.sample import counted

if TYPE_CHECKING:
    from crossdraft_lab.datasets.pairs import DatasetCheck, FilledParts
    from crossdraft_lab.datasets.recorded import ClipPlan

app = typer.Typer(
    help="Check data sets, index their clips and questions, divide them; simulate recordings.",
    no_args_is_help=True,
    add_completion=False,
)


class Preset(StrEnum):
    """Names of `crossdraft_lab.scenes.sensor.PRESETS`."""

    IDEAL = "ideal"
    CLEAN = "clean"
    DEFAULT = "default"
    NOISY = "noisy"


LIST = "pairs.jsonl"
MOST_QUESTIONS = 10_000
Named = Annotated[
    str | None,
    typer.Option("--dataset", help="Which data set it is, where its layout does not say; `help` lists them."),
]


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="Folder of a data set, or of an index.", show_default=False)],
    dataset: Named = None,
    as_json: AsJson = False,
) -> None:
    """Report what is missing or broken in a data set, and its licence; for an index, also whether its splits leak."""
    if _lists(dataset, as_json):
        return
    from crossdraft.cli.reporting import report, track
    from crossdraft_lab.datasets.index import FILE
    from crossdraft_lab.datasets.pairs import check_dataset, check_index

    if dataset is None and (folder / FILE).is_file():
        found = check_index(folder)
    else:
        found = check_dataset(folder, dataset, lambda parts: track(parts, "checking", len(parts)))
    report(found.to_json(), *found.lines(), as_json=as_json)
    _refuse(found, folder)


@dataclass(frozen=True, slots=True)
class CutOptions:
    """Options for cutting clips out of recordings, and the questions about them."""

    seconds: Annotated[float, typer.Option(help="Length of a clip that is cut out of a recording.")] = 1.0
    stride: Annotated[
        float | None, typer.Option(help="Seconds from one clip's beginning to the next one's; its length by default.")
    ] = None
    questions: Annotated[
        Path | None,
        typer.Option(help="A question a line, for data sets that have none; by default four about driving."),
    ] = None
    align: Annotated[bool, typer.Option(help="Bring DSEC's images onto the event camera's pixels.")] = True
    e2vid: Annotated[
        Path | None,
        typer.Option(help="Weights of E2VID (safetensors): make the video of recordings that have only events."),
    ] = None

    def plan(self, out: Path) -> "ClipPlan":
        """Plan of clips, to be cut into the output folder."""
        from crossdraft_lab.datasets.recorded import QUESTIONS, ClipPlan

        asked = QUESTIONS if self.questions is None else _read_questions(self.questions)
        return ClipPlan(out / "clips", self.seconds, self.stride, asked, self.align, self.e2vid)


@app.command()
@option_groups
def pairs(
    folder: Annotated[Path, typer.Argument(help="Folder of a data set.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder of the index; an interrupted one is resumed.", show_default=False)],
    clips: CutOptions,
    dataset: Named = None,
    part: Annotated[
        list[str] | None, typer.Option(help="Only this sequence or annotation file; may be given again.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many questions of each part.")] = None,
    as_json: AsJson = False,
) -> None:
    """Index a data set's clips and questions: pairs.sqlite, and pairs.jsonl for `crossdraft capture --list`."""
    if _lists(dataset, as_json):
        return
    from crossdraft.cli.reporting import report, track
    from crossdraft.files import only_process
    from crossdraft_lab.datasets.catalogue import DATASETS, dataset_in, open_dataset
    from crossdraft_lab.datasets.index import PairIndex
    from crossdraft_lab.datasets.pairs import export, fill

    name = dataset_in(folder, dataset)
    plan, record = clips.plan(out), DATASETS[name]
    reader = open_dataset(folder, name, plan)
    parts = _parts(reader.parts(), part)
    with PairIndex(out, create=True) as index, only_process(out):
        index.expect(dataset=name, licence=record.licence, clips=plan.settings() if record.cuts else None)
        filled = fill(index, reader, parts, limit, track)
        counts = index.counts()
        lines, left_out = export(index, out / LIST)
    figures = {"dataset": name, "licence": record.licence, **asdict(counts), "lines": lines, "without_video": left_out}
    held = f"{counted(counts.samples, 'question')}, {counted(counts.clips, 'clip')}, {counted(counts.groups, 'group')}"
    report(
        {"out": str(out), **figures, **filled.to_json()},
        f"{record.title}: {held}.{_missing(counts.missing)}",
        f"{out / LIST}: {counted(lines, 'line')}.{_without_video(left_out)}",
        *_of_parts(filled, plan if record.cuts else None),
        f"Licence: {record.licence}.",
        as_json=as_json,
    )
    if filled.broken or not counts.samples:
        raise typer.Exit(1)


def _missing(number: int) -> str:
    verb = "is about a file that is" if number == 1 else "are about files that are"
    return f" {counted(number, 'question')} {verb} missing." if number else ""


def _without_video(number: int) -> str:
    return (
        f" {counted(number, 'clip')} without a video {'is' if number == 1 else 'are'} not in the list."
        if number
        else ""
    )


def _of_parts(filled: "FilledParts", plan: "ClipPlan | None") -> Iterator[str]:
    """Yield descriptions of the parts that could not be read to their end, or gave no sample."""
    for part, why in filled.broken.items():
        yield f"Not read to its end: {part}: {why}"
    if filled.empty:
        first, more = filled.empty[0], len(filled.empty) - 1
        rest = f" and {counted(more, 'other part')}" if more else ""
        why = "nothing to ask about" if plan is None else f"no clip of {plan.seconds:g} s with frames and events"
        mend = "" if plan is None else "; with shorter ones (--seconds), in another folder, there may be some"
        yield f"{first}{rest} {'has' if not more else 'have'} {why}{mend}."


@app.command()
def split(
    folder: Annotated[Path, typer.Argument(help="Folder of an index.", show_default=False)],
    validation: Annotated[float, typer.Option(help="Share of the questions for validation, by whole groups.")] = 0.1,
    test: Annotated[float, typer.Option(help="Share for the test, by whole groups.")] = 0.1,
    questions: Annotated[
        float, typer.Option("--questions", help="Share of the wordings that only the test asks; 0 = none.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the choice of groups and wordings.")] = 0,
    by_part: Annotated[
        bool, typer.Option("--by-part", help="The data set's own split, by the names of its parts.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Divide an index into train, validation and test, by sequence and if wanted by question; refuses to leak."""
    from crossdraft.cli.reporting import report
    from crossdraft.files import only_process
    from crossdraft_lab.datasets.index import PairIndex
    from crossdraft_lab.datasets.pairs import export
    from crossdraft_lab.datasets.split import SPLITS, SplitPlan, divide

    plan = SplitPlan(validation, test, questions, seed, by_part)
    with PairIndex(folder) as index, only_process(folder):
        counts = divide(index, plan)
        files = {name: folder / f"{name}.jsonl" for name in SPLITS if counts.samples.get(name)}
        for name, path in files.items():
            export(index, path, name)
        for name in set(SPLITS) - set(files):  # remove files of an earlier split, whose clips may have moved
            (folder / f"{name}.jsonl").unlink(missing_ok=True)
    lines = [
        f"{name}: {counted(counts.samples[name], 'question')}, {counted(counts.groups[name], 'group')}: {files[name]}"
        for name in files
    ]
    if counts.samples.get("unused"):
        lines.append(
            f"unused: {counted(counts.samples['unused'], 'question')}, new by clip or by wording alone; held out: "
            f"{counted(counts.held_questions, 'wording')}"
        )
    report({**asdict(counts), "files": {name: str(path) for name, path in files.items()}}, *lines, as_json=as_json)


@app.command("instructions")
def text_prompts(
    out: Annotated[Path, typer.Argument(help="New file of JSON lines, for `crossdraft capture --list`.")],
    count: Annotated[int, typer.Option(min=1, max=100_000, help="How many prompts.")] = 1000,
    split: Annotated[str, typer.Option(help="train, validation or test: each has templates of its own.")] = "train",
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 0,
    sampled: Annotated[float, typer.Option(help="Share of the prompts that are answered by sampling.")] = 0.0,
    temperature: Annotated[float, typer.Option(help="Temperature of these answers.")] = 0.7,
    avoid: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Held-out prompts, none of which is to be drawn: JSON lines.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write instructions in words alone, made from templates: code, edit, json, list, prose, translate, repeat, …."""
    from crossdraft.cli.reporting import report, waiting
    from crossdraft.files import atomic_path
    from crossdraft_lab.bench.workload import read_prompts
    from crossdraft_lab.datasets.text_prompts import instructions

    check_outputs(out, force=force)
    kept_back = [] if avoid is None else [line.text for line in read_prompts(avoid)]
    with waiting("drawing prompts"):
        lines = instructions(split, count, seed, sampled, temperature, kept_back)
    with atomic_path(out) as path:
        path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    kinds = dict(Counter(line["kind"] for line in lines))
    report({"out": str(out), "kinds": kinds}, f"{out}: {counted(count, 'prompt')}, by kind {kinds}", as_json=as_json)


@app.command()
def score(
    folder: Annotated[Path, typer.Argument(help="Folder of an index.", show_default=False)],
    answers: Annotated[
        Path, typer.Argument(help='Answers: lines, or a list, of {"id": …, "text": …}.', show_default=False)
    ],
    split: Annotated[str | None, typer.Option(help="The split that was asked, all of which must be answered.")] = None,
    as_json: AsJson = False,
) -> None:
    """Score answers to an index's questions: accuracies and text scores, each with its interval over groups."""
    from crossdraft.cli.reporting import report
    from crossdraft_lab.bench.quality import accuracies, read_answers, text_scores

    found = read_answers(folder, answers, split)
    figures = [*accuracies(found.answers), *text_scores(found.answers)]
    verbs = "has no answer and counts" if found.unanswered == 1 else "have no answer and count"
    unanswered = f"{counted(found.unanswered, 'question')} {verbs} as wrong." if found.unanswered else ""
    report(
        {"unanswered": found.unanswered, "figures": [figure.to_json() for figure in figures]},
        *map(str, figures),
        *filter(None, [unanswered]),
        as_json=as_json,
    )


@app.command()
def simulate(
    video: Annotated[Path, typer.Argument(help="A video, also a GIF or an animated WebP.", show_default=False)],
    destination: Annotated[Path, typer.Argument(help="New recording: .h5 or another suffix of `events convert`.")],
    preset: Annotated[Preset, typer.Option(help="Pixel physics; the presets are v2e's.")] = Preset.DEFAULT,
    seed: Annotated[int, typer.Option(min=0, help="Seed of thresholds, noise and drops.")] = 0,
    sensor: Annotated[
        str | None, typer.Option(metavar="WxH", help="Sensor size; the video's own if absent. Keeps the aspect.")
    ] = None,
    steps: Annotated[
        int, typer.Option(min=1, help="Put steps-1 frames between two of the video's, along the optical flow.")
    ] = 1,
    max_rate: Annotated[
        float, typer.Option(help="Events a second per pixel that the readout passes; 0 for no limit.")
    ] = 200,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Simulate the events that a camera would have reported of a video's scene."""
    from crossdraft.cli.events import EventCounter, check_other, report_file
    from crossdraft.cli.reporting import track
    from crossdraft.events.write import write_events
    from crossdraft.video import iter_frames, probe
    from crossdraft_lab.scenes.from_video import simulator_frames
    from crossdraft_lab.scenes.sensor import PRESETS
    from crossdraft_lab.scenes.simulate import Simulator

    check_other(video, destination)
    check_outputs(destination, force=force)
    if not max_rate >= 0:  # refuses NaN, too
        raise CrossdraftError(f"--max-rate is {max_rate:g}; give events a second per pixel, or 0 for no limit.")
    simulator = Simulator(replace(PRESETS[preset.value], max_rate_hz_px=max_rate or None), seed)
    total = probe(video).frames * steps or None
    greys = simulator_frames(iter_frames(video), size_of(sensor), steps)
    chunks = EventCounter(simulator.feed(grey, t_us) for t_us, grey in track(greys, "simulating", total))
    write_events(destination, chunks)
    width, height = chunks.sensor
    more = {"dropped": simulator.dropped, "width": width, "height": height, "seconds": round(probe(video).seconds, 3)}
    report_file(destination, chunks, more, as_json)
    if simulator.dropped:
        typer.echo(
            f"{simulator.dropped:,} events beyond --max-rate {max_rate:g} were dropped "
            "(scene cuts and flashes cause this).",
            err=True,
        )


def _lists(dataset: str | None, as_json: bool) -> bool:
    """List the data sets for `--dataset help`, whatever else was given; return true if it did."""
    if dataset != "help":
        return False
    from crossdraft.cli.reporting import report
    from crossdraft_lab.datasets.catalogue import DATASETS

    shown = {name: {field: getattr(record, field) for field in ("title", "paper", "licence", "layout")}
             for name, record in DATASETS.items()}  # fmt: skip
    lines = (f"{name:15} {record.title}: {record.layout}. {record.licence}" for name, record in DATASETS.items())
    report(shown, *lines, as_json=as_json)
    return True


def _refuse(found: "DatasetCheck", folder: Path) -> None:
    if found.problems:
        first, more = found.problems[0], len(found.problems) - 1
        rest = f", and {more} more" if more else ""
        raise CrossdraftError(f"{folder} is not whole: {first.path}: {first.what.rstrip('.')}{rest}.")


def _parts(known: list[str], wanted: list[str] | None) -> list[str]:
    absent = [name for name in wanted or () if name not in known]
    if absent:
        shown = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
        raise CrossdraftError(f"There is no part '{absent[0]}'; the data set has {shown}.")
    return known if not wanted else list(dict.fromkeys(wanted))


def _read_questions(path: Path) -> tuple[str, ...]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise CrossdraftError(f"The questions in {path} cannot be read ({error}); give a question a line.") from error
    found = tuple(dict.fromkeys(line for line in lines if line))
    if not 0 < len(found) <= MOST_QUESTIONS:
        raise CrossdraftError(f"{path} has {len(found)} questions; give 1 to {MOST_QUESTIONS:,}, one a line.")
    return found
