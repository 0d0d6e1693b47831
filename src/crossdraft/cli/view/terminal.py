"""Where an answer goes as it grows: a terminal that can take text back, or a plain stream that cannot."""

import os
import sys
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live

from crossdraft.cli.view.growing import Growing
from crossdraft.engine.request import Origin, Piece

REFRESHES = 12  # a second: more would take time from a target on the same cores


class View(Protocol):
    """Shows the pieces of one answer; a context, because a terminal must be left clean."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def show(self, piece: Piece) -> None:
        """One more piece."""
        ...


class TerminalView:
    """Provisional text is dim and is replaced; final text has the colour of its origin."""

    def __init__(self, console: Console) -> None:
        self._growing = Growing()
        self._live = Live(
            get_renderable=self._growing.text,
            console=console,
            refresh_per_second=REFRESHES,
            vertical_overflow="visible",
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._growing.provisional.clear()  # what is still provisional never became text
        self._live.stop()

    def show(self, piece: Piece) -> None:
        self._growing.add(piece)


class PlainView:
    """Final text only, as it comes, without escape codes."""

    def __init__(self) -> None:
        self._begun = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._begun:
            print(flush=True)

    def show(self, piece: Piece) -> None:
        if piece.origin is Origin.PROVISIONAL:
            return
        text = piece.text if self._begun else piece.text.lstrip()
        self._begun = self._begun or bool(text)
        print(text, end="", flush=True)


class SilentView:
    """Nothing: the answer is reported as a whole."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, piece: Piece) -> None:
        return None


def coloured(*, wanted: bool) -> bool:
    """True if standard output is a terminal and nobody declined colour (https://no-color.org)."""
    return wanted and sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def console_for(*, colour: bool) -> Console:
    """Standard output, with escape codes or without any."""
    if colour:
        return Console(highlight=False)
    return Console(color_system=None, force_terminal=False, highlight=False)
