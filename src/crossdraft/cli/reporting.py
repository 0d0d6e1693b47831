"""Helpers that commands share: the report on standard output, progress on stderr, a core for each side."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

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
from crossdraft.cli.options import AsJson, Force, JsonOut
from crossdraft.cli.outputs import check_outputs, check_plot, json_text, write_json

if TYPE_CHECKING:
    from crossdraft.cli.cores import Cores

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


def core_each(device: str | None, target: str | None, draft: str | None) -> "Cores | None":
    """Choose one core for each side on a CPU; on a GPU, only the cores that are given."""
    import torch

    from crossdraft.cli.cores import choose_cores

    on_cpu = device == "cpu" or (device is None and not torch.cuda.is_available())
    return choose_cores(target, draft) if on_cpu or target or draft else None


def hush() -> None:
    """Silence Hugging Face's bars and advice, here and in child processes: they would disturb the display."""
    from transformers.utils import logging

    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    logging.set_verbosity_error()
    logging.disable_progress_bar()


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Options for the destination of the report."""

    as_json: AsJson = False
    json_out: JsonOut = None
    force: Force = False

    def check(self, *more: Path | None, plot: Path | None = None) -> None:
        """Refuse files that cannot be written, before time is spent on their content."""
        check_outputs(self.json_out, plot, *more, force=self.force)
        if plot is not None:
            check_plot(plot)

    @property
    def console(self) -> Console:
        """Console for tables and sentences."""
        return console_for(as_json=self.as_json)

    def lines(self, lines: Sequence[str]) -> None:
        """Print sentences unchanged: brackets and numbers are no markup."""
        self.console.print(*lines, sep="\n", markup=False, highlight=False, soft_wrap=True)

    def write(self, report: Mapping[str, object]) -> None:
        """Write the JSON."""
        write_json(report, self.json_out, stdout=self.as_json)
