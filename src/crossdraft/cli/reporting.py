"""Helpers that commands share: the report on standard output, progress on stderr."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from crossdraft.cli.bars import FIRST_S, Bar
from crossdraft.cli.outputs import json_text

T = TypeVar("T")


def report(found: Mapping[str, object] | Sequence[object], *lines: str, as_json: bool) -> None:
    """Print a command's report on standard output: as JSON, or as lines for people."""
    print(json_text(found) if as_json else "\n".join(lines))


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yield items with a bar on stderr, which only pulses if the total is unknown."""
    with Bar(*Progress.get_default_columns()) as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            yield item
            bar.advance(task)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on stderr; the yielded function counts one more item, and shows the name that it gets."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    # Drawn between two runs only: a bar that refreshes itself uses a thread, which would disturb a measurement.
    # It leaves no trace, so that a table or an error stands alone.
    with Bar(*columns, auto_refresh=False) as bar:
        task = bar.add_task(what, total=total)
        yield lambda name: bar.update(task, advance=1, description=f"{what} {name}", refresh=True)


@contextmanager
def saying(what: str) -> Iterator[Callable[[str], None]]:
    """Show a line on stderr about work that is not counted; the yielded function shows the part that begins."""
    with Bar(TextColumn("{task.description}"), auto_refresh=False) as bar:
        task = bar.add_task(what, total=None)
        yield lambda part: bar.update(task, description=f"{what}: {part}", refresh=True)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on stderr that time passes; if stderr is no terminal, print one line after a while."""
    with Bar(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as bar:
        task = bar.add_task(what, total=None)
        late = threading.Timer(FIRST_S, bar.update, (task,))
        late.start()
        try:
            yield
        finally:
            late.cancel()


def import_engine() -> None:
    """Import PyTorch and the engine, which takes seconds; a line on stderr says so."""
    with waiting("starting PyTorch"):
        import_module("crossdraft.cli.session")


def console_for(*, as_json: bool) -> Console:
    """Console for tables: stdout, or stderr if JSON goes to stdout. In a file tables are as wide as they need to be."""
    console = Console(stderr=as_json)
    return console if console.is_terminal else Console(stderr=as_json, width=110)


def hush() -> None:
    """Silence Hugging Face's bars and advice, here and in child processes: they would disturb the display."""
    from transformers.utils import logging

    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    logging.set_verbosity_error()
    logging.disable_progress_bar()
