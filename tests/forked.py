"""Commands in processes of their own: forks of one that has imported PyTorch, which takes seconds."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from crossdraft.cli.main import main
from crossdraft_lab.bench.forking import start_method


def start_command(arguments: Sequence[str], streams: Sequence[int], **environment: str) -> BaseProcess:
    """Start `crossdraft` with these file descriptors for its input, output and errors; here they are closed.

    But not 0, this process's own input.
    """
    given = [Connection(os.dup(one)) for one in streams]
    for one in {*streams} - {0}:
        os.close(one)
    process = get_context(start_method()).Process(target=_run, args=(arguments, given, environment), daemon=True)
    process.start()
    for one in given:
        one.close()
    return process


def interrupt(process: BaseProcess) -> None:
    """Press Ctrl-C."""
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)


def _run(arguments: Sequence[str], given: Sequence[Connection], environment: Mapping[str, str]) -> None:
    os.environ.pop("NO_COLOR", None)
    os.environ.update(environment)
    for number, one in enumerate(given):
        os.dup2(one.fileno(), number)
        one.close()
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 - to the end of the process
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main([*arguments]))
