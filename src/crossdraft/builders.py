"""Builders of drafters from their options. Each imports what it builds: the table of methods needs no PyTorch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from crossdraft import drafter_checks
from crossdraft.drafters import settings
from crossdraft.errors import CrossdraftError
from crossdraft.specs import NoSettings, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from crossdraft.drafters.cross_vocab.vocabulary import TokenTable
    from crossdraft.drafters.independent import IndependentDrafter
    from crossdraft.engine.drafter import Drafter
    from crossdraft.engine.target import Target
    from crossdraft.methods import Method

    Parts = Sequence[Drafter[Any]]


REGISTERED: "dict[str, Method]" = {}  # see `methods.register`


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
    methods: "Mapping[str, Method]" = field(default_factory=lambda: dict(REGISTERED))
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
        """The target: `host`, or one of its own."""
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


def build_event(spec: Spec, options: settings.EventSettings, context: DrafterContext) -> "Drafter[Any]":
    """An EventGPT: that of the reference pair by its name, or a folder."""
    from crossdraft.drafters.cross_vocab.assistant import CrossVocabDrafter
    from crossdraft.drafters.tree_model import TreeDrafter
    from crossdraft.load import load_event_drafter

    drafter_checks.event(spec, options, context.target)
    tokenizer = context.read_tokenizer()
    drafter = load_event_drafter(
        options.dir or spec.name,
        lambda: _token_table(tokenizer, context),
        tokenizer.get_vocab(),
        context.banned,
        options.how,
        context.device,
        context.dtype,
        packed=context.packed,
        quantize=context.quantize,
        slices=options.slices,
        patches=options.patches,
    )
    if isinstance(drafter, CrossVocabDrafter):
        if _branches(options):
            raise CrossdraftError(
                f"'{spec}' has another vocabulary than the target, and what crosses vocabularies is a chain; leave out "
                "words and tree."
            )
        return drafter
    if options.tree is not None:  # a pass for each level
        return TreeDrafter.of(drafter.model, options.tree, context.banned, options.counts)
    drafter.words = options.words or 1
    return drafter


def _branches(options: settings.EventSettings) -> bool:
    return options.tree is not None or (options.words or 1) > 1


def build_text(spec: Spec, options: settings.TextSettings, context: DrafterContext) -> "Drafter[Any]":
    """The text model of the reference pair."""
    return _language_model("text", options.how, context)


def build_model(spec: Spec, options: settings.ModelSettings, context: DrafterContext) -> "Drafter[Any]":
    """A language model or video VLM from a folder."""
    drafter_checks.model(spec, options, context.target)
    return _language_model(str(options.dir), options.how, context)


def _language_model(source: str, how: str | None, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.load import load_model_drafter

    target = _token_table(context.read_tokenizer(), context)
    device, dtype, quantize = context.device, context.dtype, context.quantize
    return load_model_drafter(source, target, how, device, dtype, packed=context.packed, quantize=quantize)


def _token_table(tokenizer: "PreTrainedTokenizerBase", context: DrafterContext) -> "TokenTable":
    """The target's vocabulary, by what its tokens spell."""
    from crossdraft.drafters.cross_vocab.vocabulary import read_token_table

    return read_token_table(tokenizer, context.vocab_size, context.eos, context.banned)


def build_edge(spec: Spec, options: settings.EdgeSettings, context: DrafterContext) -> "Drafter[Any]":
    """Build the drafter that takes the drafts of the edges that ask."""
    from crossdraft.edge.remote import EdgeDrafter

    return EdgeDrafter(context.vocab_size, draws=options.draws == "yes")


def build_ngram(spec: Spec, options: settings.NgramSettings, context: DrafterContext) -> "Drafter[Any]":
    """Prompt lookup."""
    from crossdraft.drafters.ngram import NgramDrafter

    return NgramDrafter(options.longest, options.copied)


def build_lookahead(spec: Spec, options: settings.LookaheadSettings, context: DrafterContext) -> "Drafter[Any]":
    """Lookahead decoding."""
    from crossdraft.drafters.lookahead import LookaheadDrafter

    context.read_tokenizer()  # without a target there is nothing to refine
    return LookaheadDrafter(options.window, options.level, options.grams, context.banned)


def build_memory(spec: Spec, options: settings.MemorySettings, context: DrafterContext) -> "Drafter[Any]":
    """Retrieval from earlier answers, kept for each tokenizer by itself."""
    from crossdraft.drafters.memory.drafter import Datastores, MemoryDrafter, question_number
    from crossdraft.drafters.memory.seed import SeedTarget, read_seed, vocabulary_fingerprint
    from crossdraft.load import target_fingerprint

    tokenizer = context.read_tokenizer() if context.has_vocabulary else None
    vocabulary = vocabulary_fingerprint({} if tokenizer is None else tokenizer.get_vocab())
    seed = []
    if options.seed is not None:
        weights = "" if context.target is None else target_fingerprint(context.target)
        known = SeedTarget()
        if tokenizer is not None:
            decode = lambda ids: str(tokenizer.decode(list(ids)))  # noqa: E731
            known = SeedTarget(vocabulary, weights, decode, context.vocab_size)
        seed = read_seed(options.seed, known, question_number)
    return MemoryDrafter(Datastores(options.folder, options.capacity, vocabulary, seed=seed))


def build_view(spec: Spec, options: settings.ViewSettings, context: DrafterContext) -> "Drafter[Any]":
    """The target itself, with fewer frames."""
    from crossdraft.drafters.view import FewerFrames, view_of
    from crossdraft.video_prompt import VideoPrompt

    target = context.load_host()
    if not isinstance(target.prepare, VideoPrompt):
        raise CrossdraftError(
            f"The target {context.target} reads no video frames, of which '{spec}' could leave out some."
        )
    own_frames = target.prepare.sampling.num_frames
    if own_frames is not None and options.frames > own_frames:
        raise CrossdraftError(f"'{spec}' asks for more than the {own_frames} frames that the target itself sees.")
    return view_of(target, FewerFrames(target.prepare, options.frames), context.banned)


def build_head(spec: Spec, options: settings.HeadSettings, context: DrafterContext) -> "Drafter[Any]":
    """A head on the target's features."""
    from crossdraft.heads.load import load_head_drafter

    host, banned = context.load_host(), context.banned
    return load_head_drafter(spec.name, host, context.source, options.dir, options.tree, banned, packed=context.packed)


def build_pass(spec: Spec, options: settings.PassSettings, context: DrafterContext) -> "Drafter[Any]":
    """PaSS's look-ahead embeddings."""
    from crossdraft.heads.load import load_pass_drafter

    return load_pass_drafter(context.load_host(), context.source, options.dir, context.banned)


def build_event_head(spec: Spec, options: settings.EventHeadSettings, context: DrafterContext) -> "Drafter[Any]":
    """A head on an event model, which comes with it."""
    from crossdraft.heads.load import load_event_head

    return load_event_head(
        spec.name,
        options.model,
        options.dir,
        context.device,
        context.dtype,
        context.banned,
        context.read_tokenizer().get_vocab(),
        words=options.words,
        packed=context.packed,
    )


def build_glance(spec: Spec, options: settings.GlanceSettings, context: DrafterContext) -> "Drafter[Any]":
    """The event drafter with cross-attention to a few frames."""
    from crossdraft.heads.load import load_glance_drafter
    from crossdraft.load import load_drafter

    # The shipped heads are the shipped model's; another one goes without, unless it is given its own.
    if options.model == "event" or options.heads is not None:
        own = settings.EventHeadSettings(options.heads, options.model, options.words)
        drafter = build_event_head(Spec("event_medusa"), own, context)
    else:
        vocabulary = context.read_tokenizer().get_vocab()
        drafter = load_drafter(
            options.model,
            context.device,
            context.dtype,
            context.banned,
            vocabulary,
            packed=context.packed,
            quantize=context.quantize,
        )
        drafter.words = options.words or 1
    return load_glance_drafter(
        cast("IndependentDrafter", drafter),
        context.host,
        context.source,
        options.model,
        options.dir,
        context.banned,
        packed=context.packed,
    )


def join_union(parts: "Parts", options: NoSettings, context: DrafterContext) -> "Drafter[Any]":
    """One tree of several drafters' trees."""
    from crossdraft.drafters.combine.union import UnionDrafter

    return UnionDrafter(parts, context.eos)


def join_choose(parts: "Parts", options: NoSettings, context: DrafterContext) -> "Drafter[Any]":
    """A bandit over several drafters."""
    from crossdraft.drafters.combine.choose import ChooseDrafter

    return ChooseDrafter(parts)


def join_phased(parts: "Parts", options: NoSettings, context: DrafterContext) -> "Drafter[Any]":
    """One drafter while the target reads, another afterwards."""
    from crossdraft.drafters.combine.phased import PhasedDrafter

    hidden, later = parts
    return PhasedDrafter(hidden, later)


def join_fallback(parts: "Parts", options: NoSettings, context: DrafterContext) -> "Drafter[Any]":
    """One drafter, and another for what it refuses."""
    from crossdraft.drafters.combine.fallback import FallbackDrafter

    first, other = parts
    return FallbackDrafter(first, other)


def join_cascade(parts: "Parts", options: settings.CascadeSettings, context: DrafterContext) -> "Drafter[Any]":
    """Drafters that draft for drafters, the best one first."""
    from crossdraft.drafters.combine.cascade import CascadeDrafter

    *readers, drafter = parts
    for reader in reversed(readers):
        drafter = CascadeDrafter(reader, drafter, options.ahead, options.early, options.leniency)
    return drafter


def join_adaedl(parts: "Parts", options: settings.AdaEDLSettings, context: DrafterContext) -> "Drafter[Any]":
    """A model's drafts, ended early by entropy."""
    from crossdraft.drafters.entropy_stop import EntropyStop
    from crossdraft.drafters.independent import IndependentDrafter

    (drafter,) = parts
    if not isinstance(drafter, IndependentDrafter) or drafter.stop is not None:
        raise CrossdraftError(
            "What adaedl ends early must be a model of the target's own vocabulary that drafts token by token, and "
            "runs where adaedl does, such as event or event_medusa; write adaedl:event or (adaedl:event)@process."
        )
    drafter.stop = EntropyStop.of(options)
    return drafter


def join_pyramid(parts: "Parts", options: settings.PyramidSettings, context: DrafterContext) -> "Drafter[Any]":
    """A qualifier, and the drafter that it qualifies."""
    from crossdraft.drafters.combine.cascade import PyramidDrafter

    qualifier, drafter = parts
    return PyramidDrafter(qualifier, drafter, options.ahead, options.threshold)
