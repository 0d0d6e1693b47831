"""Weights that are read when their turn comes: a tensor at a time, with plain reads.

`from_pretrained` maps the files into memory. Whoever then makes another copy of a weight (in another layout, dtype or
place) holds both until the end, because a mapped file stays resident as a whole. Here a model is built around
placeholders without memory; each weight is read into its parameter just before that is used, so that loading takes the
model and one layer.
"""

from collections.abc import Mapping
from typing import BinaryIO, cast

import torch
from torch import Tensor, nn

from crossdraft.checkpoints.files import StoredTensor
from crossdraft.checkpoints.locate import repair_hint
from crossdraft.engine.progress import progress
from crossdraft.errors import CrossdraftError

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
STORED = FLOATS | {
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool,
}  # fmt: skip

PIECE_BYTES = 1 << 26  # read from a file in one call


def read(stored: StoredTensor) -> Tensor:
    """Read a tensor into memory of its own.

    Raises:
        CrossdraftError: the file cannot be read, or has become shorter.
    """
    content = torch.empty(stored.bytes, dtype=torch.uint8)
    try:
        with stored.path.open("rb", buffering=0) as file:
            file.seek(stored.begin)
            _read_into(file, memoryview(content.numpy().data))
    except (OSError, EOFError) as error:
        raise CrossdraftError(f"{stored.path} cannot be read ({error}); {repair_hint(stored.path.parent)}.") from error
    return content.view(STORED[stored.dtype]).view(stored.shape)


def _read_into(file: BinaryIO, space: memoryview) -> None:
    """Fill the space a piece at a time, so that progress shows on a slow disk, too."""
    while space:
        count = cast("int | None", file.readinto(space[:PIECE_BYTES]))  # type: ignore[attr-defined]
        if not count:
            raise EOFError("it ends too early")
        space = space[count:]
        progress()


class DeferredWeights:
    """A model's parameters that still are placeholders, and the places of their weights in the files.

    Args:
        stored: tensors by their names in the files.
        dtype: dtype of the floating-point tensors in memory.
        device: device on which the weights shall lie.
    """

    def __init__(self, stored: Mapping[str, StoredTensor], dtype: torch.dtype, device: torch.device) -> None:
        self._stored, self._dtype, self._device = stored, dtype, device
        self._pending: dict[int, tuple[Tensor, StoredTensor]] = {}  # by the parameter's identity: it may be shared

    def placeholders(self) -> dict[str, Tensor]:
        """Make a placeholder for every floating-point tensor, by name, of its shape; read all other tensors now.

        A placeholder has no memory, and is NaN everywhere, so that a forgotten weight cannot go unnoticed.
        """
        nan = torch.full((), float("nan"), dtype=self._dtype)
        return {
            name: nan.expand(stored.shape) if stored.dtype in FLOATS else read(stored)
            for name, stored in self._stored.items()
        }

    def attach(self, model: nn.Module, names: Mapping[str, str]) -> None:
        """Note which stored tensor belongs to which parameter of a model that was loaded from the placeholders.

        Args:
            names: names in the files by the parameters' names.
        """
        tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(
            model.named_buffers(remove_duplicate=False)
        )
        for name, key in names.items():
            if name in tensors and self._stored[key].dtype in FLOATS:
                self._pending[id(tensors[name])] = (tensors[name], self._stored[key])

    def fill(self, module: nn.Module) -> None:
        """Read the weights of a module and its children that have not been read yet."""
        for tensor in (*module.parameters(), *module.buffers()):
            found = self._pending.pop(id(tensor), None)
            if found is not None:
                tensor.data = read(found[1]).to(self._device, tensor.dtype)
