"""Look-up of checkpoints: shipped with this package, in a folder, or in the local Hugging Face cache."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from crossdraft.checks import did_you_mean
from crossdraft.errors import CrossdraftError
from crossdraft.plugins import Table, more_to_install

REFERENCE = Path(__file__).parents[1] / "reference"
FOLDERS: Table[str] = Table("crossdraft.weights", str, "folder of weights", {"crossdraft": str(REFERENCE)})
TARGETS = ("reference",)  # shipped targets
SHIPPED_AT = {"reference": "target"}  # where a shipped model lies, if not at its name
EVENT_MODELS = ("event", "blind", "foreign")  # shipped event models
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")  # owner/name
CACHED = re.compile(r"models--([\w.-]+)--([\w.-]+)")  # its folder in the cache


def source_text(source: object) -> str:
    """The name or path of a target, as a string.

    Raises:
        CrossdraftError: `source` is neither a name nor a path.
    """
    if isinstance(source, str | os.PathLike):
        return os.fsdecode(source)
    raise CrossdraftError(
        f"The target is a {type(source).__name__}; give the name or folder of a checkpoint, or hand a loaded model to "
        "Engine.from_model(model, processor)."
    )


def find_checkpoint(source: str, shipped: Mapping[str, Path]) -> Path:
    """Find the folder of a checkpoint. Nothing is downloaded.

    Args:
        source: one of the shipped names, a folder, or a repository id such as `Qwen/Qwen2.5-VL-7B-Instruct` that lies
            in the local Hugging Face cache (`HF_HOME`).
        shipped: folders of the shipped checkpoints by name.

    Raises:
        CrossdraftError: `source` is none of these.
    """
    if source in shipped:
        return shipped[source]
    if source and Path(source).is_dir():  # an empty path would mean the current folder
        return Path(source)
    if Path(source).is_file():
        parent = Path(source).absolute().parent
        raise CrossdraftError(f"'{source}' is a file; give the folder of the checkpoint, such as {parent}.")
    if REPOSITORY.fullmatch(source):
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

        try:
            return Path(snapshot_download(source, local_files_only=True))
        except (LocalEntryNotFoundError, HFValidationError, OSError, ValueError):
            raise CrossdraftError(
                f"'{source}' is no folder, and no repository of that name lies in the local Hugging Face cache; "
                f"download it with `hf download {source}`, or give the folder of a checkpoint."
            ) from None
    raise CrossdraftError(
        f"'{source}' is neither the name of a shipped model ({', '.join(shipped)}) nor a folder"
        f"{did_you_mean(source, shipped)}; give the folder "
        "of a checkpoint, or the id of a repository (owner/name) in the local Hugging Face cache."
    )


def shipped_or_found(source: str, shipped: Sequence[str]) -> Path:
    """Find the folder of a checkpoint, shipped under a name in `shipped` or elsewhere; errors as `find_checkpoint`."""
    folders = {name: shipped_at(SHIPPED_AT.get(name, name)) for name in shipped}
    found = find_checkpoint(source, folders)
    if source in folders and not found.is_dir():
        raise CrossdraftError(f"The model '{source}' is not installed.{more_to_install()}")
    return found


def shipped_at(name: str) -> Path:
    """Find the folder of shipped weights, such as `event` or `heads/eagle`, in this or another installed package.

    Where no package has them, return the folder in this package; the caller that reads it reports what is missing.
    """
    found = (Path(folder) / name for folder in FOLDERS.values())
    return next((path for path in found if path.is_dir()), REFERENCE / name)


def shipped_heads() -> list[str]:
    """Names of all shipped heads."""
    folders = (Path(folder) / "heads" for folder in FOLDERS.values())
    return sorted(path.name for heads in folders if heads.is_dir() for path in heads.iterdir() if path.is_dir())


def repair_hint(folder: Path) -> str:
    """A hint for completing a checkpoint that lacks something."""
    found = CACHED.search(str(folder))
    if found is None:
        return "copy the checkpoint again, whole"
    return f"complete it with `hf download {found[1]}/{found[2]}`"
