"""Where the parts of a drafter run: in a process of their own, or beside the target whose features they read."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from crossdraft.drafters.combine.tree_merger import TreeMerger
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.relay import Relay
from crossdraft.engine.runner.runner import Placement
from crossdraft.engine.target import Target
from crossdraft.methods import DrafterContext, build_spec, method_in, methods_in
from crossdraft.specs import Spec

log = logging.getLogger(__name__)

# What a drafter in a process of its own has to do: all of the drafting; the hidden draft alone; or that, and beside
# another drafter what it has prepared for later rounds.
WHOLE, HIDDEN, BESIDE = "whole", "hidden", "beside"


class Apart(Protocol):
    """Puts a drafter into a process of its own."""

    def __call__(self, factory: "partial[Drafter[Any]]", *, role: str) -> Placement:
        """`factory` is picklable; `role` is one of those above."""
        ...


def ahead_in(role: str, usual: str) -> str:
    """What a drafter in that role does while the target verifies, where `usual` is what one does that drafts alone."""
    if role == WHOLE or usual == "off":
        return usual
    return "spare" if role == BESIDE else "off"


def needs_target(spec: Spec) -> bool:
    """True if some part of it looks into the target, and therefore lives beside it.

    >>> from crossdraft.specs import parse
    >>> needs_target(parse("union:eagle3,memory")), needs_target(parse("union:event,memory"))
    (True, False)
    """
    return any(method.needs_target for method in methods_in(spec))


def repays_a_core(spec: Spec) -> bool:
    """True if some part of it runs a network of its own that does not look into the target.

    >>> from crossdraft.specs import parse
    >>> [repays_a_core(parse(text)) for text in ("union:event,memory", "union:memory,ngram", "eagle3")]
    [True, False, False]
    """
    return any(method.has_network and not method.needs_target for method in methods_in(spec))


def place_drafter(
    spec: Spec, context: DrafterContext, host: Target, inline: Callable[[Drafter[Any]], Placement], apart: Apart | None
) -> Placement:
    """The drafter that a spec names, where it can run.

    Args:
        spec: the drafter.
        context: for which target it is made.
        host: that target.
        inline: puts a drafter into this process.
        apart: puts one into a process of its own; `None` = everything in this one. Where a drafter could not be parted
            so that what needs no target goes there, a warning says so.

    Raises:
        CrossdraftError: as `methods.build`.
    """
    beside = replace(context, host=host)
    if apart is not None and not needs_target(spec):
        return apart(partial(build_spec, spec, context), role=WHOLE)
    if apart is not None and spec.name == "phased" and not needs_target(spec.parts[0]):
        later = inline(build_spec(spec.parts[1], beside))
        return Relay(apart(partial(build_spec, spec.parts[0], context), role=HIDDEN), later)
    free = [part for part in spec.parts if not needs_target(part)]
    if apart is not None and spec.name == "union" and free:
        coupled = [part for part in spec.parts if needs_target(part)]
        later = inline(build_spec(_united(coupled), beside))
        return Relay(apart(partial(build_spec, _united(free), context), role=BESIDE), later, TreeMerger(2))
    if apart is not None and not all(method_in(leaf).needs_target for leaf in spec.leaves):
        log.warning(
            "The drafter '%s' runs wholly in the target's process, as a part of it looks into the target; only the "
            "first part of phased, and parts of union, can then run in a process of their own.",
            spec,
        )
    return inline(build_spec(spec, beside))


def _united(parts: Sequence[Spec]) -> Spec:
    return parts[0] if len(parts) == 1 else Spec("union", tuple(parts))
