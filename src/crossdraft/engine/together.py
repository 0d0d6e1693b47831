"""Several drafters at one answer: whose probes are fed with the draft made of theirs, and what each hears of it."""

from collections.abc import Sequence
from dataclasses import replace

from crossdraft.engine.drafter import Draft, VerifyOutput


def prober_of(drafts: Sequence[Draft]) -> int | None:
    """Whose probes are fed: the first one's who has any."""
    return next((place for place, draft in enumerate(drafts) if draft.probes), None)


def with_probes(made: Draft, drafts: Sequence[Draft]) -> Draft:
    """The draft made of these, with the probes that are fed; without if what one stood behind is not in it."""
    place = prober_of(drafts)
    if place is None or (probes := drafts[place].probes) is None:
        return made
    return replace(made, probes=probes.moved(drafts[place].tree, made.tree))


def own_part(drafts: Sequence[Draft], place: int, output: VerifyOutput) -> VerifyOutput:
    """The verdict as if the tree of the drafter at that place had been judged, and no probes fed but its own."""
    path = drafts[place].tree.follow(output.tokens[: len(output.path)])
    if prober_of(drafts) != place:
        output = replace(output, probe_top=(), probe_logits=None)
    return replace(output, path=tuple(path))
