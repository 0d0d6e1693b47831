"""Options: how a pair runs."""

from collections.abc import Mapping
from dataclasses import dataclass

from crossdraft.checks import NamedFields, choice, core_numbers, frames_or_rate, positive, whole
from crossdraft.dtypes import dtype_name
from crossdraft.engine.fast.cores import available_cores
from crossdraft.engine.fast.quantized_linear import QUANTIZATIONS
from crossdraft.engine.policy import HIDDEN_NODES, ROUND_NODES
from crossdraft.engine.rules import check_rule
from crossdraft.engine.runner.parallel import POLICIES
from crossdraft.engine.runner.process import DRAFTER_TIMEOUT_S
from crossdraft.engine.runner.runner import HIDDEN_MODES
from crossdraft.errors import CrossdraftError

COUNTS = {
    "max_batch": 1,
    "nodes": 1,
    "hidden_nodes": 1,
    "num_frames": 1,
    "cache_bytes": 0,
    "max_queue": 1,
    "max_queue_tokens": 1,
    "max_queue_bytes": 1,
    "prefill_chunk": 0,
    "kv_bytes": 1,
}  # and the least of each
OPEN = (
    "num_frames",
    "cache_bytes",
    "max_queue",
    "max_queue_tokens",
    "max_queue_bytes",
    "prefill_chunk",
    "kv_bytes",
)  # these may be left open
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")  # or a mapping
PLACEMENTS = ("auto", "inline", "process")


@dataclass(frozen=True)
class Options(NamedFields):
    """Options of a pair. All that is not lossy gives the same tokens in every combination (sampled: same distribution).

    Args:
        placement: `inline` (this process), `process` (a process of its own), or `auto`: on a CPU with two cores or more
            a drafter with a network of its own gets a process and, where nothing is said of cores, the last core, as
            its drafting is then hidden for free; any other, and one on a shared GPU, runs in this process. Of several
            drafters, those that look into the target stay in its process. A spec may say it for each:
            `union:event@process,memory@inline`.
        parallel: of a drafter in a process of its own, what it does while the target verifies: `off` (nothing),
            `pipespec`, `pearl` or `ssd` (see `engine.runner.parallel`); `auto` is `off` where the two share a GPU or
            CPU cores, on other cores of one CPU whichever of `ssd` and `off` is faster by measured costs (`ssd` with
            `adaptive=False`), else `ssd`.
        hidden: for `inline`, when the hidden draft is made: `auto`, `before`, `beside` or `off`.
        device, dtype: of the target; default CUDA and bfloat16 if there is a GPU, else CPU and float32.
        draft_device, draft_dtype: of the drafter; default the target's. If that is not given either, bfloat16 also on
            a CPU that multiplies it itself: what is drafted need not be as exact as what is said.
        device_map: instead of `device`, for a target whose layers are on several devices, with the package accelerate:
            `auto`, `balanced`, `balanced_low_0` or `sequential`, or a mapping from modules to devices, all as in
            transformers' `from_pretrained`.
        quantize, draft_quantize: hold the language model's weights in 8 or 4 bits (`int8`, `int4`), made at loading; on
            a CPU alone, where the dtype is then bfloat16. The drafter's is by default the target's, `none` for none. A
            quantised target is another target: answers are those that it gives alone.
        compile: run the target's decode passes as compiled functions of fixed shapes, on CUDA as captured graphs; see
            `engine.fast.static_pass`. Loading then takes minutes the first time on a machine, later seconds for each
            number of tokens; on a CPU a C++ compiler must be there. Each row of the cache takes the model's whole
            context, so `kv_bytes` is refused with it.
        measure: time the target's passes over 1 … 64 tokens at loading, for the cost model, which else learns them from
            the first answers. Takes about a hundred passes.
        target_cores, draft_cores: CPU cores that each may use; default all, for a drafter in a process of its own
            those that `target_cores` leaves.
        max_batch: requests that share a pass.
        nodes, hidden_nodes: most nodes drafted per round and for the ride-along.
        adaptive: let measured times and acceptances set the budget of each round.
        drafter_timeout_s: seconds that a drafter in a process of its own may make no progress (finish no layer, no part
            of a file, no step) while an answer of it is due, before it counts as lost and is restarted. No answer waits
            that long: a draft is waited for as long as it can save.
        rule: acceptance rule by name, with settings where it has any (`typical:eps=0.05`); default the exact one. Only
            a lossy rule changes answers, and their `stats` name it; see docs/rules.md.
        lossy_prefill: how the target reads less of a clip than all of it (LOSSY): a compression such as
            `predicted:dir=FOLDER,confidence=0.96` or `fastv:keep=0.5`, or with checks of a sample of requests within a
            quality budget, `predicted:dir=FOLDER,budget=0.05` (`Engine.prefill_status`); see docs/compression.md.
            Drafts are verified by the target that reads so. Answers whose clip was not read whole are not `lossless`,
            and say so in their notes. Default none: every prompt is read whole.
        num_frames, fps: how many frames of a clip the target reads, evenly spread: so many, or so many for each
            second, not both; default what the checkpoint's own video processor says, else 8 frames. Frames that a
            request gives as an array are read as they are.
        cache_bytes: memory in which the target keeps visual features, keys and values of prompts for later questions
            about the same clip; as much for each drafter with a model of its own. 0 = nothing is kept, default a tenth
            of the device's memory.
        max_queue: requests that may wait beside those that share a pass; another one is refused (`QueueFullError`),
            but those of one `generate` wait for room behind its first. Default any number.
        max_queue_tokens, max_queue_bytes: tokens of the answers to all that wait or run, and bytes of the
            frames, events and inputs that they bring along (files count nothing); beyond that a request is refused,
            unless it is alone. Default any number.
        prefill_chunk: tokens of a prompt that are read between two rounds of requests that are answered meanwhile; 0 =
            all of them. Default as many as take 0.1 s or a round and a half, whichever is longer, as measured while the
            engine runs.
        kv_bytes: memory for the rows of keys and values of the requests that share passes; one whose row would take
            more waits until others are answered, unless it is alone. Not counted are the front of a prompt that is
            being read, which is a row of its own until it joins, what the prefix cache keeps (`cache_bytes`), the
            drafter's own keys and values, and the second copy that there is for a moment where rows are enlarged.
            Default as much as `max_batch` requests take.

    dtypes may also be given as `torch.dtype`, devices as `torch.device`.

    Raises:
        CrossdraftError: a value of another kind, out of range, or unknown.
    """

    placement: str = "auto"
    parallel: str = "auto"
    hidden: str = "auto"
    device: str | None = None
    dtype: str | None = None
    draft_device: str | None = None
    draft_dtype: str | None = None
    device_map: str | Mapping[str, str] | None = None
    quantize: str | None = None
    draft_quantize: str | None = None
    compile: bool = False
    measure: bool = False
    target_cores: tuple[int, ...] | None = None
    draft_cores: tuple[int, ...] | None = None
    max_batch: int = 1
    nodes: int = ROUND_NODES
    hidden_nodes: int = HIDDEN_NODES
    adaptive: bool = True
    drafter_timeout_s: float = DRAFTER_TIMEOUT_S
    rule: str | None = None
    lossy_prefill: str | None = None
    num_frames: int | None = None
    fps: float | None = None
    cache_bytes: int | None = None
    max_queue: int | None = None
    max_queue_tokens: int | None = None
    max_queue_bytes: int | None = None
    prefill_chunk: int | None = None
    kv_bytes: int | None = None

    def __post_init__(self) -> None:
        self._check_names()
        # Written back in one form each, so that whoever reads an option finds a string, an int, a tuple of ints.
        for name, least in COUNTS.items():
            if (count := getattr(self, name)) is not None or name not in OPEN:
                self._set(name, whole(name, count, least))
        for name in ("dtype", "draft_dtype"):
            if (dtype := getattr(self, name)) is not None:
                self._set(name, dtype_name(dtype, name))
        for name in ("device", "draft_device"):
            if (device := getattr(self, name)) is not None:
                self._set(name, str(device))
        for name, none in (("target_cores", "all of them"), ("draft_cores", "all of them")):
            self._set(name, core_numbers(name, getattr(self, name), available_cores(), none=none))
        self._set("drafter_timeout_s", positive("drafter_timeout_s", self.drafter_timeout_s))
        if self.compile and self.kv_bytes is not None:
            raise CrossdraftError(
                "kv_bytes and compile exclude each other: compiled passes allocate the keys and values of all rows at "
                "once. Leave out one of them; max_batch bounds the rows."
            )
        self._check_frames()
        self._check_prefill()

    def _check_prefill(self) -> None:
        if self.lossy_prefill is None:
            return
        if self.compile:  # passes of one shape
            raise CrossdraftError("lossy_prefill and compile exclude each other; leave out one of them.")

    def _check_frames(self) -> None:
        if self.fps is not None:
            self._set("fps", positive("fps", self.fps))
        frames_or_rate(self.num_frames, self.fps)

    def _check_names(self) -> None:
        choice("placement", self.placement, PLACEMENTS)
        choice("parallel", self.parallel, ("auto", *POLICIES))
        choice("hidden", self.hidden, HIDDEN_MODES)
        choice("adaptive", self.adaptive, (True, False))
        choice("compile", self.compile, (True, False))
        choice("measure", self.measure, (True, False))
        for name in ("quantize", "draft_quantize"):
            choice(name, getattr(self, name) or "none", ("none", *QUANTIZATIONS))
        if self.quantize == "none":
            self._set("quantize", None)
        check_rule(self.rule)
        self._check_map()

    def _check_map(self) -> None:
        if self.device_map is None:
            return
        if not isinstance(self.device_map, Mapping):
            choice("device_map", self.device_map, DEVICE_MAPS)
        for name in ("device", "quantize"):
            if getattr(self, name) is not None:
                raise CrossdraftError(f"{name} and device_map exclude each other; leave out one of them.")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
