"""Number formats of weights by name, as users write them: `bfloat16`, `bf16` or `torch.bfloat16`."""

import torch

from crossdraft.errors import CrossdraftError

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
SHORT = {
    "fp32": "float32", "float": "float32", "fp64": "float64", "double": "float64", "bf16": "bfloat16",
    "fp16": "float16", "half": "float16",
}  # fmt: skip


def dtype_name(value: object, name: str = "dtype") -> str:
    """Return the name in `DTYPES` of a dtype, given as a `torch.dtype`, by name or by short name.

    Args:
        value: a `torch.dtype` or a string.
        name: name of the option, for the error message.

    Raises:
        CrossdraftError: `value` is no known dtype.
    """
    written = str(value).removeprefix("torch.")
    found = SHORT.get(written, written)
    if found not in DTYPES:
        raise CrossdraftError(f"Unknown {name} '{written}'; choose one of {', '.join(DTYPES)}.")
    return found
