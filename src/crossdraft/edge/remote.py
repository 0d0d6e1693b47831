"""EdgeDrafter: the drafter of requests whose events lie at an edge; it drafts there, and its drafts come unasked.

The edge begins when the question is asked there, and sends what it drafts as it grows; the cloud tells it what was
committed. So the target finds a draft, or goes on alone; it waits for one only where that is worth it
(`Budget.wait_s`). A draft that comes late is used as far as it agrees with what was committed meanwhile. The target's
tokens alone are the truth: a draft names how many of them it follows, and a digest of these, and what does not agree
is dropped.

Sampled drafts. Nodes are sent one by one, as they are drawn, so how many are here when the target verifies depends on
the time and not on what the last one is; each is verified against the distribution that it was drawn from, or, if the
edge is not to be believed (`draws=no`), as a token that was chosen.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from crossdraft.edge.committed import Committed
from crossdraft.edge.drafts import HeldDraft
from crossdraft.edge.frames import DraftFrame
from crossdraft.engine.checks import faulty
from crossdraft.engine.drafter import NOTHING, Budget, Draft, Needs, Proposal, VerifyOutput
from crossdraft.engine.estimates import Ema
from crossdraft.engine.request import Request
from crossdraft.engine.timeline import Span

LONGEST_WAIT_S = 1.0
MOST_HELD = 64  # drafts of one answer
MOST_HELD_SIZE = 1 << 22  # nodes, and entries of distributions, of all of them: 8 bytes an entry
NO_EDGE = "the question did not come from an edge"


class EdgeLink:
    """The drafts of one answer, as they come; between the connection's thread and the engine's.

    Args:
        session: names the answer.
        replies: whether more drafts come once something is committed; else none is waited for.
    """

    def __init__(self, session: bytes, *, replies: bool = True) -> None:
        self.session, self.replies = session, replies
        self.connected = True
        self.rtt_s = Ema()
        self.reply_s = Ema()  # from a commit until the first frame that was sent by an edge that knows of it
        self.frames = self.refused = 0
        self._held: dict[int, HeldDraft] = {}  # by serial number
        self._serial = -1  # the last one
        self._since = self._arrived = time.perf_counter()  # what is drafted now began and came; for the timeline
        self._unanswered: dict[int, float] = {}  # commits that no reply came to yet: tokens, when it was sent
        self._changed = threading.Condition()

    def received(self, frame: DraftFrame) -> None:
        """A frame came. One that is old, or does not follow what was sent before, is dropped."""
        with self._changed:
            self.frames, self._arrived = self.frames + 1, time.perf_counter()
            if (since := self._unanswered.get(frame.known)) is not None:
                self.reply_s.add(time.monotonic() - since)
                self._unanswered = {length: sent for length, sent in self._unanswered.items() if length > frame.known}
            if frame.start:
                held = self._held.get(frame.serial)
                fits = held is not None and held.extend(frame)
            elif fits := frame.serial > self._serial:
                self._serial = frame.serial
                self._held[frame.serial] = HeldDraft(frame)
            while len(self._held) > MOST_HELD or sum(held.size for held in self._held.values()) > MOST_HELD_SIZE:
                del self._held[min(self._held)]
            self.refused += not fits
            self._changed.notify_all()

    def committed(self, length: int) -> None:
        """So many tokens are committed, of which the edge is told now."""
        with self._changed:
            self._unanswered[length], self._since = time.monotonic(), time.perf_counter()

    def drop_contradicted(self, committed: Committed) -> None:
        """So much is committed: forget the drafts of another text."""
        with self._changed:
            self._held = {serial: held for serial, held in self._held.items() if not held.contradicted(committed)}

    def report(self) -> dict[str, object]:
        """Figures of the link: the round trip, what a reply to a commit takes, and frames."""
        rtt, reply = ((None if ema.value is None else round(1e3 * ema.value, 2)) for ema in (self.rtt_s, self.reply_s))
        return {"rtt_ms": rtt, "reply_ms": reply, "frames": self.frames, "refused_frames": self.refused}

    def cut(self) -> None:
        """The connection is gone; nobody waits for it."""
        with self._changed:
            self.connected = False
            self._changed.notify_all()

    def resumed(self, rtt_s: Ema, reply_s: Ema) -> None:
        """There is a connection, of which this is known. The edge sends its draft anew."""
        with self._changed:
            self.connected, self._unanswered = True, {}
            self.rtt_s, self.reply_s = rtt_s, reply_s

    def span(self, name: str, tokens: int) -> tuple[Span, ...]:
        """The edge's work on what came last, network included; nothing if nothing came since it was told of."""
        with self._changed:
            since, self._since = self._since, max(self._since, self._arrived)
            return (Span("drafter", name, since, self._arrived, tokens),) if self._arrived > since else ()

    def draft_after(self, committed: Committed, wait_s: float, vocabulary: int, *, draws: bool) -> Draft | None:
        """The draft that follows the committed tokens, waited for at most so long; a faulty one of what is none."""
        until = time.monotonic() + wait_s
        with self._changed:
            while True:
                found = self._after(committed, vocabulary, draws=draws)
                left = until - time.monotonic()
                if found is not None or left <= 0 or not self.connected:
                    return found
                self._changed.wait(left)

    def _after(self, committed: Committed, vocabulary: int, *, draws: bool) -> Draft | None:
        """Of the drafts that follow the committed tokens the one that was written after most of them."""
        follow = ((held.frame.length, serial) for serial, held in self._held.items())
        # The first that fits is the one: each that is tried costs time, and an edge may send many that fit nowhere.
        for length, serial in sorted(follow, reverse=True):
            if length > len(committed):
                continue
            try:
                draft = self._held[serial].after(committed, vocabulary, draws=draws)
            except Exception as error:  # noqa: BLE001 - whatever the edge made of it
                del self._held[serial]
                return faulty(str(error).rstrip("."))
            if draft is not None:
                return draft
        return None


@dataclass(frozen=True)
class EdgeEvents:
    """In `Request.events`: the recording lies at the edge, behind this link."""

    link: EdgeLink

    def __str__(self) -> str:
        return "at the edge"


@dataclass(eq=False)
class RemoteState:
    """One answer: its link (`None`: it has none), what is committed, and whether it is a copy."""

    link: EdgeLink | None
    committed: Committed
    copied: bool = False


class EdgeDrafter:
    """See the module's text.

    Args:
        vocabulary: of the target.
        draws: believe the edge that its tokens were drawn from what it says.
    """

    # The edge may know the request's seed, so the target must not draw by it: see `Needs.learns`.
    needs = Needs(learns=True, unasked=True, runs_in=frozenset({"process"}))

    def __init__(self, vocabulary: int, *, draws: bool = True) -> None:
        self._vocabulary, self._draws = vocabulary, draws

    def begin(self, requests: Sequence[Request]) -> list[RemoteState]:
        links = [one.events.link if isinstance(one.events, EdgeEvents) else None for one in requests]
        return [RemoteState(link, Committed(b"" if link is None else link.session)) for link in links]

    def propose(self, states: Sequence[RemoteState], budgets: Sequence[Budget]) -> list[Draft]:
        return self.propose_async(states, budgets)()

    def propose_async(self, states: Sequence[RemoteState], budgets: Sequence[Budget]) -> Proposal:
        """See `AsyncDrafter`; nothing need be asked: the edge drafts of its own accord."""
        return lambda: [self._take(state, budget) for state, budget in zip(states, budgets, strict=True)]

    def commit(self, states: Sequence[RemoteState], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            state.committed.add(output.tokens)
            if state.link is not None and not state.copied:  # a copy goes its own way, which may not come true
                state.link.drop_contradicted(state.committed)

    def fork(self, states: Sequence[RemoteState]) -> list[RemoteState]:
        return [replace(state, committed=state.committed.copy(), copied=True) for state in states]

    def end(self, states: Sequence[RemoteState]) -> None:
        """Nothing to free."""

    def _take(self, state: RemoteState, budget: Budget) -> Draft:
        link = state.link
        if link is None:
            return replace(NOTHING, refusal=NO_EDGE)
        wait_s = 0.0
        if budget.until is not None:
            budget.until.wait()
        elif not state.copied:
            worth = LONGEST_WAIT_S if budget.wait_s is None else min(budget.wait_s, LONGEST_WAIT_S)
            # A draft that takes longer to come than it is worth is not waited for at all.
            wait_s = worth if link.replies and (link.reply_s.value or LONGEST_WAIT_S) < worth else 0.0
        draft = link.draft_after(state.committed, wait_s, self._vocabulary, draws=self._draws)
        if draft is None or draft.fault is not None:
            return draft or NOTHING
        draft = draft.first(budget.nodes)
        name = "draft" if budget.until is None else "hidden draft"
        return replace(draft, spans=() if state.copied else link.span(name, len(draft.tree)))
