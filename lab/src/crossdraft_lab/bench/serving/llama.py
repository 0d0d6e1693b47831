"""llama.cpp's server as a contestant: it reads the same prompts' token ids, and answers greedily on the same cores.

`make peers` builds the server. It runs on loopback in a process that ends with this one, keeps nothing of a prompt for
the next, and is stopped while others answer.
"""

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from crossdraft.cli.cores import Cores
from crossdraft.engine.fast.cores import available_cores
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.batches import BatchRun, Served
from crossdraft_lab.bench.child_batches import in_words
from crossdraft_lab.bench.measure import Run
from crossdraft_lab.bench.serving.process import LEASHED, Connection, await_health, free_port
from crossdraft_lab.bench.specs import LLAMA, LLAMA_DRAFTED
from crossdraft_lab.bench.variants import Variant
from crossdraft_lab.bench.workload import Item

START_S, ANSWER_S = 300.0, 1200.0
CONTEXT = 8192  # tokens of a prompt with its answer: the server reserves memory for all of them
SHARED_CONTEXT = 2048  # the same, where several share a pass
DRAFTS = "--spec-type draft-simple --spec-draft-n-max 6"  # how a small model drafts, if nothing else is said


@dataclass(frozen=True, slots=True)
class LlamaFiles:
    """llama.cpp's server and what it loads.

    Args:
        server: the program `llama-server`.
        gguf: the target as GGUF, in the bench's precision.
        draft: a smaller model of its family, which drafts for a second contestant.
        speculation: the second contestant's options, as `--spec-type ngram-simple`; "" = `DRAFTS`, if there is a draft.
    """

    server: Path
    gguf: Path
    draft: Path | None = None
    speculation: str = ""

    def variants(self) -> tuple[Variant, ...]:
        """The contestants: the target alone, and with drafts where something drafts."""
        alone = Variant(LLAMA, make=partial(_make, self, ()))
        if self.draft is None and not self.speculation:
            return (alone,)
        model = () if self.draft is None else ("--spec-draft-model", str(self.draft.absolute()))
        drafted = partial(_make, self, (*model, *shlex.split(self.speculation or DRAFTS)))
        return alone, Variant(LLAMA_DRAFTED, make=drafted)


def _make(files: LlamaFiles, options: tuple[str, ...], target: Target, _: Models) -> "LlamaServer":
    return LlamaServer(target, files, options)


class LlamaServer:
    """A running server, on the cores of the calling thread, as a method of a bench.

    Args:
        target: prepares the prompts.
        files: program and models.
        options: further options of the server.
        parallel: number of requests that share a pass.

    Attributes:
        about: the server's build, the type of its weights, and its threads.

    Raises:
        CrossdraftError: the server does not start.
    """

    def __init__(self, target: Target, files: LlamaFiles, options: tuple[str, ...] = (), parallel: int = 1) -> None:
        self.target, self._parallel = target, parallel
        self.cores: Cores | None = None  # the server has its own
        self._folder, self._port = TemporaryDirectory(prefix="crossdraft-"), free_port()
        threads = len(available_cores())
        arguments = {
            "model": files.gguf.absolute(), "host": "127.0.0.1", "port": self._port, "threads": threads,
            "threads-batch": threads, "parallel": parallel, "cache-ram": 0,
            "ctx-size": CONTEXT if parallel == 1 else parallel * SHARED_CONTEXT,
        }  # fmt: skip
        flags = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
        log = Path(self._folder.name) / "llama.log"
        with log.open("wb") as records:
            self._leash = subprocess.Popen(
                [*LEASHED, "--program", str(files.server.absolute()), *flags, *options],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=records, text=True,
            )  # fmt: skip
        try:
            self._pid = int(self._leash.stdout.readline() or 0) if self._leash.stdout else 0
            await_health(self._leash, self._port, log, "llama.cpp's server", START_S)
            with Connection(self._port) as connection:
                found = connection.request("GET", "/props").json
        except BaseException:
            self.close()
            raise
        self.about = {"build": found.get("build_info"), "weights": found.get("model_ftype"), "threads": threads}
        os.kill(self._pid, signal.SIGSTOP)

    @property
    def workers(self) -> tuple[int, ...]:
        return (self._pid,)

    def answer(self, item: Item) -> Run:
        return self.answer_all([item])[0]

    def answer_all(self, items: Sequence[Item]) -> list[Run]:
        """Send all requests at once, each over a connection of its own; return the runs in the order of the items."""
        start = time.perf_counter()
        bodies = [self._body(item.request) for item in items]
        prepared = time.perf_counter()
        os.kill(self._pid, signal.SIGCONT)
        try:
            with ThreadPoolExecutor(len(bodies)) as pool:
                return list(pool.map(partial(self._ask, start, prepared), bodies))
        finally:
            os.kill(self._pid, signal.SIGSTOP)

    def _ask(self, start: float, prepared: float, body: bytes) -> Run:
        try:
            with Connection(self._port, ANSWER_S) as connection:
                reply = connection.request("POST", "/completion", body)
            end = time.perf_counter()
        except (OSError, EOFError) as error:
            raise CrossdraftError(f"llama.cpp's server does not answer any more: {error!r}") from error
        if reply.status != 200:
            raise CrossdraftError(
                f"llama.cpp's server refused a prompt with status {reply.status}: {reply.body[:300]!r}"
            )
        return run_of(reply.json, prepared - start, end - start)

    def _body(self, given: Request) -> bytes:
        """Write a request for the likeliest tokens; see `in_words`."""
        one = in_words(self.target, given, LLAMA, CONTEXT if self._parallel == 1 else SHARED_CONTEXT)
        asked = {
            "prompt": one.ids, "n_predict": one.max_new_tokens, "temperature": 0, "repeat_penalty": one.penalty,
            "repeat_last_n": CONTEXT, "cache_prompt": False, "return_tokens": True,
        }  # fmt: skip
        return json.dumps(asked).encode()

    def close(self) -> None:
        """End the server."""
        if self._leash.stdin is not None:
            self._leash.stdin.close()  # the leash: the server ends with it
        self._leash.wait()
        self._folder.cleanup()


class LlamaBatches:
    """The server as a method for closed batches: started anew, with as many slots, when the size of a batch changes.

    Args:
        target: prepares the prompts.
        files: program and model.
        cores: cores of the server.

    Attributes:
        about: what the last server says of itself.
    """

    def __init__(self, target: Target, files: LlamaFiles, cores: Cores | None) -> None:
        self.target, self.files, self.cores = target, files, cores
        self.about: dict[str, Any] = {}
        self._server: LlamaServer | None = None
        self._size = 0

    def answer(self, items: Sequence[Item]) -> BatchRun:
        """Answer all items; the clock starts when the server of this size is up."""
        if self._server is None or len(items) != self._size:
            self.close()
            self._server, self._size = LlamaServer(self.target, self.files, parallel=len(items)), len(items)
            self.about = self._server.about
        return BatchRun(tuple(Served(one.tokens, one.ttft_s, one.total_s) for one in self._server.answer_all(items)))

    def close(self) -> None:
        """End the server, if one runs."""
        if self._server is not None:
            self._server.close()
        self._server = None


def run_of(found: Any, prepare_s: float, total_s: float) -> Run:
    """Convert the server's answer into a run.

    Its own clock says when the first token was there, and how long it read; a stream would not tell the ids of tokens
    that are part of a character.

    >>> times = {"prompt_ms": 200.0, "predicted_ms": 600.0, "draft_n_accepted": 1}
    >>> run = run_of({"tokens": [5, 6, 7], "timings": times}, 0.1, 1.0)
    >>> run.tokens, round(run.ttft_s, 3), run.rounds, {name: round(each, 3) for name, each in run.stages_s.items()}
    ((5, 6, 7), 0.4, 2, {'prepare': 0.1, 'prefill': 0.2, 'verify': 0.6, 'other': 0.1})
    """
    tokens, times = tuple(found["tokens"]), found["timings"]
    decode = times["predicted_ms"] / 1e3
    stages = {"prepare": prepare_s, "prefill": times["prompt_ms"] / 1e3, "verify": decode}
    stages["other"] = total_s - sum(stages.values())
    rounds = len(tokens) - times.get("draft_n_accepted", 0)
    return Run(tokens, total_s, total_s - decode, stages, max(1, rounds))
