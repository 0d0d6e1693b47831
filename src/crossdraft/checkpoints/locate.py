"""Where a checkpoint lies: shipped with this package, in a folder, or in the local Hugging Face cache."""

import os

from crossdraft.errors import CrossdraftError


def source_text(source: object) -> str:
    """The name or path of a target, as a string.

    Raises:
        CrossdraftError: it is neither.
    """
    if isinstance(source, str | os.PathLike):
        return os.fsdecode(source)
    raise CrossdraftError(
        f"The target is a {type(source).__name__}; give the name or folder of a checkpoint, or hand a loaded model to "
        "Engine.from_model(model, processor)."
    )
