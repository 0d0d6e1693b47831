"""Options that several commands share, each defined once, and checks of their values that need no slow import.

A dataclass of options is a group: a command decorated with `option_groups` takes one option for each of its fields, and
is called with the group made of them.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from crossdraft.checkpoints.models import check_event_model, check_target
from crossdraft.checks import choice, frames_or_rate, positive, whole
from crossdraft.cli.cores import choose_cores
from crossdraft.errors import CrossdraftError
from crossdraft.methods import METHODS, check_drafter_files, check_spec, read_spec
from crossdraft.specs import Spec

if TYPE_CHECKING:
    from crossdraft.events import Excerpt

# As `options.PLACEMENTS`, `options.DEVICE_MAPS`, `engine.runner.parallel.POLICIES` and
# `engine.runner.runner.HIDDEN_MODES`: seconds to import.
PLACEMENTS = ("inline", "process")
PARALLEL = ("auto", "off", "pipespec", "pearl", "ssd")
HIDDEN = ("auto", "before", "beside", "off")
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
UNCHECKED = ("target", "compile", "measure")

MAX_SECONDS = 1e9  # 31 years; in µs it fits in int64
CPU, CUDA = re.compile(r"cpu(:\d+)?"), re.compile(r"cuda(:\d+)?")
DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s)")

Video = Annotated[Path, typer.Option(help="The clip, a video file.")]
Target = Annotated[
    str,
    typer.Option(
        "--target", help="'reference', the folder of a Hugging Face checkpoint, or the id of one in the local cache."
    ),
]
LocalTarget = Annotated[str, typer.Option(help="'reference', or the folder of a Hugging Face checkpoint.")]
Device = Annotated[str | None, typer.Option(help="Device of the target; by default CUDA if there is a GPU.")]
DraftDevice = Annotated[str | None, typer.Option(help="Device of the drafter; by default the target's.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 …; by default float32 on a CPU, bfloat16 on a GPU.")]
Quantize = Annotated[
    str | None,
    typer.Option(
        help="Hold weights of target and drafter in fewer bits: int8 or int4, on a CPU. Answers are then those of the "
        "quantised target alone."
    ),
]
MaxNewTokens = Annotated[
    int | None, typer.Option(help="Longest answer, in tokens; by default as the checkpoint says, else 128.")
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Format: dsec, m3ed, mvsec, eventgpt, e2vid, dat, aedat2, aedat4, evt, npz or ncaltech101; by default by "
        "content.",
    ),
]
SensorSize = Annotated[
    str | None, typer.Option("--sensor", metavar="WxH", help="Sensor size, where the file does not say.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="The report as JSON on standard output; tables and progress go to stderr.")
]
JsonOut = Annotated[
    Path | None, typer.Option("--json-out", metavar="FILE", help="Write the report as JSON into a file, too.")
]
NoColour = Annotated[bool, typer.Option("--no-color", help="Plain text, no escape codes.")]


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer in whose signature a parameter of a dataclass is replaced by that dataclass's fields."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        kind: Any = parameter.annotation
        if not is_dataclass(kind):
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
            continue
        groups[name], hints = kind, get_type_hints(kind, include_extras=True)
        for option in fields(kind):
            default = parameter.empty if option.default is MISSING else option.default
            parameters.append(
                parameter.replace(
                    name=option.name, kind=parameter.KEYWORD_ONLY, default=default, annotation=hints[option.name]
                )
            )

    @wraps(command)
    def grouped(**given: Any) -> None:
        made = {name: kind(*(given.pop(option.name) for option in fields(kind))) for name, kind in groups.items()}
        command(**given, **made)

    vars(grouped)["__signature__"] = inspect.Signature(parameters)
    grouped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return grouped


def beginning(*names: str) -> Callable[[str], list[str]]:
    """A shell completion for an option's value: those of its usual values that begin with what is typed."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def _help_wanted(drafter: str | None) -> str | None:
    """`--drafter help` lists the drafters, whatever else was given."""
    if drafter == "help":
        from crossdraft.cli.drafters import show_drafters

        show_drafters()
        raise typer.Exit
    return drafter


@dataclass(frozen=True, slots=True)
class PairOptions:
    """A target, its drafter, where they run, and how long they answer. `None` leaves a choice to us."""

    target: Target = "reference"
    drafter: Annotated[
        str | None,
        typer.Option(
            help="glance, event, eagle2, union:memory,ngram … (crossdraft drafters lists them), none, or the folder of "
            "an EventGPT. Default for the reference target: glance with events, else eagle2; for others: "
            "union:memory,ngram.",
            callback=_help_wanted,
            is_eager=True,
            autocompletion=beginning("none", *METHODS),
        ),
    ] = None
    placement: Annotated[
        str | None,
        typer.Option(
            help="Where the drafter runs: inline or process; by default in a process if a core is free for it.",
            autocompletion=beginning(*PLACEMENTS),
        ),
    ] = None
    parallel: Annotated[
        str,
        typer.Option(
            help="Parallel drafting, while the target verifies: off, pipespec, pearl, ssd or auto; in a process only.",
            autocompletion=beginning(*PARALLEL),
        ),
    ] = "auto"
    hidden: Annotated[
        str,
        typer.Option(
            help="When an inline drafter makes the hidden draft: auto, before, beside (the prefill) or off.",
            autocompletion=beginning(*HIDDEN),
        ),
    ] = "auto"
    target_cores: Annotated[
        str | None, typer.Option(help="CPU cores of the target, such as 0,2-3; by default all but one.")
    ] = None
    draft_cores: Annotated[str | None, typer.Option(help="CPU cores of the drafter's process; by default one.")] = None
    device: Device = None
    draft_device: DraftDevice = None
    device_map: Annotated[
        str | None,
        typer.Option(
            help="Instead of --device, spread the target's layers over devices: auto, balanced, balanced_low_0 or "
            "sequential; needs accelerate."
        ),
    ] = None
    dtype: Dtype = None
    quantize: Quantize = None
    draft_quantize: Annotated[
        str | None, typer.Option(help="Likewise of the drafter alone, or none; by default the target's.")
    ] = None
    compile: Annotated[
        bool,
        typer.Option("--compile", help="Compile the target's decode passes; minutes the first time, later seconds."),
    ] = False
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Time passes of the target at loading, so that the first answer's drafts fit."),
    ] = False
    frames: Annotated[
        int | None,
        typer.Option(help="Frames of the clip that the target reads; the checkpoint's own number by default."),
    ] = None
    fps: Annotated[float | None, typer.Option(help="In place of --frames: frames for each second of the clip.")] = None
    cache_bytes: Annotated[
        int | None,
        typer.Option(
            help="Memory for what was read of clips, for later questions about them; 0 = none, by default a tenth of "
            "the device's."
        ),
    ] = None
    max_new_tokens: MaxNewTokens = None
    nodes: Annotated[
        int | None, typer.Option(help="Most tokens that are drafted in a round; 32 by default, fewer where fewer pay.")
    ] = None
    rule: Annotated[
        str | None,
        typer.Option(
            help="Acceptance rule, such as typical:eps=0.1, rejection, or for chains block (--drafter "
            "eagle2:tree=chain); by default the exact one, by which a seed repeats whatever drafts."
        ),
    ] = None
    lossy_prefill: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="LOSSY: read less of the clip, such as fastv:keep=0.5, predicted:dir=FOLDER,confidence=0.96 or, "
            "checked within a quality budget, predicted:dir=FOLDER,budget=0.05; by default all of it.",
        ),
    ] = None

    def check(self, *, events: bool = True) -> None:
        """Refuse bad values, and models that are not there; see `check_values` and `check_models`.

        Args:
            events: whether there is an event recording.
        """
        self.check_combined()
        check_values(
            **{option.name: getattr(self, option.name) for option in fields(self) if option.name not in UNCHECKED}
        )
        check_models(self.target)
        if self.drafter not in (None, "none"):
            spec = read_spec(self.drafter)
            check_drafter_files(spec, self.target)
            if self.target == "reference":  # of another target, whether events would help is known from its tokenizer
                check_recorded(spec, events=events)

    def check_combined(self) -> None:
        """Refuse what excludes each other.

        Raises:
            CrossdraftError: two options do.
        """
        if self.placement == "process" and self.hidden != "auto":
            raise CrossdraftError("--hidden is for an inline drafter; leave it out, or say --placement inline.")
        if self.placement == "inline" and self.draft_cores:
            raise CrossdraftError("--draft-cores needs a drafter in a process of its own; say --placement process.")
        if self.placement == "inline" and self.parallel in PARALLEL and self.parallel not in ("auto", "off"):
            raise CrossdraftError("--parallel needs a drafter in a process of its own; say --placement process.")
        frames_or_rate(self.frames, self.fps, ("--frames", "--fps"))


class RecordingClock(StrEnum):
    """The origin of an event recording's times."""

    AUTO = "auto"
    VIDEO = "video"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class RecordingFile:
    """An event recording of the clip's moment, and how its file is read."""

    events: Annotated[
        Path | None, typer.Option("--events", help="What an event camera saw of the same moment (DSEC .h5, .npy, …).")
    ] = None
    clock: Annotated[RecordingClock, typer.Option(help="What the events' times count from.")] = RecordingClock.AUTO
    kind: Format = None
    sensor: SensorSize = None


@dataclass(frozen=True, slots=True)
class RecordingOptions(RecordingFile):
    """The same, and which part of it the drafter reads.

    Raises:
        CrossdraftError: times or a size without sense.
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
            if second is not None and not 0 <= second <= MAX_SECONDS:  # NaN is in no order with anything
                raise CrossdraftError(
                    f"{option} is {second:g} s; give seconds since the clip's beginning, 0 to {MAX_SECONDS:g}."
                )
        if self.start_s is not None and self.end_s is not None and self.end_s <= self.start_s:
            raise CrossdraftError(
                f"--events-end ({self.end_s:g} s) must lie after --events-start ({self.start_s:g} s)."
            )

    def refuse_unused(self) -> None:
        """Raise CrossdraftError if an option says how a recording is read, and there is none."""
        given = {
            "--clock": self.clock is not RecordingClock.AUTO,
            "--format": self.kind is not None,
            "--sensor": self.sensor is not None,
            "--events-start": self.start_s is not None,
            "--events-end": self.end_s is not None,
            "--events-windows": self.windows != 1,
        }
        unused = [option for option, is_given in given.items() if is_given and self.events is None]
        if unused:
            raise CrossdraftError(f"{unused[0]} is about an event recording; name one with --events, too.")

    def excerpt(self, video: Path | None) -> "Excerpt | None":
        """The excerpt that the drafter reads; raises unless recording and video can be read and overlap in time.

        Returns:
            The part of the recording that the video shows (see `events.excerpt.shown_in`). From `start_s` on, all up to
            the end is read; without it, as much before the end as the model was made for. None without a recording.

        Raises:
            CrossdraftError: a file is missing, empty or unreadable, there are no events, or they lie outside the video.
        """
        from crossdraft.events import Excerpt
        from crossdraft.events.excerpt import shown_in
        from crossdraft.video import probe

        seconds = 0.0 if video is None else probe(video).seconds
        if self.events is None:
            return None
        recording = Excerpt(self.events, format=self.kind, sensor=size_of(self.sensor))
        first = recording.first_time()
        if first is None:
            raise CrossdraftError(
                f"{self.events} holds no events; record or simulate some (crossdraft events simulate)."
            )
        shown = shown_in(recording, first, seconds, self.clock)
        return replace(shown.part(self.start_s, self.end_s), windows=self.windows)


def duration(option: str, text: str) -> float:
    """Seconds of a text such as `500ms` or `0.5s`; of a number alone nobody knows which of these is meant.

    >>> duration("--every", "500ms")
    0.5

    Raises:
        CrossdraftError: it is none, or not above 0.
    """
    found = DURATION.fullmatch(text.strip())
    seconds = 0.0 if found is None else float(found[1]) / (1000 if found[2] == "ms" else 1)
    if seconds <= 0:
        raise CrossdraftError(f"{option} is '{text[:40]}'; it must be a time above 0, written as 500ms or 0.5s.")
    return seconds


def size_of(text: str | None) -> tuple[int, int] | None:
    """(width, height) of "640x480"; None of None. CrossdraftError of anything else."""
    if text is None:
        return None
    width, _, height = text.lower().partition("x")
    if not all(side.isascii() and side.isdecimal() and len(side) < 10 for side in (width, height)):
        raise CrossdraftError(f"{text!r} is no size; write it like 640x480.")
    return int(width), int(height)


def check_values(**values: Any) -> None:
    """Refuse bad values before models and what they need are imported, which takes seconds.

    Args:
        values: by the name of their option, one of `CHECKS`; None is never refused.

    Raises:
        CrossdraftError: an unknown name, or a number out of range.
    """
    for name in sorted(values, key=list(CHECKS).index):
        if values[name] is not None:
            CHECKS[name](f"--{name.replace('_', '-')}", values[name])
    if values.get("target_cores") is not None or values.get("draft_cores") is not None:
        choose_cores(values.get("target_cores"), values.get("draft_cores"), all_target=True)


def check_models(target: str = "reference", event: str = "event") -> None:
    """Refuse a target, or an event model, that is not there before models and what they need are imported.

    Raises:
        CrossdraftError: one is not there, lacks a file, or is no model of that kind; or the event model is named by a
            drafter that is none.
    """
    if (target, event) == ("reference", "event"):
        return
    from crossdraft.checkpoints.locate import EVENT_MODELS

    check_target(target)
    if event in METHODS and event not in EVENT_MODELS and not Path(event).is_dir():
        raise CrossdraftError(
            f"The drafter '{event}' cannot be aligned, tuned or built upon: only an event model can, that is "
            f"{', '.join(EVENT_MODELS)}, or the folder of an EventGPT."
        )
    check_event_model(event)


def reads_events(spec: Spec) -> bool:
    """True if what a spec names drafts nothing without an event recording.

    >>> [reads_events(read_spec(text)) for text in ("glance", "union:glance,memory", "fallback:glance,eagle2")]
    [True, True, False]
    """
    if spec.name == "fallback":
        return all(map(reads_events, spec.parts))
    own = METHODS.get(spec.name)
    return (own is not None and "events" in own.senses) or any(map(reads_events, spec.parts))


def check_recorded(spec: Spec, *, events: bool) -> None:
    """Refuse a drafter that reads events where there is no recording."""
    if not events and reads_events(spec):
        raise CrossdraftError(
            f"The drafter {spec} needs an event recording; give one with --events, or name one that needs "
            "none, such as --drafter union:memory,ngram."
        )


def _check_dtype(option: str, name: str) -> None:
    from crossdraft.dtypes import dtype_name

    dtype_name(name, option)


def _check_quantize(option: str, name: str) -> None:
    from crossdraft.engine.fast.quantized_linear import QUANTIZATIONS

    choice(option, name, ("none", *QUANTIZATIONS))


def _check_rule(_option: str, rule: str) -> None:
    from crossdraft.engine.rules import check_rule

    check_rule(rule)


def _check_prefill(_option: str, spec: str) -> None:
    from crossdraft.compressions import settings_of

    settings_of(spec)


def check_device(option: str, device: str) -> None:
    """Refuse a device that is not here; a GPU where PyTorch is built for CPUs, or no driver is installed, at once.

    Raises:
        CrossdraftError: as `engine.devices.usable_device`.
    """
    if CPU.fullmatch(device):
        return
    if CUDA.fullmatch(device) and version("torch").endswith("+cpu"):
        raise CrossdraftError(f"{option} is '{device}', which cannot be used here; choose cpu.")
    from crossdraft.engine.devices import usable_device

    usable_device(device, option)


CHECKS: Mapping[str, Callable[[str, Any], object]] = {
    "placement": lambda option, value: choice(option, value, PLACEMENTS),
    "parallel": lambda option, value: choice(option, value, PARALLEL),
    "hidden": lambda option, value: choice(option, value, HIDDEN),
    "device_map": lambda option, value: choice(option, value, DEVICE_MAPS),
    "frames": whole,
    "fps": positive,
    "cache_bytes": lambda option, value: whole(option, value, 0),
    "max_new_tokens": whole,
    "nodes": whole,
    "drafter": lambda _, value: value == "none" or check_spec(read_spec(value)),
    "target_cores": lambda *_: None,  # together with the drafter's
    "draft_cores": lambda *_: None,
    "device": check_device,
    "draft_device": check_device,
    "dtype": _check_dtype,  # from here on PyTorch is needed
    "rule": _check_rule,
    "lossy_prefill": _check_prefill,
    "quantize": _check_quantize,
    "draft_quantize": _check_quantize,
}
