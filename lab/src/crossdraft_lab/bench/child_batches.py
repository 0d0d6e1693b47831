"""Closed batches answered in another process, for methods that cannot share ours; it is stopped between batches.

Examples: a method that needs another environment's packages; a loop in a thread of its own, whose OpenMP threads would
slow every other method (see `EngineMethod`). The child's side is `batch_child`. The child's messages go to a file, of
which the end is shown when the child dies.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import crossdraft
import crossdraft_lab
from crossdraft.cli.cores import Cores
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.batch_child import Asked
from crossdraft_lab.bench.batches import BatchRun, Served
from crossdraft_lab.bench.resources import halted
from crossdraft_lab.bench.workload import Item

LINES = 12  # of the child's messages, shown when it dies
SOURCES = [str(Path(str(package.__file__)).parents[1]) for package in (crossdraft, crossdraft_lab)]


class ChildBatches:
    """A running child process, as a `BatchMethod`.

    Args:
        name: the method's name in messages.
        module: Python module that the child runs, with its arguments.
        cores: cores that the child may use, one computing thread for each; `None` = any.
        python: interpreter of the child's environment; `None` = the one that runs here.
        variables: further environment variables.

    Raises:
        CrossdraftError: the child does not start.
    """

    def __init__(
        self,
        name: str,
        module: Sequence[str],
        cores: Sequence[int] | None = None,
        python: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.cores: Cores | None = None  # any: the thread in this process only waits
        threads = {} if cores is None else {"OMP_NUM_THREADS": str(len(cores))}
        settings = {**os.environ, **threads, **(variables or {}), **_path(python)}
        command = [str(python or sys.executable), "-m", *module]
        self._messages = TemporaryFile()  # noqa: SIM115 - `close` ends it with the process
        self._rest = ExitStack()  # open while the child is stopped between batches
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._messages, env=settings
            )
        except OSError as error:
            self._messages.close()
            raise CrossdraftError(
                f"{command[0]} cannot be run ({error.strerror}); name the Python of an environment."
            ) from error
        try:
            self.about = self._receive()
        except BaseException:
            self.close()
            raise
        self._halt()

    def answer(self, items: Sequence[Item]) -> BatchRun:
        asked = [Asked(item.request.prompt, str(item.request.video), item.request.token_limit) for item in items]
        pipe = self._process.stdin
        self._rest.close()
        try:
            if pipe is not None:
                pipe.write(json.dumps([asdict(one) for one in asked]).encode() + b"\n")
                pipe.flush()
        except OSError:
            raise self._died() from None
        served = self._receive()["served"]
        self._halt()
        return BatchRun(tuple(Served(tuple(one["tokens"]), one["ttft_s"], one["total_s"]) for one in served))

    def close(self) -> None:
        """End the child."""
        self._rest.close()
        self._process.kill()
        self._process.communicate()
        self._messages.close()

    def _halt(self) -> None:
        self._rest.enter_context(halted(self._process.pid))

    def _receive(self) -> dict[str, Any]:
        pipe = self._process.stdout
        line = b"" if pipe is None else pipe.readline()
        if not line:
            raise self._died()
        found = json.loads(line)
        if "error" in found:
            raise CrossdraftError(f"{self.name} failed: {found['error']}")
        return found

    def _died(self) -> CrossdraftError:
        self._messages.seek(0)
        last = self._messages.read().decode(errors="replace").strip().splitlines()[-LINES:]
        return CrossdraftError(f"The process of {self.name} ended; its last messages: " + " | ".join(last))


def _path(python: Path | None) -> dict[str, str]:
    """Environment variable that adds our packages to another environment; empty if torch lies beside them, too."""
    if python is None or any((Path(folder) / "torch").exists() for folder in SOURCES):
        return {}
    return {"PYTHONPATH": os.pathsep.join(SOURCES)}
