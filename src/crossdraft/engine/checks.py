"""Checks of what enters the engine: a bad draft costs that draft, never an answer; a bad prompt costs its request."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from numbers import Integral

import torch
from torch import Tensor

from crossdraft.engine.drafter import Draft
from crossdraft.engine.timeline import Span
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError

MOST_NODES = 4096  # of a draft: far more than a pass verifies; choosing among more would take seconds
SUM_TOLERANCE = 1e-2  # of a distribution: a softmax in bfloat16 is off by up to that
# Tokens drawn in proportion to a row follow the row over its sum. A float32 softmax of 150,000 entries sums to 1 within
# 1e-5 and is used unchanged; a row that is off by more would bias the answer by as much, so it is divided by its sum.
SUM_ROUNDING = 5e-5


def checked(draft: Draft, vocabulary: int, forbidden: Collection[int] = ()) -> Draft:
    """Check that the target can read a draft; distributions that do not sum to 1, such as bfloat16 ones, are scaled.

    Args:
        draft: what the drafter sent.
        vocabulary: ids of the target are 0 … vocabulary - 1.
        forbidden: ids that the target does not read as text (visual placeholders).

    Raises:
        CrossdraftError: the draft has a fault, an id is not the target's, a parent does not precede its child, or
            a probability or distribution is invalid.
    """
    if draft.fault is not None:
        raise CrossdraftError(draft.fault)
    try:
        if len(draft.tree) > MOST_NODES:
            raise CrossdraftError(f"it has {len(draft.tree)} nodes; at most {MOST_NODES} are read")
        tree = _checked_tree(draft.tree, vocabulary, forbidden)
        _check_chances(draft.path_probs, len(tree))
    # A field has another type.
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        raise CrossdraftError(f"it cannot be read ({type(error).__name__}: {error})") from error
    return draft if tree is draft.tree else replace(draft, tree=tree)


def check_prompt(ids: Tensor, vocabulary: int, visual: Collection[int]) -> None:
    """Refuse a prompt that the target cannot read.

    Args:
        ids: ids of the prompt.
        vocabulary, visual: ids of the target are 0 … vocabulary - 1, and the visual placeholders.

    Raises:
        CrossdraftError: the ids are not one row of whole numbers, there are none, or one is not the target's.
    """
    if ids.dim() != 1 or not len(ids) or ids.is_floating_point() or ids.dtype == torch.bool:
        raise CrossdraftError(
            f"The prompt's input_ids are {ids.dtype} of shape {list(ids.shape)}; give whole numbers, one or more in a "
            "row."
        )
    wrong = next((token for token in ids.tolist() if not 0 <= token < vocabulary and token not in visual), None)
    if wrong is not None:
        raise CrossdraftError(
            f"The prompt has the token {wrong}, and the target's are 0 to {vocabulary - 1}; prepare it with this "
            "target's own processor."
        )


def drafts_of(made: object, count: int) -> list[Draft]:
    """Validate a drafter's result for `count` requests: one draft each, a faulty one in place of anything else."""
    if not isinstance(made, list | tuple):
        return [faulty(f"a {type(made).__name__} came, not a list of drafts")] * count
    if len(made) != count:
        return [faulty(f"{len(made)} drafts came for {count} requests")] * count
    return [_draft_of(draft) for draft in made]


def _draft_of(made: object) -> Draft:
    if not isinstance(made, Draft):
        return faulty(f"it is a {type(made).__name__}, not a Draft")
    if not isinstance(made.tree, DraftTree):
        return faulty(f"its tree is a {type(made.tree).__name__}, not a DraftTree")
    if not isinstance(made.tree.tokens, Sequence):
        return faulty(f"its tokens are a {type(made.tree.tokens).__name__}, not a tuple")
    if not isinstance(made.refusal, str | None):
        return faulty(f"its refusal is a {type(made.refusal).__name__}, not a sentence")
    for parts, kind in ((made.notes, str), (made.spans, Span)):
        if not isinstance(parts, tuple | list) or not all(isinstance(part, kind) for part in parts):
            return faulty(f"its notes or spans are not each a {kind.__name__}")
    return made


def faulty(why: str) -> Draft:
    """A draft that will be dropped, for this reason."""
    return Draft(DraftTree.empty(), fault=why)


def _checked_tree(tree: DraftTree, vocabulary: int, forbidden: Collection[int]) -> DraftTree:
    _check_rows(tree.tokens, tree.parents, tree.drawn_from)
    _check_ids(tree.tokens, vocabulary, forbidden)
    if not len(tree.tokens) == len(tree.parents) == len(tree.drawn_from):
        raise CrossdraftError("its tokens, parents and origins differ in number")
    if any(not (_whole(p) and ROOT <= p < node) for node, p in enumerate(tree.parents)):
        raise CrossdraftError("a parent does not precede its child")
    if not all(map(_whole, tree.drawn_from)):
        raise CrossdraftError("the number of a distribution is no whole number")
    rows = sorted({row for row in tree.drawn_from if row != -1})
    if not rows:  # distributions that no node names are not checked
        return tree if tree.dists is None else replace(tree, dists=None)
    dists = tree.dists
    if dists is None or dists.ndim != 2 or not dists.is_floating_point():
        raise CrossdraftError("its tokens were sampled, but the distributions [m, V] are missing")
    if not (rows[0] >= 0 and rows[-1] < len(dists)):
        raise CrossdraftError("a token was sampled from a distribution that is not there")
    used = dists[rows]
    sums = used.sum(-1, dtype=torch.float32)
    off = (sums - 1).abs().max()
    odd = (used < 0).any() | (off > SUM_TOLERANCE) | ~used.isfinite().all() | (used[:, vocabulary:] > 0).any()
    found = torch.stack((odd, off > SUM_ROUNDING)).tolist()  # one transfer from the device for both
    if found[0]:
        raise CrossdraftError("what a token was sampled from is no distribution over the target's vocabulary")
    if not found[1]:
        return tree
    exact = dists.to(torch.promote_types(dists.dtype, torch.float32), copy=True)
    exact[rows] /= sums[:, None]
    return replace(tree, dists=exact)


def _check_rows(*rows: object) -> None:
    for row in rows:
        if not isinstance(row, tuple):
            raise CrossdraftError(f"a {type(row).__name__} came where a tuple belongs")


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_ids(tokens: Sequence[int], vocabulary: int, forbidden: Collection[int]) -> None:
    for token in tokens:
        if not _whole(token) or not 0 <= token < vocabulary:
            raise CrossdraftError(f"token {token!r} is none of the target's ids 0 … {vocabulary - 1}")
        if token in forbidden:
            raise CrossdraftError(f"token {token} stands for something visual, not for text")


def _check_chances(reach: Sequence[float], nodes: int) -> None:
    if reach and len(reach) < nodes:
        raise CrossdraftError(f"it gives {len(reach)} chances for {nodes} nodes")
    if any(not (math.isfinite(chance) and 0 <= chance <= 1 + SUM_TOLERANCE) for chance in reach):
        raise CrossdraftError("a node's chance is not between 0 and 1")
