"""Checkpoint folders as files: safetensors shards, written as a whole folder or none."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import split_torch_state_dict_into_shards
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from crossdraft.errors import CrossdraftError
from crossdraft.files import put_in_place, temporary_folder
from crossdraft.models.shards import OnShard

# What the libraries' parsers and writers raise; the tokenizers library also a bare `Exception`.
_LIBRARY_ERRORS = (
    OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, SafetensorError, StrictDataclassError,
)  # fmt: skip


@contextmanager
def library_errors_as(fault: str, remedy: str) -> Iterator[None]:
    """Turn what a library raises on a damaged file or a full disk into "fault (reason); remedy.".

    Our own errors are sentences already and pass unchanged. So does whatever no file can cause: that is a bug.
    """
    try:
        yield
    except CrossdraftError:
        raise
    except Exception as error:
        if not isinstance(error, _LIBRARY_ERRORS) and type(error) is not Exception:
            raise
        reason = " ".join(str(error).split())[:200]
        raise CrossdraftError(f"{fault} ({reason}); {remedy}.") from error


def write_weights(folder: Path, weights: Mapping[str, Tensor], on_shard: OnShard) -> None:
    """Write safetensors shards of at most 5 GB, and their index where there are several."""
    split = split_torch_state_dict_into_shards(dict(weights))
    shards = split.filename_to_tensors
    for done, (name, keys) in enumerate(shards.items()):
        on_shard("writing", done, len(shards))
        save_file({key: weights[key].contiguous() for key in keys}, folder / name, metadata={"format": "pt"})
    on_shard("writing", len(shards), len(shards))
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


@contextmanager
def new_folder(destination: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes `destination` on success and is removed on failure.

    Raises:
        CrossdraftError: the destination exists and is not an empty folder, or cannot be written.
    """
    with library_errors_as(f"Cannot write {destination}", "choose a folder you may write to"):
        if destination.exists() and not (destination.is_dir() and not any(destination.iterdir())):
            raise CrossdraftError(f"{destination} exists already; give a new folder, or remove it first.")
    with temporary_folder(destination) as temporary:
        (temporary / "new").mkdir()
        yield temporary / "new"
        put_in_place(temporary / "new", destination)
