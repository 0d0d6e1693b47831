"""The child's side of `process.py`."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from threading import Event, Thread
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook

from crossdraft.engine.progress import PROGRESS_BYTES, ProgressClock, mark_on, progress
from crossdraft.engine.workers.objects import restored
from crossdraft.engine.workers.shared import ALIVE, Channel, SharedMemory
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

ALIVE_S = 0.5  # between two signs of life, at least


@torch.inference_mode()
def serve(connection: Connection, threads: int) -> None:
    """Take the object, then answer questions in order; the first reply says that it is there."""
    torch.set_num_threads(threads)
    channel = Channel(connection)
    (pickled, slots, nbytes), _ = channel.receive()
    answer: Any = None
    try:
        answer = restored(pickled, SharedMemory.receive(connection, nbytes), slots)
    except Exception as error:
        log.exception("A worker could not begin.")
        channel.send((None, _sentence(error)))
        return
    channel.send((None, None))
    clock = ProgressClock(memoryview(bytearray(PROGRESS_BYTES)))
    mark_on(clock)
    register_module_forward_hook(lambda *_: progress())
    while True:
        question, tensors = channel.receive()
        try:
            with _alive(channel, clock):
                reply, made = answer(question, tensors)
        except Exception as error:
            if not isinstance(error, CrossdraftError):
                log.exception("A worker failed.")
            channel.send((None, _sentence(error)))
        else:
            channel.send((reply, None), made)


@contextmanager
def _alive(channel: Channel, clock: ProgressClock) -> Iterator[None]:
    """Say now and then that this process goes on, as long as modules are called; nothing else is sent meanwhile."""
    done = Event()
    seen = clock.get()

    def say_so() -> None:
        nonlocal seen
        while not done.wait(ALIVE_S):
            if clock.get() == seen:
                continue
            seen = clock.get()
            try:
                channel.send(ALIVE)
            except OSError:  # nobody listens any more
                return

    thread = Thread(target=say_so, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, CrossdraftError) else f"{type(error).__name__}: {error}"
