"""The child's side of `process.py`."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from threading import Event, Thread
from typing import Any

import torch

from crossdraft.engine.workers.objects import restored
from crossdraft.engine.workers.shared import ALIVE, Channel, SharedMemory
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

ALIVE_S = 0.5  # between two signs of life


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
    while True:
        question, tensors = channel.receive()
        try:
            with _alive(channel):
                reply, made = answer(question, tensors)
        except Exception as error:
            if not isinstance(error, CrossdraftError):
                log.exception("A worker failed.")
            channel.send((None, _sentence(error)))
        else:
            channel.send((reply, None), made)


@contextmanager
def _alive(channel: Channel) -> Iterator[None]:
    """Say now and then that this process goes on, however long it takes; nothing else is sent meanwhile."""
    done = Event()

    def say_so() -> None:
        while not done.wait(ALIVE_S):
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
