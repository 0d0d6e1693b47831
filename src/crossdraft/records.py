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
        name: what a spec calls it.
        summary: one line for the table of drafters.
        paper: where it comes from.
        build: makes the drafter of its spec, its settings and the context; must be found in a module by its name, so
            that a process of its own can be sent it. Either this or `join`.
        join: makes it of the drafters that it joins, wherever those run.
        check: refuses, given spec, settings and the target's source (`None`: it has none), what can be told of them
            before a model is loaded, such as a folder that is not there.
        settings: a frozen dataclass of what may be set; see `specs.read_settings`.
        joins: the least and the most specs that it takes; a most of `None` is any number.
        trained: whether it needs training.
        drafts_trees: whether its drafts branch.
        senses: what of the scene it reads: `events`, `video`.
        needs_target: whether it reads the target's features and so runs in its process.
        probes: whether it drafts from extra rows of the target's passes, of which no edge is told.
        has_network: whether it runs a network of its own, which repays a core of its own.
        examples: specs of it, of which identity checks all and bench runs the first; default its name.
        weights: for each setting that names a folder of its own weights the shipped one in reference/heads, or "".
        model: the model that it runs unless its setting names another: one of the pair, such as `event` or `target`.
        model_parts: the modules of that model that it runs; empty = all.
        network: what `crossdraft train` trains for it.
        task: what that learns from: the target's features, an event model, or rows of the target's own passes.
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
    probes: bool = False
    has_network: bool = True
    examples: tuple[str, ...] | None = None
    weights: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    model_parts: tuple[str, ...] = ()
    network: str | None = None
    task: Literal["features", "events", "rows"] = "features"

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
        target: where its weights lie; `None` = it has no folder, or there is none.
        device, dtype: of the drafter.
        vocab_size, eos, banned: of the target: ids are below `vocab_size`, `eos` end an answer, `banned` are no text.
        packed: give its layers the layout that is fastest here.
        quantize: of the drafter's own models; see `load.load_target`.
        methods: drafters by name in addition to the table's own: those registered, which another process needs too.
        host: the target itself, for drafters that run in its process; without one they load their own.
        tokenizer: the target's, where it has no folder to be read from.
        num_frames, fps: the target's options, for those that load their own.
        remote: makes a part that runs in a process of its own; without it all parts are made here.
        cache_bytes: what a drafter with a model of its own may keep of prompts; see `engine.prefix_cache`.
    """

    target: str | None = "reference"
    device: str | None = None
    dtype: str | None = None
    vocab_size: int = 0
    eos: tuple[int, ...] = ()
    banned: tuple[int, ...] = ()
    packed: bool = True
    quantize: str | None = None
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
            CrossdraftError: it has none.
        """
        if self.target is None:
            raise CrossdraftError(
                "That drafter needs the folder of its target's weights; load the target from its folder "
                "(Engine.load), or name a drafter that needs none, such as union:memory,ngram."
            )
        return self.target

    def read_tokenizer(self) -> "PreTrainedTokenizerBase":
        """The target's tokenizer.

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
        """The target itself: `host`, or one that is loaded here."""
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
