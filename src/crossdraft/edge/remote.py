"""EdgeDrafter: the drafter of requests whose events lie at an edge; it drafts there, and its drafts come unasked.

The edge begins when the question is asked there, and sends what it drafts as it grows; the cloud tells it what was
committed. So the target finds a draft, or goes on alone; it waits for one only where that is worth it
(`Budget.wait_s`). A draft that comes late is used as far as it agrees with what was committed meanwhile. The target's
tokens alone are the truth: a draft names how many of them it follows, and a digest of these, and what does not agree
is dropped.

Sampled answers. What comes is verified as tokens that were chosen, which is exact whatever they are, and whenever they
come. Only where the edge is believed (`draws=yes`) each node is verified against the distribution that it says it was
drawn from; such nodes are sent one by one, so that how many are here when the target verifies depends on the time and
not on what the last one is.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from crossdraft.edge.committed import Committed
from crossdraft.edge.estimate import LinkEstimate
from crossdraft.edge.events import EdgeEvents
from crossdraft.edge.frames import DraftFrame
from crossdraft.edge.held import HeldDraft
from crossdraft.engine.checks import faulty
from crossdraft.engine.drafter import NOTHING, Budget, Draft, Needs, Proposal, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.runner.process import DRAFTER_TIMEOUT_S
from crossdraft.engine.timeline import Span
from crossdraft.errors import CrossdraftError

LONGEST_WAIT_S = 1.0  # for a draft whose worth is not known
MOST_HELD = 64  # drafts of one answer
MOST_HELD_NODES = 1 << 12  # nodes of all drafts; an edge of ours sends 64 nodes of each of 32 drafts, and 512 of one
MOST_HELD_ENTRIES = 1 << 21  # entries of all drafts' distributions: 8 bytes each
NO_EDGE = "the question did not come from an edge"

ReadDraft = Callable[[HeldDraft], Draft | None]


class EdgeLink:
    """The drafts of one answer as they come, handed from the connection's thread to the engine's.

    Args:
        session: names the answer.
        replies: whether more drafts come once something is committed; else none is waited for.
    """

    def __init__(self, session: bytes, *, replies: bool = True) -> None:
        self.session, self.replies = session, replies
        self.connected = True
        self.estimate = LinkEstimate()
        self.frames = self.refused = 0
        self.first_s: float | None = None  # when the first frame came
        self._held: dict[int, HeldDraft] = {}  # by serial number
        self._grown: set[int] = set()  # serials of drafts that grew since they were compared with the committed text
        self._faults: list[str] = []  # errors of drafts that could not be read
        self._void: tuple[int, bytes] | None = None  # after so many tokens of this digest the edge drafts nothing
        self._serial = -1  # of the newest draft
        self._since = self._arrived = time.perf_counter()  # begin and arrival of the current drafting; for the timeline
        self._unanswered: dict[int, float] = {}  # commits that no reply came to yet: tokens, when it was sent
        self._changed = threading.Condition()

    def received(self, frame: DraftFrame, nbytes: int = 0) -> None:
        """Take a frame of `nbytes` bytes; a frame that is old, or does not continue a draft, is dropped."""
        with self._changed:
            self.frames, self._arrived, now = self.frames + 1, time.perf_counter(), time.monotonic()
            self.first_s = now if self.first_s is None else self.first_s
            if (since := self._unanswered.get(frame.known)) is not None:
                self.estimate.replied(now - since, nbytes)
                self._unanswered = {length: sent for length, sent in self._unanswered.items() if length > frame.known}
            try:
                fits = self._hold(frame)
            except CrossdraftError as error:
                self._held.pop(frame.serial, None)
                self._faults = [*self._faults[: MOST_HELD - 1], str(error)]
                fits = True  # a bad draft, and counted as one
            self._bound()
            self.refused += not fits
            self._changed.notify_all()

    def _hold(self, frame: DraftFrame) -> bool:
        """Keep a frame's nodes; false if they continue no draft."""
        if not frame.start and not frame.tokens:
            self._void = frame.length, frame.digest
            return True
        if frame.start:
            held = self._held.get(frame.serial)
            fits = held is not None and held.extend(frame)
        elif fits := frame.serial > self._serial:
            self._serial = frame.serial
            self._held[frame.serial] = HeldDraft(frame)
        if fits:
            self._grown.add(frame.serial)
        return fits

    def _bound(self) -> None:
        """Forget the oldest drafts, while there are too many, or they hold too much."""
        while self._held:
            nodes = sum(len(held.nodes) for held in self._held.values())
            entries = sum(held.entries for held in self._held.values())
            if len(self._held) <= MOST_HELD and nodes <= MOST_HELD_NODES and entries <= MOST_HELD_ENTRIES:
                return
            del self._held[min(self._held)]

    def committed(self, length: int) -> None:
        """Note that `length` tokens are committed and sent to the edge now."""
        with self._changed:
            self._unanswered[length], self._since = time.monotonic(), time.perf_counter()

    def follow(self, committed: Committed) -> None:
        """Drop what does not follow the committed tokens."""
        with self._changed:
            self._follow(committed, self._held)

    def _follow(self, committed: Committed, serials: Iterable[int]) -> None:
        for serial in list(serials):
            if serial in self._held and not self._held[serial].follow(committed):
                del self._held[serial]
        self._grown.difference_update(serials)

    def report(self) -> dict[str, object]:
        """Figures of the link: its estimates, and counts of frames."""
        return {**self.estimate.to_json(), "frames": self.frames, "refused_frames": self.refused}

    def cut(self) -> None:
        """Note that the connection is gone; no draft is waited for any more."""
        with self._changed:
            self.connected = False
            self._changed.notify_all()

    def resumed(self, estimate: LinkEstimate) -> None:
        """Take a new connection, of which `estimate` is known. The edge sends its draft anew."""
        with self._changed:
            self.connected, self._unanswered, self.estimate = True, {}, estimate

    def span(self, name: str, tokens: int) -> tuple[Span, ...]:
        """The edge's work on what came last, network included; empty if nothing came since the last call."""
        with self._changed:
            since, self._since = self._since, max(self._since, self._arrived)
            return (Span("drafter", name, since, self._arrived, tokens),) if self._arrived > since else ()

    def draft_after(
        self, state: "RemoteState", until: float, read: Callable[[HeldDraft], Draft | None]
    ) -> Draft | None:
        """The draft that follows the committed tokens; a faulty draft in place of one that cannot be read.

        Args:
            state: of the answer.
            until: when to wait for it no longer, by `time.monotonic`.
            read: what of a draft follows them.
        """
        with self._changed:
            while True:
                if not state.copied:
                    self._follow(state.committed, self._grown)
                found = self._first(read)
                left = until - time.monotonic()
                void = self._void == (len(state.committed), state.committed.digest())
                if found is not None or void or left <= 0 or not self.connected:
                    return found
                self._changed.wait(left)

    def _first(self, read: ReadDraft) -> Draft | None:
        """The draft that follows the committed tokens; of several drafts the one that begins latest."""
        if self._faults:
            return faulty(self._faults.pop())
        follow = ((held.frame.length, serial) for serial, held in self._held.items())
        for _, serial in sorted(follow, reverse=True):
            try:
                draft = read(self._held[serial])
            except Exception as error:  # noqa: BLE001 - whatever the edge made of it
                del self._held[serial]
                return faulty(str(error).rstrip("."))
            if draft is not None:
                return draft
        return None


@dataclass(eq=False)
class RemoteState:
    """One answer: its link (`None`: it has none), what is committed, and whether it is a copy."""

    link: EdgeLink | None
    committed: Committed
    copied: bool = False


class EdgeDrafter:
    """Drafter of requests whose events lie at an edge; see the module's text.

    Args:
        vocabulary: of the target.
        draws: believe an edge that its tokens were drawn from what it says.
    """

    # The edge may know the request's seed, so the target must not draw by it: see `Needs.learns`.
    needs = Needs(learns=True, unasked=True, runs_in=frozenset({"process"}))

    def __init__(self, vocabulary: int, *, draws: bool = False) -> None:
        self._vocabulary, self._draws = vocabulary, draws

    def begin(self, requests: Sequence[Request]) -> list[RemoteState]:
        links = [one.events.link if isinstance(one.events, EdgeEvents) else None for one in requests]
        return [RemoteState(link, Committed(b"" if link is None else link.session)) for link in links]

    def propose(self, states: Sequence[RemoteState], budgets: Sequence[Budget]) -> list[Draft]:
        return self.propose_async(states, budgets)()

    def propose_async(self, states: Sequence[RemoteState], budgets: Sequence[Budget]) -> Proposal:
        """See `AsyncDrafter`; nothing need be asked: the edge drafts of its own accord."""

        def take() -> list[Draft]:
            now = time.monotonic()  # one time for all: while one edge is waited for, the others are, too
            return [self._take(state, budget, now) for state, budget in zip(states, budgets, strict=True)]

        return take

    def commit(self, states: Sequence[RemoteState], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            state.committed.add(output.tokens)
            if state.link is not None and not state.copied:  # a copy goes its own way, which may not come true
                state.link.follow(state.committed)

    def fork(self, states: Sequence[RemoteState]) -> list[RemoteState]:
        return [replace(state, committed=state.committed.copy(), copied=True) for state in states]

    def end(self, states: Sequence[RemoteState]) -> None:
        """Do nothing: a state holds nothing that must be freed."""

    def _take(self, state: RemoteState, budget: Budget, now: float) -> Draft:
        link = state.link
        if link is None:
            return replace(NOTHING, refusal=NO_EDGE)
        until = now
        if budget.until is not None:
            budget.until.wait()
        elif not state.copied:
            worth = LONGEST_WAIT_S if budget.wait_s is None else min(budget.wait_s, DRAFTER_TIMEOUT_S)
            # A draft that takes longer to come than it is worth is not waited for at all.
            reply_s = link.estimate.seen_reply_s
            until += worth if link.replies and reply_s is not None and reply_s < worth else 0.0

        def read(held: HeldDraft) -> Draft | None:
            return held.after(state.committed, budget.nodes, self._vocabulary, draws=self._draws)

        draft = link.draft_after(state, until, read)
        if draft is None or draft.fault is not None:
            return draft or NOTHING
        name = "draft" if budget.until is None else "hidden draft"
        return replace(draft, spans=() if state.copied else link.span(name, len(draft.tree)))
