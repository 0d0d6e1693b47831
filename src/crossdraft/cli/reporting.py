"""What commands do alike: the report on standard output, a bar on stderr, a core for each side."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from crossdraft.bench.common import check_outputs, write_json
from crossdraft.cli.options import AsJson, Force, JsonOut

if TYPE_CHECKING:
    from crossdraft.bench.cores import Cores

T = TypeVar("T")
RUN_S = 10.0  # between two lines that say which run begins
LINE_S = 30.0  # between two lines of progress, where there is no terminal for a bar


def report(found: Mapping[str, object] | Sequence[object], *lines: str, as_json: bool) -> None:
    """What a command found, on standard output: as JSON, or as lines for people."""
    print(json.dumps(found, ensure_ascii=False, indent=1) if as_json else "\n".join(lines))


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Pass items by under a bar on stderr, a running one where the total is unknown; see `ProgressLines`."""
    console = Console(stderr=True)
    lines = None if console.is_terminal else ProgressLines(what, total)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        for item in bar.track(items, total=total, description=what):
            yield item
            if lines is not None:
                lines.count()


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr; the yielded function counts one more, done by the one it names. See `ProgressLines`."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    # Drawn between two runs only: a bar that refreshes itself does so in a thread, while something is being measured.
    # It leaves no trace, so that a table or an error stands alone.
    with Progress(
        *columns, console=console, auto_refresh=False, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=total)
        lines = None if console.is_terminal else ProgressLines(what, total)

        def tick(name: str) -> None:
            bar.update(task, advance=1, description=f"{what} {name}", refresh=True)
            if lines is not None:
                lines.count()

        yield tick


class ProgressLines:
    """In place of a bar, where stderr is no terminal: now and then a line of how far it is, none of what ends sooner.

    Args:
        what: is done.
        total: how many there are; `None` = unknown.
    """

    def __init__(self, what: str, total: int | None) -> None:
        self._what, self._total = what, total
        self._done, self._last_s = 0, time.monotonic()

    def count(self) -> None:
        """One more is done."""
        self._done += 1
        if (now := time.monotonic()) - self._last_s >= LINE_S:
            self._last_s = now
            of = "" if self._total is None else f" of {self._total:,}"
            with suppress(OSError):  # nobody reads it any more: no reason to end what may have run for hours
                print(f"{self._what}: {self._done:,}{of}", file=sys.stderr, flush=True)


class RunLines:
    """Says on stderr which run begins, where those before have taken long: nobody is left alone with a still screen."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    def __call__(self, run: str) -> None:
        """A run begins."""
        if (now := time.monotonic()) - self._last_s >= RUN_S:
            self._last_s = now
            with suppress(OSError):
                print(f"comparing: {run}", file=sys.stderr, flush=True)


def console_for(*, as_json: bool) -> Console:
    """Where the tables go: stdout, or stderr if JSON goes there. Into a file they are as wide as they need."""
    console = Console(stderr=as_json)
    return console if console.is_terminal else Console(stderr=as_json, width=110)


def core_each(device: str | None, target: str | None, draft: str | None) -> "Cores | None":
    """One core for each side on a CPU; on a GPU only what was asked for."""
    import torch

    from crossdraft.bench.cores import choose_cores

    on_cpu = device == "cpu" or (device is None and not torch.cuda.is_available())
    return choose_cores(target, draft) if on_cpu or target or draft else None


def hush() -> None:
    """Silence Hugging Face's bars and advice, here and in processes that we start: they would tear the display."""
    from transformers.utils import logging

    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    logging.set_verbosity_error()
    logging.disable_progress_bar()


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Where the report goes."""

    as_json: AsJson = False
    json_out: JsonOut = None
    force: Force = False

    def check(self, *more: Path | None, plot: Path | None = None) -> None:
        """Refuse files that cannot be written, before any time is spent on them."""
        check_outputs(self.json_out, plot, *more, force=self.force)
        if plot is not None:
            from crossdraft.bench.plot import check_plot

            check_plot(plot)

    @property
    def console(self) -> Console:
        """For tables and sentences."""
        return console_for(as_json=self.as_json)

    def lines(self, lines: Sequence[str]) -> None:
        """Sentences as they are: brackets and numbers are no markup."""
        self.console.print(*lines, sep="\n", markup=False, highlight=False, soft_wrap=True)

    def write(self, report: Mapping[str, object]) -> None:
        """The JSON."""
        write_json(report, self.json_out, stdout=self.as_json)
