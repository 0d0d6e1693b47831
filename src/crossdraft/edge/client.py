"""The edge's end of the link: asks, drafts at once, and receives the answer; after a cut it reconnects and resumes."""

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection

from crossdraft.edge.committed import Committed
from crossdraft.edge.drafting import EdgeDrafting
from crossdraft.edge.frames import (
    DRAWS,
    FRAME_BYTES,
    LIKELIEST,
    MODES,
    OFF,
    ORIGINS,
    ROUNDS,
    ROUTE,
    SESSION_BYTES,
    AskFrame,
    Commit,
    Done,
    End,
    Frame,
    Hello,
    Ping,
    Pong,
    Refused,
    Resume,
    Welcome,
    decode,
    encode,
)
from crossdraft.edge.tls import TlsFiles
from crossdraft.edge.websocket import OPEN_S, ServerAddress
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.policy import HIDDEN_NODES
from crossdraft.engine.request import Origin, Request
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError

SILENT_S = 20.0  # seconds of silence after which a connection counts as cut: the cloud sends often
AGAIN_S = (0.05, 1.0)  # first and longest pause before another attempt
LOST = (ConnectionClosed, OSError, TimeoutError, EOFError)

Show = Callable[[Origin, tuple[int, ...], str], None]


class AnswerLostError(CrossdraftError):
    """The cloud refuses the question, cannot be reached any more, or does not know the answer."""


@dataclass
class EdgeAnswer:
    """An answer as the edge received it.

    Args:
        tokens, text, finish: tokens, text and reason of the end, as the cloud sent them.
        provisional: tokens that were drafted here before the first commit.
        first_provisional_s, first_s, total_s: seconds from the question to the first drafted token, to the first final
            one, and to the end.
        cuts: number of times that the connection was lost.
        sent, received: bytes of frames, by kind, without those of WebSocket, TLS and TCP.
        frames: number of frames sent, by kind.
        report: the cloud's figures.
        drafter_error: reason why the edge stopped or never began drafting.
        notes: sentences for people, of the edge's drafter and its reader, and of the cloud.
    """

    tokens: tuple[int, ...] = ()
    text: str = ""
    finish: str = ""
    provisional: tuple[int, ...] = ()
    first_provisional_s: float | None = None
    first_s: float | None = None
    total_s: float = 0.0
    cuts: int = 0
    sent: Counter[str] = field(default_factory=Counter[str])
    received: Counter[str] = field(default_factory=Counter[str])
    frames: Counter[str] = field(default_factory=Counter[str])
    report: dict[str, Any] = field(default_factory=dict[str, Any])
    drafter_error: str | None = None
    notes: tuple[str, ...] = ()


@dataclass
class _Patience:
    """Retries of an answer after a lost connection; a new connection that is lost before any frame does not count.

    Args:
        seconds: seconds for retries, from the first loss since the last new frame.
    """

    seconds: float
    _lost_at: float | None = None
    _pause_s: float = AGAIN_S[0]

    def came(self) -> None:
        """Note that something new of the answer came."""
        self._lost_at, self._pause_s = None, AGAIN_S[0]

    def pause(self) -> bool:
        """Wait, after a loss, until the next attempt is due; return false at once if there should be none."""
        now = time.monotonic()
        self._lost_at = now if self._lost_at is None else self._lost_at
        if now - self._lost_at > self.seconds:
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, AGAIN_S[1])
        return True


class _EdgeQuestion:
    """One question, and the part of its answer that is known here.

    Args:
        chat, request, drafter, show, mode: see `EdgeClient.ask`.
        nodes: largest number of nodes of one draft.
    """

    def __init__(
        self,
        chat: Mapping[str, object],
        request: Request,
        drafter: Drafter[Any] | None,
        show: Show,
        nodes: int,
        *,
        mode: str,
    ) -> None:
        self.answer = EdgeAnswer()
        self._began, self._show = time.perf_counter(), show
        self._session = secrets.token_bytes(SESSION_BYTES)
        self._body = json.dumps(chat).encode()
        self._committed, self._pieces = Committed(self._session), 0
        self.drafting: EdgeDrafting | None = None
        self._mode = OFF if drafter is None else mode
        if drafter is not None and mode != OFF:
            rounds = mode == ROUNDS
            self.drafting = EdgeDrafting(drafter, request, self._session, nodes, self._drafted, rounds=rounds)
            self.drafting.start()

    def first(self) -> Frame:
        """Frame to send first on a new connection: the question, or the position from which to resume its answer."""
        if not self._pieces:
            return AskFrame(self._session, self._body, MODES.index(self._mode))
        return Resume(self._session, len(self._committed), self._committed.digest(), self._pieces)

    def commit(self, frame: Commit) -> None:
        """Add the new tokens and texts of a commit.

        Raises:
            ConnectionError: the commit does not follow the known tokens.
            AnswerLostError: the commit is of another answer.
        """
        known = len(self._committed)
        whole = sum(frame.counts) == len(frame.tokens) and len(frame.counts) == len(frame.texts) == len(frame.origins)
        if frame.length != known or not whole or not all(0 <= origin < len(ORIGINS) for origin in frame.origins):
            raise ConnectionError("a commit does not follow what is known")
        self._committed.add(frame.tokens)
        if self._committed.digest() != frame.digest:
            raise AnswerLostError("The answer that came is not the one that is known here; ask again.")
        if self.answer.first_s is None:
            self.answer.first_s = time.perf_counter() - self._began
        at = 0
        for count, origin, text in zip(frame.counts, frame.origins, frame.texts, strict=True):
            self.answer.text += text
            self._show(Origin(ORIGINS[origin]), frame.tokens[at : at + count], text)
            at += count
        self._pieces += len(frame.counts)
        if self.drafting is not None:
            self.drafting.committed(frame.tokens, frame.wants)

    def done(self, frame: Done) -> EdgeAnswer:
        """Return the whole answer.

        Raises:
            ConnectionError: a part of it has not come.
        """
        if (frame.length, frame.digest) != (len(self._committed), self._committed.digest()):
            raise ConnectionError("the answer ended before all of it came")
        self.answer.finish, self.answer.report = frame.finish, json.loads(frame.report)
        return self.answer

    def end(self) -> None:
        """Note the provisional text and figures; the drafter is free then."""
        self.answer.total_s = time.perf_counter() - self._began
        self.answer.tokens = tuple(self._committed.tokens)
        if self.drafting is not None:
            self.drafting.end()
            self.answer.drafter_error = self.drafting.error
        own = () if self.drafting is None else self.drafting.notes
        self.answer.notes = tuple(dict.fromkeys((*own, *self.answer.report.get("notes", ()))))

    def _drafted(self, tokens: tuple[int, ...]) -> None:
        if self.answer.first_provisional_s is None:
            self.answer.first_provisional_s = time.perf_counter() - self._began
        self.answer.provisional += tokens
        if self.answer.first_s is None:
            self._show(Origin.PROVISIONAL, tokens, "")


class EdgeClient:
    """A connection to the cloud, for one question after another. To be used by one thread; close it.

    Args:
        server: address of the server, ws://… or wss://….
        key: API key, if the server asks for one.
        drafter: name of the drafter.
        fingerprint: fingerprint of the drafter's vocabulary; see `fingerprint_of`.
        patience_s: seconds for which a lost connection is retried without anything new of the answer.
        draft_top_k: number of entries of a distribution that are sent; 0 = all. See `Welcome.draws`.
        tls: certificates, for wss://….

    Attributes:
        answer: the one that is under way, or else the last.
    """

    def __init__(
        self,
        server: str,
        key: str | None,
        drafter: str,
        fingerprint: bytes,
        *,
        patience_s: float = 30.0,
        draft_top_k: int = 0,
        tls: TlsFiles = TlsFiles(),  # noqa: B008 - it is frozen
    ) -> None:
        self._address = ServerAddress(server, ROUTE, key, tls)
        self._hello = Hello(drafter, fingerprint)
        self._patience_s, self._most_sent = patience_s, draft_top_k
        self._connection: ClientConnection | None = None
        self._held = ExitStack()  # the connection
        self._welcome: Welcome | None = None
        self.answer = EdgeAnswer()
        self._pays = True  # true if drafting pays for the next question

    def open(self) -> Welcome:
        """Connect, if there is no connection; return the cloud's description of its target.

        Raises:
            CrossdraftError: the server cannot be reached, refuses the key, or has another vocabulary.
        """
        if self._connection is not None and self._welcome is not None:
            return self._welcome
        with ExitStack() as held:
            connection = held.enter_context(self._connect())
            try:
                connection.send(encode(self._hello))
                welcome = decode(connection.recv(OPEN_S))
                if isinstance(welcome, Welcome):
                    connection.send(encode(Pong(welcome.at)))
            except ConnectionClosed as error:
                raise ConnectionError(f"it hung up: {error}") from None
            if isinstance(welcome, Refused):
                raise CrossdraftError(welcome.message)
            if not isinstance(welcome, Welcome) or welcome.fingerprint != self._hello.fingerprint:
                raise CrossdraftError("The target has another vocabulary than the edge's; name the same by --target.")
            self._connection, self._welcome = connection, welcome
            self._held = held.pop_all()
        return welcome

    def _connect(self) -> ClientConnection:
        try:
            return self._address.connect(FRAME_BYTES)
        except InvalidStatus as error:
            if error.response.status_code in (429, 503):  # after a cut, the lost connection may count for a while
                raise ConnectionError("the server takes no more edges, of this key or at all, or shuts down") from None
            absent = f"No edge is served at {self._address}; start the server with --drafter edge, and check its name."
            raise self._address.refusal(error.response.status_code, absent) from None
        except (InvalidHandshake, ConnectionClosed) as error:  # a server that hangs up raises either
            hint = (
                "it may want a certificate (--cert)" if self._address.context else "if it speaks TLS, ask it as wss://…"
            )
            raise ConnectionError(f"{error}; {hint}") from None

    def ask(
        self,
        chat: Mapping[str, object],
        request: Request,
        drafter: Drafter[Any] | None,
        show: Show = lambda origin, tokens, text: None,
        *,
        mode: str | None = None,
    ) -> EdgeAnswer:
        """Ask a question and draft meanwhile; `show` is called with every piece, which has no text while provisional.

        Args:
            chat: body of `/v1/chat/completions`.
            request: the same question for the drafter, with the events. If it is sampled without a seed, a seed is
                drawn, for the chat, too.
            drafter: `None` = draft nothing.
            mode: one of `MODES`; with `hidden` nothing is drafted after the first commit. `None` = the cloud decides
                by its measurements of this connection.

        Raises:
            CrossdraftError: the question is refused, or after a loss nothing new of the answer came for `patience_s`,
                however often the cloud was reached again.
        """
        nodes = HIDDEN_NODES if self._welcome is None else self._welcome.nodes
        sampling = request.sampling
        if not sampling.greedy:  # both ends draw with one seed
            sampling = replace(sampling, seed=cast("int | None", chat.get("seed", sampling.seed))).seeded()
            chat = {**chat, "seed": sampling.seed}
        request = replace(request, sampling=self._drawn(sampling))
        if mode is None:
            mode = ROUNDS if self._pays else OFF
        question = _EdgeQuestion(chat, request, drafter, show, nodes, mode=mode)
        self.answer, drafting = question.answer, question.drafting
        patience = _Patience(self._patience_s)
        try:
            while True:
                try:
                    self.open()
                    self._send(question.first())
                    if drafting is not None:
                        drafting.connected(self._send_or_drop)
                    done = self._read_until_done(question, patience)
                    answer, self._pays = question.done(done), bool(done.drafts)
                except LOST as error:
                    self.answer.cuts += self._connection is not None
                    self._drop(drafting)
                    if not patience.pause():
                        raise AnswerLostError(f"The server {self._address} is lost ({error}); ask again.") from None
                else:
                    self._send_or_drop(End())
                    return answer
        except BaseException:
            with suppress(*LOST):  # interrupted or refused: the rest is not needed
                self._send(End())
            self._drop(drafting)
            raise
        finally:
            question.end()

    def _drawn(self, sampling: Sampling) -> Sampling:
        """Sampling of the edge for an answer with this sampling; see `Welcome.draws`."""
        match LIKELIEST if self._welcome is None else DRAWS[self._welcome.draws]:
            case "own":
                sent = min(filter(None, (sampling.top_k, self._most_sent)), default=0)
                return replace(sampling, seed=None, top_k=sent)
            case "likeliest":  # accepted most often, whatever distribution the answer is drawn from
                return replace(sampling, temperature=0.0)
            case _:
                return sampling

    def _read_until_done(self, question: _EdgeQuestion, patience: _Patience) -> Done:
        while True:
            match self._receive():
                case Ping(at):
                    self._send(Pong(at))
                case Commit() as commit:
                    question.commit(commit)
                    if commit.counts:
                        patience.came()
                case Done() as done:
                    return done
                case Refused(_, message):
                    raise AnswerLostError(message)
                case frame:
                    raise ConnectionError(f"a frame of the kind {frame.kind} did not fit")

    def close(self) -> None:
        """End the connection."""
        self._drop(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _send(self, frame: Frame) -> None:
        data, connection = encode(frame), self._connection  # another thread may drop the connection meanwhile
        if connection is None:
            raise ConnectionError("there is no connection")
        connection.send(data)
        self.answer.sent[frame.kind] += len(data)
        self.answer.frames[frame.kind] += 1

    def _send_or_drop(self, frame: Frame) -> None:
        """Send a frame; if the connection is gone, do nothing: the reading side notices."""
        with suppress(*LOST):
            self._send(frame)

    def _receive(self) -> Frame:
        if self._connection is None:
            raise ConnectionError("there is no connection")
        data = self._connection.recv(SILENT_S)
        frame = decode(data)
        self.answer.received[frame.kind] += len(data)
        return frame

    def _drop(self, drafting: EdgeDrafting | None) -> None:
        if drafting is not None:
            drafting.cut()
        self._connection = None
        self._held.close()
