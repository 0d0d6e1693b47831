"""The edge's work on one question: read the events, draft, send new nodes, and learn which tokens were committed.

It begins when the question is asked, before there is a connection. A few nodes are sent at a time and, when the draft
is complete, drafts for its possible outcomes. Tokens drawn with the edge's own random numbers are sent node by node.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.edge.branches import BRANCH_NODES, DraftBranch, DraftBranches
from crossdraft.edge.committed import Committed
from crossdraft.edge.frames import DraftFrame
from crossdraft.engine.checks import drafts_of
from crossdraft.engine.drafter import Budget, Drafter
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

STEP, BRANCH_STEP = 4, 16  # nodes sent at a time: of the main branch, of other branches
CLOCK_S = time.perf_counter()  # origin of the clock in sent frames, the same for all questions of a connection
GREEDY_ALONE = "This drafter draws anew each time that it is asked, so it drafts for answers without a rule of coins."


class EdgeDrafting:
    """Drafts for one question, in a thread of its own.

    Args:
        drafter: the drafter.
        request: the question, with the events.
        session: name of the answer.
        nodes: largest number of nodes of one draft.
        on_tokens: called with the first draft's tokens as they are drafted: provisional text.
        rounds: continue drafting after the first commit.
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
        self.error: str | None = None  # reason why drafting stopped
        self.notes: dict[str, None] = {}  # of the drafter, such as on what its reader repaired
        self._drafter, self._request, self._on_tokens = drafter, request, on_tokens
        self._nodes = self._most = min(nodes, request.token_limit - 1)  # the target adds a token itself
        self._rounds = rounds
        self._step = STEP if request.sampling.certain else 1
        self._session, self._serial = session, 0
        self._shown: tuple[int, ...] = ()
        self._send: Callable[[DraftFrame], None] | None = None
        self._news: list[int] = []  # committed tokens that the drafter has not read yet
        self._anew = self._ended = self._idle = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="edge-drafter", daemon=True)

    def start(self) -> None:
        """Start the drafting thread."""
        self._thread.start()

    def connected(self, send: Callable[[DraftFrame], None]) -> None:
        """Use a new connection, to which nothing of the draft has been sent yet."""
        with self._changed:
            self._send, self._anew = send, True
            self._changed.notify()

    def cut(self) -> None:
        """Note that the connection is lost."""
        with self._changed:
            self._send = None

    def committed(self, tokens: tuple[int, ...], wants: int) -> None:
        """Note tokens that the target added; the next draft may have `wants` nodes."""
        with self._changed:
            self._news += tokens
            self._most = min(self._nodes, wants) if self._rounds else 0
            self._changed.notify()

    def end(self) -> None:
        """End the drafting; return when the drafter is free."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    # -- in the drafter's thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        branches: DraftBranches | None = None
        try:
            if not self._request.sampling.certain and not isinstance(self._drafter, IndependentDrafter):
                raise CrossdraftError(GREEDY_ALONE)  # noqa: TRY301 - told as what a drafter refuses
            (state,) = self._drafter.begin([self._request])
            branches = DraftBranches(self._drafter, DraftBranch(Committed(self._session), state))
            while (tokens := self._next(branches)) is not None:
                if tokens:
                    branches.commit(tokens)
                branch = branches.likeliest(self._most, ahead=self._ahead)
                if branch is None:
                    self._idle = True
                elif branch is branches.main:
                    self._grow(branch, self._most, self._step)
                    self._show(branch)
                else:
                    self._grow(branch, BRANCH_NODES, BRANCH_STEP)
                self._send_new(branches)
            if self._news:  # last tokens of the answer, which a drafter may memorise
                branches.commit(self._news)
        except Exception as error:
            if not isinstance(error, CrossdraftError):
                log.exception("The edge's drafter failed.")
            self.error = str(error) or type(error).__name__
        finally:
            if branches is not None:
                self._drafter.end([branches.main.state])

    @property
    def _ahead(self) -> bool:
        """True if drafts are made for texts that may be committed.

        False for tokens drawn with the edge's own random numbers: such a draft is used only if it arrives in time,
        which depends on the drawn tokens, so they would not follow the distribution that is sent with them.
        """
        return self._rounds and self._most > 0 and self._request.sampling.certain

    def _next(self, branches: DraftBranches) -> tuple[int, ...] | None:
        """Wait for committed tokens, or until there is drafting to do; return the tokens, or `None` at the end."""

        def due() -> bool:
            return self._ended or bool(self._news) or not self._idle or (self._anew and self._send is not None)

        with self._changed:
            self._changed.wait_for(due)
            if self._ended:
                return None
            tokens, self._news, self._idle = tuple(self._news), [], False
            if self._anew and self._send is not None:
                self._anew = False
                for branch in branches:
                    branch.sent = branch.void = None
            return tokens

    def _grow(self, branch: DraftBranch, most: int, step: int) -> None:
        """Extend the draft by `step` nodes, up to `most` in total."""
        known = len(branch.draft.tree)
        wanted = max(known, len(branch.held)) + step
        budget = Budget(min(most, wanted), stop=lambda: bool(self._news) or self._ended)
        (draft,) = drafts_of(self._drafter.propose([branch.state], [budget]), 1)
        self.notes |= dict.fromkeys(draft.notes)
        if draft.refusal or draft.fault:
            raise CrossdraftError(draft.refusal or draft.fault or "")
        if len(draft.tree) > known:
            branch.draft = draft
        elif not budget.stopped:
            branch.whole = True

    def _show(self, main: DraftBranch) -> None:
        tokens = main.draft.tree.main_path_tokens
        if not len(main.text) and tokens[: len(self._shown)] == self._shown and tokens != self._shown:
            self._on_tokens(tokens[len(self._shown) :])
            self._shown = tokens

    def _send_new(self, branches: DraftBranches) -> None:
        """Send the nodes that the cloud does not hold."""
        if (send := self._send) is None:
            return
        for branch in branches:
            frame = branch.frame(self._serial + 1, len(branches.main.text))
            if frame is not None:
                self._serial = max(self._serial, frame.serial)
                send(replace(frame, sent_us=round(1e6 * (time.perf_counter() - CLOCK_S))))
