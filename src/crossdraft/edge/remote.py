"""EdgeDrafter: the drafter of requests whose events lie at an edge, which drafts there and sends drafts unasked.

The edge begins when the question is asked there, and sends its draft as it grows; the cloud tells it which tokens were
committed. So the target finds a draft, or continues alone; it waits for one only if that is expected to pay
(`Budget.wait_s`). A late draft is used as far as it agrees with the tokens committed meanwhile. Only the target's
tokens count: a draft states how many of them it follows, with a digest, and a draft that disagrees is dropped.

Sampled answers: a draft is verified as tokens that were chosen, which is exact whatever they are, and whenever they
come. Only if the edge is trusted (`draws=yes`), each node is verified against the distribution that it was sent with;
such nodes are sent one by one, so that the number that has arrived when the target verifies depends on the time, not on
the last token.
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
from crossdraft.engine.timeline import HIDDEN_DRAFT, Span
from crossdraft.errors import CrossdraftError

LONGEST_WAIT_S = 1.0  # seconds to wait for a draft whose gain is unknown
MOST_HELD = 64  # drafts of one answer
MOST_HELD_NODES = 1 << 12  # nodes of all drafts; an edge of ours sends 64 nodes of each of 32 drafts, and 512 of one
MOST_HELD_ENTRIES = 1 << 21  # entries of all drafts' distributions: 8 bytes each
NO_EDGE = "the question did not come from an edge"

ReadDraft = Callable[[HeldDraft], Draft | None]


class EdgeLink:
    """The drafts of one answer as they come, handed from the connection's thread to the engine's.

    Args:
        session: name of the answer.
        replies: true if more drafts come after the first commit; otherwise none is waited for then.
    """

    def __init__(self, session: bytes, *, replies: bool = True) -> None:
        self.session, self.replies = session, replies
        self.connected = True
        self.estimate = LinkEstimate()
        self.frames = self.refused = 0
        self.first_s: float | None = None  # time of the first frame
        self._held: dict[int, HeldDraft] = {}  # by serial number
        self._grown: set[int] = set()  # serials of drafts that grew since they were compared with the committed text
        self._faults: list[str] = []  # errors of drafts that could not be read
        self._void: tuple[int, bytes] | None = None  # tokens and digest after which the edge drafts nothing
        self._serial = -1  # of the newest draft
        self._since = self._arrived = time.perf_counter()  # begin and arrival of the current drafting; for the timeline
        self._unanswered: dict[int, float] = {}  # commits without a reply: number of tokens -> time of sending
        self._changed = threading.Condition()

    def received(self, frame: DraftFrame, nbytes: int = 0) -> None:
        """Handle a frame of `nbytes` bytes; drop it if it is old or does not continue a draft."""
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
        """Keep a frame's nodes; return false if they continue no draft."""
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
        """Drop the oldest drafts while there are too many, or they hold too much."""
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
        """Drop nodes that cannot follow the committed tokens."""
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
        """Note that the connection is lost; drafts are not waited for any more."""
        with self._changed:
            self.connected = False
            self._changed.notify_all()

    def resumed(self, estimate: LinkEstimate) -> None:
        """Use a new connection, with its `estimate`. The edge sends its draft anew."""
        with self._changed:
            self.connected, self._unanswered, self.estimate = True, {}, estimate

    def span(self, name: str, tokens: int) -> tuple[Span, ...]:
        """Span of the edge's work on the last draft, network included; empty if nothing came since the last call."""
        with self._changed:
            since, self._since = self._since, max(self._since, self._arrived)
            return (Span("drafter", name, since, self._arrived, tokens),) if self._arrived > since else ()

    def draft_after(
        self, state: "RemoteState", until: float, read: Callable[[HeldDraft], Draft | None]
    ) -> Draft | None:
        """Return the draft after the committed tokens; a faulty draft in place of one that cannot be read.

        Args:
            state: state of the answer.
            until: time until which to wait for a draft, by `time.monotonic`.
            read: returns the part of a held draft that follows the committed tokens.
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
        """Return the draft after the committed tokens; of several drafts the one that begins latest."""
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
    """State of one answer: its link (`None`: it has none), the committed tokens, and whether the state is a copy."""

    link: EdgeLink | None
    committed: Committed
    copied: bool = False


class EdgeDrafter:
    """Drafter of requests whose events lie at an edge; see the module's docstring.

    Args:
        vocabulary: size of the target's vocabulary.
        draws: trust an edge that its tokens were drawn from the distributions that it sends.
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
        """See `AsyncDrafter`; nothing is asked: the edge drafts unasked."""

        def take() -> list[Draft]:
            now = time.monotonic()  # one time for all requests, as their waits overlap
            return [self._take(state, budget, now) for state, budget in zip(states, budgets, strict=True)]

        return take

    def commit(self, states: Sequence[RemoteState], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            state.committed.add(output.tokens)
            if state.link is not None and not state.copied:  # a copy's tokens may never be committed
                state.link.follow(state.committed)

    def fork(self, states: Sequence[RemoteState]) -> list[RemoteState]:
        return [replace(state, committed=state.committed.copy(), copied=True) for state in states]

    def end(self, states: Sequence[RemoteState]) -> None:
        """Do nothing: a state holds no resource that must be freed."""

    def _take(self, state: RemoteState, budget: Budget, now: float) -> Draft:
        link = state.link
        if link is None:
            return replace(NOTHING, refusal=NO_EDGE)
        until = now
        if budget.until is not None:
            budget.until.wait()
        elif not state.copied:
            worth = LONGEST_WAIT_S if budget.wait_s is None else min(budget.wait_s, DRAFTER_TIMEOUT_S)
            # A draft that would take longer to arrive than it gains is not waited for at all.
            reply_s = link.estimate.seen_reply_s
            until += worth if link.replies and reply_s is not None and reply_s < worth else 0.0

        def read(held: HeldDraft) -> Draft | None:
            return held.after(state.committed, budget.nodes, self._vocabulary, draws=self._draws)

        draft = link.draft_after(state, until, read)
        if draft is None or draft.fault is not None:
            return draft or NOTHING
        name = "draft" if budget.until is None else HIDDEN_DRAFT
        return replace(draft, spans=() if state.copied else link.span(name, len(draft.tree)))
