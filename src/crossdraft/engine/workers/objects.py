"""Objects that hold tensors, for another process: the tensors lie in memory that both map, the rest is pickled."""

import io
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from crossdraft.engine.workers.shared import SharedMemory, Slot, laid_out

HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs",
)  # fmt: skip
CAPTURING = "_output_capturing_hooks_installed"  # transformers' note that it has set them


@dataclass(frozen=True)
class SharedObject:
    """An object without its tensors, and where these are.

    Args:
        pickled: the object, each tensor as its number.
        memory: where the tensors lie.
        slots: by number, its slot, and whether it is a parameter.
    """

    pickled: bytes
    memory: SharedMemory
    slots: tuple[tuple[Slot, bool], ...]


class _Pickler(pickle.Pickler):
    """Leaves the tensors out, and hooks of modules: transformers sets its own again where they are needed."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, Tensor):
            return None
        if id(obj) not in self._numbers:
            self._numbers[id(obj)] = len(self.tensors)
            self.tensors.append(obj)
        return self._numbers[id(obj)]

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, nn.Module):
            return NotImplemented
        state = {name: value for name, value in vars(obj).items() if name != CAPTURING}
        state |= {name: OrderedDict[int, Any]() for name in HOOKS if name in state}
        config = getattr(obj, "config", None) if isinstance(obj, PreTrainedModel) else None
        return _empty, (type(obj), config), state


def _empty(kind: type[nn.Module], config: Any) -> nn.Module:
    """A module whose state is still to come."""
    if config is None:
        return kind.__new__(kind)
    with torch.device("meta"):  # a class of transformers' notes what its outputs are when one is made
        return kind(config)


class _Unpickler(pickle.Unpickler):
    """Puts the tensors back."""

    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: Any) -> Tensor:
        return self._tensors[pid]


@torch.inference_mode(mode=False)  # else the model could never be trained again
def share(value: Any, *, moved: bool) -> SharedObject:
    """An object for other processes of this machine.

    Args:
        value: what is pickled; its tensors are on the CPU.
        moved: from now on its own tensors lie in the shared memory too, so that none is there twice. Packed weights
            are copied where they are not unpacked before.

    Raises:
        CrossdraftError: there is not so much memory.
        pickle.PicklingError, AttributeError, TypeError: it cannot be pickled.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    # A packed weight has the shape of the plain one.
    slots, nbytes = laid_out(pickler.tensors)
    memory = SharedMemory(nbytes)
    for slot, tensor in zip(slots, pickler.tensors, strict=True):
        view = memory.tensor(slot)
        view.copy_((tensor.to_dense() if tensor.is_mkldnn else tensor).detach())
        if moved and not tensor.is_mkldnn:
            tensor.data = view
    kinds = (isinstance(tensor, nn.Parameter) for tensor in pickler.tensors)
    return SharedObject(file.getvalue(), memory, tuple(zip(slots, kinds, strict=True)))


def restored(pickled: bytes, memory: SharedMemory, slots: tuple[tuple[Slot, bool], ...]) -> Any:
    """The object of a `SharedObject`, around the same memory."""
    tensors: list[Tensor] = []
    for slot, is_parameter in slots:
        tensor = memory.tensor(slot)
        tensors.append(nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor)
    return _Unpickler(io.BytesIO(pickled), tensors).load()  # from our own parent
