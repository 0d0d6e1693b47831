"""The child's side of `process.py`: `python -m crossdraft.engine.worker ADDRESS CORES FOLDER`, key on stdin."""

import pickle
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossdraft.engine.cores import bind_cores
from crossdraft.engine.handled import Handled

if TYPE_CHECKING:
    from crossdraft.engine.ahead import Ahead


def main() -> None:
    """Pin to the given cores, call back, serve one drafter until told to close."""
    address, cores = sys.argv[1], sys.argv[2]
    if cores:
        bind_cores({int(core) for core in cores.split(",")})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    key = bytes.fromhex(sys.stdin.read())
    handled = Handled(Path(sys.argv[3]))
    with Client(address, authkey=key) as connection:
        serve(connection, handled, len(cores.split(",")) if cores else None)


def serve(connection: Connection, handled: Handled, threads: int | None) -> None:
    """Load the drafter that the first message describes, then answer messages in order."""
    import torch

    from crossdraft.engine.ahead import POLICIES, Ahead
    from crossdraft.engine.drafter import Draft
    from crossdraft.engine.wire import pack_draft
    from crossdraft.errors import CrossdraftError

    if threads is not None:
        torch.set_num_threads(threads)
    _, (factory, policy) = connection.recv()
    try:
        # The parent that started this process sent it over their own authenticated socket.
        drafter = pickle.loads(factory)()  # noqa: S301

        def push(ticket: int, turn: int, tokens: tuple[int, ...], draft: Draft) -> None:
            connection.send(("prepared", ((ticket, (turn, tokens)), inner.drain(), pack_draft(draft))))

        inner = Ahead(drafter, POLICIES[policy], push)
    except CrossdraftError as error:
        connection.send(("refused", (0, [], str(error))))
        return
    connection.send(("ready", (0, [], drafter.needs)))
    refused: set[int] = set()  # tickets whose request could not be read: nothing more is done about them
    count, kind = 0, ""
    while True:
        # While the target reads, it has a better use for our cores: a draft is prepared for from its verdict's pass on.
        if threads is None or kind != "start":
            with suppress(CrossdraftError):  # what cannot be prepared is refused when it is asked for
                inner.work(connection.poll)
        handled.set(count)
        count += 1
        try:
            kind, value = connection.recv()
        except EOFError:
            return  # the parent is gone
        if kind == "close":
            return
        if kind in QUESTIONS:
            connection.send(_reply(inner, connection, kind, value, refused))
        else:
            _tell(inner, kind, value, refused)


def _tell(inner: "Ahead[Any]", kind: str, value: Any, refused: set[int]) -> None:
    """Pass on what asks for no answer."""
    from crossdraft.engine.drafter import Committed
    from crossdraft.engine.tree import DraftTree

    if kind == "commit":
        missed, verdicts = value
        inner.missed([ticket for ticket in missed if ticket not in refused])
        told = [entry for entry in verdicts if entry[0] not in refused]
        inner.commit(
            [ticket for ticket, *_ in told],
            [Committed(path, tokens, probe_top=top) for _, path, tokens, top in told],
        )
    elif kind == "took":
        ticket, tokens, parents = value
        inner.took(ticket, DraftTree(tokens, parents))
    elif kind == "end":
        inner.end(value)
        refused.difference_update(value)
    # else "stop": it came after the draft was done, and asks nothing more: prepare on


def _reply(inner: "Ahead[Any]", connection: Connection, kind: str, value: Any, refused: set[int]) -> Any:
    """Answer a question, or say in one sentence why not."""
    from crossdraft.errors import CrossdraftError

    serial, asked = value
    try:
        reply = ("answer", QUESTIONS[kind](inner, connection, asked))
    except CrossdraftError as error:
        reply = ("refused", str(error))
        if kind == "start":
            refused.add(asked[0])
    return reply[0], (serial, inner.drain(), reply[1])


def _start(inner: "Ahead[Any]", connection: Connection, asked: Any) -> Any:
    """Read a request and draft until done or until any message comes."""
    from crossdraft.engine.drafter import Budget
    from crossdraft.engine.wire import pack_draft, unpack_request
    from crossdraft.errors import CrossdraftError

    ticket, packed, sizes, nodes, watched = asked
    arrays = [bytearray(size) for size in sizes]
    for array in arrays:
        connection.recv_bytes_into(array)
    request = unpack_request(packed, arrays)
    on_token = (lambda token: connection.send(("token", (ticket, token)))) if watched else None
    inner.start_until(ticket, request, Budget(nodes, stop=connection.poll, on_token=on_token))
    draft = inner.collect(ticket)
    if draft.refusal is not None:
        raise CrossdraftError(draft.refusal)
    return pack_draft(draft)


def _propose(inner: "Ahead[Any]", connection: Connection, asked: Any) -> Any:
    """One round's drafts."""
    from crossdraft.engine.drafter import Budget
    from crossdraft.engine.wire import pack_draft

    budgets = [Budget(nodes, confidence) for _, nodes, confidence in asked]
    return [pack_draft(draft) for draft in inner.propose([ticket for ticket, _, _ in asked], budgets)]


QUESTIONS = {"start": _start, "propose": _propose}  # messages that are answered


if __name__ == "__main__":
    main()
