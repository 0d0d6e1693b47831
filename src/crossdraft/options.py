"""Options of a pair, each defined once: name, type, default, bounds and a sentence.

From these fields are made: options of the command line, settings of the server and variables of its environment, the
table of docs/options.md, completion, and `help(crossdraft.Options)`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, get_type_hints

from crossdraft.checks import NamedFields, choice, core_numbers, positive, whole
from crossdraft.engine.fast.cores import available_cores
from crossdraft.errors import CrossdraftError

# As in `engine.runner.runner` and `engine.fast.quantized_linear`: seconds to import.
PLACEMENTS = ("auto", "inline", "process")
HIDDEN = ("auto", "before", "beside", "off")
QUANTIZATIONS = ("none", "int8", "int4")
GONE = {"parallel": "was taken out in 0.2, as it made answers no faster; leave it out"}
OPTION = "option"  # in the metadata of a field: its `Option`
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")  # or a mapping


@dataclass(frozen=True)
class Option:
    """An option of a pair, apart from its name and type, which are a field's.

    Args:
        default: the engine's; where it is `None`, that may be said, too.
        sentence: for people, without a full stop; the table and `--help` add the default.
        words: values that a shell may offer; without `check` there are no others.
        check: given name and value, returns the value in one form, or refuses it.
        flag: on the command line, where that is not the option's name.
        shared: it matters only where several requests are answered at once, so to Python and to the server.
        serving: the server's default, where it is not the engine's.
    """

    default: Any
    sentence: str
    words: tuple[str, ...] = ()
    check: Callable[[str, Any], Any] | None = None
    flag: str | None = None
    shared: bool = False
    serving: Any = None

    def checked(self, name: str, value: Any) -> Any:
        """Return a valid value, converted to the option's one form; error messages call it `name`.

        Raises:
            CrossdraftError: it is of another kind, out of range, or unknown.
        """
        if value is None and self.default is None:
            return None
        if self.check is not None:
            return self.check(name, value)
        return choice(name, value, self.words or (True, False))


def _option(default: Any, sentence: str, words: tuple[str, ...] = (), **more: Any) -> Any:
    return field(default=default, metadata={OPTION: Option(default, sentence, words, **more)})


def _whole(least: int) -> Callable[[str, Any], int]:
    return lambda name, value: whole(name, value, least)


def _dtype(name: str, value: Any) -> str:
    from crossdraft.dtypes import dtype_name  # with PyTorch, which takes seconds

    return dtype_name(value, name)


def _rule(_name: str, value: Any) -> Any:
    from crossdraft.engine.rules import check_rule

    check_rule(value)
    return value


def _prefill(_name: str, value: Any) -> Any:
    from crossdraft.compressions import settings_of

    settings_of(value)
    return value


def _cores(name: str, value: Any) -> tuple[int, ...] | None:
    return core_numbers(name, value, available_cores())


def _text(_name: str, value: Any) -> str:
    return str(value)


@dataclass(frozen=True)
class Options(NamedFields):
    """Options of a pair. All that is not lossy gives the target's own tokens in every combination (or distribution).

    `hidden_nodes`, the most tokens of a hidden draft, is for studies and tests.

    Raises:
        CrossdraftError: a value of another kind, out of range, or unknown; or two that exclude each other.
    """

    placement: str = _option(
        "auto",
        "where the drafter runs: inline (in the target's process), process (in one of its own, where drafting is "
        "hidden for free on a core of its own) or auto: in a process if a CPU core is free for it and it has a "
        "network that neither looks into the target nor reads what it reads; a spec may say it of each part, as in "
        "event@process",
        PLACEMENTS,
    )
    hidden: str = _option(
        "auto", "when an inline drafter makes the hidden draft: auto, before, beside (the prefill) or off", HIDDEN
    )
    target_cores: tuple[int, ...] | None = _option(
        None, "CPU cores of the target, such as 0,2-3; by default all but the drafter's", check=_cores
    )
    draft_cores: tuple[int, ...] | None = _option(
        None,
        "CPU cores of the drafter's process; by default those that the target's leave, else the last",
        check=_cores,
    )
    device: str | None = _option(
        None, "device of the target, such as cpu or cuda:0; by default CUDA if there is a GPU", check=_text
    )
    draft_device: str | None = _option(None, "device of the drafter; by default the target's", check=_text)
    device_map: str | Mapping[str, str] | None = _option(
        None,
        "instead of a device, how the target's layers are spread over several: auto, balanced, balanced_low_0 or "
        "sequential, in Python and files also a mapping from modules to devices, as in transformers; needs accelerate",
        DEVICE_MAPS,
        check=lambda name, value: value if isinstance(value, Mapping) else choice(name, value, DEVICE_MAPS),
    )
    dtype: str | None = _option(
        None, "dtype of the target: float32, bfloat16 …; by default float32 on a CPU, bfloat16 on a GPU", check=_dtype
    )
    draft_dtype: str | None = _option(
        None,
        "dtype of the drafter; by default the target's if one is given, else bfloat16 where the hardware multiplies it",
        check=_dtype,
    )
    quantize: str | None = _option(
        None,
        "hold weights of target and drafter in fewer bits, made at loading, on a CPU: int8 or int4; answers are then "
        "those of the quantised target alone",
        QUANTIZATIONS,
    )
    draft_quantize: str | None = _option(
        None, "likewise of the drafter alone, or none; by default the target's", QUANTIZATIONS
    )
    compile: bool = _option(
        False,
        "compile decode passes, of the target and of a language model that drafts, on CUDA as captured graphs (of "
        "recurrent layers the rules alone): minutes the first time on a machine, later seconds; each row of the "
        "target's cache then takes the whole context",
    )
    rule: str | None = _option(
        None,
        "acceptance rule, such as typical:eps=0.1 or rejection; by default the exact one, by which "
        "a seed repeats whatever drafts; only a lossy rule changes answers, and their statistics name it",
        check=_rule,
    )
    lossy_prefill: str | None = _option(
        None,
        "LOSSY: read less of a clip, such as fastv:keep=0.5, predicted:dir=FOLDER,confidence=0.96 or, checked within "
        "a quality budget, predicted:dir=FOLDER,budget=0.05; such answers say so; by default all of it",
        check=_prefill,
    )
    num_frames: int | None = _option(
        None,
        "frames of a clip that the target reads, evenly spread; by default as the checkpoint's own processor says, "
        "else 8; an array of frames is read as it is",
        check=_whole(1),
        flag="frames",
    )
    fps: float | None = _option(
        None, "in place of a number of frames: frames for each second of the clip", check=positive
    )
    cache_bytes: int | None = _option(
        None,
        "memory for what was read of prompts (visual features, keys, values), for later questions about the same "
        "clip, and as much for each drafter with a model; 0 = none, by default a tenth of the device's",
        check=_whole(0),
    )
    nodes: int = _option(32, "most tokens that are drafted in a round; fewer where fewer pay", check=_whole(1))
    adaptive: bool = _option(
        True, "let measured times and acceptances set how much is drafted; otherwise every draft is as large as may be"
    )
    max_batch: int = _option(1, "requests that share a pass", check=_whole(1), shared=True, serving=4)
    max_queue: int | None = _option(
        None,
        "requests that may wait beside those; another is refused, by the server with 503; in Python any number may",
        check=_whole(1),
        shared=True,
        serving=16,
    )
    prefill_chunk: int | None = _option(
        None,
        "tokens of a prompt that are read between two rounds of other requests; 0 = all; by default what takes 0.1 s "
        "or a round and a half, whichever is longer",
        check=_whole(0),
        shared=True,
    )
    kv_bytes: int | None = _option(
        None,
        "memory for the keys and values of requests that share passes, without prefix cache and drafter; one for "
        "whose row it has no room waits, unless it is alone; by default what max_batch requests take",
        check=_whole(1),
        shared=True,
    )
    hidden_nodes: int = 64
    gone: ClassVar[Mapping[str, str]] = GONE

    def __post_init__(self) -> None:
        # Written back in one form each, so that whoever reads an option finds a string, an int, a tuple of ints.
        for name, option in OPTIONS.items():
            object.__setattr__(self, name, option.checked(name, getattr(self, name)))
        object.__setattr__(self, "hidden_nodes", whole("hidden_nodes", self.hidden_nodes))
        if self.quantize == "none":
            object.__setattr__(self, "quantize", None)
        if None not in (frames := self.num_frames, fps := self.fps):
            raise CrossdraftError(f"num_frames is {frames} and fps is {fps}; give one of them, the other follows.")
        if self.compile and self.kv_bytes is not None:
            raise CrossdraftError(
                "kv_bytes and compile exclude each other: compiled passes allocate the keys and values of all rows at "
                "once. Leave out one of them; max_batch bounds the rows."
            )
        if self.placement == "process" and self.hidden == "before":
            raise CrossdraftError(
                "placement is 'process' and hidden is 'before', which is for an inline drafter; leave out one."
            )
        for name, other in (("lossy_prefill", "compile"), ("device", "device_map"), ("quantize", "device_map")):
            if getattr(self, name) is not None and getattr(self, other):
                raise CrossdraftError(f"{name} and {other} exclude each other; leave out one of them.")


OPTIONS: Mapping[str, Option] = {one.name: one.metadata[OPTION] for one in fields(Options) if OPTION in one.metadata}


def flag_of(name: str) -> str:
    """Flag of an option of the engine, or of anything else of that name, in the command line's spelling."""
    option = OPTIONS.get(name)
    return f"--{((option and option.flag) or name).replace('_', '-')}"


Options.__doc__ = f"{Options.__doc__}\n    Args:\n" + "".join(
    f"        {name}: {option.sentence}.\n" for name, option in OPTIONS.items()
)


def kinds() -> dict[str, Any]:
    """The type of each option."""
    hints = get_type_hints(Options)
    return {name: hints[name] for name in OPTIONS}
