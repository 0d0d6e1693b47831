"""`crossdraft watch --server`: pushes a local clip to a server as a live stream, and shows the server's answers."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.checks import positive, whole
from crossdraft.cli.options import PairOptions, beginning, duration
from crossdraft.cli.watch_view import WatchView
from crossdraft.errors import CrossdraftError
from crossdraft.options import OPTIONS, flag_of

if TYPE_CHECKING:
    from crossdraft.events import Excerpt

SENT = "num_frames"  # the only engine option that is sent to a server


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options for the windows, and for replaying the clip."""

    every: Annotated[str, typer.Option(metavar="TIME", help="From window to window, as 500ms or 0.5s.")] = "500ms"
    window: Annotated[str, typer.Option(metavar="TIME", help="What a window shows, up to its last frame.")] = "1s"
    speed: Annotated[float, typer.Option(help="1 = in real time, 2 = twice as fast.")] = 1.0
    windows: Annotated[
        int | None, typer.Option(metavar="N", help="End after so many windows, dropped ones included.")
    ] = None
    seconds: Annotated[float | None, typer.Option(metavar="S", help="End after so many seconds of the stream.")] = None

    def check(self) -> tuple[float, float]:
        """Return the seconds from window to window, and the seconds of a window.

        Raises:
            CrossdraftError: an invalid value.
        """
        every_s, length_s = duration("--every", self.every), duration("--window", self.window)
        positive("--speed", self.speed)
        if self.windows is not None:
            whole("--windows", self.windows)
        if self.seconds is not None:
            positive("--seconds", self.seconds)
            if self.seconds < length_s:
                raise CrossdraftError(
                    f"--seconds is {self.seconds:g}, and the first window is due after {length_s:g} s (--window)."
                )
        return every_s, length_s


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options for a server that answers in place of this machine."""

    server: Annotated[
        str | None, typer.Option(help="Push the clip to this server, ws://HOST:PORT or wss://HOST, which answers.")
    ] = None
    key: Annotated[str | None, typer.Option(envvar="CROSSDRAFT_KEY", help="Its API key.", show_envvar=True)] = None
    ca: Annotated[
        Path | None, typer.Option(help="Authorities of the server's certificate, PEM; default: the system's.")
    ] = None
    cert: Annotated[Path | None, typer.Option(help="Our own certificate, PEM, for mutual TLS.")] = None
    cert_key: Annotated[Path | None, typer.Option(help="Its key; by default in the same file.")] = None
    frame_format: Annotated[
        str,
        typer.Option(
            help="How frames are sent: png, without loss; or jpeg, smaller, with other answers.",
            autocompletion=beginning("png", "jpeg"),
        ),
    ] = "png"

    def check(self, pair: PairOptions, *, live: bool) -> None:
        """Refuse options that exclude each other.

        Raises:
            CrossdraftError: an option of the pair that only the server can set, cameras, which it would have to read
                itself, or a server option without a server.
        """
        from crossdraft.checks import choice

        choice("--frame-format", self.frame_format, ("png", "jpeg"))
        own = [name for name in ("target", "drafter") if getattr(pair, name) != getattr(PairOptions(), name)]
        changed = [name for name in OPTIONS if getattr(pair.options, name) != OPTIONS[name].default and name != SENT]
        given = [flag_of(name) for name in (*own, *changed)]
        if self.server is not None and given:
            raise CrossdraftError(f"{given[0]} is the server's to choose; leave it out, or leave --server out.")
        if self.server is not None and live:
            raise CrossdraftError(
                "With --server files are pushed. A server reads cameras itself, if it is asked by WatchClient "
                "(docs/your_camera); crossdraft edge asks a server about cameras here."
            )
        if self.server is None and any((self.ca, self.cert, self.cert_key)):
            raise CrossdraftError("A certificate is given, and no server to show it to; name one with --server.")


def watch_at(
    remote: ServerOptions,
    video: Path,
    excerpt: "Excerpt | None",
    questions: list[str],
    stream: ReplayOptions,
    pair: PairOptions,
    *,
    as_json: bool,
    no_color: bool,
) -> None:
    """Push a clip to a server, and show its answers.

    Raises:
        CrossdraftError: the clip cannot be read; the connection is lost, or the server refuses something.
    """
    from crossdraft.cli.view import answer_console
    from crossdraft.edge.tls import TlsFiles
    from crossdraft.streams import ReplayClock, WatchSummary
    from crossdraft.streams.client import WatchClient
    from crossdraft.streams.push import EventFeed, push_clip
    from crossdraft.streams.replay import feeding
    from crossdraft.video.grid import WindowGrid

    every_s, length_s = stream.check()
    events = None if excerpt is None else EventFeed(excerpt)
    asked = {
        "questions": questions,
        "every_ms": 1e3 * every_s,
        "window_ms": 1e3 * length_s,
        "max_tokens": pair.max_new_tokens,
        "frames": pair.options.num_frames,
        "sensor": None if events is None else events.sensor,
        "pieces": not as_json,
    }
    shown = WatchView(answer_console(plain=no_color or as_json), questions, as_json=as_json)
    with WatchClient(str(remote.server), remote.key, TlsFiles(remote.ca, remote.cert, remote.cert_key)) as client:
        try:
            grid, clock = WindowGrid(every_s, length_s, client.open(asked)), ReplayClock(stream.speed)
        except KeyboardInterrupt:  # before the server began
            shown.summary(WatchSummary().to_json(), {"server": remote.server})
            return
        given = {"events": events, "seconds": stream.seconds, "most": stream.windows, "kind": remote.frame_format}
        with feeding(partial(push_clip, video, grid, client.push, clock, **given), client.fail, clock.stop):
            messages = client.messages()
            while True:
                try:
                    for message in messages:
                        found = {name: value for name, value in message.items() if name != "type"}
                        match message["type"]:
                            case "piece":
                                shown.piece(*(message[name] for name in ("window", "end_s", "question", "text")))
                            case "window":
                                shown.answered(found)
                            case "summary":
                                shown.summary(found, {"server": remote.server})
                                return
                except KeyboardInterrupt:  # the stream ends, and the summary comes
                    shown.end_line()
                    clock.stop()
                    messages = client.messages()
