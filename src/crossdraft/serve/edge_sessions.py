"""Answers for edges. An answer outlives its connection for a while, so that the edge may reconnect for it."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import replace

from crossdraft.edge.committed import Committed
from crossdraft.edge.estimate import LinkEstimate
from crossdraft.edge.events import EdgeEvents
from crossdraft.edge.frames import (
    HIDDEN,
    MOST_PIECES,
    OFF,
    ORIGINS,
    ROUNDS,
    Commit,
    Done,
    DraftFrame,
    Refused,
    fingerprint_of,
)
from crossdraft.edge.remote import EdgeLink
from crossdraft.engine.request import Answer, Origin, Piece
from crossdraft.load import tokenizer_of
from crossdraft.methods import read_spec
from crossdraft.serve import convert
from crossdraft.serve.answering import Answering
from crossdraft.serve.errors import GONE, ApiError, overloaded
from crossdraft.serve.keys import Client
from crossdraft.serve.schema import ChatRequest
from crossdraft.serve.service import Service
from crossdraft.serve.settings import ServerSettings


class EdgeSession:
    """One answer for an edge, which may be connected or not.

    Args:
        session: name that the edge gave the session.
        chat: the request.
        answering: object that answers the request.
        most: largest number of nodes of a draft.
        mode: the most drafting that the edge offers, of `MODES`.
        record: called with the answer's status, for the log, when it is complete or given up.
    """

    def __init__(
        self,
        session: bytes,
        chat: ChatRequest,
        answering: Answering,
        most: int,
        mode: str,
        record: Callable[[int], None],
    ) -> None:
        self.link, self._mode = EdgeLink(session, replies=mode == ROUNDS), mode
        self._decided = None if mode == ROUNDS else mode  # one of `MODES`, set once the first tokens are committed
        self.committed = Committed(session)
        self.pieces: list[Piece] = []
        self.changed = asyncio.Event()
        self.last: Done | Refused | None = None
        self.holder: object = None  # connection that the session belongs to now
        self._moved = False  # true after a move to another connection
        self._chat, self._answering, self._most, self._record = chat, answering, most, record
        self._longest = chat.longest
        self._began = time.monotonic()
        self.task = asyncio.get_running_loop().create_task(self._answer())

    def hold(self, holder: object, estimate: LinkEstimate) -> None:
        """Assign the session to this connection; `estimate` holds what is known of the connection's speed."""
        self._moved |= self.holder not in (None, holder)
        self.holder = holder
        self.link.resumed(estimate)
        self.changed.set()

    def received(self, frame: DraftFrame, nbytes: int) -> None:
        """Handle a frame of a draft, of `nbytes` bytes."""
        if self.link.first_s is None and not self._moved:  # otherwise the time without a connection would count
            self.link.estimate.began(time.monotonic() - self._began, nbytes)
        self.link.received(frame, nbytes)

    async def _answer(self) -> None:
        """Have the engine answer the question, and collect the pieces."""
        status = GONE
        try:
            async with AsyncExitStack() as held:
                question = await self._answering.question(held)
                self._longest = question.max_new_tokens
                if self._mode != OFF:
                    question = replace(question, events=EdgeEvents(self.link))
                stream = self._answering.service.engine.astream(question, final_only=True)
                async with aclosing(aiter(stream)) as pieces:  # the stream is closed before the media are released
                    async for piece in pieces:
                        self.pieces.append(piece)
                        self.committed.add(piece.tokens)
                        self._decide()
                        self.changed.set()
            answer = _whole(stream.answer)
            self._answering.count(answer)
            pays = self._learn(answer)
            report = {
                "usage": convert.usage(answer.stats),
                "metrics": convert.metrics(answer.stats),
                "notes": convert.public_notes(answer.notes),
                "edge": {"policy": self._decided or self._mode, "next": pays, **self.link.report()},
            }
            finish = convert.FINISH_REASONS[answer.finish]
            figures = json.dumps(report).encode()
            self.last = Done(len(self.committed), self.committed.digest(), finish, figures, int(pays))
            status = 200
        except Exception as error:  # noqa: BLE001 - told to the edge
            failed = self._answering.failed(error)
            self.last = Refused(failed.code or str(failed.status), failed.message)
            status = failed.status
        finally:
            self._record(status)
            self.changed.set()

    @property
    def ready(self) -> int:
        """Number of pieces that may be sent: those of whole rounds, so that a drafter learns a round's outcome at once.

        A round ends with a token of the target's own, unless the answer ends earlier.
        """
        count = len(self.pieces)
        while self.last is None and count and self.pieces[count - 1].origin is not Origin.TARGET:
            count -= 1
        return count

    def commit(self, sent: int) -> tuple[Commit, int]:
        """Build the frame of the pieces after the first `sent` ones; return it and the number of pieces then sent."""
        pieces = self.pieces[sent : min(self.ready, sent + MOST_PIECES)]
        length = sum(len(piece.tokens) for piece in self.pieces[:sent])
        tokens = tuple(token for piece in pieces for token in piece.tokens)
        frame = Commit(
            length,
            self.committed.digest(length + len(tokens)),
            tokens,
            tuple(len(piece.tokens) for piece in pieces),
            tuple(ORIGINS.index(str(piece.origin)) for piece in pieces),
            tuple(piece.text for piece in pieces),
            self._wants(),
        )
        return frame, sent + len(pieces)

    def _wants(self) -> int:
        """Number of nodes that the next draft should have; 0 if drafting does not pay over this link."""
        if not self.link.replies:
            return 0
        length = len(self.committed)
        left = max(0, self._left - 1)  # the target adds a token itself
        return min(self._most, left) if not length or self._rounds_pay(length) else 0

    @property
    def _left(self) -> int:
        """Number of tokens that the answer may still have; may be an overestimate."""
        return self._longest - len(self.committed) if self._longest else self._most + 1

    def _rounds_pay(self, length: int) -> bool:
        # Until an answer has ended, a pass's time is overestimated by the time since the question, prefill included.
        pass_s = self.link.estimate.pass_s.value or (time.monotonic() - self._began) / length
        return self.link.estimate.rounds_pay(pass_s, self._most, self._left)

    def _decide(self) -> None:
        """Choose the policy once the first tokens are committed, which may be the whole answer before any is sent."""
        if self._decided is None and (length := len(self.committed)):
            self._decided = ROUNDS if self._rounds_pay(length) else HIDDEN

    def _learn(self, answer: Answer) -> bool:
        """Add an answer's times to the estimates; return whether drafting pays for the next question."""
        stats, estimate = answer.stats, self.link.estimate
        rounds = stats.rounds - 1
        pass_s = (stats.total_s - stats.ttft_s) / rounds if rounds > 0 else None
        drafted, came = self._mode != OFF, self.link.first_s is not None
        if not self._moved:
            estimate.answered(time.monotonic() - self._began, pass_s, drafted=drafted, came=came)
        return estimate.drafts_pay


class EdgeSessions:
    """Answers of all edges, by client and session; it also counts connected edges.

    Args:
        settings: settings of the server.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.fingerprint: bytes | None = None  # fingerprint of the target's vocabulary, if a drafter uses an edge
        if settings.drafter not in ("auto", "none") and "edge" in read_spec(settings.drafter).names:
            self.fingerprint = fingerprint_of(tokenizer_of(settings.target).get_vocab())  # slow for a large one
        self._connected = Counter[str]()  # edges of each client
        self._sessions: dict[tuple[str, bytes], EdgeSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @contextmanager
    def connected(self, service: Service, client: Client) -> Iterator[None]:
        """Count one more edge while the context is open.

        Raises:
            ApiError: 503, too many edges are connected, or the server shuts down; 429, too many edges of this client.
        """
        settings = service.settings
        service.check_ready()
        if self._connected.total() >= settings.edges:
            raise overloaded("As many edges are connected as the server takes; come again later.", "edges_full")
        if service.keys is not None and self._connected[client.name] >= settings.client_edges:
            message = f"You have {settings.client_edges} edges connected, the limit; close one."
            raise ApiError(429, message, "rate_limit_exceeded", headers={"Retry-After": "1"})
        self._connected[client.name] += 1
        try:
            yield
        finally:
            self._connected[client.name] -= 1
            if not self._connected[client.name]:
                del self._connected[client.name]

    def get(self, client: str, session: bytes) -> EdgeSession | None:
        """Return the answer of a client's session; `None` if there is none."""
        return self._sessions.get((client, session))

    def add(self, client: str, session: bytes, made: EdgeSession) -> None:
        """Keep the answer of a client's session."""
        self._sessions[client, session] = made

    def leave(self, client: str, found: EdgeSession, seconds: float, *, whole: bool) -> None:
        """End an answer's connection: forget the answer if it was sent `whole`, else after `seconds`."""
        found.link.cut()
        key, holder = (client, found.link.session), found.holder

        def forget() -> None:
            if found.holder is holder and self._sessions.get(key) is found:
                del self._sessions[key]
                found.task.cancel()

        if whole or not seconds:
            forget()
        else:
            asyncio.get_running_loop().call_later(seconds, forget)


def _whole(answer: Answer | None) -> Answer:
    """Return the answer if there is one.

    Raises:
        ApiError: the answer was cancelled.
    """
    if answer is None:
        raise overloaded("The answer was cancelled.", "cancelled")
    return answer
