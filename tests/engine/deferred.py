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


def deferred(target: Target, device: Device) -> Target:
    """A target on such a device, of one on the CPU, which does the work."""

    def encode(prompt):
        encoded = {}
        device.launch(lambda: encoded.update(target.encode(prompt)))
        return encoded

    def extend(cache, rows):
        silent = all(row.chunk.skip_logits for row in rows)

        def work():
            if silent:
                device.work()
            return target.extend(cache, rows)

        began = made.clock.mark()
        out = device.launch(work)
        done = made.clock.mark()
        if silent:
            return TargetOut([torch.empty(0, target.vocab_size)] * len(rows), [()] * len(rows), began, done)
        found = out.result()
        return TargetOut(found.logits, found.hidden, began, done)

    made = target.reading(encode=encode, extend=extend)
    made.clock = device
    return made


def waiting(target: Target) -> Target:
    """The same target, but every pass waits for its end: what a synchronous device does."""

    def extend(cache, rows):
        out = target.extend(cache, rows)
        out.done.wait()
        return out

    return target.reading(extend=extend)
