"""A worker's process: `python -m crossdraft.engine.workers HANDLE CORES`."""

import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

from crossdraft.engine.fast.cores import bind_cores


def main() -> None:
    """Pin to the given cores, then answer questions until nobody can ask any more."""
    handle, cores = sys.argv[1], tuple(map(int, sys.argv[2].split(",")))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    bind_cores(cores)
    with suppress(EOFError, ConnectionError), Connection(int(handle)) as connection:
        from crossdraft.engine.workers.serve import serve  # PyTorch: after the pinning

        serve(connection, len(cores))


if __name__ == "__main__":
    main()
