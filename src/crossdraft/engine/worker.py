"""The child's side of `process.py`: `python -m crossdraft.engine.worker ADDRESS CORES`, key on standard input."""

import os
import pickle
import signal
import sys
from multiprocessing.connection import Client, Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossdraft.engine.placement import Inline


def main() -> None:
    """Pin to the given cores, call back, serve one drafter until told to close."""
    address, cores = sys.argv[1], sys.argv[2]
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    key = bytes.fromhex(sys.stdin.read())
    with Client(address, family="AF_UNIX", authkey=key) as connection:
        serve(connection, len(cores.split(",")) if cores else None)


def serve(connection: Connection, threads: int | None) -> None:
    """Load the drafter that the first message describes, then answer messages in order."""
    import torch

    from crossdraft.engine.cost import CostModel
    from crossdraft.engine.placement import Inline
    from crossdraft.errors import CrossdraftError

    if threads is not None:
        torch.set_num_threads(threads)
    _, factory = connection.recv()
    try:
        inner = Inline(pickle.loads(factory)(), CostModel(), hidden="before")
    except CrossdraftError as error:
        connection.send(("refused", str(error)))
        return
    connection.send(("ready", None))
    while True:
        try:
            kind, value = connection.recv()
        except EOFError:
            return  # the parent is gone
        if kind == "close":
            return
        try:
            answer(inner, connection, kind, value)
        except CrossdraftError as error:
            connection.send(("refused", str(error)))


def answer(inner: "Inline[object]", connection: Connection, kind: str, value: Any) -> None:
    """Do what one message asks. A `stop` that comes after the draft was done asks nothing more."""
    from crossdraft.engine.drafter import Budget, Committed
    from crossdraft.engine.wire import pack_draft

    if kind == "start":
        ticket, request, nodes, watched = value
        on_token = (lambda token: connection.send(("token", token))) if watched else None
        inner.start_until(ticket, request, Budget(nodes, stop=connection.poll, on_token=on_token))
        draft = inner.collect(ticket)
        connection.send(("started", (inner.drain(), pack_draft(draft))))
    elif kind == "propose":
        budgets = [Budget(nodes, confidence) for _, nodes, confidence in value]
        drafts = inner.propose([ticket for ticket, _, _ in value], budgets)
        connection.send(("proposed", (inner.drain(), [pack_draft(draft) for draft in drafts])))
    elif kind == "commit":
        inner.commit([entry[0] for entry in value], [Committed(path, tokens) for _, path, tokens in value])
    elif kind == "end":
        inner.end(value)


if __name__ == "__main__":
    main()
