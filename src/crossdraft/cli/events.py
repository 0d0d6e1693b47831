"""`crossdraft events`: describes, converts and draws event recordings."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossdraft.checks import is_live
from crossdraft.cli.live import LiveHost, live_parts, live_sample
from crossdraft.cli.main import with_flags
from crossdraft.cli.options import AsJson, Force, Format, NoColour, SensorSize, TimeUnit, option_groups, size_of
from crossdraft.cli.outputs import check_outputs
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from crossdraft.events import EventLimits, Events, Excerpt
    from crossdraft.events.summary import Summary

app = typer.Typer(help="Look at, convert and draw event recordings.", no_args_is_help=True, add_completion=False)


BARS = " ▁▂▃▄▅▆▇█"
OF_FILES = "--format, --time-unit and --max-events are about files, and the source is live."

Source = Annotated[Path, typer.Argument(help="Event recording.", show_default=False)]
Shown = Annotated[
    Path, typer.Argument(help="Event recording, or a live source, live:tcp://HOST:PORT.", show_default=False)
]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for reading a recording."""

    kind: Format = None
    sensor: SensorSize = None
    time_unit: TimeUnit = None
    max_events: Annotated[
        int | None,
        typer.Option(min=1, help="Read and hold at most this many events; by default 4 billion and 32 million."),
    ] = None

    @property
    def limits(self) -> "EventLimits":
        """Limits of reading: the usual ones, or the number of events that the user allows."""
        from crossdraft.events.limits import DEFAULT_LIMITS

        most = self.max_events
        return DEFAULT_LIMITS if most is None else replace(DEFAULT_LIMITS, events=most, scanned=most, lines=most)


@dataclass(frozen=True, slots=True)
class SpanOptions(ReadOptions):
    """Options for reading a recording, or a span of it."""

    start: Annotated[float | None, typer.Option("--start", help="From this second after the first event.")] = None
    end: Annotated[float | None, typer.Option("--end", help="Up to this second after the first event.")] = None

    def excerpt(self, source: Path) -> "Excerpt":
        """Find the span."""
        from crossdraft.events import Excerpt

        size, limits = size_of(self.sensor), self.limits
        return Excerpt.in_seconds(
            source, self.start, self.end, format=self.kind, sensor=size, limits=limits, time_unit=self.time_unit
        )

    def chunks(self, source: Path) -> Iterator["Events"]:
        """Yield consecutive chunks of the span."""
        return self.excerpt(source).chunks()

    def check_live(self, out: Path | None, fps: float, speed: float) -> None:
        """Raise CrossdraftError if an option is given that a live source does not use, or a film of it has no end."""
        files = self.kind, self.time_unit, self.max_events, self.start
        if speed != 1 or any(one is not None for one in files):
            raise CrossdraftError(f"--speed, --start, {OF_FILES}")
        if not 0.1 <= fps <= 100:
            raise CrossdraftError(f"--fps is {fps:g}; a live source is shown at 0.1 to 100 frames a second.")
        if out is not None and (out.suffix.lower() != ".mp4" or self.end is None):
            raise CrossdraftError("Of a live source a film is written (--out NAME.mp4), of so many seconds (--end).")

    def refuse_empty(self, chunks: Iterable["Events"]) -> Iterator["Events"]:
        """Pass chunks on; raise CrossdraftError if a requested span holds no event."""
        count = 0
        for chunk in chunks:
            count += len(chunk)
            yield chunk
        if count == 0 and (self.start is not None or self.end is not None):
            raise CrossdraftError(
                "No event lies between --start and --end (seconds since the first event); "
                "`crossdraft events info` says how long the recording is."
            )


@app.command()
@option_groups
def info(
    source: Shown,
    read: ReadOptions,
    seconds: Annotated[
        float | None, typer.Option(metavar="S", help="How long a live source is looked at; default: 3.")
    ] = None,
    live_host: LiveHost = None,
    as_json: AsJson = False,
) -> None:
    """Format, sensor, span of time, rate over time, polarity and longest silences of a recording, or a live source."""
    from crossdraft.cli.reporting import report, track
    from crossdraft.events.read import detect_format, iter_events
    from crossdraft.events.summary import summarise

    state, lines = {}, []
    if is_live(source):
        if any(one is not None for one in (read.kind, read.time_unit, read.max_events)):
            raise CrossdraftError(OF_FILES)
        part, state = live_sample(source, 3.0 if seconds is None else seconds, live_host, read.sensor)
        name, kind, summary = state["source"], "live", summarise([] if part is None else [part])
        counts = f"{state['received']:,} events received, {state['dropped']:,} dropped"
        lines = [f"{counts}, {state['reconnects']} reconnects.", *state["notes"]]
    else:
        if seconds is not None or live_host:
            raise CrossdraftError("--seconds and --live-host are about a live source; a file is read whole.")
        name, kind, size = str(source), read.kind or detect_format(source), size_of(read.sensor)
        chunks = iter_events(source, format=kind, sensor=size, limits=read.limits, time_unit=read.time_unit)
        summary = summarise(track(chunks, "reading"))
    report(
        {"path": name, "format": kind} | asdict(summary) | ({"live": state} if state else {}),
        f"{name}: {kind}, {summary.width}x{summary.height}",
        f"{summary.events:,} events in {summary.duration_us / 1e6:.6f} s from {summary.start_us} µs: "
        f"{summary.rate_mev_s:.3f} Mev/s, {summary.rate_hz_px:.2f} Hz a pixel, {summary.on_fraction:.1%} ON",
        *_over_time(summary),
        *map(with_flags, (*summary.notes, *lines)),
        as_json=as_json,
    )


def _over_time(summary: "Summary") -> Iterator[str]:
    """Lines on a recording's rate over time, and its longest silences."""
    if summary.duration_us:
        most = max(summary.steps)
        bars = "".join(BARS[-(-one * (len(BARS) - 1) // most)] for one in summary.steps)
        yield f"{bars} up to {most / summary.step_us:.3f} Mev/s, in steps of {summary.step_us / 1e3:g} ms"
        gaps = ", ".join(f"{us / 1e3:g} ms from {begin / 1e6:.3f} s" for begin, us in summary.silences)
        yield f"longest silences: {gaps}"


@app.command()
@option_groups
def convert(
    source: Source,
    destination: Annotated[
        Path, typer.Argument(help="New file: .h5 (DSEC), .npy (EventGPT), .txt, .zip, .aedat4, .raw or .dat.")
    ],
    span: SpanOptions,
    topic: Annotated[str | None, typer.Option(help="Topic with events, of a rosbag that has several.")] = None,
    video_out: Annotated[
        Path | None,
        typer.Option("--video-out", help="New clip (.mp4) of a rosbag's images; both files then begin with the first."),
    ] = None,
    video_topic: Annotated[str | None, typer.Option(help="Topic with images, of a rosbag that has several.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a recording, or a span of it, in another format."""
    from crossdraft.cli.reporting import track
    from crossdraft.events.write import write_events

    outputs = [destination] if video_out is None else [destination, video_out]
    for path in outputs:
        check_other(source, path)
    check_outputs(*outputs, force=force)
    span = span if topic is None else replace(span, kind=f"rosbag:{topic}")
    part, more = span.excerpt(source), {}
    if video_out is not None:
        more = _write_clip(part, video_out, video_topic)
        part = replace(part, start_us=more["start_us"])
    chunks = EventCounter(track(part.chunks(), "converting"))
    moved = (replace(chunk, t=chunk.t - more.get("start_us", 0)) for chunk in span.refuse_empty(chunks))
    try:
        write_events(destination, moved, span.limits)
    except BaseException:
        if video_out is not None:
            video_out.unlink(missing_ok=True)  # a clip without its recording
        raise
    report_file(destination, chunks, more, as_json)


def _write_clip(part: "Excerpt", path: Path, topic: str | None) -> dict[str, Any]:
    """Write a bag's images of a span as a clip that begins at 0; return its name, number of frames, and first time."""
    from crossdraft.cli.reporting import track
    from crossdraft.events.read import detect_format
    from crossdraft.events.rosbag import read_images
    from crossdraft.video.image import read_pixels
    from crossdraft.video.write import write_timed_mp4

    times: list[int] = []
    if (kind := detect_format(part.path)) != "rosbag":
        raise CrossdraftError(f"--video-out writes the images of a rosbag; {part.path} is {kind} and has none.")

    def frames() -> Iterator[tuple[int, Any]]:
        for time_us, pixels in read_images(part.path, lambda data: read_pixels(data)[0][0], topic, part.limits):
            if (part.start_us or 0) <= time_us and (part.end_us is None or time_us < part.end_us):
                times.append(time_us)
                yield time_us - times[0], pixels

    write_timed_mp4(path, track(frames(), "writing the clip"))
    return {"video": str(path), "frames": len(times), "start_us": times[0]}


@app.command()
@option_groups
def view(
    source: Shown,
    span: SpanOptions,
    out: Annotated[
        Path | None, typer.Option(help="Write a film (a name in .mp4), or EventGPT's frames (a folder for PNG images).")
    ] = None,
    fps: Annotated[float, typer.Option(help="Frames a second, in the terminal and of a film.")] = 25,
    speed: Annotated[float, typer.Option(help="Seconds of the recording a second: 0.1 is slow motion.")] = 1,
    frames: Annotated[int, typer.Option(min=1, help="PNG images, of equal event count, as EventGPT sees them.")] = 5,
    live_host: LiveHost = None,
    force: Force = False,
    as_json: AsJson = False,
    no_color: NoColour = False,
) -> None:
    """Play a recording, or a live source, in the terminal, or write it as a film or as images; Ctrl-C ends it.

    A frame shows its share of the time: ON events red, OFF events blue. Where the output is no terminal, the first few
    frames are printed. A live source is shown for --end seconds, or until it ends.
    """
    from crossdraft.cli.reporting import track
    from crossdraft.events import eventgpt_frames
    from crossdraft.events.read import gathered
    from crossdraft.events.render import film, film_frame, write_pngs
    from crossdraft.video import write_mp4

    if not speed > 0:  # refuses NaN, too
        raise CrossdraftError(f"--speed is {speed:g}; give seconds of the recording for each second, above 0.")
    if live := is_live(source):
        span.check_live(out, fps, speed)
        chunks = live_parts(source, fps, span.end, live_host, span.sensor)
    else:
        chunks = span.refuse_empty(span.chunks(source))
    if out is None:
        from crossdraft.cli.event_view import Console, show

        if as_json:
            raise CrossdraftError("--json reports on what is written; name it by --out.")
        seen = EventCounter(chunks)
        drawn = map(film_frame, seen) if live else film(seen, fps / speed)
        show(drawn, fps, speed, Console(no_color=no_color or None))
        for note in seen.notes:
            typer.echo(with_flags(note), err=True)
        return
    check_other(source, out)
    counted, paths = EventCounter(track(chunks, "drawing")), [out]
    if out.suffix.lower() == ".mp4":
        check_outputs(out, force=force)
        write_mp4(out, map(film_frame, counted) if live else film(counted, fps / speed), fps)
    else:
        _check_folder(out)
        paths = write_pngs(out, eventgpt_frames(gathered(counted, source, span.limits), frames))
    report_file(out, counted, {"files": [str(path) for path in paths]}, as_json)


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def simulate() -> None:
    """Say where the simulator is."""
    raise CrossdraftError("The simulator is the laboratory's: crossdraft data simulate, in crossdraft-lab.")


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def render() -> None:
    """Say what draws recordings."""
    raise CrossdraftError("It is now: crossdraft events view RECORDING --out FOLDER.")


class EventCounter:
    """Counts the events of chunks that pass through, and keeps the size of their sensor and their notes."""

    def __init__(self, chunks: Iterable["Events"]) -> None:
        self.count = 0
        self.sensor = (0, 0)
        self.notes: dict[str, None] = {}
        self._chunks = chunks

    def __iter__(self) -> Iterator["Events"]:
        for chunk in self._chunks:
            self.count += len(chunk)
            self.sensor = chunk.width, chunk.height
            self.notes |= dict.fromkeys(chunk.notes)
            yield chunk


def check_other(source: Path, destination: Path) -> None:
    """Raise CrossdraftError if the source file would be overwritten."""
    if source.exists() and destination.exists() and source.samefile(destination):
        raise CrossdraftError(f"{destination} is the file that is read; write to another name.")


def _check_folder(destination: Path) -> None:
    """Raise CrossdraftError if the name of an image folder looks like another kind of file."""
    suffix = destination.suffix
    if destination.is_dir():
        return
    if destination.exists():
        raise CrossdraftError(f"{destination} is a file; name a folder for the PNG images.")
    if suffix[1:2].isalpha():
        raise CrossdraftError(
            f"Cannot draw events as {suffix}; name a folder for PNG images, or a film that ends in .mp4."
        )


def report_file(destination: Path, chunks: EventCounter, more: dict[str, object], as_json: bool) -> None:
    """Report the written file; warn if EventGPT's format lost the sensor's size, as readers assume the usual one."""
    from crossdraft.cli.reporting import report
    from crossdraft.events.npy import EVENTGPT_SENSOR

    found = {"path": str(destination), "events": chunks.count} | more
    for note in chunks.notes:
        typer.echo(with_flags(note), err=True)
    files = found.get("files")
    written = "" if not isinstance(files, list) else f", {len(files)} {'file' if len(files) == 1 else 'files'} written"
    report(found, f"{destination}: {chunks.count:,} events{written}", as_json=as_json)
    if destination.suffix.lower() == ".npy" and chunks.sensor != EVENTGPT_SENSOR:
        usual, size = (f"{width}x{height}" for width, height in (EVENTGPT_SENSOR, chunks.sensor))
        typer.echo(
            f"{destination} does not keep the sensor's size and will be taken for {usual}; "
            f"read it again with --sensor {size}.",
            err=True,
        )
