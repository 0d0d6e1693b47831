"""The child's side of `process.py`: `python -m crossdraft.engine.runner.worker ADDRESS CORES FOLDER`, key on stdin."""

import pickle
import signal
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossdraft.engine.fast.cores import bind_cores
from crossdraft.engine.runner.handled import Handled

if TYPE_CHECKING:
    from crossdraft.engine.runner.parallel import Ahead


def main() -> None:
    """Pin to the given cores, call back, serve one drafter until told to close."""
    address, cores = sys.argv[1], sys.argv[2]
    if cores:
        bind_cores({int(core) for core in cores.split(",")})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    key = bytes.fromhex(sys.stdin.read())
    handled = Handled(Path(sys.argv[3]))
    # When the parent is gone there is nobody to tell.
    with suppress(EOFError, ConnectionError), Client(address, authkey=key) as connection:
        serve(connection, handled, len(cores.split(",")) if cores else None)


Received = tuple[str, Any, list[bytearray]]  # kind, body, arrays


class Inbox:
    """The messages of the parent, in order, with the arrays that belong to them.

    Args:
        connection: to the parent.
        handled: told how many messages are done whenever there is nothing to do but wait for the next.
    """

    def __init__(self, connection: Connection, handled: Handled) -> None:
        self.connection, self._handled = connection, handled
        self._received = 0
        self._waiting: deque[Received] = deque()

    def poll(self) -> bool:
        """Whether a message is here."""
        return bool(self._waiting) or self.connection.poll()

    def ends(self, request_id: int) -> bool:
        """Whether the end of that request is among the messages that are here."""
        with suppress(EOFError):
            while self.connection.poll():
                self._waiting.append(self._read())
        return any(kind == "end" and request_id in value for kind, value, _ in self._waiting)

    def receive(self) -> Received:
        """Wait for the next message: its kind, its body, its arrays.

        Raises:
            EOFError: the parent is gone.
        """
        if self._waiting:
            return self._waiting.popleft()
        self._handled.set(self._received)
        return self._read()

    def put_back(self, message: Received) -> None:
        """Have it received once more."""
        self._waiting.appendleft(message)

    def _read(self) -> Received:
        kind, value = self.connection.recv()
        self._received += 1
        arrays = [bytearray(size) for size in _sizes(kind, value)]
        for array in arrays:
            self.connection.recv_bytes_into(array)
        return kind, value, arrays


def _sizes(kind: str, value: Any) -> Sequence[int]:
    """Bytes of each array that is sent behind a message."""
    if kind == "start":
        return value[1][-1]
    return value[-1] if kind == "visual" else ()


def serve(connection: Connection, handled: Handled, threads: int | None) -> None:
    """Load the drafter that the first message describes, then answer messages in order."""
    import torch

    from crossdraft.engine.drafter import Draft
    from crossdraft.engine.runner.parallel import POLICIES, Ahead
    from crossdraft.engine.runner.wire import pack_draft
    from crossdraft.errors import CrossdraftError

    if threads is not None:
        torch.set_num_threads(threads)
    _, (factory, policy) = connection.recv()
    try:
        # The parent that started this process sent it over their own authenticated socket.
        drafter = pickle.loads(factory)()  # noqa: S301

        def push(request_id: int, turn: int, tokens: tuple[int, ...], draft: Draft) -> None:
            connection.send(("prepared", ((request_id, (turn, tokens)), inner.drain(), pack_draft(draft))))

        inner = Ahead(drafter, POLICIES[policy], push)
    except CrossdraftError as error:
        connection.send(("refused", (0, [], str(error))))
        return
    connection.send(("ready", (0, [], drafter.needs)))
    refused: set[int] = set()  # tickets whose request could not be read: nothing more is done about them
    inbox, kind = Inbox(connection, handled), ""
    while True:
        # While the target reads, it has a better use for our cores: a draft is prepared for from its verdict's pass on.
        if threads is None or kind != "start":
            with suppress(CrossdraftError):  # what cannot be prepared is refused when it is asked for
                inner.work(inbox.poll)
        kind, value, arrays = inbox.receive()
        if kind == "close":
            return
        if kind in QUESTIONS:
            connection.send(_reply(inner, inbox, kind, value, arrays, refused))
        else:
            _tell(inner, kind, value, refused)


def _tell(inner: "Ahead[Any]", kind: str, value: Any, refused: set[int]) -> None:
    """Pass on what asks for no answer."""
    from crossdraft.engine.drafter import VerifyOutput
    from crossdraft.engine.tree import DraftTree

    if kind == "commit":
        missed, outputs = value
        inner.missed([request_id for request_id in missed if request_id not in refused])
        told = [entry for entry in outputs if entry[0] not in refused]
        inner.commit(
            [request_id for request_id, *_ in told],
            [VerifyOutput(path, tokens, probe_top=top) for _, path, tokens, top in told],
        )
    elif kind == "took":
        request_id, tokens, parents = value
        inner.took(request_id, DraftTree(tokens, parents))
    elif kind == "end":
        inner.end(value)
        refused.difference_update(value)
    # else "stop" or "visual": it came after the draft was done, or refused, and asks nothing more: prepare on


def _reply(
    inner: "Ahead[Any]", inbox: Inbox, kind: str, value: Any, arrays: Sequence[bytearray], refused: set[int]
) -> Any:
    """Answer a question, or say in one sentence why not."""
    from crossdraft.errors import CrossdraftError

    serial, asked = value
    try:
        reply = ("answer", QUESTIONS[kind](inner, inbox, asked, arrays))
    except CrossdraftError as error:
        reply = ("refused", str(error))
        if kind == "start":
            refused.add(asked[0])
    return reply[0], (serial, inner.drain(), reply[1])


def _start(inner: "Ahead[Any]", inbox: Inbox, asked: Any, arrays: Sequence[bytearray]) -> Any:
    """Read a request and draft until done or until any message comes."""
    from crossdraft.engine.drafter import Budget
    from crossdraft.engine.runner.wire import pack_draft, unpack_request
    from crossdraft.errors import CrossdraftError

    request_id, packed, nodes, watched, _ = asked
    if inbox.ends(request_id):  # a slow reader must not fall behind by one answer after another
        raise CrossdraftError("The answer was complete before it was read.")
    request = unpack_request(packed, arrays)
    if inner.needs.visual:
        request = replace(request, visual_features=cache(partial(_visual_features, inbox, request_id)))
    on_token = (lambda token: inbox.connection.send(("token", (request_id, token)))) if watched else None
    inner.start_until(request_id, request, Budget(nodes, stop=inbox.poll, on_token=on_token))
    draft = inner.collect(request_id)
    if draft.refusal is not None:
        raise CrossdraftError(draft.refusal)
    return pack_draft(draft)


def _visual_features(inbox: Inbox, request_id: int) -> Any:
    """Wait for what the target sees, [N, E]; it is sent before anything else about that request.

    Raises:
        CrossdraftError: it cannot be had, or the target could not read the clip.
    """
    from crossdraft.engine.runner.wire import unpack_tensor
    from crossdraft.errors import CrossdraftError

    kind, value, arrays = inbox.receive()
    if kind != "visual":
        inbox.put_back((kind, value, arrays))
        raise CrossdraftError("The target could not read the clip, so that nothing of it can be looked at.")
    seen_ticket, packed, _ = value
    features = unpack_tensor(packed, arrays)
    if features is None or seen_ticket != request_id:
        raise CrossdraftError(
            "What the target sees cannot be had apart from its reading: it was given no video, or this version of "
            "transformers does not tell them apart."
        )
    return features


def _propose(inner: "Ahead[Any]", inbox: Inbox, asked: Any, arrays: Sequence[bytearray]) -> Any:
    """One round's drafts."""
    from crossdraft.engine.drafter import Budget
    from crossdraft.engine.runner.wire import pack_draft

    budgets = [Budget(nodes, confidence) for _, nodes, confidence in asked]
    return [pack_draft(draft) for draft in inner.propose([request_id for request_id, _, _ in asked], budgets)]


QUESTIONS = {"start": _start, "propose": _propose}  # messages that are answered


if __name__ == "__main__":
    main()
