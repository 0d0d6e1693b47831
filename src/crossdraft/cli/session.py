"""What `ask`, `chat` and `demo` do alike: place a pair, load it with progress, warm it up, stream an answer."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from crossdraft.api import FOREIGN, WITH_EVENTS, Engine, Options
from crossdraft.bench.cores import choose_cores, spans
from crossdraft.cli.view.terminal import PlainView, SilentView, TerminalView, View
from crossdraft.engine.decode import STILL_READING
from crossdraft.engine.request import Answer, Request
from crossdraft.engine.runner.parallel import POLICIES
from crossdraft.errors import CrossdraftError
from crossdraft.load import check_event_drafter
from crossdraft.methods import METHODS, check_spec, read_spec

# The drafters that are taken if none is named: for the reference target with events and without, and for another one.
WITHOUT = "eagle2"
EVENT_DRAFTERS = frozenset(("event", "event_medusa", "fast", "glance"))  # read an event recording
WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Setup:
    """A pair and how it runs. `None` leaves a choice to us; see `chosen` and `place`. A drafter 'none' is none."""

    target: str = "reference"
    drafter: str | None = None
    placement: str | None = None
    ahead: str = "auto"
    hidden: str = "auto"
    device: str | None = None
    dtype: str | None = None
    draft_device: str | None = None
    target_cores: str | None = None
    draft_cores: str | None = None
    rule: str | None = None
    num_frames: int | None = None
    fps: float | None = None
    advice: str = ""  # why this drafter was chosen, if it was not the user who named it

    def chosen(self, *, events: bool) -> "Setup":
        """The same with a drafter: the one that was named, or the one that fits target and files.

        Args:
            events: whether there is an event recording.

        Raises:
            CrossdraftError: the named drafter is unknown, or reads events and there are none.
        """
        if self.drafter is None:
            if self.target == "reference":
                return replace(self, drafter=WITH_EVENTS if events else WITHOUT)
            advice = (
                f"Drafter: {FOREIGN}, because the target is your own and it needs neither events nor training; it "
                "gains little on a first question. `crossdraft drafters` lists the others."
            )
            return replace(self, drafter=FOREIGN, advice=advice)
        if self.drafter == "none":
            return self
        spec = read_spec(self.drafter)
        check_spec(spec)
        names = spec.names
        if not events and names & EVENT_DRAFTERS:
            if "model=" not in self.drafter:  # with another vocabulary, a recording would not help either
                check_event_drafter("event", self.target)
            raise CrossdraftError(
                f"The drafter {self.drafter} needs an event recording; give one with --events, or name one that "
                "needs none, such as --drafter union:memory,ngram."
            )
        return self

    def tell(self) -> None:
        """Say on stderr which drafter was chosen, if that is not the usual one."""
        if self.advice:
            print(self.advice, file=sys.stderr)

    def described(self, engine: Engine) -> str:
        """Which drafter runs, what it is, and where; for people."""
        if self.drafter is None or self.drafter == "none" or engine.drafter is None:
            return f"No drafter: the target {self.target} answers alone."
        method = METHODS.get(read_spec(self.drafter).name)
        what = "a folder" if method is None else method.what
        options = engine.options
        where = "in the target's process" if options.placement == "inline" else "in a process of its own"
        cores = "" if options.draft_cores is None else f" on CPU core {spans(options.draft_cores)}"
        target = "" if options.target_cores is None else f" on CPU core {spans(options.target_cores)}"
        return f"{self.drafter} ({what}), {where}{cores}; the target {self.target}{target}."


def place(setup: Setup) -> Options:
    """The options of a setup; what it leaves open is `auto`.

    Raises:
        CrossdraftError: an unknown name, a core that this process may not use, or settings that exclude each other.
    """
    if setup.placement == "process" and setup.hidden != "auto":
        raise CrossdraftError("--hidden is for an inline drafter; leave it out, or say --placement inline.")
    if setup.placement == "inline" and setup.draft_cores:
        raise CrossdraftError("--draft-cores needs a drafter in a process of its own; say --placement process.")
    if setup.placement == "inline" and setup.ahead in POLICIES and setup.ahead != "off":
        raise CrossdraftError("--ahead needs a drafter in a process of its own; say --placement process.")
    target_cores = draft_cores = None
    if setup.target_cores or setup.draft_cores or setup.placement == "process":
        cores = choose_cores(setup.target_cores, setup.draft_cores, all_target=True)
        target_cores, draft_cores = cores.target, None if setup.placement == "inline" else cores.draft
    return Options(
        placement=setup.placement or "auto",
        ahead=setup.ahead,
        hidden=setup.hidden,
        device=setup.device,
        dtype=setup.dtype,
        draft_device=setup.draft_device,
        target_cores=target_cores,
        draft_cores=draft_cores,
        rule=setup.rule,
        num_frames=setup.num_frames,
        fps=setup.fps,
    )


@contextmanager
def opened(setup: Setup, warm_up: Request) -> Iterator[Engine]:
    """The loaded engine, warm: it has begun to answer `warm_up` once, so that first-time costs are paid.

    Loading shows on stderr. The drafter's process ends with the context.
    """
    quiet()
    options = place(setup)
    drafter = None if setup.drafter == "none" else setup.drafter
    with _progress("loading the models"):
        engine = Engine.load(setup.target, drafter, options)
    with engine:
        with _progress("warming up"):
            tokens = min(WARM_UP_TOKENS, warm_up.token_limit)
            again = replace(warm_up, max_new_tokens=tokens, namespace=None)  # nothing is to be learned from it
            found = engine.generate(again).notes
            # Of the clip, the answer tells; and a few tokens may come sooner than the drafter reads.
            notes = [note for note in found if note.startswith("The drafter") and note != STILL_READING]
        if notes:
            raise CrossdraftError(f"{notes[0]} That was while warming up; try --placement inline or --drafter none.")
        yield engine


def stream(engine: Engine, request: Request, view: View) -> Answer:
    """Answer a request and show its pieces as they come."""
    pieces = engine.stream(request)
    with view:
        for piece in pieces:
            view.show(piece)
    if pieces.answer is None:
        raise CrossdraftError("The answer was cancelled before it began.")
    return pieces.answer


def view_for(console: Console, *, as_json: bool) -> View:
    """Where the pieces of one answer go: nowhere, to a terminal with colours, or to a plain stream."""
    if as_json:
        return SilentView()
    return PlainView() if console.color_system is None else TerminalView(console)


def quiet() -> None:
    """Silence Hugging Face's own bars and advice, here and in processes that we start: they would tear the display."""
    from transformers.utils import logging

    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    logging.disable_progress_bar()
    logging.set_verbosity_error()


@contextmanager
def _progress(what: str) -> Iterator[None]:
    """A line on stderr that shows that time passes; nothing if stderr is no terminal."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not _watched()) as bar:
        bar.add_task(what, total=None)
        yield


def _watched() -> bool:
    return os.isatty(2)
