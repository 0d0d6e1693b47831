"""The child's side of `process.py`: a drafter, and the messages that ask for its drafts."""

import logging
import pickle
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from crossdraft.engine.checks import drafts_of
from crossdraft.engine.drafter import NOTHING, Budget, Draft, Successors, VerifyOutput
from crossdraft.engine.fast.elastic import borrowing
from crossdraft.engine.fast.heap import RequestTrimmer
from crossdraft.engine.progress import mark_on, progress
from crossdraft.engine.prompt import PromptIds
from crossdraft.engine.runner.link import Handled
from crossdraft.engine.runner.wire import pack_draft, unpack_request, unpack_tensor
from crossdraft.engine.timeline import HIDDEN_DRAFT, READ, Span
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

Received = tuple[str, Any, list[bytearray]]  # kind, body, arrays
Asked = tuple[int, int, float]  # key of a request, most nodes, least confidence
Committed = tuple[int, int, tuple[int, ...], Successors]  # key, accepted tokens, tokens added, their successors
HIDDEN_FIRST = ("begin", "hidden", "drop", "visual")  # messages that wait until a hidden draft under way is done
INTERRUPTING = ("begin", "hidden", "propose", "close")  # messages that do not wait for a draft that nobody waits for


class Inbox:
    """Messages from the parent, in order, each with its arrays.

    Args:
        connection: to the parent.
        handled: gets the number of messages done whenever the inbox waits for the next one.

    A prompt's token ids are not handed out as a message: they are stored in `prompts`, by request, as they come.
    """

    def __init__(self, connection: Connection, handled: Handled) -> None:
        self.connection, self.handled = connection, handled
        self.prompts: defaultdict[int, PromptIds] = defaultdict(PromptIds)
        self._received = 0
        self._waiting: deque[Received] = deque()
        self._ended = False  # the parent is gone

    def ends(self, key: int) -> bool:
        """True if a message that ends this state has arrived."""
        return any(kind == "end" and key in value for kind, value, _ in self._arrived())

    def stops(self, serial: int) -> bool:
        """True if this hidden draft must end: the parent wants it now, waits for something else, or is gone."""
        stopped = any(
            serial in value if kind == "stop" else kind not in HIDDEN_FIRST for kind, value, _ in self._arrived()
        )
        return stopped or self._ended

    def interrupts(self, key: int) -> bool:
        """True if a draft that nobody waits for must end: its request is over, or another one is waited for."""
        return any(kind in INTERRUPTING or (kind == "end" and key in value) for kind, value, _ in self._arrived())

    def receive(self) -> Received:
        """Wait for the next message: its kind, its body, its arrays.

        Raises:
            EOFError: the parent is gone.
        """
        progress()  # what was received before is done
        while not self._waiting:
            self.handled.set(self._received)
            self._read()
        return self._waiting.popleft()

    def put_back(self, message: Received) -> None:
        """Put a message back, to be received next."""
        self._waiting.appendleft(message)

    def _arrived(self) -> deque[Received]:
        """Messages that have arrived and were not received yet."""
        try:
            while self.connection.poll():
                self._read()
        except (EOFError, ConnectionError):
            self._ended = True
        return self._waiting

    def _read(self) -> None:
        """Read one message with its arrays; waits until it is here."""
        kind, value = self.connection.recv()
        self._received += 1
        if kind == "prompt":
            self.prompts[value[0]].set_result(value[1])
            return
        arrays = [bytearray(size) for size in _sizes(kind, value)]
        for array in arrays:
            self.connection.recv_bytes_into(array)
        self._waiting.append((kind, value, arrays))


def _sizes(kind: str, value: Any) -> Sequence[int]:
    """Bytes of each array that is sent after a message."""
    return value[-1] if kind in ("begin", "visual") else ()


def serve(connection: Connection, handled: Handled, threads: int | None) -> None:
    """Load the drafter that the first message describes, then answer messages in order."""
    mark_on(handled.progress)
    progress()  # PyTorch is imported
    if threads is not None:
        torch.set_num_threads(threads)
    kind, body = connection.recv()
    if kind == "close":
        return
    factory, lent_cores = body
    try:
        # The parent that started this process sent it over their own authenticated socket.
        drafter = pickle.loads(factory)()  # noqa: S301
        server = DraftServer(drafter, Inbox(connection, handled))
    except CrossdraftError as error:
        connection.send(("refused", (0, [], str(error))))
        return
    connection.send(("ready", (0, [], drafter.needs)))
    with borrowing(lambda: lent_cores if handled.lent else ()):
        server.run()


@dataclass(eq=False)
class ServedRequest:
    """One request in the drafter's process.

    Args:
        state: the drafter's state.
        certain: true if nothing is drawn but by the request's seed.
        undrawn: in another answer, the drafter's state before the hidden draft, until something is committed.
        tree: tree of the last draft.
    """

    state: Any
    certain: bool
    undrawn: Any = None
    tree: DraftTree = NOTHING.tree

    def missed(self) -> None:
        """Drop the hidden draft, which came too late for the target to verify.

        Its drawn tokens are not used again: being late says something about them (that the text did not end at once),
        so they would follow another distribution than the one sent with them.
        """
        if self.undrawn is not None:
            self.state, self.tree = self.undrawn, NOTHING.tree


class DraftServer:
    """Answers the parent's messages with a drafter, whose states are kept by the parent's keys.

    Args:
        drafter: the drafter.
        inbox: the parent's messages.
    """

    def __init__(self, drafter: Any, inbox: Inbox) -> None:
        self.inbox, self.drafter = inbox, drafter
        self.spans: list[Any] = []
        self.requests: dict[int, ServedRequest] = {}
        self._seen: dict[int, VisualInbox] = {}  # visual features of requests, if the drafter needs them
        self._reads: dict[int, Span] = {}  # spans of reading requests whose hidden draft is still to come
        self.refused: dict[int, str] = {}  # why nothing more is done about these requests
        self._heap = RequestTrimmer()

    def run(self) -> None:
        """Answer messages until told to close."""
        while True:
            kind, value, arrays = self._next()
            match kind:
                case "close":
                    return
                case "propose" | "ahead" | "hidden":
                    self._answer(kind, *value)
                case "begin":
                    self._begin(value, arrays)
                case "commit":
                    self._commit(*value)
                case "fork":
                    self._fork(value)
                case "end" | "drop":
                    self._end(value, copies=kind == "drop")
                case _:  # "stop" that came after its draft was done or refused
                    pass

    def _next(self) -> Received:
        """Wait for the next message that needs an action.

        Visual features that come meanwhile are stored, unless their request is over.
        """
        while True:
            message = self.inbox.receive()
            kind, value, _ = message
            if kind != "visual":
                return message
            if (seen := self._seen.get(value[0])) is not None:
                seen.add(message)

    def _answer(self, kind: str, serial: int, asked: Any) -> None:
        """Answer a question, or say in one sentence why not."""
        try:
            drafts = self._hidden(serial, *asked) if kind == "hidden" else self._propose(asked, ahead=kind == "ahead")
            reply = "answer", drafts
        except CrossdraftError as error:
            reply = "refused", str(error)
        self._send((reply[0], (serial, self._drain(), reply[1])))

    def _begin(self, value: Any, arrays: Sequence[bytearray]) -> None:
        """Begin a request; a failure is reported when a draft is asked for."""
        key, packed, _ = value
        if self.inbox.ends(key):  # a slow drafter must not fall further behind with every answer
            self.refused[key] = "The answer was complete before it was read."
            return
        request = unpack_request(packed, arrays)
        if self.drafter.needs.visual:
            seen = self._seen[key] = VisualInbox(self.inbox, key)
            request = replace(request, visual_features=seen)
        if self.drafter.needs.prompt:
            request = replace(request, prompt_ids=self.inbox.prompts[key])
        start = time.perf_counter()
        try:
            (state,) = self.drafter.begin([request])
        except CrossdraftError as error:
            self.refused[key] = str(error)
        except Exception as error:
            log.exception("A drafter could not read a request.")
            self.refused[key] = f"{type(error).__name__}: {error}"
        else:
            self.requests[key] = ServedRequest(state, request.sampling.certain)
        finally:
            read = Span("drafter", READ, start, time.perf_counter())
            if key in self.requests:
                self._reads[key] = read
            else:
                self.spans.append(read)

    def _hidden(self, serial: int, key: int, nodes: int, watched: bool) -> Any:
        """Make a hidden draft, until it is complete or must end."""
        if not self._able(key):
            return self._refusal(key)
        on_token = (lambda token: self._send(("token", (key, token)))) if watched else None
        start = time.perf_counter()
        budget = Budget(nodes, stop=partial(self.inbox.stops, serial), on_token=on_token)
        one = self.requests[key]
        if not one.certain:
            (one.undrawn,) = self.drafter.fork([one.state])
        (draft,) = self._made([one], [budget])
        drafted = Span("drafter", HIDDEN_DRAFT, start, time.perf_counter(), len(draft.tree))
        read = self._reads.pop(key, None)
        return pack_draft(draft, (drafted,) if read is None else (read, drafted))

    def _propose(self, asked: Sequence[Asked], *, ahead: bool) -> list[Any]:
        """Make one round's drafts, packed, in the order of `asked`; `ahead`: nobody waits for them."""
        able = [entry for entry in asked if self._able(entry[0])]
        self.spans.extend(self._reads.pop(key) for key, *_ in able if key in self._reads)
        start = time.perf_counter()
        made = self._drafts(able, ahead=ahead) if able else {}
        self._record("ahead" if ahead else "draft", start, sum(len(draft.tree) for draft in made.values()))
        return [pack_draft(made[key]) if key in made else self._refusal(key) for key, *_ in asked]

    def _drafts(self, asked: Sequence[Asked], *, ahead: bool) -> dict[int, Draft]:
        """Make drafts, by key; after an error each request is asked alone, and those that fail alone are refused."""
        budgets = [
            Budget(nodes, confidence, stop=partial(self.inbox.interrupts, key) if ahead else None)
            for key, nodes, confidence in asked
        ]
        try:
            made = self._made([self.requests[key] for key, *_ in asked], budgets)
        except CrossdraftError as error:
            if len(asked) == 1:
                self.refused[asked[0][0]] = str(error)
                return {}
            return {key: draft for one in asked for key, draft in self._drafts([one], ahead=ahead).items()}
        return dict(zip((key for key, *_ in asked), made, strict=True))

    def _made(self, requests: Sequence[ServedRequest], budgets: Sequence[Budget]) -> list[Draft]:
        """Have the drafter draft, and note the trees."""
        made = drafts_of(self.drafter.propose([one.state for one in requests], budgets), len(requests))
        for one, draft in zip(requests, made, strict=True):
            one.tree = draft.tree
        return made

    def _able(self, key: int) -> bool:
        """True if the request was prefilled and not refused since."""
        return key in self.requests and key not in self.refused

    def _refusal(self, key: int) -> Any:

        return pack_draft(replace(NOTHING, refusal=self.refused.get(key, "The drafter does not know the request.")))

    def _commit(self, missed: Sequence[int], outputs: Sequence[Committed]) -> None:
        """Commit each request's tokens, of which the target accepted the given number."""
        start = time.perf_counter()
        for key, accepted, tokens, successors in outputs:
            if not self._able(key):
                continue
            one = self.requests[key]
            if key in missed:
                one.missed()
            path = tuple(one.tree.follow(tokens[:accepted]))  # the last draft may be newer than the verified one
            one.undrawn, one.tree = None, NOTHING.tree
            try:
                self.drafter.commit([one.state], [VerifyOutput(path, tokens, successors=successors)])
            except CrossdraftError as error:
                self.refused[key] = str(error)
        self._record("resync", start)

    def _fork(self, pairs: Sequence[tuple[int, int]]) -> None:
        for key, copy in pairs:
            if self._able(key):
                (state,) = self.drafter.fork([self.requests[key].state])
                self.requests[copy] = replace(self.requests[key], state=state)
            else:
                self.refused[copy] = self.refused.get(key, "")

    def _end(self, keys: Sequence[int], *, copies: bool) -> None:
        """Forget requests; with `copies` they are forks, which are dropped without the drafter's `end`."""
        states = [self.requests.pop(key).state for key in keys if key in self.requests]
        if not copies:
            for state in states:
                try:
                    self.drafter.end([state])
                except CrossdraftError as error:
                    log.warning("A drafter could not end a request: %s", error)
            self._heap.ended(len(states))
        for key in keys:
            self.refused.pop(key, None)
            self._seen.pop(key, None)
            self.inbox.prompts.pop(key, None)
            self._reads.pop(key, None)
        self._heap.trim_if_due()

    def _send(self, message: tuple[str, Any]) -> None:
        self.inbox.connection.send(message)

    def _drain(self) -> list[Any]:
        spans = self.spans.copy()
        self.spans.clear()
        return spans

    def _record(self, name: str, start: float, tokens: int = 0) -> None:

        self.spans.append(Span("drafter", name, start, time.perf_counter(), tokens))


class VisualInbox:
    """Visual features of one request, sent by the parent: `Request.visual_features` in the drafter's process.

    Args:
        inbox: the parent's messages.
        key: key of the request.
    """

    def __init__(self, inbox: Inbox, key: int) -> None:
        self._inbox, self._key = inbox, key
        self._features: Tensor | None = None
        self._ended = False  # nothing more will come

    def add(self, message: Received) -> None:
        """Take up a message of the kind `visual`."""
        _, (_, packed, _), arrays = message
        self._features, self._ended = unpack_tensor(packed, arrays), True

    def __call__(self) -> Tensor:
        """Wait for the features [N, E]; of this request's messages only `hidden` may come before them.

        Raises:
            CrossdraftError: there are no features, or the target could not read the clip.
        """
        skipped: list[Received] = []
        while not self._ended:
            kind, value, _ = received = self._inbox.receive()
            if kind == "visual" and value[0] == self._key:
                self.add(received)
                continue
            skipped.append(received)
            if kind not in ("hidden", "begin", "drop"):  # these wait until the request is read
                break
        for message in reversed(skipped):
            self._inbox.put_back(message)
        if not self._ended:
            raise CrossdraftError("The target could not read the clip, so that nothing of it can be looked at.")
        if self._features is None:
            raise CrossdraftError(
                "What the target sees cannot be had apart from its reading: it was given no video, or this version of "
                "transformers does not tell them apart."
            )
        return self._features
