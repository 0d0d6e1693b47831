"""`/v1/edge`: a WebSocket for edges, which ask and draft; see `crossdraft.edge`.

One connection asks one question at a time. An answer outlives its connection for a while, so that the edge may
reconnect for it: meanwhile the target continues alone. Connections are admitted as streams are, and a connection that
asks nothing for long is ended.
"""

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from crossdraft.edge.estimate import LinkEstimate
from crossdraft.edge.frames import (
    DRAWS,
    LIKELIEST,
    MODES,
    OWN,
    ROUTE,
    SEEDED,
    AskFrame,
    DraftFrame,
    End,
    Frame,
    FrameError,
    Hello,
    Ping,
    Pong,
    Refused,
    Resume,
    Welcome,
    decode,
    encode,
)
from crossdraft.engine.rules import check_rule
from crossdraft.errors import CrossdraftError
from crossdraft.methods import read_spec
from crossdraft.serve.answering import Answering
from crossdraft.serve.chat import read_chat
from crossdraft.serve.client_socket import GOING_AWAY, POLICY_VIOLATION, ClientSocket, FrameRate
from crossdraft.serve.edge_sessions import EdgeSession, EdgeSessions
from crossdraft.serve.errors import ApiError, as_api_error
from crossdraft.serve.gate import RecordRequest, RequestInfo
from crossdraft.serve.service import Service

log = logging.getLogger(__name__)
router = APIRouter()

PING_S = 1.0  # seconds between pings while a question is answered; at other times WebSocket's own pings suffice
SILENT_S = 20.0  # seconds of silence during an answer, after which an edge counts as gone
MOST_PINGS = 64  # unanswered pings that are remembered
MOST_REFUSED = 8  # refused questions, after which a connection ends: checking a question costs time


class EdgeConnection:
    """One WebSocket of an edge."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = ClientSocket(socket)
        self._service: Service = socket.app.state.service
        self._sessions: EdgeSessions = socket.app.state.edges
        self._asked: RequestInfo = socket.state.asked
        self._record: RecordRequest = socket.state.record
        settings = self._service.settings
        self._frames, self._bytes = FrameRate(settings.edge_frames), FrameRate(settings.edge_bytes)
        self._refused = 0  # refused questions
        self._session: EdgeSession | None = None
        self._sent = 0  # pieces sent
        self._writing: asyncio.Task[None] | None = None  # task that sends the session's pieces
        self._pinged = deque[float](maxlen=MOST_PINGS)  # when pings were sent, the oldest first
        self._estimate = LinkEstimate()  # estimate for the connection, with which each question begins
        self._received_s = self._busy_s = time.monotonic()  # times of the last frame, and of the last answer under way

    async def run(self) -> None:
        """Serve the connection until it ends."""
        await self._socket.accept()
        try:
            await asyncio.wait_for(self._greet(), self._service.settings.header_seconds)
            while True:
                await self._take(*await self._next())
        except (WebSocketDisconnect, TimeoutError):  # the edge is gone, sent no hello, or asks nothing
            pass
        except FrameError as error:
            await self._refuse(Refused("invalid_frame", str(error)))
        except Exception as error:  # noqa: BLE001 - told to the edge
            failed = as_api_error(error)
            self._asked.refused(failed)
            self._service.metrics.failed(failed.status)
            await self._refuse(Refused(failed.code or str(failed.status), failed.message))
        finally:
            self._let_go(whole=False)
            await self._socket.close(GOING_AWAY)

    async def _next(self) -> tuple[Frame, int]:
        """Receive the next frame; return it with its number of bytes.

        Raises:
            TimeoutError: the edge was silent for too long during an answer, or no answer was under way for too long,
                whatever the edge sent.
            WebSocketDisconnect: the edge is gone, or does not read the pieces.
        """
        receiving = asyncio.ensure_future(self._receive())
        try:
            while not receiving.done():
                if (left := self._left_s()) <= 0:
                    raise TimeoutError
                waited = {receiving} if self._writing is None else {receiving, self._writing}
                await asyncio.wait(waited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if self._writing is not None and self._writing.done() and not receiving.done():
                    writing, self._writing = self._writing, None
                    writing.result()  # raises the writer's error, if there is one
            return receiving.result()
        finally:
            receiving.cancel()

    def _left_s(self) -> float:
        """Seconds until the edge is disconnected if it stays silent."""
        now = time.monotonic()
        if self._session is not None and self._session.last is None:
            self._busy_s = now
        idle = self._busy_s + self._service.settings.edge_idle_seconds - now
        return idle if self._writing is None else min(idle, self._received_s + SILENT_S - now)

    async def _greet(self) -> None:
        service, sessions = self._service, self._sessions
        hello, _ = await self._receive()
        if not isinstance(hello, Hello):
            raise FrameError(f"The first frame is of the kind {hello.kind}; begin with hello.")
        target = service.engine.target
        if hello.fingerprint != sessions.fingerprint:
            raise FrameError("The edge's vocabulary is not the target's; name the same one with --target.")
        self._asked.facts["drafter"] = hello.drafter
        eos, reserved = tuple(sorted(target.eos)), tuple(sorted(target.reserved))
        options = service.engine.options
        nodes, draws = options.hidden_nodes, DRAWS.index(_draws(service.settings.drafter, options.rule))
        ids = target.vocab_size, eos, reserved
        await self._send(Welcome(service.settings.model, hello.fingerprint, *ids, nodes, self._ping_time(), draws))

    async def _take(self, frame: Frame, nbytes: int) -> None:
        match frame:
            case DraftFrame():
                self._estimate.came(nbytes, 1e-6 * frame.sent_us, self._received_s)
                if self._session is not None:  # otherwise the draft is for a complete answer
                    self._session.received(frame, nbytes)
            case Pong():
                self._came_back(frame.at)
            case AskFrame():
                await self._ask(frame)
            case Resume():
                self._resume(frame)
            case End():  # the edge cancels, or has all of the answer
                self._let_go(whole=True)
            case _:
                raise FrameError(f"A frame of the kind {frame.kind} is the cloud's; an edge does not send it.")

    async def _ask(self, frame: AskFrame) -> None:
        service, client = self._service, self._asked.client
        if (known := self._sessions.get(client.name, frame.session)) is not None:  # asked again, after a cut
            self._hold(known, 0)
            return
        if not service.ready:
            await self._send(Refused("shutting_down", "The server is shutting down; ask another one."))
            return
        if self._refused >= MOST_REFUSED:
            raise ApiError(429, "Too many questions were refused; mend them, and connect anew.", "too_many_refused")
        asked = replace(self._asked, since=time.perf_counter(), facts={**self._asked.facts})
        try:
            chat = await read_chat(service, frame.chat, client)
        except (ApiError, ValidationError, CrossdraftError) as error:
            failed = as_api_error(error)
            asked.refused(failed)
            self._record(replace(asked, status=failed.status))
            self._refused += 1
            await self._send(Refused(failed.code or str(failed.status), failed.message))
            return
        most, mode = service.engine.options.hidden_nodes, MODES[frame.drafts]
        answering = Answering(service, chat, asked)
        made = EdgeSession(
            frame.session, chat, answering, most, mode, lambda status: self._record(replace(asked, status=status))
        )
        self._sessions.add(client.name, frame.session, made)
        self._hold(made, 0)

    def _resume(self, frame: Resume) -> None:
        found = self._sessions.get(self._asked.client.name, frame.session)
        if found is None:
            raise ApiError(404, "The answer is not known here any more; ask again.", "unknown_session")
        length = sum(len(piece.tokens) for piece in found.pieces[: frame.pieces])
        if (
            frame.pieces > len(found.pieces)
            or length != frame.length
            or not found.committed.agrees(length, frame.digest)
        ):
            raise ApiError(400, "What the edge knows of the answer is not so; ask again.", "wrong_resume")
        self._hold(found, frame.pieces)

    def _hold(self, session: EdgeSession, sent: int) -> None:
        """Tie an answer to this connection, whose edge has its first `sent` pieces."""
        if self._session is not None and self._session is not session:
            self._let_go(whole=True)
        self._stop_writing()
        session.hold(self, self._estimate)
        self._session, self._sent = session, sent
        self._received_s = time.monotonic()
        self._writing = asyncio.create_task(self._write(session))

    def _stop_writing(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.cancel()
            writing.add_done_callback(_note_end)

    def _let_go(self, *, whole: bool) -> None:
        session, self._session = self._session, None
        self._stop_writing()
        if session is not None and session.holder is self:
            resume_s = self._service.settings.edge_resume_seconds
            whole = whole or isinstance(session.last, Refused)
            self._sessions.leave(self._asked.client.name, session, resume_s, whole=whole)

    async def _write(self, session: EdgeSession) -> None:
        """Send new pieces, and a ping every second to measure the round trip, until all pieces are sent."""
        ping_s = 0.0  # when the next ping is due
        while session.holder is self:
            if (now := time.monotonic()) >= ping_s:
                ping_s = now + PING_S
                await self._send(Ping(self._ping_time()))
            try:
                async with asyncio.timeout(ping_s - time.monotonic()):
                    await session.changed.wait()
            except TimeoutError:
                continue
            if session.holder is not self:  # that connection's writer waits for the same event
                session.changed.set()
                return
            session.changed.clear()
            while self._sent < session.ready:
                frame, self._sent = session.commit(self._sent)
                session.link.committed(frame.length + len(frame.tokens))
                await self._send(frame)
            if session.last is not None:
                self._refused += isinstance(session.last, Refused)
                await self._send(session.last)
                return

    def _ping_time(self) -> float:
        """The current time, for the edge to send back."""
        self._pinged.append(time.monotonic())
        return self._pinged[-1]

    def _came_back(self, at: float) -> None:
        """Handle the answer to the ping sent at `at`; forget earlier pings."""
        if at in self._pinged:
            self._estimate.came_back(time.monotonic() - at)
            while self._pinged.popleft() != at:
                pass

    async def _receive(self) -> tuple[Frame, int]:
        """Receive a frame; return it with its number of bytes."""
        message = await self._socket.receive()
        self._received_s = time.monotonic()
        data = message.get("bytes") or b""
        if not self._frames.passes():
            raise ApiError(
                429,
                f"An edge may send {self._frames.most} frames a second; send fewer, larger ones.",
                "too_many_frames",
            )
        if not self._bytes.passes(len(data)):
            raise ApiError(
                429, f"An edge may send {self._bytes.most:,} bytes a second; draft less at a time.", "too_many_bytes"
            )
        return decode(data), len(data)

    async def _send(self, frame: Frame) -> None:
        await self._socket.send(encode(frame))

    async def _refuse(self, why: Refused) -> None:
        """Tell the edge the reason of the refusal, and end the connection."""
        with suppress(WebSocketDisconnect):
            await self._send(why)
        await self._socket.close(POLICY_VIOLATION)


def _note_end(writing: "asyncio.Task[None]") -> None:
    """Log the error of a writer task that is not awaited any more; the edge may have gone while it wrote."""
    error = None if writing.cancelled() else writing.exception()
    if error is not None and not isinstance(error, WebSocketDisconnect):
        log.error("What was written for an edge failed.", exc_info=error)


def _draws(spec: str, rule: str | None) -> str:
    """Way of `DRAWS` in which an edge under this spec drafts a sampled answer.

    If the rule's answers follow from the seed alone, so do drafts; otherwise the spec says if the edge is trusted.

    >>> _draws("union:edge,memory", None), _draws("edge", "rejection"), _draws("(edge:draws=yes)", "rejection")
    ('seeded', 'likeliest', 'own')
    """
    named = check_rule(rule)
    if named is None or named.invariant:
        return SEEDED
    believed = any(leaf.name == "edge" and leaf.settings.get("draws") == "yes" for leaf in read_spec(spec).leaves)
    return OWN if believed else LIKELIEST


@router.websocket(ROUTE)
async def edge(socket: WebSocket) -> None:
    """Serve an edge.

    Raises:
        ApiError: the server's drafter does not use an edge; 503, 429: as `EdgeSessions.connected`.
    """
    service, sessions = socket.app.state.service, socket.app.state.edges
    if sessions.fingerprint is None:
        raise ApiError(404, "No edge drafts for this server; start it with --drafter edge, or union:edge,memory.")
    with sessions.connected(service, socket.state.asked.client):
        await EdgeConnection(socket).run()
