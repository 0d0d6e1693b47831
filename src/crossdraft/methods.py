"""Every way of drafting by its name, and how a spec becomes a drafter.

Builders import what they build: the table of methods needs no PyTorch.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from crossdraft.checks import text as check_text
from crossdraft.errors import CrossdraftError
from crossdraft.heads.registry import HEADS
from crossdraft.specs import Spec, parse

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from crossdraft.drafters.independent import IndependentDrafter
    from crossdraft.engine.drafter import Drafter
    from crossdraft.engine.target import Target


@dataclass(frozen=True)
class DrafterContext:
    """For which target a drafter is made, and where it runs.

    Without a target there is no vocabulary: only drafters that need none can be made, and those that are `given`.
    `host` is the target itself, for drafters that live beside it; without one they load their own. `tokenizer` is the
    target's where it has no folder to be read from; `target` is then `None`, or where its weights once came from.
    `num_frames` and `fps` are the target's options, for those that load their own.
    """

    target: str | None = "reference"
    device: str | None = None
    dtype: str | None = None
    vocab_size: int = 0
    eos: tuple[int, ...] = ()
    banned: tuple[int, ...] = ()
    packed: bool = True
    given: "Mapping[str, Callable[[], Drafter[Any]]]" = field(default_factory=dict)
    host: "Target | None" = None
    tokenizer: "PreTrainedTokenizerBase | None" = None
    num_frames: int | None = None
    fps: float | None = None

    @property
    def has_vocabulary(self) -> bool:
        """True if there is a target."""
        return self.target is not None or self.tokenizer is not None


@dataclass(frozen=True)
class Method:
    """A way of drafting.

    Args:
        build: makes it from a spec.
        what: one line for the table of methods.
        training: whether it needs training.
        tree: whether it drafts trees.
        sees: whether it senses the scene.
        source: where it comes from.
        joins: how many drafters it joins: 0 for a leaf, else the least number of them.
    """

    build: "Callable[[Spec, DrafterContext], Drafter[Any]]"
    what: str
    training: bool
    tree: bool
    sees: bool
    source: str
    joins: int = 0


def method_of(name: str) -> Method:
    """The method of that name.

    Raises:
        CrossdraftError: there is none; the nearest name is suggested.
    """
    if name in METHODS:
        return METHODS[name]
    near = get_close_matches(name, METHODS, n=1)
    meant = f"union:{name}" if "," in name else near[0] if near else ""
    hint = f" (did you mean '{meant}'?)" if meant else ""
    raise CrossdraftError(
        f"There is no drafter '{name}'{hint}; `crossdraft drafters` lists them, or give the folder of one."
    )


def build(text: str, context: DrafterContext) -> "Drafter[Any]":
    """The drafter that a spec names; a folder is an EventGPT.

    Raises:
        CrossdraftError: an unknown name or setting, too few parts, or a model that cannot be loaded.
    """
    return build_spec(read_spec(text), context)


def read_spec(text: str | os.PathLike[str]) -> Spec:
    """A spec from its text; a folder names itself.

    Raises:
        CrossdraftError: it is no text, or as `parse`.
    """
    text = check_text("drafter", str(text) if isinstance(text, os.PathLike) else text, "union:memory,ngram")
    return Spec(text) if text.strip() and Path(text).is_dir() else parse(text)


def check_spec(spec: Spec) -> None:
    """Look up every name in a spec; nothing is loaded.

    Raises:
        CrossdraftError: a name is unknown, or something joins more or fewer drafters than it can.
    """
    _looked_up(spec)
    for part in spec.parts:
        check_spec(part)


def _looked_up(spec: Spec) -> Method | None:
    """The method of a spec, `None` if it is a folder."""
    method = METHODS.get(spec.name)
    if method is None:
        if Path(spec.name).is_dir() or "/" in spec.name:
            return None
        method = method_of(spec.name)
    if not method.joins and spec.parts:
        part = spec.parts[0]
        raise CrossdraftError(
            f"The drafter '{spec.name}' joins no others, but '{spec}' gives it '{part}'; if that is a setting, write "
            f"{part.name}=VALUE, such as longest=3."
        )
    if method.joins > len(spec.parts):
        raise CrossdraftError(f"The drafter '{spec.name}' joins {method.joins} others or more; '{spec}' names fewer.")
    return method


def drafts_trees(spec: Spec) -> bool:
    """Whether drafts may branch: the method drafts trees and is not told otherwise, or joins several drafts.

    >>> [drafts_trees(read_spec(text)) for text in ("eagle2", "eagle2:tree=chain", "event", "union:event,ngram")]
    [True, False, False, True]
    """
    told = spec.settings.get("tree")
    own = told is not None or (spec.name in METHODS and METHODS[spec.name].tree)
    return told != "chain" and (own or any(map(drafts_trees, spec.parts)))


def build_spec(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    """As `build`."""
    if spec.name in context.given:
        return context.given[spec.name]()
    method = _looked_up(spec)
    return _model(spec, context) if method is None else method.build(spec, context)


def _model(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.drafters.tree_model import TreeDrafter
    from crossdraft.load import load_drafter

    given = _settings(spec, {"words": _words, "tree": _tree})
    if len(given) > 1:
        raise CrossdraftError(f"'{spec}' asks for trees in two ways; give words or tree, not both.")
    drafter = load_drafter(
        spec.name, context.device, context.dtype, context.banned, _tokenizer(context).get_vocab(), packed=context.packed
    )
    if "tree" in given:
        return TreeDrafter(drafter.model, given["tree"], context.banned)
    drafter.words = given.get("words", 1)
    return drafter


def _text(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    given = _settings(spec, {"how": str})
    return _language_model("text", given.get("how"), context)


def _any_model(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    given = _settings(spec, {"dir": str, "how": str})
    if not given.get("dir"):
        raise CrossdraftError("The drafter 'model' needs a folder; write model:dir=FOLDER.")
    return _language_model(given["dir"], given.get("how"), context)


def _language_model(source: str, how: str | None, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.drafters.cross_vocab.vocabulary import read_token_table
    from crossdraft.load import load_model_drafter

    target = read_token_table(_tokenizer(context), context.vocab_size, context.eos, context.banned)
    return load_model_drafter(source, target, how, context.device, context.dtype, packed=context.packed)


def _ngram(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.drafters.ngram import COPIED, LONGEST, NgramDrafter

    given = _settings(spec, {"longest": _count, "copied": _count})
    tokenizer = _tokenizer(context) if context.has_vocabulary else None

    def encode(text: str) -> list[int]:
        return [] if tokenizer is None else list(tokenizer.encode(text, add_special_tokens=False))

    return NgramDrafter(encode, given.get("longest", LONGEST), given.get("copied", COPIED))


def _lookahead(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.drafters.lookahead import GRAMS, LEVEL, WINDOW, LookaheadDrafter

    given = _settings(spec, {"window": _count, "level": _count, "grams": _count})
    tokenizer = _tokenizer(context)
    return LookaheadDrafter(
        lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
        given.get("window", WINDOW),
        given.get("level", LEVEL),
        given.get("grams", GRAMS),
        context.banned,
    )


def _memory(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.drafters.memory.drafter import CAPACITY, Datastores, MemoryDrafter

    given = _settings(spec, {"folder": Path, "capacity": _count})
    vocabulary = json.dumps(sorted(_tokenizer(context).get_vocab().items())) if context.has_vocabulary else ""
    fingerprint = hashlib.blake2b(vocabulary.encode(), digest_size=16).hexdigest()
    return MemoryDrafter(Datastores(given.get("folder"), given.get("capacity", CAPACITY), fingerprint))


def _tokenizer(context: DrafterContext) -> "PreTrainedTokenizerBase":
    from crossdraft.load import tokenizer_of

    if context.tokenizer is not None:
        return context.tokenizer
    if context.target is None:
        raise CrossdraftError(
            "That drafter needs a target's tokenizer, which recorded answers lack; name memory, ngram or trace."
        )
    return tokenizer_of(context.target)


def _parts(spec: Spec, context: DrafterContext) -> "list[Drafter[Any]]":
    _settings(spec, {})
    return [build_spec(part, context) for part in spec.parts]


def _union(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.drafters.combine.union import UnionDrafter

    return UnionDrafter(_parts(spec, context), context.eos)


def _choose(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.drafters.combine.choose import ChooseDrafter

    return ChooseDrafter(_parts(spec, context))


def _phased(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.drafters.combine.phased import PhasedDrafter

    if len(spec.parts) != 2:
        raise CrossdraftError(f"'{spec}' must join two drafters: the one while hidden, and the one afterwards.")
    return PhasedDrafter(*_parts(spec, context))


def _view(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.drafters.view import FRAMES, FewerFrames, view_of
    from crossdraft.video_prompt import VideoPrompt

    frames = _settings(spec, {"frames": _count}).get("frames", FRAMES)
    tokenizer = _tokenizer(context)
    target = _host(context)
    if not isinstance(target.prepare, VideoPrompt):
        raise CrossdraftError(
            f"The target {context.target} reads no video frames, of which '{spec}' could leave out some."
        )
    seen = target.prepare.sampling.num_frames
    if seen is not None and frames > seen:
        raise CrossdraftError(f"'{spec}' asks for more than the {seen} frames that the target itself sees.")
    prepare = FewerFrames(target.model, tokenizer, target.prepare.spec, frames)
    return view_of(target, prepare, context.banned)


def _head(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.heads.load import load_head_drafter

    given = _settings(spec, {"dir": Path, "tree": str})
    return load_head_drafter(
        spec.name,
        _host(context),
        _source(context),
        given.get("dir"),
        given.get("tree"),
        context.banned,
        packed=context.packed,
    )


def _online(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.heads.drafting.head_drafter import HeadDrafter
    from crossdraft.heads.load import load_learning_drafter
    from crossdraft.heads.online import KEEP, RATE, SECONDS

    given = _settings(spec, {"seconds": float, "keep": _count, "rate": float, "save": Path})
    name = spec.parts[0].name
    if len(spec.parts) != 1 or name not in HEADS:
        raise CrossdraftError(f"'{spec}' must name one head that is to learn, such as online:eagle2.")
    host = _host(context)
    # Packed layers could not be written to.
    drafter = build_spec(spec.parts[0], replace(context, host=host, packed=False))
    if not isinstance(drafter, HeadDrafter):
        raise CrossdraftError(f"The drafter '{name}' cannot learn while it serves; online takes heads such as eagle2.")
    return load_learning_drafter(
        drafter,
        HEADS[name].network,
        host,
        _source(context),
        given.get("seconds", SECONDS),
        given.get("keep", KEEP),
        given.get("rate", RATE),
        given.get("save"),
    )


def _event_head(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.heads.load import load_event_head

    given = _settings(spec, {"dir": Path, "model": str, "words": _words})
    return load_event_head(
        spec.name,
        given.get("model", "event"),
        given.get("dir"),
        context.device,
        context.dtype,
        context.banned,
        _tokenizer(context).get_vocab(),
        words=given.get("words"),
        packed=context.packed,
    )


def _glance(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.heads.load import load_glance_drafter

    given = _settings(spec, {"dir": Path, "heads": Path, "model": str, "words": _words})
    settings = {name: value for name, value in spec.settings.items() if name in ("model", "words")}
    if "heads" in given:
        settings["dir"] = spec.settings["heads"]
    source, target = given.get("model", "event"), _source(context)
    # The shipped heads are the shipped model's; another one goes without, unless it is given its own.
    if source == "event" or "heads" in given:
        drafter = _event_head(Spec("event_medusa", settings=settings), context)
    else:
        drafter = _model(Spec(settings.pop("model"), settings=settings), context)
    return load_glance_drafter(
        cast("IndependentDrafter", drafter),
        context.host,
        target,
        source,
        given.get("dir"),
        context.banned,
        packed=context.packed,
    )


def _pass(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.heads.load import load_pass_drafter

    folder = _settings(spec, {"dir": Path}).get("dir")
    return load_pass_drafter(_host(context), _source(context), folder, context.banned)


def _guided(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.drafters.guided import KEEP as KEPT
    from crossdraft.drafters.guided import MASS, GuidedDrafter
    from crossdraft.load import load_target

    given = _settings(spec, {"dir": str, "keep": _share, "mass": _share, "layers": _layers})
    target = _host(context)
    model = (
        load_target(given["dir"], context.device, context.dtype, packed=context.packed) if "dir" in given else target
    )
    return GuidedDrafter(
        model,
        target,
        context.banned,
        layers=given.get("layers"),
        keep=given.get("keep", KEPT),
        mass=given.get("mass", MASS),
    )


def _host(context: DrafterContext) -> "Target":
    from crossdraft.load import load_target

    return context.host or load_target(
        _source(context),
        context.device,
        context.dtype,
        packed=context.packed,
        num_frames=context.num_frames,
        fps=context.fps,
    )


def _source(context: DrafterContext) -> str:
    """Where the target's weights lie."""
    if context.target is None:
        raise CrossdraftError(
            "That drafter needs the folder of its target's weights; load the target from its folder (Engine.load), or "
            "name a drafter that needs none, such as union:memory,ngram."
        )
    return context.target


def _cascade(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.drafters.combine.cascade import CascadeDrafter
    from crossdraft.drafters.combine.two_level import AHEAD

    given = _settings(spec, {"ahead": _count, "early": _count, "leniency": float})
    *readers, drafter = [build_spec(part, context) for part in spec.parts]
    for reader in reversed(readers):
        drafter = CascadeDrafter(
            reader, drafter, given.get("ahead", AHEAD), given.get("early"), given.get("leniency", 1.0)
        )
    return drafter


def _pyramid(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.drafters.combine.cascade import THRESHOLD, PyramidDrafter
    from crossdraft.drafters.combine.two_level import AHEAD

    given = _settings(spec, {"ahead": _count, "threshold": float})
    if len(spec.parts) != 2:
        raise CrossdraftError(f"'{spec}' must join two drafters: the qualifier, and the one that it qualifies.")
    qualifier, drafter = (build_spec(part, context) for part in spec.parts)
    return PyramidDrafter(qualifier, drafter, given.get("ahead", AHEAD), given.get("threshold", THRESHOLD))


def _settings(spec: Spec, known: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """The settings of a spec, read.

    Raises:
        CrossdraftError: an unknown one, or a value that cannot be read.
    """
    found: dict[str, Any] = {}
    for key, text in spec.settings.items():
        if key not in known:
            allowed = f"it knows {', '.join(known)}" if known else "it has none"
            raise CrossdraftError(f"The drafter '{spec.name}' has no setting '{key}'; {allowed}.")
        try:
            found[key] = known[key](text)
        except (ValueError, KeyError) as error:
            wanted = KINDS.get(known[key], "")
            raise CrossdraftError(
                f"The setting {key} of the drafter '{spec.name}' cannot be '{text}'{wanted}."
            ) from error
    return found


def _tree(name: str) -> Callable[..., Any]:
    """How a model grows a tree, a pass for each level; static shapes need measured acceptances."""
    from crossdraft.drafters.trees import expand_and_rerank
    from crossdraft.drafters.trees.widths import chain_with_siblings

    return {"dynamic": expand_and_rerank, "cape": chain_with_siblings}[name]


def _share(text: str) -> float:
    if not 0 < (value := float(text)) <= 1:
        raise ValueError(text)
    return value


def _layers(text: str) -> tuple[int, ...]:
    return tuple(int(layer) for layer in text.split("+"))


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError(text)
    return value


def _words(text: str) -> int:
    """As many words as a context of a draft holds, or fewer."""
    from crossdraft.drafters.alternatives import WORDS

    if (value := _count(text)) > WORDS:
        raise ValueError(text)
    return value


KINDS: Mapping[Callable[[str], Any], str] = {
    _count: "; give a whole number of 1 or more",
    _words: "; give a whole number from 1 to 3",
    float: "; give a number",
    _share: "; give a share above 0, at most 1",
    _layers: "; give numbers of layers, such as 2+4",
}


COUPLED = frozenset((*HEADS, "pass", "guided"))  # these look into the target

METHODS: Mapping[str, Method] = {
    "event": Method(
        _model, "EventGPT of the reference pair: reads an event camera", True, False, True, "crossdraft"
    ),
    "blind": Method(_model, "the same without events: the ablation", True, False, False, "crossdraft"),
    "text": Method(
        _text, "a tiny text model of the reference pair, with a vocabulary of its own", True, False, False,
        "SLEM, TLI: Timor 2025; OmniDraft 2025",
    ),
    "model": Method(
        _any_model, "any language model or video VLM from a folder (model:dir=FOLDER,how=slem)", True, False, True,
        "SpS: Leviathan, Chen 2023",
    ),
    "ngram": Method(
        _ngram, "copies what followed the same tokens in prompt and answer", False, False, False, "PLD 2023"
    ),
    "lookahead": Method(
        _lookahead, "n-grams that the target generates in extra rows of its passes", False, True, False,
        "Lookahead: Fu 2024",
    ),
    "memory": Method(
        _memory,
        "retrieval from earlier answers of the target (weighted n-gram match)",
        False, True, False, "crossdraft; SAM, REST 2024"
    ),
    "union": Method(
        _union,
        "merges several drafters' trees into one", False, True, False, "crossdraft", joins=2,
    ),
    "choose": Method(
        _choose,
        "a bandit picks one of several for each answer", False, True, False, "UCB1 2002", joins=2,
    ),
    "phased": Method(
        _phased,
        "one drafter during the target's prefill, another afterwards", False, True, False, "crossdraft", joins=2
    ),
    "view": Method(
        _view, "the target itself, seeing fewer frames (view:frames=2)", False, False, True, "crossdraft"
    ),
    "cascade": Method(
        _cascade, "a drafter that is itself accelerated by a cheaper one", False, False, False,
        "CS Drafting: Chen 2023", joins=2,
    ),
    "pyramid": Method(
        _pyramid,
        "a qualifier model accepts tokens of a cheaper drafter by a fuzzy threshold",
        False, False, False, "PyramidSD 2025",
        joins=2,
    ),
    "online": Method(
        _online, "a head that is trained online while it serves (online:eagle2)", True, True, False,
        "Online speculative decoding: Liu 2024", joins=1,
    ),
    "event_medusa": Method(
        _event_head, "the event drafter with Medusa heads on its own features", True, False, True,
        "Medusa: Cai 2024; Hydra: Ankner 2024",
    ),
    "fast": Method(
        _event_head, "the answer's beginning from the event encoder alone, without a language model", True, True, True,
        "crossdraft",
    ),
    "glance": Method(
        _glance,
        "the event drafter with cross-attention to a few frames, of which the target hands over its visual features",
        True, False, True,
        "crossdraft; GLIDE: Du 2024",
    ),
    "pass": Method(
        _pass, "learned look-ahead embeddings in extra rows of the target's passes", True, False, False,
        "PaSS: Monea 2023",
    ),
    "guided": Method(
        _guided,
        "a small VLM that reads the visual tokens the target attends to (guided:dir=FOLDER)", False, False, True,
        "SpecVLM: Ji 2025",
    ),
    **{
        name: Method(_head, head.what, True, head.tree != "chain", head.sees, head.source)
        for name, head in HEADS.items()
    },
}  # fmt: skip
