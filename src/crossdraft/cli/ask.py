"""`crossdraft ask`: a question about clips and images; each part of the answer is shown with its origin."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossdraft.cli.options import AsJson, Force, NoColour, PairOptions, RecordingOptions, option_groups
from crossdraft.cli.outputs import check_outputs, json_text
from crossdraft.errors import CrossdraftError
from crossdraft.files import parse_json
from crossdraft.side_text import read_hint, read_text

if TYPE_CHECKING:
    from crossdraft.api import Engine
    from crossdraft.cli.compare import AnswerComparison
    from crossdraft.drawing.figures import Baseline
    from crossdraft.engine.request import Answer, Request
    from crossdraft.structure.structure import Structure

app = typer.Typer(help="Ask a question about a clip.", add_completion=False)


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Options for choosing tokens and ending an answer; the checkpoint decides those that are `None`."""

    temperature: Annotated[
        float | None, typer.Option(help="0 = greedy. This and the next: by default as the checkpoint says.")
    ] = None
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens; 0 = all.")] = None
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest tokens of this mass; 1 = all.")] = None
    min_p: Annotated[float | None, typer.Option(help="Least likelihood, relative to the likeliest token.")] = None
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1: repeat less.")] = None
    presence_penalty: Annotated[float | None, typer.Option(help="Above 0: repeat none of the answer; -2 to 2.")] = None
    frequency_penalty: Annotated[float | None, typer.Option(help="The same, each time a token occurred.")] = None
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of a sampled answer: the same one gives the same text, whatever drafts; random by default."
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Text that ends the answer; repeatable. By default the checkpoint's."),
    ] = None


@dataclass(frozen=True, slots=True)
class StructureOptions:
    """Options that say what the answer must look like; one of them at most."""

    json_schema: Annotated[
        str | None, typer.Option(metavar="FILE|JSON", help="The answer is JSON of this schema; {} = any JSON value.")
    ] = None
    regex: Annotated[str | None, typer.Option(help="This regular expression matches the whole answer.")] = None
    choice: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="The answer is one of several texts; repeatable.")
    ] = None
    grammar: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The answer is of this grammar (Lark, GBNF).")
    ] = None

    def read(self) -> "Structure | None":
        """Make the structure; `None` if any text will do.

        Raises:
            CrossdraftError: two of the options are given, a file cannot be read, or as `Structure` and its `check`.
        """
        given = {
            name: value
            for name in ("json_schema", "regex", "choice", "grammar")
            if (value := getattr(self, name)) is not None and value != []
        }
        if len(given) > 1:
            first, second, *_ = (f"--{name.replace('_', '-')}" for name in given)
            raise CrossdraftError(f"{first} and {second} both say what the answer must look like; give one of them.")
        if not given:
            return None
        from crossdraft.structure.structure import Structure

        ((name, value),) = given.items()
        if name == "json_schema":
            inline = value.lstrip().startswith(("{", "true", "false"))
            made = Structure.json(value if inline else read_text(Path(value)))
        else:
            made = getattr(Structure, name)(read_text(value) if name == "grammar" else value)
        made.check()
        return made


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Options for texts that the answer is drafted from; it stays what it is without them."""

    prediction: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="What the answer may be, or nearly so; repeatable.")
    ] = None
    hint: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="What it may quote: a text, subtitles (.srt, .vtt) or a PDF; repeatable."),
    ] = None
    ocr: Annotated[
        str | None,
        typer.Option(metavar="ENGINE", help="Read the images' words as a hint: tesseract, rapidocr, or a command."),
    ] = None

    def added(self, request: "Request") -> "Request":
        """Add the files' texts to a request, and start reading its images.

        Raises:
            CrossdraftError: a file cannot be read, there is too much text, or the engine is not installed.
        """
        predictions, hints = [read_text(path) for path in self.prediction or ()], [*map(read_hint, self.hint or ())]
        request = replace(request, predictions=predictions, hints=hints)
        if self.ocr is None:
            return request
        if not any(part.kind == "image" for part in request.visuals):
            raise CrossdraftError("--ocr reads the words in images; name one with --image.")
        from crossdraft.ocr import Ocr

        return Ocr(self.ocr).added(request)


@dataclass(frozen=True, slots=True)
class ShownOptions:
    """Options that name the subject of a question: clips, images, a system prompt, a conversation."""

    video: Annotated[list[Path] | None, typer.Option(help="The clip, a video file; repeatable.")] = None
    image: Annotated[list[Path] | None, typer.Option(help="An image (PNG, JPEG, WebP, BMP); repeatable.")] = None
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system prompt.")] = None
    messages: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='A conversation, in place of all these and the question: a JSON list of {"role": …, "content": …}.',
        ),
    ] = None

    def read(self, question: str | None, target: str) -> "Request":
        """Make the request from the question, clips and images, or from the conversation; other fields keep defaults.

        Raises:
            CrossdraftError: no question, or two kinds of it; nothing is shown to the reference target, which knows its
                clips alone; a file is missing; or the conversation is no JSON.
        """
        self._check(question, target)
        written = None if self.messages is None else _conversation(self.messages)
        from crossdraft.engine.request import Request  # imports PyTorch, which takes seconds

        if written is not None:
            return Request(messages=written)
        return Request(question or "", _one_or_all(self.video), image=_one_or_all(self.image), system=self.system)

    def _check(self, question: str | None, target: str) -> None:
        """Refuse options that can be refused without importing PyTorch."""
        if self.messages is not None:
            if question is not None or self.video or self.image or self.system is not None:
                raise CrossdraftError(
                    "--messages is the whole conversation; put question, clips and images into its file."
                )
            return
        if question is None:
            raise CrossdraftError('There is no question; write crossdraft ask "What is ahead?" --video clip.mp4.')
        if target == "reference" and not (self.video or self.image):
            raise CrossdraftError(
                "There is nothing to ask about; name a clip with --video, an image with --image, or a "
                "conversation, which may be text alone, with --messages."
            )
        from crossdraft.video import probe
        from crossdraft.video.image import check_image_file

        for clip in self.video or ():
            probe(clip)
        for image in self.image or ():
            check_image_file(str(image))


def _conversation(path: Path) -> Any:
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        raise CrossdraftError(f"{path} is no JSON ({error}); write a list of messages into it.") from None


def _one_or_all(paths: list[Path] | None) -> object:
    return paths[0] if paths and len(paths) == 1 else paths or None


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Options for the display of an answer, and for the files to write."""

    logprobs: Annotated[bool, typer.Option("--logprobs", help="Show the log-probability of each token.")] = False
    compare: Annotated[
        bool, typer.Option("--compare", help="Also run the target alone: are the tokens identical, and the speedup?")
    ] = False
    trace: Annotated[Path | None, typer.Option(help="Write the timeline as a Chrome/Perfetto trace (.json).")] = None
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the answer and its timeline with the target alone, which is run for it (.svg, .png)."),
    ] = None
    force: Force = False
    as_json: AsJson = False
    no_color: NoColour = False

    def check(self) -> None:
        """Refuse files that cannot be written, before any time is spent on them."""
        from crossdraft.drawing.save import check_picture

        if self.plot is not None:
            check_picture(self.plot)
        if self.trace is not None and self.trace.suffix.lower() != ".json":
            raise CrossdraftError(f"--trace writes JSON; name a file that ends in .json, not {self.trace}.")
        check_outputs(self.plot, self.trace, force=self.force)


@app.command()
@option_groups
def ask(
    shown: ShownOptions,
    recording: RecordingOptions,
    pair: PairOptions,
    sampling: SamplingOptions,
    structure: StructureOptions,
    texts: TextOptions,
    output: OutputOptions,
    question: Annotated[
        list[str] | None, typer.Argument(help="What to ask, in plain words and quotes.", show_default=False)
    ] = None,
) -> None:
    """Answer a question about clips and images by speculative decoding; the answer is the target's own.

    A drafter proposes tokens while the target reads the clip and afterwards; the target verifies them.
    """
    output.check()
    pair.check(events=recording.events is not None, shows=bool(shown.video or shown.image))
    recording.refuse_unused()
    constraint = structure.read()
    request = _request(shown.read(_question(question), pair.target), recording, pair, sampling, output)
    request = texts.added(replace(request, structure=constraint))
    from crossdraft.cli.reporting import import_engine

    import_engine()
    from crossdraft.alone import target_alone
    from crossdraft.cli.compare import compare
    from crossdraft.cli.session import opened, stream, why_not_usual, with_drafter
    from crossdraft.cli.view import answer_console, say, show

    events = recording.events is not None
    why = why_not_usual(pair, events=events)
    pair = with_drafter(pair, events=events, quiet=output.as_json)
    console = answer_console(plain=output.no_color or output.as_json)
    if output.compare:  # both the target alone and the pair read the clip every time
        pair = replace(pair, options=replace(pair.options, cache_bytes=0))
    with opened(pair, request) as engine:
        if output.compare and engine.prefill_status is not None:
            raise CrossdraftError(
                "--compare asks a question several times, and within a quality budget each may be read in another way; "
                "name a confidence in --lossy-prefill, not a budget."
            )
        answer = stream(engine, request, None if output.as_json else console)
        comparison = compare(engine, request, answer) if output.compare else None
        timed, baseline = typical(answer, comparison)
        if output.as_json:
            found = report(request, timed, engine, comparison)
            found |= {"drafter": pair.drafter, "drafter_reason": why}
            typer.echo(json_text(found))
        else:
            named = str(pair.drafter) if why is None else f"{pair.drafter}, for {why}"
            show(console, timed, engine.target, baseline, named)
            if comparison is not None:
                say(console, f"\n{comparison.sentence()}")
        if output.plot is not None and baseline is None and pair.drafter != "none":
            baseline = target_alone(engine, request)
    _write(output, request.question, timed, baseline)


def _question(words: list[str] | None) -> str | None:
    """The question, which the shell hands over as one word if it stands in quotes."""
    if words is not None and len(words) > 1:
        raise CrossdraftError(f'The question came as {len(words)} words; quote it: "{" ".join(words)}".')
    return words[0] if words else None


def _request(
    asked: "Request", recording: RecordingOptions, pair: PairOptions, sampling: SamplingOptions, output: OutputOptions
) -> "Request":
    """Complete the request, after its files were checked."""
    excerpt = recording.excerpt(Path(str(asked.clip)) if asked.clip is not None else None)
    if output.compare and pair.drafter == "none":
        raise CrossdraftError("--compare runs the target alone, and so does --drafter none; leave one of them out.")

    from crossdraft.engine.sampling import Sampling

    drawn = Sampling(**{name: value for name, value in asdict(sampling).items() if name != "stop"})
    stop = tuple(sampling.stop) if sampling.stop else None
    return replace(
        asked, events=excerpt, max_new_tokens=pair.max_new_tokens, sampling=drawn, stop=stop, logprobs=output.logprobs
    )


def _write(output: OutputOptions, question: str, answer: "Answer", baseline: "Baseline | None") -> None:
    """Write the files that the options name."""
    from crossdraft.drawing.save import save_timeline
    from crossdraft.files import atomic_path

    if output.trace is not None:
        with atomic_path(output.trace) as path:
            answer.timeline.save_chrome(path)
        typer.echo(f"wrote {output.trace}", err=True)
    if output.plot is not None:
        save_timeline(output.plot, question, answer, baseline)
        typer.echo(f"wrote {output.plot}", err=True)


def typical(answer: "Answer", comparison: "AnswerComparison | None") -> "tuple[Answer, Baseline | None]":
    """Return the answer whose figures are shown, and the target alone.

    After a comparison both are runs of the comparison, so that all times shown are of the same runs; but a sampled
    answer is shown with its own figures, because the runs after the comparison drew other tokens.
    """
    if comparison is None or comparison.drafted is None or comparison.drafted.tokens != answer.tokens:
        return answer, None
    return comparison.drafted, comparison.baseline


def report(
    request: "Request", answer: "Answer", engine: "Engine", comparison: "AnswerComparison | None" = None
) -> dict[str, object]:
    """Report for `--json`."""
    from crossdraft.cli.view import record

    def named(visual: object) -> str:
        return f"{len(visual):,} bytes" if isinstance(visual, bytes) else str(visual)  # sent in the conversation

    words = [engine.target.decode([token]) for token in answer.tokens] if request.logprobs else None
    clips, images = (
        [named(part.value) for part in request.visuals if part.kind == kind] for kind in ("video", "image")
    )
    found: dict[str, object] = {"question": request.question, "video": clips[0] if len(clips) == 1 else clips}
    found |= {"image": images[0] if len(images) == 1 else images} if images else {}
    found["events"] = None if request.events is None else str(request.events)
    found |= record(answer, words)
    if (status := engine.prefill_status) is not None:
        found["speculative_prefill"] = status.to_json()
    if comparison is not None:
        found["compare"] = comparison.to_json()
    return found
