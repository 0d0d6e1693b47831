"""A device whose work is done later, in order, on a worker thread: what a GPU does, on a machine without one.

`encode` and silent pieces return when their work is launched. A pass whose logits are wanted is waited for, since on
a GPU, too, whoever reads them waits.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from crossdraft.engine.passes import TargetOut
from crossdraft.engine.target import Target


@dataclass(frozen=True)
class QueueMark:
    reached: "Future[float]"

    def wait(self) -> float:
        return self.reached.result()


class Device:
    """The queue, and its clock; `work` is called in front of every silent piece, to make it as long as a test wants."""

    def __init__(self, work: Callable[[], object] = lambda: None) -> None:
        self.work = work
        self._queue = ThreadPoolExecutor(1, "device")

    def launch(self, call: Callable[[], object]) -> Future:
        return self._queue.submit(call)

    def mark(self) -> QueueMark:
        return QueueMark(self._queue.submit(time.perf_counter))

    def close(self) -> None:
        self._queue.shutdown()


class DeferredTarget(Target):
    """A target on such a device. Built from a target on the CPU, which does the work."""

    def __init__(self, target: Target, device: Device) -> None:
        super().__init__(target.model, target.prepare, target.decode, tuple(target.eos), tuple(target.reserved))
        self.inner = target
        self.queue = device
        self.clock = device

    def encode(self, prompt):
        encoded = {}
        self.queue.launch(lambda: encoded.update(self.inner.encode(prompt)))
        return encoded

    def extend(self, cache, rows):
        silent = all(row.chunk.skip_logits for row in rows)

        def work():
            if silent:
                self.queue.work()
            return self.inner.extend(cache, rows)

        began = self.clock.mark()
        out = self.queue.launch(work)
        done = self.clock.mark()
        if silent:
            return TargetOut([torch.empty(0, self.vocab_size)] * len(rows), [()] * len(rows), began, done)
        found = out.result()
        return TargetOut(found.logits, found.hidden, began, done)
