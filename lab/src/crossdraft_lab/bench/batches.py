"""Closed batches: N requests handed over at once, answered by our engine or by Hugging Face's padded `generate`."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from crossdraft.api import new_loop
from crossdraft.cli.cores import Cores
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Origin, Piece
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.target import Target
from crossdraft.options import Options
from crossdraft_lab.bench.baselines import HFBaseline, TokenTimes, saying_nothing
from crossdraft_lab.bench.workload import Item


@dataclass(frozen=True, slots=True)
class Served:
    """Answer to one request of a batch: tokens, and seconds from the batch's arrival to first and last token."""

    tokens: tuple[int, ...]
    ttft_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class BatchRun:
    """Answers to a batch, in the order of its requests."""

    served: tuple[Served, ...]

    @property
    def seconds(self) -> float:
        """Seconds to the end of the last answer; clearing up afterwards is not counted."""
        return max(one.total_s for one in self.served)

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(len(one.tokens) for one in self.served)


class BatchMethod(Protocol):
    """A method that answers closed batches; `cores` are those of its thread or of its own process; `None` = any."""

    cores: Cores | None

    def answer(self, items: Sequence[Item]) -> BatchRun:
        """Answer all items; the clock starts when they are handed over."""
        ...

    def close(self) -> None:
        """Stop the method's processes and threads."""
        ...


class EngineBatch:
    """Our engine with `max_batch` the size of each batch. Its loop runs in the calling thread; see `EngineMethod`.

    Args:
        target: the target model.
        drafter: the drafter's runner; `None` = the target alone. `close` ends it.
        options: how the pair runs.
        cores: cores that the loop's thread may use.
    """

    def __init__(self, target: Target, drafter: DraftRunner[Any] | None, options: Options, cores: Cores | None) -> None:
        self.cores = cores
        self.drafter = drafter
        self._loops: dict[int, DecodeLoop] = {}
        self._make = partial(new_loop, target, drafter)
        # Cores would be checked against the thread's cores, which by then are only this method's own.
        self._options = replace(options, target_cores=None, draft_cores=None)
        self._cost, self._batches = CostModel(), 0

    def answer(self, items: Sequence[Item]) -> BatchRun:
        if len(items) not in self._loops:  # only one loop is kept: each holds a cache for its rows
            options = replace(self._options, max_batch=len(items))
            self._loops = {len(items): self._make(options, self._cost)}
        self._batches += 1
        # What is learned from an answer must not help when the same question comes again.
        space = f"batch {self._batches}"
        asked = [replace(item, request=replace(item.request, namespace=space)) for item in items]
        return run_batch(self._loops[len(items)], asked)

    def close(self) -> None:
        if self.drafter is not None:
            self.drafter.close()


def run_batch(loop: DecodeLoop, items: Sequence[Item]) -> BatchRun:
    """Submit all requests, and step the loop until all are answered."""
    first: dict[int, float] = {}
    ended: dict[int, float] = {}

    def on_piece(number: int, piece: Piece) -> None:
        if piece.origin is not Origin.PROVISIONAL:
            first.setdefault(number, time.perf_counter())

    start = time.perf_counter()
    tickets = [
        loop.submit(item.request, partial(on_piece, number), provisional=False) for number, item in enumerate(items)
    ]
    while loop.busy:
        loop.step()
        now = time.perf_counter()
        for ticket in loop.finished():
            ended.setdefault(ticket, now)
    answers = [loop.answer(ticket) for ticket in tickets]
    return BatchRun(
        tuple(
            Served(answer.tokens, first.get(number, ended[ticket]) - start, ended[ticket] - start)
            for number, (ticket, answer) in enumerate(zip(tickets, answers, strict=True))
        )
    )


class PaddedBatch:
    """`generate` of the target's own class on a batch that is padded on the left.

    A request counts as ended when its last token was handed out, though `generate` returns only when all are done.

    Args:
        target: gives the model and its inputs.
        cores: cores that the baseline may use.
    """

    def __init__(self, target: Target, cores: Cores | None = None) -> None:
        self.target = target
        self.cores = cores
        self._settings = HFBaseline(target)

    @torch.inference_mode()
    def answer(self, items: Sequence[Item]) -> BatchRun:
        start = time.perf_counter()
        inputs = padded([self._settings.inputs(self.target.prepare(item.request)) for item in items])
        longest = inputs["input_ids"].shape[1]
        config = self._settings.config(self.target.defaults.resolve(items[0].request), longest)
        eos = sorted(self.target.eos)
        config.pad_token_id = eos[0]  # finished answers are padded with it; `until_end` cuts it off
        times, model = TokenTimes(), self.target.model
        with saying_nothing(model):
            generate: Any = model.generate
            ids = generate(**inputs, generation_config=config, streamer=times)
        answers = [until_end(row, eos) for row in ids[:, longest:].tolist()]
        return BatchRun(
            tuple(Served(tokens, times.at[0] - start, times.at[len(tokens) - 1] - start) for tokens in answers)
        )

    def close(self) -> None:
        """Do nothing: no other process runs."""


def padded(inputs: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Join single inputs into a batch: ids and masks [1, L] padded with 0 on the left, features one after another."""
    longest = max(one["input_ids"].shape[1] for one in inputs)

    def fill(name: str, value: Tensor) -> Tensor:
        if name not in ("input_ids", "attention_mask", "mm_token_type_ids"):
            return value
        return torch.nn.functional.pad(value, (longest - value.shape[1], 0))

    return {name: torch.cat([fill(name, one[name]) for one in inputs]) for name in inputs[0]}


def until_end(tokens: Sequence[int], eos: Sequence[int]) -> tuple[int, ...]:
    """Cut an answer's tokens after its first end token.

    >>> until_end([5, 7, 2, 2, 2], [2])
    (5, 7, 2)
    """
    ends = [index for index, token in enumerate(tokens) if token in eos]
    return tuple(tokens[: ends[0] + 1] if ends else tokens)
