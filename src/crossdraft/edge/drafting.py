"""The edge's work on one question: read the events, draft, send what is new, learn what was committed.

It begins when the question is asked, and needs no connection for that. Of a sampled answer every node is sent when it
is drawn; of a greedy one a few at a time.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.edge.committed import Committed
from crossdraft.edge.drafts import frame_of
from crossdraft.edge.frames import DraftFrame
from crossdraft.engine.checks import drafts_of
from crossdraft.engine.drafter import NOTHING, Budget, Draft, Drafter, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

STEP = 4  # nodes of a greedy draft that are sent at a time
GREEDY_ALONE = "This drafter draws anew each time that it is asked, so it drafts for greedy answers only."


@dataclass
class SentDraft:
    """What the cloud holds: a draft after so many committed tokens, and what of it was sent."""

    after: tuple[int, bytes]
    serial: int
    draft: Draft


class EdgeDrafting:
    """Drafts for one question, in a thread of its own.

    Args:
        drafter: what drafts.
        request: the question, and the events.
        session: names the answer.
        nodes: most of one draft.
        on_tokens: told the first draft's tokens as they are written: provisional text.
        rounds: draft on once something is committed.
    """

    def __init__(
        self,
        drafter: Drafter[Any],
        request: Request,
        session: bytes,
        nodes: int,
        on_tokens: Callable[[tuple[int, ...]], None] = lambda tokens: None,
        *,
        rounds: bool = True,
    ) -> None:
        self.error: str | None = None  # why nothing is drafted
        self._drafter, self._request, self._on_tokens = drafter, request, on_tokens
        self._nodes = self._most = nodes
        self._rounds = rounds
        self._step = STEP if request.sampling.greedy else 1
        self._committed = Committed(session)
        self._draft = NOTHING
        self._shown: tuple[int, ...] = ()
        self._sent: SentDraft | None = None
        self._serial = 0
        self._whole = False  # whether the draft does not grow any more
        self._send: Callable[[DraftFrame], None] | None = None
        self._news: list[int] = []  # tokens that the drafter was not told of yet
        self._anew = self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="edge-drafter", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def connected(self, send: Callable[[DraftFrame], None]) -> None:
        """There is a connection, which knows nothing of the draft yet."""
        with self._changed:
            self._send, self._anew = send, True
            self._changed.notify()

    def cut(self) -> None:
        """The connection is gone."""
        with self._changed:
            self._send = None

    def committed(self, tokens: tuple[int, ...], wants: int) -> None:
        """The target added these tokens; the next draft may have so many nodes."""
        with self._changed:
            self._news += tokens
            self._most = min(self._nodes, wants) if self._rounds else 0
            self._changed.notify()

    def end(self) -> None:
        """Nothing more is wanted; returns when the drafter is free."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    # -- in the drafter's thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        state: Any = None
        try:
            if not self._request.sampling.greedy and not isinstance(self._drafter, IndependentDrafter):
                raise CrossdraftError(GREEDY_ALONE)  # noqa: TRY301 - told as what a drafter refuses
            (state,) = self._drafter.begin([self._request])
            while (tokens := self._next()) is not None:
                if tokens:
                    self._commit(state, tokens)
                if len(self._draft.tree) < self._most and not self._whole:
                    self._grow(state)
                self._send_new()
        except Exception as error:
            if not isinstance(error, CrossdraftError):
                log.exception("The edge's drafter failed.")
            self.error = str(error) or type(error).__name__
        finally:
            if state is not None:
                self._drafter.end([state])

    def _next(self) -> tuple[int, ...] | None:
        """Wait until there is something to do: tokens that were committed, or to draft on; `None` at the end."""

        def due() -> bool:
            grows = not self._whole and len(self._draft.tree) < self._most
            return self._ended or bool(self._news) or grows or (self._anew and self._send is not None)

        with self._changed:
            self._changed.wait_for(due)
            if self._ended:
                return None
            tokens, self._news = tuple(self._news), []
            if self._anew and self._send is not None:
                self._anew, self._sent = False, None
            return tokens

    def _commit(self, state: Any, tokens: tuple[int, ...]) -> None:
        path = self._draft.tree.follow(tokens[:-1])
        self._drafter.commit([state], [VerifyOutput(tuple(path), tokens)])
        self._committed.add(tokens)
        self._draft, self._whole = NOTHING, False

    def _grow(self, state: Any) -> None:
        """Draft a few nodes more than are known."""
        known = len(self._draft.tree)
        wanted = max(known, len(self._rest())) + self._step
        budget = Budget(min(self._most, wanted), stop=lambda: bool(self._news) or self._ended)
        (draft,) = drafts_of(self._drafter.propose([state], [budget]), 1)
        if draft.refusal or draft.fault:
            raise CrossdraftError(draft.refusal or draft.fault or "")
        self._whole = len(draft.tree) <= known
        if not self._whole:
            self._draft = draft
            self._show(draft.tree.main_path_tokens)

    def _show(self, tokens: tuple[int, ...]) -> None:
        if not len(self._committed) and tokens[: len(self._shown)] == self._shown and tokens != self._shown:
            self._on_tokens(tokens[len(self._shown) :])
            self._shown = tokens

    def _rest(self) -> tuple[int, ...]:
        """What the cloud holds after the committed tokens; nothing if it does not agree with them."""
        sent = self._sent
        if sent is None or not sent.draft.tree.is_chain:
            return ()
        since = tuple(self._committed.tokens[sent.after[0] :])
        agrees = sent.draft.tree.tokens[: len(since)] == since
        return sent.draft.tree.tokens[len(since) :] if agrees else ()

    def _send_new(self) -> None:
        """Send what the cloud does not hold."""
        send, draft = self._send, self._draft
        if send is None or not len(draft.tree):
            return
        after, start, rows = (len(self._committed), self._committed.digest()), 0, 0
        sent = self._sent
        if sent is not None:
            joined, held = self._joined(sent, draft), sent.draft.tree
            if joined is not None:
                after, draft, start = sent.after, joined, len(held)
                rows = 0 if held.dists is None else len(held.dists)
            elif sent.after == after and (held.tokens, held.parents) == (draft.tree.tokens, draft.tree.parents):
                return
            if start == len(draft.tree):
                return
        if not start:
            self._serial += 1
        send(frame_of(draft, after, self._serial, start, rows))
        self._sent = SentDraft(after, self._serial, draft)

    def _joined(self, sent: SentDraft, draft: Draft) -> Draft | None:
        """What was sent with the draft after it, if that goes on from there: then only its end is sent."""
        held, tree = sent.draft.tree, draft.tree
        gone = len(self._committed) - sent.after[0]
        chains = held.is_chain and tree.is_chain and gone <= len(held)
        tokens = held.tokens[gone:]
        if not chains or held.tokens[:gone] != tuple(self._committed.tokens[sent.after[0] :]):
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
            return replace(draft, tree=joined, path_probs=())
        above = front.path_probs[gone - 1] if gone else 1.0
        probs = (*front.path_probs, *(above * prob for prob in draft.path_probs[len(tokens) : len(tree)]))
        return replace(draft, tree=joined, path_probs=probs)
