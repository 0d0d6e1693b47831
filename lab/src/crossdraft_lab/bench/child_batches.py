"""Closed batches answered in another process, for methods that cannot share ours; it is stopped between batches.

Examples: a method that needs another environment's packages; a loop in a thread of its own, whose OpenMP threads would
slow every other method (see `EngineMethod`). The child's side is `batch_child`. The child's messages go to a file, of
which the end is shown when the child dies.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import crossdraft
import crossdraft_lab
from crossdraft.checkpoints.locate import REFERENCE, find_checkpoint
from crossdraft.cli.cores import Cores
from crossdraft.dtypes import dtype_name
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.batch_child import Asked
from crossdraft_lab.bench.batches import BatchRun, Served
from crossdraft_lab.bench.measure import Run
from crossdraft_lab.bench.resources import halted
from crossdraft_lab.bench.vllm_child import LONGEST
from crossdraft_lab.bench.workload import Item

LINES = 12  # of the child's messages, shown when it dies
VLLM_GIB = 2  # GiB for vLLM's keys and values
# Settings without effect where the likeliest token is taken, and those that other programs are told.
GREEDY = frozenset(("temperature", "seed", "top_k", "top_p", "min_p", "typical_p", "top_h", "epsilon_cutoff",
                    "eta_cutoff", "remove_invalid_values", "renormalize_logits", "repetition_penalty"))  # fmt: skip
SOURCES = [str(Path(str(package.__file__)).parents[1]) for package in (crossdraft, crossdraft_lab)]


class ChildBatches:
    """A running child process, as a `BatchMethod`.

    Args:
        name: the method's name in messages.
        module: Python module that the child runs, with its arguments.
        cores: cores that the child may use, one computing thread for each; `None` = any.
        python: interpreter of the child's environment; `None` = the one that runs here.
        variables: further environment variables.
        send: converts a request into what is sent; default a clip's question and path.

    Attributes:
        about, pid: what the child says of itself, and its process id.

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
        send: Callable[[Request], Asked] | None = None,
    ) -> None:
        self.name = name
        self._send = send or (lambda one: Asked(one.prompt, str(one.video), one.token_limit))
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
        self.pid = self._process.pid
        try:
            self.about = self._receive()
        except BaseException:
            self.close()
            raise
        self._halt()

    def answer(self, items: Sequence[Item]) -> BatchRun:
        asked = [self._send(item.request) for item in items]
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


def in_words(target: Target, given: Request, peer: str, most: int | None = None) -> Asked:
    """Convert a greedy request in words for another program: token ids, and the settings that our engine uses.

    Args:
        target: prepares the prompt.
        given: the request.
        peer: name of the program.
        most: tokens that a prompt may have there with its answer.

    Raises:
        CrossdraftError: the checkpoint asks for something of which the program is not told, or it is too long.
    """
    ids, request = target.prepare(given).input_ids.tolist(), target.defaults.resolve(given)
    others = [name for name in request.sampling.__dataclass_fields__ if name not in GREEDY]
    odd = [name for name in others if getattr(request.sampling, name) not in (None, 0, (), False)]
    if odd := [*odd, *(["stop strings"] if request.stops else [])]:
        raise CrossdraftError(f"The checkpoint asks for {', '.join(odd)}, and {peer} is not told of it.")
    limit = request.max_new_tokens or target.defaults.limit(len(ids), target.context)
    if most is not None and len(ids) + limit > most:
        raise CrossdraftError(
            f"A prompt of {len(ids)} tokens and an answer of up to {limit} are more than the {most:,} that {peer} "
            "takes here; leave it out, or ask for shorter answers (--max-new-tokens)."
        )
    return Asked(given.prompt, "", limit, ids, request.sampling.repetition_penalty or 1.0)


def vllm_batches(
    target: Target, source: str, python: Path, cores: Sequence[int] | None, *, words: bool, name: str = "vllm"
) -> ChildBatches:
    """Start vLLM in a child process with our target's dtype; its build determines the device.

    Args:
        target: our target.
        source: checkpoint of the target.
        python: interpreter of an environment with vLLM.
        cores: cores that it may use; `None` = any.
        words: true if requests are in words: it then gets token ids.
        name: its name in messages.
    """
    variables = {"VLLM_CPU_KVCACHE_SPACE": str(VLLM_GIB)}
    if cores is not None:
        variables["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
    folder = find_checkpoint(source, {"reference": REFERENCE / "target"})
    module = ["crossdraft_lab.bench.vllm_child", str(folder), dtype_name(target.model.dtype)]
    send = partial(in_words, target, peer=name, most=LONGEST) if words else None
    return ChildBatches(name, module, cores, python, variables, send)


class ChildMethod:
    """A child as a method of a bench that asks one request at a time."""

    def __init__(self, child: ChildBatches) -> None:
        self.child, self.cores, self.about = child, child.cores, child.about
        self.workers = (child.pid,)

    def answer(self, item: Item) -> Run:
        """Answer once; the child's clock starts when it has the request."""
        (one,) = self.child.answer([item]).served
        return Run(one.tokens, one.total_s, one.ttft_s, {"other": one.total_s}, len(one.tokens))

    def close(self) -> None:
        self.child.close()
