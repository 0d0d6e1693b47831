"""Memory that two processes map, and tensors that are handed over in it."""

import mmap
import os
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, NamedTuple

import torch
from torch import Tensor

from crossdraft.errors import CrossdraftError

ALIGNED = 64  # bytes: a cache line, and what vector loads want
ALIVE = "alive"  # a message that says no more
SLACK = 4  # a buffer that is too small becomes larger by one part in so many


class Slot(NamedTuple):
    """Location of a tensor in a shared memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int


class SharedMemory:
    """Memory without a name: it is gone when the last process that maps it is.

    Args:
        nbytes: its size.
        handle: of one that another process made; `None` = make one.

    Raises:
        CrossdraftError: there is not so much memory.
    """

    def __init__(self, nbytes: int, handle: int | None = None) -> None:
        self.nbytes = max(nbytes, ALIGNED)
        self._handle = _anonymous(self.nbytes) if handle is None else handle
        self._map = mmap.mmap(self._handle, self.nbytes)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):  # tensors keep the mapping itself
            os.close(self._handle)

    def tensor(self, slot: Slot) -> Tensor:
        """The tensor in a slot: a view."""
        count = 1
        for size in slot.shape:
            count *= size
        if count == 0:
            return torch.empty(slot.shape, dtype=slot.dtype)
        return torch.frombuffer(self._map, dtype=slot.dtype, count=count, offset=slot.offset).view(slot.shape)

    def send(self, connection: Connection) -> None:
        """Give another process of this machine access to it."""
        send_handle(connection, self._handle, None)

    @classmethod
    def receive(cls, connection: Connection, nbytes: int) -> "SharedMemory":
        """Receive the memory that the other process sends."""
        return cls(nbytes, recv_handle(connection))


def laid_out(tensors: Sequence[Tensor]) -> tuple[list[Slot], int]:
    """A slot for each tensor, one after the other, and the bytes of all.

    >>> laid_out([torch.zeros(3), torch.zeros(2, 2, dtype=torch.int64)])[1]
    128
    """
    slots: list[Slot] = []
    end = 0
    for tensor in tensors:
        slots.append(Slot(tensor.dtype, tuple(tensor.shape), end))
        end += -(-tensor.numel() * tensor.element_size() // ALIGNED) * ALIGNED
    return slots, end


class Channel:
    """A connection to another process; tensors go by memory that both map, one for each direction.

    What was received is valid until the next message is: whoever keeps it copies it.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._outgoing: SharedMemory | None = None
        self._incoming: SharedMemory | None = None

    def send(self, message: Any, tensors: Sequence[Tensor] = ()) -> None:
        """Send something that can be pickled, and CPU tensors.

        Raises:
            OSError: the other process is gone.
        """
        slots, nbytes = laid_out(tensors)
        fresh = 0
        if tensors and (self._outgoing is None or self._outgoing.nbytes < nbytes):
            fresh = nbytes + nbytes // SLACK + ALIGNED
            self._outgoing = SharedMemory(fresh)
        if self._outgoing is not None:
            for slot, tensor in zip(slots, tensors, strict=True):
                self._outgoing.tensor(slot).copy_(tensor)
        self.connection.send((message, slots, fresh))
        if fresh and self._outgoing is not None:
            self._outgoing.send(self.connection)

    def receive(self) -> tuple[Any, list[Tensor]]:
        """Wait for the next message.

        Raises:
            EOFError, OSError: the other process is gone.
        """
        message, slots, fresh = self.connection.recv()
        if fresh:
            self._incoming = SharedMemory.receive(self.connection, fresh)
        memory = self._incoming
        return message, [] if memory is None else [memory.tensor(slot) for slot in slots]


def _anonymous(nbytes: int) -> int:
    """A handle of memory without a name; all of it is there, or none."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("crossdraft")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    try:
        os.ftruncate(handle, nbytes)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, nbytes)
    except OSError as error:
        os.close(handle)
        raise CrossdraftError(
            f"There are no {nbytes / 1e9:.2f} GB of memory to share between processes ({error.strerror})."
        ) from error
    return handle
