"""Checks of what a drafter sends, where it enters the engine: a bad draft costs that draft, never an answer."""

import math
from collections.abc import Collection, Sequence
from numbers import Integral

import torch

from crossdraft.engine.drafter import Draft
from crossdraft.engine.probes import Probes
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError

SUM_TOLERANCE = 1e-2  # of a distribution: a softmax in bfloat16 is off by up to that


def checked(draft: Draft, vocabulary: int, probes: int = 0, forbidden: Collection[int] = ()) -> Draft:
    """The draft, if the target can read it.

    Args:
        draft: what the drafter sent.
        vocabulary: ids of the target are 0 … vocabulary - 1.
        probes: at most so many probes were announced.
        forbidden: ids that the target does not read as text (visual placeholders).

    Raises:
        CrossdraftError: it came faulty, an id is none of the target's, a parent does not precede its child, the
            drafter's chances or distributions are none, or there are more probes than announced.
    """
    if draft.fault is not None:
        raise CrossdraftError(draft.fault)
    try:
        _check_tree(draft.tree, vocabulary, forbidden)
        _check_chances(draft.reach, len(draft.tree))
        if draft.probes is not None:
            _check_probes(draft.probes, len(draft.tree), probes, vocabulary, forbidden)
    # A field of another type.
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        raise CrossdraftError(f"it cannot be read ({type(error).__name__}: {error})") from error
    return draft


def drafts_of(made: object, count: int) -> list[Draft]:
    """What a drafter returned for `count` requests: one draft each, a faulty one in place of anything else."""
    if not isinstance(made, list | tuple):
        return [faulty(f"a {type(made).__name__} came, not a list of drafts")] * count
    if len(made) != count:
        return [faulty(f"{len(made)} drafts came for {count} requests")] * count
    return [
        draft if isinstance(draft, Draft) else faulty(f"it is a {type(draft).__name__}, not a Draft")
        for draft in made
    ]


def faulty(why: str) -> Draft:
    """A draft that will be dropped, for this reason."""
    return Draft(DraftTree.empty(), fault=why)


def _check_tree(tree: DraftTree, vocabulary: int, forbidden: Collection[int]) -> None:
    _check_ids(tree.tokens, vocabulary, forbidden)
    if not len(tree.tokens) == len(tree.parents) == len(tree.drawn_from):
        raise CrossdraftError("its tokens, parents and origins differ in number")
    if any(not (isinstance(p, Integral) and ROOT <= p < node) for node, p in enumerate(tree.parents)):
        raise CrossdraftError("a parent does not precede its child")
    rows = {row for row in tree.drawn_from if row != -1}
    if not rows:
        return
    dists = tree.dists
    if dists is None or dists.ndim != 2 or not dists.is_floating_point():
        raise CrossdraftError("its tokens were sampled, but the distributions [m, V] are missing")
    if not (min(rows) >= 0 and max(rows) < len(dists)):
        raise CrossdraftError("a token was sampled from a distribution that is not there")
    used = dists[sorted(rows)]
    odd = (used < 0).any() | ((used.sum(-1, dtype=torch.float32) - 1).abs() > SUM_TOLERANCE).any()
    odd |= ~used.isfinite().all() | (used[:, vocabulary:] > 0).any()
    if bool(odd):
        raise CrossdraftError("what a token was sampled from is no distribution over the target's vocabulary")


def _check_ids(tokens: Sequence[int], vocabulary: int, forbidden: Collection[int]) -> None:
    for token in tokens:
        if not isinstance(token, Integral) or not 0 <= token < vocabulary:
            raise CrossdraftError(f"token {token!r} is none of the target's ids 0 … {vocabulary - 1}")
        if token in forbidden:
            raise CrossdraftError(f"token {token} stands for something visual, not for text")


def _check_chances(reach: Sequence[float], nodes: int) -> None:
    if reach and len(reach) < nodes:
        raise CrossdraftError(f"it gives {len(reach)} chances for {nodes} nodes")
    if any(not (math.isfinite(chance) and 0 <= chance <= 1 + SUM_TOLERANCE) for chance in reach):
        raise CrossdraftError("a node's chance is not between 0 and 1")


def _check_probes(
    probes: Probes, nodes: int, announced: int, vocabulary: int, forbidden: Collection[int]
) -> None:
    if len(probes) > announced:
        raise CrossdraftError(f"it has {len(probes)} probes, and {announced} were announced by Needs.probes")
    if not isinstance(probes.top, int) or probes.top < 0:
        raise CrossdraftError(f"of its probes the top {probes.top!r} ids are wanted")
    if probes.embeddings is None:  # else the ids only keep the places
        _check_ids(probes.tokens, vocabulary, forbidden)
    elif not bool(probes.embeddings.isfinite().all()):
        raise CrossdraftError("an embedding of its probes is not finite")
    if any(not ROOT <= parent < nodes + place for place, parent in enumerate(probes.parents)):
        raise CrossdraftError("a probe does not stand behind a node or an earlier probe")
