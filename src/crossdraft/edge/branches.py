"""Drafting at an edge: after the committed tokens, and for possible outcomes of verification in advance.

Replacing a rejected draft takes a round trip. While the cloud prefills and verifies, the edge is free, so it continues
drafting, on copies of the drafter's state, for the likeliest outcomes of the draft and of the drafts after these, and
sends them at once (speculative speculative decoding, SSD 2026; here over a network). The cloud then has the next draft
when it knows the outcome.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch

from crossdraft.edge.committed import Committed
from crossdraft.edge.frames import DraftFrame
from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import NOTHING, Draft, Drafter, VerifyOutput
from crossdraft.engine.tree import DraftTree

MOST = 32  # branches beside the main one
BRANCH_NODES = 64  # nodes of a branch's draft
MOST_BEHIND, LONGEST = 48, 512  # newer drafts, and nodes, after which a draft is begun anew instead of extended
FIRST = 8  # nodes of a branch that are drafted at once
LEAST_PROB = 0.01  # less likely outcomes get no branch
BRANCH_BYTES = 2 * 2**30  # most keys and values of all branches: about five copies of a 7B drafter's


@dataclass(frozen=True)
class SentDraft:
    """A draft as the cloud holds it: the committed tokens before it, its number, and the part that was sent."""

    after: tuple[int, bytes]
    serial: int
    draft: Draft


@dataclass(eq=False)
class DraftBranch:
    """A text that the target has committed, or may commit, and the draft after it.

    Args:
        text: the answer up to the branch.
        state: state of the drafter after reading the text.
        prob: the drafter's probability that the target commits the text; 1 if it has.
        draft: draft after the text.
        whole: true if the draft does not grow any more.
        sent: part of the draft that the cloud holds.
        void: number of tokens of the text for which the cloud was told that no draft follows.
    """

    text: Committed
    state: Any
    prob: float = 1.0
    draft: Draft = NOTHING
    whole: bool = False
    sent: SentDraft | None = None
    void: int | None = None

    def grows(self, most: int) -> bool:
        """True if the branch is to be drafted further, up to `most` nodes."""
        return not self.whole and len(self.draft.tree) < most

    @property
    def reach(self) -> float:
        """The drafter's probability that the target commits text and draft; of the text alone for short drafts."""
        probs = self.draft.path_probs
        return self.prob * probs[-1] if len(probs) > FIRST else self.prob

    @property
    def held(self) -> tuple[int, ...]:
        """The chain of tokens that the cloud holds after the text; empty if the chain disagrees with the text."""
        if self.sent is None or not self.sent.draft.tree.is_chain:
            return ()
        since = tuple(self.text.tokens[self.sent.after[0] :])
        tokens = self.sent.draft.tree.tokens
        return tokens[len(since) :] if tokens[: len(since)] == since else ()

    def frame(self, serial: int, known: int) -> DraftFrame | None:
        """Frame of the draft's nodes that the cloud does not hold, which then count as sent; `None` if it holds all.

        Args:
            serial: number of the frame, if it begins a draft.
            known: number of committed tokens that the edge knows of.
        """
        draft, after, start, rows = self.draft, (len(self.text), self.text.digest()), 0, 0
        if not len(draft.tree):
            if not self.whole or self.void == len(self.text):
                return None
            self.void = len(self.text)  # tells the cloud not to wait for a draft
            return frame_of(draft, after, serial, known=known)
        if (sent := self.sent) is not None:
            held = sent.draft.tree
            old = serial - sent.serial > MOST_BEHIND or len(held) > LONGEST  # the cloud may have forgotten it
            joined = None if old else self._joined(sent, draft)
            if joined is not None:
                after, draft, start, serial = sent.after, joined, len(held), sent.serial
                rows = 0 if held.dists is None else len(held.dists)
            elif (
                not old
                and sent.after == after
                and (held.tokens, held.parents) == (draft.tree.tokens, draft.tree.parents)
            ):
                return None
            if start == len(draft.tree):
                return None
        self.sent = SentDraft(after, serial, draft)
        return frame_of(draft, after, serial, start, rows, known=known)

    def _joined(self, sent: SentDraft, draft: Draft) -> Draft | None:
        """Join the sent draft and a draft that continues it, so that only the new end is sent; else `None`."""
        held, tree = sent.draft.tree, draft.tree
        gone = len(self.text) - sent.after[0]
        chains = held.is_chain and tree.is_chain and gone <= len(held)
        tokens = held.tokens[gone:]
        if not chains or held.tokens[:gone] != tuple(self.text.tokens[sent.after[0] :]):
            return None
        if tree.tokens[: len(tokens)] != tokens or (held.dists is None) != (tree.dists is None):
            return None
        front = sent.draft
        chosen = held.tokens + tree.tokens[len(tokens) :]
        dists = None
        if held.dists is not None and tree.dists is not None:
            dists = torch.cat((held.dists, tree.dists[len(tokens) :]))
        joined = DraftTree.chain(chosen, dists)
        if not (front.path_probs and draft.path_probs):
            return Draft(joined)
        above = front.path_probs[gone - 1] if gone else 1.0
        probs = (*front.path_probs, *(above * prob for prob in draft.path_probs[len(tokens) : len(tree)]))
        return Draft(joined, probs)


@dataclass
class DraftBranches:
    """The main branch, which follows the committed text, and branches for texts that may be committed.

    Args:
        drafter: drafter whose states the branches hold.
        main: the branch that follows the committed text.
        others: further branches, by their texts.
    """

    drafter: Drafter[Any]
    main: DraftBranch
    others: dict[tuple[int, ...], DraftBranch] = field(default_factory=dict[tuple[int, ...], DraftBranch])

    def __iter__(self) -> Iterator[DraftBranch]:
        return iter((self.main, *self.others.values()))

    def commit(self, tokens: Sequence[int]) -> None:
        """Add committed tokens: the longest branch that they confirm becomes the main one; possible branches stay."""
        text = (*self.main.text.tokens, *tokens)
        begun = [branch for branch in self if text[: len(branch.text)] == tuple(branch.text.tokens)]
        self.main = max(begun, key=lambda branch: len(branch.text))
        self.others = {t: b for t, b in self.others.items() if len(t) > len(text) and t[: len(text)] == text}
        main, rest = self.main, text[len(self.main.text) :]
        main.prob = 1.0
        if rest:
            path = main.draft.tree.follow(rest[:-1])
            self.drafter.commit([main.state], [VerifyOutput(tuple(path), rest)])
            main.text.add(rest)
            main.draft, main.whole = NOTHING, False

    def likeliest(self, most: int, *, ahead: bool) -> DraftBranch | None:
        """Return the branch whose next token is the likeliest to be committed, among those that grow; else `None`.

        Args:
            most: largest number of nodes of the main branch.
            ahead: true to draft for other branches, too; a branch is begun for the likeliest outcome that has none.
        """
        growing = [self.main] if self.main.grows(most) else []
        if not ahead:
            return growing[0] if growing else None
        growing += [branch for branch in self.others.values() if branch.grows(BRANCH_NODES)]
        best = max(growing, key=lambda branch: branch.reach, default=None)
        least = LEAST_PROB if best is None else best.reach
        found = max(self._outcomes(least), key=lambda found: found[0], default=None)
        if found is None or len(self.others) >= MOST or not self._room():
            return best
        prob, branch, tokens = found
        (state,) = self.drafter.fork([branch.state])
        path = branch.draft.tree.follow(tokens[:-1])
        self.drafter.commit([state], [VerifyOutput(tuple(path), tokens)])
        text = branch.text.copy()
        text.add(tokens)
        made = self.others[tuple(text.tokens)] = DraftBranch(text, state, prob)
        return made

    def _outcomes(self, least: float) -> list[tuple[float, DraftBranch, tuple[int, ...]]]:
        """(probability, branch, tokens after its text) of outcomes that have no branch."""
        return [
            (branch.prob * outcome.prob, branch, outcome.tokens)
            for branch in self
            for outcome in branch.draft.outcomes
            if branch.prob * outcome.prob >= least
            and (*branch.text.tokens, *outcome.tokens) not in self.others
            and len(branch.draft.tree.follow(outcome.tokens)) == len(outcome.tokens) - 1
        ]

    def _room(self) -> bool:
        """True if one more copy of the drafter's state fits in memory."""
        held = sum(cache.nbytes for branch in self.others.values() for cache in caches_of(branch.state))
        return held + sum(cache.copy_bytes for cache in caches_of(self.main.state)) <= BRANCH_BYTES


def caches_of(state: object) -> list[KVCache]:
    """The caches in a drafter's state: a dataclass, whose fields and lists may hold further states."""
    if isinstance(state, KVCache):
        return [state]
    if is_dataclass(state):
        return [cache for field in fields(state) for cache in caches_of(getattr(state, field.name))]
    if isinstance(state, list | tuple) and state and not isinstance(state[0], int | float | str):
        return [cache for part in state for cache in caches_of(part)]
    return []


def frame_of(
    draft: Draft, after: tuple[int, bytes], serial: int, start: int = 0, start_rows: int = 0, *, known: int = 0
) -> DraftFrame:
    """Make the frame of a draft's nodes from `start` on.

    Args:
        draft: draft rooted at the first node that was sent before, if any was.
        after: number of committed tokens before the draft, and their digest.
        serial: number of the draft.
        start, start_rows: numbers of nodes and distributions that were sent before.
        known: see `DraftFrame`.
    """
    tree = draft.tree
    rows = [] if tree.dists is None else [_entries(row) for row in tree.dists[start_rows : 1 + max(tree.drawn_from)]]
    return DraftFrame(
        *after,
        serial,
        start,
        tree.tokens[start:],
        tree.parents[start:],
        tree.drawn_from[start:] if rows else (),
        tuple(draft.path_probs[start : len(tree)]),
        tuple(len(ids) for ids, _ in rows),
        tuple(i for ids, _ in rows for i in ids),
        tuple(value for _, values in rows for value in values),
        known,
    )


def _entries(row: torch.Tensor) -> tuple[list[int], list[float]]:
    ids = row.nonzero()[:, 0]
    return ids.tolist(), row[ids].float().tolist()
