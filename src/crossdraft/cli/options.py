"""Options that several commands share, each defined once, and checks of their values that need no slow import.

A dataclass of options is a group: a command decorated with `option_groups` takes one option for each of its fields, and
is called with an instance made from them.
"""

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from crossdraft.checkpoints.models import check_event_model, check_target
from crossdraft.checks import whole
from crossdraft.errors import CrossdraftError
from crossdraft.methods import METHODS, check_drafter_files, check_spec, read_spec, reads_events
from crossdraft.options import OPTIONS, Options, kinds
from crossdraft.specs import Spec

if TYPE_CHECKING:
    from crossdraft.events import Excerpt

MAX_SECONDS = 1e9  # 31 years; in µs it fits in int64
CPU = re.compile(r"cpu(:\d+)?")
DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s)")


def beginning(*names: str) -> Callable[[str], list[str]]:
    """Make a shell completion for an option: its usual values that begin with the typed text."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def described_option(
    names: Iterable[str], kind: Any, default: object, sentence: str, words: Iterable[str] = (), panel: str | None = None
) -> Any:
    """An option of typer's: its flags, and a sentence that ends with the default."""
    flags = [f"--{name.replace('_', '-')}" for name in names]
    shown = "" if default in (None, False, (), {}) else f"; {'on' if default is True else default} by default"
    return typer.Option(
        *(f"{flag}/--no-{flag[2:]}" if kind is bool else flag for flag in flags),
        help=f"{sentence[0].upper()}{sentence[1:]}{shown}.",
        rich_help_panel=panel,
        show_default=False,
        autocompletion=beginning(*words),
    )


def flag_type(kind: Any) -> Any:
    """Type of an option's value for typer: number or truth value, otherwise text."""
    if get_origin(kind) in (Union, UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    return kind if kind in (bool, int, float) else str


def engine_option(name: str) -> Any:
    """Make the command line's option for a field of `crossdraft.Options`."""
    option = OPTIONS[name]
    return described_option([option.flag or name], type(option.default), option.default, option.sentence, option.words)


Video = Annotated[Path, typer.Option(help="The clip, a video file.")]
Target = Annotated[
    str,
    typer.Option(
        "--target", help="'reference', the folder of a Hugging Face checkpoint, or the id of one in the local cache."
    ),
]
LocalTarget = Annotated[str, typer.Option(help="'reference', or the folder of a Hugging Face checkpoint.")]
Device = Annotated[str | None, engine_option("device")]
DraftDevice = Annotated[str | None, engine_option("draft_device")]
Dtype = Annotated[str | None, engine_option("dtype")]
Quantize = Annotated[str | None, engine_option("quantize")]
DraftQuantize = Annotated[str | None, engine_option("draft_quantize")]
MaxNewTokens = Annotated[
    int | None, typer.Option(help="Longest answer, in tokens; by default as the checkpoint says, else 128.")
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Format: dsec, m3ed, mvsec, prophesee, eventgpt, e2vid, dat, aedat2, aedat4, evt, npz, ncaltech101, "
        "rosbag or rosbag:TOPIC; by default by content.",
    ),
]
SensorSize = Annotated[
    str | None, typer.Option("--sensor", metavar="WxH", help="Sensor size, where the file does not say.")
]
TimeUnit = Annotated[str | None, typer.Option(metavar="s|ms|us|ns", help="Unit of the times in .npz, .npy, .h5, text.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="The report as JSON on standard output; tables and progress go to stderr.")
]
JsonOut = Annotated[
    Path | None, typer.Option("--json-out", metavar="FILE", help="Write the report as JSON into a file, too.")
]
NoColour = Annotated[bool, typer.Option("--no-color", help="Plain text, no escape codes.")]


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Adapt a command for typer: in its signature a parameter of a dataclass is replaced by the dataclass's fields."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation
            parameters += _parameters(parameter.annotation)
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))

    @wraps(command)
    def grouped(**given: Any) -> None:
        made = {name: _made(kind, given) for name, kind in groups.items()}
        command(**given, **made)

    vars(grouped)["__signature__"] = inspect.Signature(parameters)
    grouped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return grouped


def _parameters(group: Any) -> list[inspect.Parameter]:
    """One parameter for each field of a group of options, and of the groups in it."""
    if group is Options:  # without the queue's options: a command sends one request at a time
        defaults = {name: option.default for name, option in OPTIONS.items() if not option.shared}
        annotations = {name: Annotated[flag_type(kinds()[name]) | None, engine_option(name)] for name in defaults}
    else:
        defaults = {one.name: one.default for one in fields(group)}
        annotations = get_type_hints(group, include_extras=True)
    found: list[inspect.Parameter] = []
    for name, default in defaults.items():
        if is_dataclass(annotations[name]):
            found += _parameters(annotations[name])
            continue
        shown = inspect.Parameter.empty if default is MISSING else default
        found.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=annotations[name])
        )
    return found


def _made(group: Any, given: dict[str, Any]) -> Any:
    """Make a group from its options' values, which are taken out of `given`."""
    if group is Options:
        return Options(**{name: given.pop(name) for name in OPTIONS if name in given})
    hints = get_type_hints(group)
    return group(
        **{
            one.name: _made(hints[one.name], given) if is_dataclass(hints[one.name]) else given.pop(one.name)
            for one in fields(group)
        }
    )


def _help_wanted(drafter: str | None) -> str | None:
    """List the drafters for `--drafter help`, whatever else was given."""
    if drafter == "help":
        from crossdraft.cli.drafter_table import show_drafters

        show_drafters()
        raise typer.Exit
    return drafter


@dataclass(frozen=True, slots=True)
class PairOptions:
    """A target, its drafter, their devices, and the length of answers. `None` leaves a choice to crossdraft."""

    target: Target = "reference"
    drafter: Annotated[
        str | None,
        typer.Option(
            help="glance, event, eagle2, union:memory,ngram … (crossdraft drafters lists them), none, or the folder of "
            "an EventGPT. Default for the reference target: glance with events, else eagle2; for others: mtp if the "
            "checkpoint has such layers, else union:memory,ngram.",
            callback=_help_wanted,
            is_eager=True,
            autocompletion=beginning("none", *METHODS),
        ),
    ] = None
    max_new_tokens: MaxNewTokens = None
    options: Options = field(default_factory=Options)

    def check(self, *, events: bool = True, shows: bool = True) -> None:
        """Refuse bad values, and models that do not exist; see `check_values` and `check_models`.

        Args:
            events: true if there is an event recording.
            shows: true if a clip or an image is shown.
        """
        options = self.options
        check_values(
            drafter=self.drafter,
            max_new_tokens=self.max_new_tokens,
            device=options.device,
            draft_device=options.draft_device,
        )
        check_models(self.target, shows=shows)
        if self.drafter not in (None, "none"):
            spec = read_spec(self.drafter)
            check_drafter_files(spec, self.target)
            if self.target == "reference":  # for other targets the tokenizer tells whether events would help
                check_recorded(spec, events=events)


class RecordingClock(StrEnum):
    """The origin of an event recording's times."""

    AUTO = "auto"
    VIDEO = "video"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class RecordingFile:
    """An event recording of the clip's moment, and the options for reading its file."""

    events: Annotated[
        Path | None, typer.Option("--events", help="What an event camera saw of the same moment (DSEC .h5, .npy, …).")
    ] = None
    clock: Annotated[RecordingClock, typer.Option(help="What the events' times count from.")] = RecordingClock.AUTO
    kind: Format = None
    sensor: SensorSize = None
    time_unit: TimeUnit = None


@dataclass(frozen=True, slots=True)
class RecordingOptions(RecordingFile):
    """An event recording as in `RecordingFile`, and the part of it that the drafter reads.

    Raises:
        CrossdraftError: invalid times or an invalid size.
    """

    start_s: Annotated[
        float | None,
        typer.Option(
            "--events-start",
            help="Read all events from this second of the clip on; by default the last 50 ms to 1 s, as the model "
            "wants.",
        ),
    ] = None
    end_s: Annotated[
        float | None, typer.Option("--events-end", help="Read no events from this second of the clip on.")
    ] = None
    windows: Annotated[
        int,
        typer.Option(
            "--events-windows", min=1, help="Divide what is read into so many windows, spread evenly over the clip."
        ),
    ] = 1

    def __post_init__(self) -> None:
        size_of(self.sensor)
        for option, second in (("--events-start", self.start_s), ("--events-end", self.end_s)):
            if second is not None and not 0 <= second <= MAX_SECONDS:  # also refuses NaN
                raise CrossdraftError(
                    f"{option} is {second:g} s; give seconds since the clip's beginning, 0 to {MAX_SECONDS:g}."
                )
        if self.start_s is not None and self.end_s is not None and self.end_s <= self.start_s:
            raise CrossdraftError(
                f"--events-end ({self.end_s:g} s) must lie after --events-start ({self.start_s:g} s)."
            )

    def refuse_unused(self) -> None:
        """Raise CrossdraftError if there are options for reading a recording, but no recording."""
        given = {
            "--clock": self.clock is not RecordingClock.AUTO,
            "--format": self.kind is not None,
            "--sensor": self.sensor is not None,
            "--time-unit": self.time_unit is not None,
            "--events-start": self.start_s is not None,
            "--events-end": self.end_s is not None,
            "--events-windows": self.windows != 1,
        }
        unused = [option for option, is_given in given.items() if is_given and self.events is None]
        if unused:
            raise CrossdraftError(f"{unused[0]} is about an event recording; name one with --events, too.")

    def excerpt(self, video: Path | None) -> "Excerpt | None":
        """Return the excerpt that the drafter reads, after a check that recording and video can be read and overlap.

        Returns:
            The part of the recording that the video shows (see `events.excerpt.shown_in`). With `start_s`, all from
            there to the end is read; else, as much before the end as the model was made for. None without a recording.

        Raises:
            CrossdraftError: a file is missing, empty or unreadable, there are no events, or they lie outside the video.
        """
        from crossdraft.events import Excerpt
        from crossdraft.events.excerpt import shown_in
        from crossdraft.video import probe

        seconds = 0.0 if video is None else probe(video).seconds
        if self.events is None:
            return None
        recording = Excerpt(self.events, format=self.kind, sensor=size_of(self.sensor), time_unit=self.time_unit)
        first = recording.first_time()
        if first is None:
            raise CrossdraftError(f"{self.events} holds no events; record or simulate some (crossdraft data simulate).")
        shown = shown_in(recording, first, seconds, self.clock)
        return replace(shown.part(self.start_s, self.end_s), windows=self.windows)


def duration(option: str, text: str) -> float:
    """Convert text such as `500ms` or `0.5s` to seconds; a number without a unit is refused.

    >>> duration("--every", "500ms")
    0.5

    Raises:
        CrossdraftError: the text is no duration, or not above 0.
    """
    found = DURATION.fullmatch(text.strip())
    seconds = 0.0 if found is None else float(found[1]) / (1000 if found[2] == "ms" else 1)
    if seconds <= 0:
        raise CrossdraftError(f"{option} is '{text[:40]}'; it must be a time above 0, written as 500ms or 0.5s.")
    return seconds


def size_of(text: str | None) -> tuple[int, int] | None:
    """Convert text such as "640x480" to (width, height); `None` stays `None`, other text raises CrossdraftError."""
    if text is None:
        return None
    width, _, height = text.lower().partition("x")
    if not all(side.isascii() and side.isdecimal() and len(side) < 10 for side in (width, height)):
        raise CrossdraftError(f"{text!r} is no size; write it like 640x480.")
    return int(width), int(height)


def check_values(**values: Any) -> None:
    """Refuse bad values before models and their dependencies are imported, which takes seconds.

    Args:
        values: values by the name of their flag: the engine's options, `drafter` and `max_new_tokens`; None is allowed.

    Raises:
        CrossdraftError: a value is unknown, or a number out of range.
    """
    options = {option.flag or name: option for name, option in OPTIONS.items()}
    given = {name: value for name, value in values.items() if value is not None}
    for name, value in sorted(given.items(), key=lambda item: item[0] == "dtype"):  # last, as it imports PyTorch
        flag = f"--{name.replace('_', '-')}"
        if name == "drafter":
            if value != "none":
                check_spec(read_spec(value))
        elif name == "max_new_tokens":
            whole(flag, value)
        else:
            options[name].checked(flag, value)
        if name in ("device", "draft_device"):
            check_device(flag, value)


def check_models(target: str = "reference", event: str = "event", *, shows: bool = True) -> None:
    """Refuse a target or an event model that does not exist, before slow imports.

    Args:
        target, event: their sources.
        shows: the target is to be shown clips or images.

    Raises:
        CrossdraftError: a model does not exist, lacks a file, or is of another kind; the target is a text model, and is
            to be shown something; or `event` is the name of a drafter that is no event model.
    """
    if (target, event) == ("reference", "event"):
        return
    from crossdraft.checkpoints.files import target_class
    from crossdraft.checkpoints.locate import EVENT_MODELS
    from crossdraft.video.classes import TEXT_CLASS

    folder = check_target(target)
    if shows and target_class(folder) == TEXT_CLASS:
        raise CrossdraftError(f"{folder} holds a text model, and clips or images are to be shown; name a VLM.")
    if event in METHODS and event not in EVENT_MODELS and not Path(event).is_dir():
        raise CrossdraftError(
            f"The drafter '{event}' cannot be aligned, tuned or built upon: only an event model can, that is "
            f"{', '.join(EVENT_MODELS)}, or the folder of an EventGPT."
        )
    check_event_model(event)


def check_recorded(spec: Spec, *, events: bool) -> None:
    """Refuse a drafter that reads events if there is no recording."""
    if not events and reads_events(spec):
        raise CrossdraftError(
            f"The drafter {spec} needs an event recording; give one with --events, or name one that needs "
            "none, such as --drafter union:memory,ngram."
        )


def check_device(option: str, device: str) -> None:
    """Refuse a device that does not exist; a GPU at once if PyTorch is built for CPUs, or no driver is installed.

    Raises:
        CrossdraftError: as `engine.devices.usable_device`.
    """
    if CPU.fullmatch(device):
        return
    if version("torch").endswith("+cpu"):
        raise CrossdraftError(f"{option} is '{device}', which cannot be used here; choose cpu.")
    from crossdraft.engine.devices import usable_device

    usable_device(device, option)
