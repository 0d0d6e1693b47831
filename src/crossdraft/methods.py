"""One record per way of drafting. Help, docs, bench, identity's list and the trainers are derived from this table.

A drafter of one's own joins it by `register`, or by an entry point of the group `crossdraft.drafters` that names its
record; see docs/adding_a_drafter.md.
"""

import os
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from crossdraft import builders, drafter_checks
from crossdraft.builders import REGISTERED, DrafterContext
from crossdraft.checks import did_you_mean
from crossdraft.checks import text as check_text
from crossdraft.drafters import settings
from crossdraft.errors import CrossdraftError
from crossdraft.heads.registry import HEADS, HeadRecord, weights_of
from crossdraft.plugins import Table, more_to_install
from crossdraft.specs import NoSettings, Spec, parse, read_settings

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter

GROUP = "crossdraft.drafters"  # of entry points: other packages' drafters
EVENT_ENCODER = ("vision_tower", "event_adaptor", "multi_modal_projector")  # an event model without its text model


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
        model: the model that it runs: one of the pair, `event` or `target` for example, unless its setting says.
        model_parts: modules of that which it runs; none named = all.
        network: what `crossdraft train` trains for it.
        task: what that learns from: the target's features, an event model, or rows of the target's own passes.
    """

    name: str
    summary: str
    paper: str
    build: "Callable[[Spec, Any, DrafterContext], Drafter[Any]] | None" = None
    join: "Callable[[Sequence[Drafter[Any]], Any, DrafterContext], Drafter[Any]] | None" = None
    check: "Callable[[Spec, Any, str | None], object] | None" = None
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


def _of_head(name: str, head: HeadRecord) -> Method:
    """A head on the target's features. It has no examples: `bench heads` compares what all of them draft."""
    return Method(
        name, head.summary, head.paper, builders.build_head, check=drafter_checks.head,
        settings=settings.HeadSettings, trained=True,
        drafts_trees=head.tree != "chain", senses=("video",) if head.sees else (), needs_target=True, examples=(),
        weights={"dir": weights_of(name)}, network=head.network,
    )  # fmt: skip


EVENT, VIDEO = ("events",), ("video",)
TWO, MANY = (2, 2), (2, None)
SHIPPED: Mapping[str, Method] = {method.name: method for method in (
    Method(
        "event", "EventGPT of the reference pair: reads an event camera", "crossdraft", builders.build_event,
        check=drafter_checks.event,
        settings=settings.EventSettings, trained=True, senses=EVENT, model="event",
    ),
    Method(
        "blind", "the same without events: the ablation", "crossdraft", builders.build_event,
        check=drafter_checks.event,
        settings=settings.EventSettings, trained=True, model="blind",
    ),
    Method(
        "foreign",
        "an event model trained on captions of its own wordings: what an EventGPT drafts that nobody aligned",
        "crossdraft", builders.build_event, check=drafter_checks.event,
        settings=settings.EventSettings, trained=True, senses=EVENT,
        model="foreign",
    ),
    Method(
        "text", "a tiny text model of the reference pair, with a vocabulary of its own",
        "SLEM, TLI: Timor 2025; OmniDraft 2025", builders.build_text,
        settings=settings.TextSettings, trained=True, model="text",
        examples=("text", "text:how=tli", "text:how=omni"),
    ),
    Method(
        "model", "any language model or video VLM from a folder (model:dir=FOLDER,how=slem)",
        "SpS: Leviathan, Chen 2023", builders.build_model,
        check=drafter_checks.model,
        settings=settings.ModelSettings, trained=True, senses=VIDEO, weights={"dir": ""},
        examples=(),  # it needs a folder; it drafts as `text` and `view` do
    ),
    Method(
        "ngram", "copies what followed the same tokens in prompt and answer", "PLD 2023", builders.build_ngram,
        settings=settings.NgramSettings, has_network=False,
    ),
    Method(
        "lookahead", "n-grams that the target generates in extra rows of its passes", "Lookahead: Fu 2024",
        builders.build_lookahead, settings=settings.LookaheadSettings, drafts_trees=True, has_network=False,
        probes=True,
    ),
    Method(
        "edge", "whatever drafts at the edge that asks, over the network (crossdraft serve, crossdraft edge)",
        "crossdraft", builders.build_edge, settings=settings.EdgeSettings, drafts_trees=True, needs_target=True,
        has_network=False, examples=(),  # it needs an edge
    ),
    Method(
        "memory", "retrieval from earlier and running answers of the target (weighted n-gram match)",
        "crossdraft; SAM, REST 2024; SRT: Chang 2026", builders.build_memory,
        check=drafter_checks.memory,
        settings=settings.MemorySettings, drafts_trees=True, has_network=False,
    ),
    Method(
        "union", "merges several drafters' trees into one", "crossdraft", join=builders.join_union,
        joins=MANY, has_network=False, drafts_trees=True, examples=("union:event,memory", "union:ngram,lookahead"),
    ),
    Method(
        "choose", "a bandit picks one of several for each answer", "UCB1 2002", join=builders.join_choose,
        joins=MANY, has_network=False, drafts_trees=True, examples=("choose:event,memory", "choose:event,memory,ngram"),
    ),
    Method(
        "phased", "one drafter during the target's prefill, another afterwards", "crossdraft",
        join=builders.join_phased, joins=TWO, has_network=False, drafts_trees=True,
        examples=("phased:event,(union:event,memory)", "phased:event,lookahead"),
    ),
    Method(
        "fallback", "one drafter, and another for the requests that it refuses (fallback:glance,eagle2)", "crossdraft",
        join=builders.join_fallback, joins=TWO, has_network=False, drafts_trees=True,
        examples=("fallback:event,memory",),
    ),
    Method(
        "view", "the target itself, seeing fewer frames (view:frames=2)", "crossdraft", builders.build_view,
        settings=settings.ViewSettings, senses=VIDEO, model="target",
    ),
    Method(
        "cascade", "a drafter that is itself accelerated by a cheaper one", "CS Drafting: Chen 2023",
        join=builders.join_cascade, settings=settings.CascadeSettings, joins=MANY, has_network=False,
        examples=("cascade:event,memory", "cascade:event,blind,ngram,early=4,leniency=2"),
    ),
    Method(
        "pyramid", "a qualifier model accepts tokens of a cheaper drafter by a fuzzy threshold", "PyramidSD 2025",
        join=builders.join_pyramid, settings=settings.PyramidSettings, joins=TWO, has_network=False,
        examples=("pyramid:event,memory", "pyramid:event,blind"),
    ),
    Method(
        "adaedl", "a model whose draft ends where its entropy is high (adaedl:event)", "AdaEDL: Agrawal 2024",
        join=builders.join_adaedl, settings=settings.AdaEDLSettings, joins=(1, 1), has_network=False,
        examples=("adaedl:event",),
    ),
    Method(
        "event_medusa", "the event drafter with Medusa heads on its own features",
        "Medusa: Cai 2024; Hydra: Ankner 2024", builders.build_event_head,
        check=drafter_checks.event_head,
        settings=settings.EventHeadSettings, trained=True, senses=EVENT, weights={"dir": "event_medusa"},
        model="event", network="event_medusa", task="events",
    ),
    Method(
        "fast", "the answer's beginning from the event encoder alone, without a language model", "crossdraft",
        builders.build_event_head, check=drafter_checks.event_head,
        settings=settings.EventHeadSettings, trained=True, drafts_trees=True, senses=EVENT,
        weights={"dir": "fast"}, model="event", model_parts=EVENT_ENCODER, network="fast", task="events",
    ),
    Method(
        "glance",
        "the event drafter with cross-attention to a few frames, of which the target hands over its visual features",
        "crossdraft; GLIDE: Du 2024", builders.build_glance,
        check=drafter_checks.event_head,
        settings=settings.GlanceSettings, trained=True, senses=(*EVENT, *VIDEO),
        weights={"dir": "glance", "heads": "event_medusa"}, model="event", network="glance", task="events",
    ),
    Method(
        "pass", "learned look-ahead embeddings in extra rows of the target's passes", "PaSS: Monea 2023",
        builders.build_pass, check=drafter_checks.head,
        settings=settings.PassSettings, trained=True, needs_target=True, probes=True,
        weights={"dir": "pass"}, network="pass", task="rows",
    ),
    *(_of_head(name, head) for name, head in HEADS.items()),
)}  # fmt: skip
METHODS = Table(GROUP, Method, "drafter", SHIPPED, REGISTERED)
"""Every drafter: those above, those that were registered, and those of other installed packages."""


def register(method: Method) -> None:
    """Give a drafter of your own a name, for specs in this process: `Engine.load(drafter="mine")`, `union:mine,memory`.

    Raises:
        CrossdraftError: the name is one of ours, or no name that a spec can hold.
    """
    if method.name in SHIPPED or not method.name.replace("-", "_").isidentifier():
        raise CrossdraftError(f"A drafter of yours cannot be called '{method.name}'; give it a name of its own.")
    METHODS[method.name] = method


def method_of(name: str) -> Method:
    """The method of that name.

    Raises:
        CrossdraftError: there is none; the nearest name is suggested.
    """
    if name in METHODS:
        return METHODS[name]
    hint = f" (did you mean 'union:{name}'?)" if "," in name else did_you_mean(name, METHODS)
    raise CrossdraftError(
        f"There is no drafter '{name}'{hint}; `crossdraft drafters` lists them, or give the folder of one."
        f"{more_to_install()}"
    )


def method_in(spec: Spec) -> Method:
    """The method of a spec's name; a folder is an EventGPT.

    Raises:
        CrossdraftError: as `method_of`.
    """
    if spec.name not in METHODS and (Path(spec.name).is_dir() or "/" in spec.name):
        return METHODS["event"]
    return method_of(spec.name)


def read_spec(text: str | os.PathLike[str]) -> Spec:
    """A spec from its text; a folder names itself.

    Raises:
        CrossdraftError: it is no text, or as `parse`.
    """
    text = check_text("drafter", str(text) if isinstance(text, os.PathLike) else text, "union:memory,ngram")
    is_folder = text.strip() and text not in METHODS and Path(text).is_dir()
    return Spec(text) if is_folder else parse(text)


def methods_in(spec: Spec) -> list[Method]:
    """The method of every name in a spec.

    >>> [method.name for method in methods_in(parse("phased:event,(union:eagle3,memory)"))]
    ['phased', 'event', 'union', 'eagle3', 'memory']

    Raises:
        CrossdraftError: as `method_of`.
    """
    return [method_in(spec), *(method for part in spec.parts for method in methods_in(part))]


def check_spec(spec: Spec, own: Container[str] = ()) -> None:
    """Look up every name and read every setting of a spec; nothing is loaded.

    Args:
        spec: of a drafter.
        own: names that are the caller's, as in `DrafterContext.methods`: they are not looked up.

    Raises:
        CrossdraftError: a name or setting is unknown, a value cannot be read, or something joins more or fewer drafters
            than it can.
    """
    if spec.name in own:
        return
    method = method_in(spec)
    _check_parts(spec, method)
    read_settings(method.settings, spec)
    for part in spec.parts:
        check_spec(part, own)


def check_drafter_files(spec: Spec, target: str | None = None) -> None:
    """Refuse what a spec names and is not there, or fits neither the drafter nor its target; nothing is loaded.

    Args:
        spec: as `check_spec` allows it.
        target: its source, as in `load.load_target`; `None` = there is none here.

    Raises:
        CrossdraftError: a folder or file is missing, or of another kind, model or target; or settings exclude each
            other.
    """
    method = method_in(spec)
    if method.check is not None:
        method.check(spec, read_settings(method.settings, spec), target)
    for part in spec.parts:
        check_drafter_files(part, target)


def _check_parts(spec: Spec, method: Method) -> None:
    (least, most), given = method.joins, len(spec.parts)
    if most == 0 and spec.parts:
        part = spec.parts[0]
        raise CrossdraftError(
            f"The drafter '{spec.name}' joins no others, but '{spec}' gives it '{part}'; if that is a setting, write "
            f"{part.name}=VALUE, such as longest=3."
        )
    if given < least or (most is not None and given > most):
        number = f"{least} others or more" if most is None else f"{least} other{'s' if least > 1 else ''}"
        raise CrossdraftError(
            f"The drafter '{spec.name}' joins {number}, but '{spec}' names {given}; write one such as "
            f"{method.examples[0] if method.examples else 'online:eagle2'}."
        )


def drafts_trees(spec: Spec) -> bool:
    """True if drafts may branch: the method drafts trees and is not set to chains, or joins several drafts.

    >>> [drafts_trees(read_spec(text)) for text in ("eagle2", "eagle2:tree=chain", "event", "union:event,ngram")]
    [True, False, False, True]
    """
    tree = spec.settings.get("tree")
    own = tree is not None or method_in(spec).drafts_trees
    return tree != "chain" and (own or any(map(drafts_trees, spec.parts)))


def build(text: str, context: DrafterContext) -> "Drafter[Any]":
    """The drafter that a spec names; a folder is an EventGPT.

    Raises:
        CrossdraftError: an unknown name or setting, too few parts, or a model that cannot be loaded.
    """
    return build_spec(read_spec(text), context)


def needs_target(spec: Spec) -> bool:
    """True if some part of it looks into the target, and therefore runs in its process.

    >>> needs_target(parse("union:eagle3,memory")), needs_target(parse("union:event,memory"))
    (True, False)
    """
    return any(method.needs_target for method in methods_in(spec))


def placements(spec: Spec) -> tuple[str, ...]:
    """The places where the whole of a drafter may run: the target's process, one of its own, an edge.

    >>> [len(placements(parse(text))) for text in ("eagle3", "view", "union:event,lookahead", "union:event,memory")]
    [1, 2, 2, 3]
    """
    if needs_target(spec):
        return ("inline",)
    bound = any("video" in method.senses or method.probes for method in methods_in(spec))
    return ("inline", "process") if bound else ("inline", "process", "edge")


def repays_a_core(spec: Spec) -> bool:
    """True if some part of it runs a network of its own that does not look into the target.

    >>> [repays_a_core(parse(text)) for text in ("union:event,memory", "union:memory,ngram", "eagle3")]
    [True, False, False]
    """
    return any(method.has_network and not method.needs_target for method in methods_in(spec))


def build_spec(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    """As `build`; a part that runs in a process of its own is made there."""
    from crossdraft.drafters.base import PerRequestDrafter
    from crossdraft.engine.prefix_cache import PrefixCache

    if spec.runs_in == "process" and context.remote is not None:
        return context.remote(replace(spec, runs_in=None))
    method = context.methods.get(spec.name) or method_in(spec)
    _check_parts(spec, method)
    options = read_settings(method.settings, spec)
    if method.build is not None:
        made = method.build(spec, options, context)
        if context.cache_bytes and isinstance(made, PerRequestDrafter):
            made.prefixes = PrefixCache(context.cache_bytes)
        return made
    parts = [build_spec(part, context) for part in spec.parts]
    return method.join(parts, options, context)  # pyright: ignore[reportOptionalCall]  # it has either
