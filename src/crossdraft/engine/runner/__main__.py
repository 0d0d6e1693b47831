"""A drafter's process: `python -m crossdraft.engine.runner ADDRESS CORES FOLDER`, key on stdin."""

import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Client
from pathlib import Path

from crossdraft.engine.fast.cores import bind_cores
from crossdraft.engine.runner.link import Handled


def main() -> None:
    """Run the child with the command line's arguments and the key from stdin."""
    address, cores, folder = sys.argv[1:4]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    key = bytes.fromhex(sys.stdin.read())
    run(address, tuple(map(int, cores.split(","))) if cores else None, folder, key)


def run(address: str, cores: Sequence[int] | None, folder: str, key: bytes) -> None:
    """Pin to the given cores, call back, serve one drafter until told to close."""
    if cores is not None:
        bind_cores(cores)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    handled = Handled(Path(folder))
    # When the parent is gone there is nobody to tell.
    with suppress(EOFError, ConnectionError), Client(address, authkey=key) as connection:
        from crossdraft.engine.runner.worker import serve  # PyTorch: after the pinning and the call

        serve(connection, handled, None if cores is None else len(cores))


if __name__ == "__main__":
    main()
