"""The record of a way of drafting, which stands in the drafter's own file, and what a drafter is made for.

Nothing heavy is imported: the records of all drafters are read without PyTorch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from crossdraft.errors import CrossdraftError
from crossdraft.specs import NoSettings, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from crossdraft.engine.drafter import Drafter
    from crossdraft.engine.target import Target


@dataclass(frozen=True)
class Method:
    """A way of drafting; everything said of it anywhere is derived from this record.

    Args:
        name: name of the drafter in a spec.
        summary: one line for the table of drafters.
        paper: paper that describes the drafter.
        build: makes the drafter from spec, settings and context; a module-level function, so that it can be sent to
            another process. Either `build` or `join` is given.
        join: makes the drafter from those that it joins, wherever those run.
        check: given spec, settings and the target's source (`None` = no source), refuses faults that show before a
            model is loaded, such as a missing folder.
        settings: frozen dataclass of the settings; see `specs.read_settings`.
        joins: least and greatest number of specs that the drafter joins; `None` = no limit.
        trained: whether the drafter needs training.
        drafts_trees: whether its drafts branch.
        senses: inputs that the drafter reads of the scene: `events`, `video`.
        needs_target: whether the drafter reads the target's features and so runs in the target's process.
        has_network: whether it runs a network of its own, which repays a core of its own.
        examples: specs of the drafter; identity checks all of them, bench runs the first. Default: its name.
        weights: shipped folder in reference/heads, or "", for each setting that names a folder of weights.
        model: model of the pair, such as `event` or `target`, that the drafter runs unless a setting names another.
        model_parts: modules of `model` that the drafter runs; empty = all.
        network: network that `crossdraft train` trains for the drafter.
        task: data that `network` learns from: the target's features or an event model.
    """

    name: str
    summary: str
    paper: str
    build: "Callable[[Spec, Any, DrafterContext], Drafter[Any]] | None" = None
    join: "Callable[[Sequence[Drafter[Any]], Any, DrafterContext], Drafter[Any]] | None" = None
    check: Callable[[Spec, Any, str | None], object] | None = None
    settings: type[Any] = NoSettings
    joins: tuple[int, int | None] = (0, 0)
    trained: bool = False
    drafts_trees: bool = False
    senses: tuple[str, ...] = ()
    needs_target: bool = False
    has_network: bool = True
    examples: tuple[str, ...] | None = None
    weights: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    model_parts: tuple[str, ...] = ()
    network: str | None = None
    task: Literal["features", "events"] = "features"

    def __post_init__(self) -> None:
        if (self.build is None) == (self.join is None):
            raise CrossdraftError(f"The record of the drafter '{self.name}' must have either build or join.")
        if self.examples is None:
            object.__setattr__(self, "examples", (self.name,))


@dataclass(frozen=True)
class DrafterContext:
    """The target and the device that a drafter is made for.

    Without a target there is no vocabulary: only drafters that need none can be made.

    Args:
        target: folder of the target's weights; `None` = no folder, or no target.
        device, dtype: device and dtype of the drafter.
        vocab_size, eos, banned: the target's ids: all below `vocab_size`; `eos` end an answer, `banned` are no text.
        packed: give the drafter's layers the layout that is fastest on this machine.
        quantize: quantisation of the drafter's own models; see `load.load_target`.
        compile: compile the decode passes of language models that draft; see `Target.compile`.
        methods: registered drafters by name, in addition to the table's own; other processes need them too.
        host: the target itself, for drafters that run in its process; without it they load a target of their own.
        tokenizer: the target's tokenizer, if the target has no folder to read it from.
        num_frames, fps: the target's options, for drafters that load a target of their own.
        remote: makes a part that runs in a process of its own; without it all parts are made here.
        cache_bytes: most bytes of prompts that a drafter with a model of its own may keep; see `engine.prefix_cache`.
    """

    target: str | None = "reference"
    device: str | None = None
    dtype: str | None = None
    vocab_size: int = 0
    eos: tuple[int, ...] = ()
    banned: tuple[int, ...] = ()
    packed: bool = True
    quantize: str | None = None
    compile: bool = False
    methods: Mapping[str, Method] = field(default_factory=dict)
    host: "Target | None" = None
    tokenizer: "PreTrainedTokenizerBase | None" = None
    num_frames: int | None = None
    fps: float | None = None
    remote: "Callable[[Spec], Drafter[Any]] | None" = None
    cache_bytes: int = 0

    @property
    def has_vocabulary(self) -> bool:
        """True if there is a target."""
        return self.target is not None or self.tokenizer is not None

    @property
    def source(self) -> str:
        """The folder of the target's weights.

        Raises:
            CrossdraftError: the target has no folder.
        """
        if self.target is None:
            raise CrossdraftError(
                "That drafter needs the folder of its target's weights; load the target from its folder "
                "(Engine.load), or name a drafter that needs none, such as union:memory,ngram."
            )
        return self.target

    def read_tokenizer(self) -> "PreTrainedTokenizerBase":
        """Read the target's tokenizer.

        Raises:
            CrossdraftError: there is no target.
        """
        from crossdraft.load import tokenizer_of

        if self.tokenizer is not None:
            return self.tokenizer
        if self.target is None:
            raise CrossdraftError(
                "That drafter needs a target's tokenizer, which recorded answers lack; name memory, ngram or trace."
            )
        return tokenizer_of(self.target)

    def load_host(self) -> "Target":
        """Return the target itself: `host`, or a target that is loaded now."""
        from crossdraft.load import load_target

        return self.host or load_target(
            self.source,
            self.device,
            self.dtype,
            packed=self.packed,
            num_frames=self.num_frames,
            fps=self.fps,
            quantize=self.quantize,
        )
