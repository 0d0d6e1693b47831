"""Provenance of an artifact, in a file next to it."""

import hashlib
import json
import platform
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from crossdraft.files import atomic_path

ABSOLUTE = re.compile(r"(?<![\w.~/-])/(?:[^/,()=]+/)*([^/,()=]+)/?")
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")


def origin() -> dict[str, Any]:
    """Time, command, machine and versions: the part of a provenance that needs only the running process."""
    return {
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": [Path(sys.argv[0]).name, *map(without_folders, sys.argv[1:])],
        "machine": {"processor": platform.processor() or platform.machine(), "system": platform.system()},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
    }


def without_folders(argument: str) -> str:
    """Shorten each absolute path in an argument to its last part: the folders above are one machine's.

    >>> [without_folders(text) for text in ("/home/me/runs/a", "--out=/tmp/b", "eagle2:dir=/c/d,tree=chain", "runs/e")]
    ['a', '--out=b', 'eagle2:dir=d,tree=chain', 'runs/e']
    """
    return ABSOLUTE.sub(r"\1", argument)


def write_provenance(path: Path, recipe: BaseModel, figures: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Write argv, recipe, versions, data seeds and hashes, and figures as JSON."""
    record = {**origin(), "recipe": recipe.model_dump(), "data": dict(data), "figures": dict(figures)}
    write_json(path, record)


def write_json(path: Path, value: object) -> None:
    """Write indented JSON, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
