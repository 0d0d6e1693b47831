"""The child's side of `process.py`."""

import logging
from multiprocessing.connection import Connection
from typing import Any

import torch

from crossdraft.engine.workers.objects import restored
from crossdraft.engine.workers.shared import Channel, SharedMemory
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)


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
            reply, made = answer(question, tensors)
        except Exception as error:
            if not isinstance(error, CrossdraftError):
                log.exception("A worker failed.")
            channel.send((None, _sentence(error)))
        else:
            channel.send((reply, None), made)


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, CrossdraftError) else f"{type(error).__name__}: {error}"
