"""Which weights a folder holds, told without reading all of them."""

import hashlib
from pathlib import Path

from crossdraft.errors import CrossdraftError

SAMPLES, BLOCK = 64, 4096  # evenly spaced blocks of each file, and their bytes


def fingerprint(folder: Path) -> str:
    """Hex digest over the names, sizes, headers and samples of a folder's safetensors.

    Training touches every weight, so other weights have other samples; a checkpoint of many gigabytes is told from
    another in milliseconds.

    Raises:
        CrossdraftError: there are none, or they cannot be read.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CrossdraftError(f"{folder} holds no weights (*.safetensors).")
    digest = hashlib.sha256()
    try:
        for path in files:
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with path.open("rb") as file:
                header = min(int.from_bytes(file.read(8), "little"), size)
                digest.update(file.read(header))
                for sample in range(SAMPLES):
                    file.seek(size * sample // SAMPLES)
                    digest.update(file.read(BLOCK))
    except OSError as error:
        raise CrossdraftError(f"The weights in {folder} cannot be read: {error.strerror}.") from error
    return digest.hexdigest()
