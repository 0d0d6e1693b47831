"""What `ask` and `demo` do alike: place a pair, load it with progress, warm it up, stream an answer."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from crossdraft.api import Engine, Options
from crossdraft.bench.cores import choose_cores
from crossdraft.cli.view.terminal import View
from crossdraft.engine.request import Answer, Request
from crossdraft.errors import CrossdraftError

WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Setup:
    """A pair and how it runs. `None` leaves a choice to us; see `place`."""

    target: str = "reference"
    drafter: str = "event"
    placement: str | None = None
    hidden: str = "auto"
    device: str | None = None
    dtype: str | None = None
    draft_device: str | None = None
    target_cores: str | None = None
    draft_cores: str | None = None


def place(setup: Setup) -> Options:
    """Choose what was left open.

    On a CPU with two cores or more the drafter gets a process and a core of its own, because there its drafting is
    hidden for free; the target gets the other cores. On one core, or on one shared GPU, it runs in this process.

    Raises:
        CrossdraftError: an unknown name, or a core that this process may not use.
    """
    gpu = torch.cuda.is_available()
    on_cpu = setup.device == "cpu" or (setup.device is None and not gpu)
    draft_device = setup.draft_device or setup.device
    drafts_on_cpu = draft_device == "cpu" or (draft_device is None and not gpu)
    several = len(os.sched_getaffinity(0)) > 1
    placement = setup.placement or ("process" if drafts_on_cpu and several else "inline")
    cores = None
    if setup.target_cores or setup.draft_cores or (placement == "process" and on_cpu):
        cores = choose_cores(setup.target_cores, setup.draft_cores, all_target=True)
    separate = placement == "process" and cores is not None
    return Options(
        placement=placement,
        hidden=setup.hidden,
        device=setup.device,
        dtype=setup.dtype,
        draft_device=setup.draft_device,
        target_cores=cores.target if cores else None,
        draft_cores=cores.draft if cores and separate else None,
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
            tokens = min(WARM_UP_TOKENS, warm_up.max_new_tokens)
            notes = engine.generate(replace(warm_up, max_new_tokens=tokens)).notes
        if notes:
            raise CrossdraftError(
                f"{notes[0]} That was while warming up; try --placement inline or --drafter none."
            )
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
