"""The table of drafters. Help, docs, bench, identity's list and the trainers are derived from it.

Each record stands in its drafter's own file. A drafter of one's own joins by `register`, or by an entry point of the
group `crossdraft.drafters` that names its record; see docs/adding_a_drafter.md.
"""

import os
from collections.abc import Container, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossdraft.checks import did_you_mean
from crossdraft.checks import text as check_text
from crossdraft.errors import CrossdraftError
from crossdraft.plugins import Table, more_to_install
from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Spec, parse, read_settings

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter

GROUP = "crossdraft.drafters"  # of entry points: other packages' drafters
MODULES = (
    "drafters.event",
    "drafters.language_model",
    "drafters.ngram",
    "edge",
    "drafters.memory",
    "drafters.combine",
    "heads.event_medusa",
    "heads.glance",
    "heads.mtp",
    "heads.assistant",
    "heads.drafting",
)
"""Modules of this package with `RECORDS` of drafters; none of them imports PyTorch."""

SHIPPED: Mapping[str, Method] = {
    record.name: record for module in MODULES for record in import_module(f"crossdraft.{module}").RECORDS
}
TAKEN_OUT = {
    "view": "write model:dir=TARGET,frames=2",
    "guided": "write model:dir=FOLDER,frames=2",
    "fast": "write event_medusa",
    "lookahead": "write ngram",
    "choose": "write union:A,B",
    "chimera": "write eagle1",
    **dict.fromkeys(("pass", "partial", "griffin", "dream", "glide", "specvlm", "specllava", "massv"), "write eagle2"),
    **dict.fromkeys(("cascade", "pyramid", "adaedl"), "name its part"),
}
"""Drafters of version 0.1 that were no faster than simpler ones, and what to write in their place."""

METHODS: Table[Method] = Table(GROUP, Method, "drafter", SHIPPED)
"""Every drafter: those in `SHIPPED`, those that were registered, and those of other installed packages."""


def register(method: Method) -> None:
    """Give a drafter of your own a name, for specs in this process: `Engine.load(drafter="mine")`, `union:mine,memory`.

    Raises:
        CrossdraftError: the name is one of ours, or no name that a spec can hold.
    """
    if method.name in SHIPPED or not method.name.replace("-", "_").isidentifier():
        raise CrossdraftError(f"A drafter of yours cannot be called '{method.name}'; give it a name of its own.")
    METHODS[method.name] = method


def method_of(name: str) -> Method:
    """Return the method of a name.

    Raises:
        CrossdraftError: no method has the name; the nearest name is suggested.
    """
    if name in METHODS:
        return METHODS[name]
    if name in TAKEN_OUT:
        raise CrossdraftError(f"The drafter '{name}' was taken out in 0.2: others are as fast; {TAKEN_OUT[name]}.")
    hint = f" (did you mean 'union:{name}'?)" if "," in name else did_you_mean(name, METHODS)
    raise CrossdraftError(
        f"There is no drafter '{name}'{hint}; `crossdraft drafters` lists them, or give the folder of one."
        f"{more_to_install()}"
    )


def method_in(spec: Spec) -> Method:
    """Return the method of a spec's name; a folder is an EventGPT.

    Raises:
        CrossdraftError: as `method_of`.
    """
    if spec.name not in METHODS and (Path(spec.name).is_dir() or "/" in spec.name):
        return METHODS["event"]
    return method_of(spec.name)


def read_spec(text: str | os.PathLike[str]) -> Spec:
    """Read a spec from its text; a folder's path is a spec of its own.

    Raises:
        CrossdraftError: `text` is no text, or as `parse`.
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
        spec: spec of a drafter.
        own: the caller's own names, as in `DrafterContext.methods`, which are not looked up.

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
    """Refuse a spec whose files are missing, or do not fit the drafter or its target; nothing is loaded.

    Args:
        spec: a spec that `check_spec` has passed.
        target: the target's source, as in `load.load_target`; `None` = no target on this machine.

    Raises:
        CrossdraftError: a folder or file is missing, or belongs to another kind, model or target; or settings exclude
            each other.
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
    """Build the drafter that a spec names; a folder is an EventGPT.

    Raises:
        CrossdraftError: an unknown name or setting, too few parts, or a model that cannot be loaded.
    """
    return build_spec(read_spec(text), context)


def needs_target(spec: Spec) -> bool:
    """True if some part of a drafter looks into the target, and therefore runs in the target's process.

    >>> needs_target(parse("union:eagle3,memory")), needs_target(parse("union:event,memory"))
    (True, False)
    """
    return any(method.needs_target for method in methods_in(spec))


def placements(spec: Spec) -> tuple[str, ...]:
    """The places where the whole of a drafter may run: the target's process, a process of its own, an edge.

    A `model` may be at an edge, as it may be a text model; one that reads clips needs them there, as files.

    >>> texts = ("eagle3", "glance", "union:glance,ngram", "union:event,memory", "model:dir=x")
    >>> [len(placements(parse(text))) for text in texts]
    [1, 2, 2, 3, 3]
    """
    if needs_target(spec):
        return ("inline",)
    bound = any("video" in method.senses and method.name != "model" for method in methods_in(spec))
    return ("inline", "process") if bound else ("inline", "process", "edge")


def reads_events(spec: Spec) -> bool:
    """True if the drafter of a spec cannot draft without an event recording.

    >>> [reads_events(parse(text)) for text in ("glance", "union:glance,memory", "fallback:glance,eagle2")]
    [True, True, False]
    """
    if spec.name == "fallback":
        return all(map(reads_events, spec.parts))
    own = METHODS.get(spec.name)
    return (own is not None and "events" in own.senses) or any(map(reads_events, spec.parts))


def repays_a_core(spec: Spec) -> bool:
    """True if some part of a drafter runs a network of its own that neither looks into the target nor reads the same.

    A model that reads what the target reads has as much to read, and each reads it sooner on all cores, in turn.

    >>> [repays_a_core(parse(text)) for text in ("union:event,memory", "union:memory,ngram", "eagle3", "model:dir=x")]
    [True, False, False, False]
    """
    own = (method for method in methods_in(spec) if method.has_network and not method.needs_target)
    return any(method.senses != ("video",) for method in own)


def build_spec(spec: Spec, context: DrafterContext) -> "Drafter[Any]":
    """Build a drafter as `build` does; a part that runs in a process of its own is made there."""
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
