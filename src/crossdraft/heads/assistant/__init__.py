"""The drafter `assistant`: a small model that is published beside a target, to draft for it alone.

Gemma 4's attends to the target's own keys and values; Muse Glimmer's drafts blocks (DFlash) from the target's features.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossdraft.checkpoints.files import read_config, stored_tensors
from crossdraft.errors import CrossdraftError
from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Spec

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter

BLOCKS = "muse_glimmer_assistant"
TYPES = "gemma4_assistant", "gemma4_unified_assistant", BLOCKS


@dataclass(frozen=True)
class AssistantSettings:
    """The folder of the assistant, and the way its trees grow."""

    dir: Path | None = None
    tree: str = "dynamic"


def folder_of(settings: AssistantSettings) -> Path:
    """The folder of the assistant, once its files and its type are checked.

    Raises:
        CrossdraftError: no folder is named, a file is missing or damaged, or it holds a model of another type.
    """
    if settings.dir is None:
        raise CrossdraftError("An assistant is a checkpoint of its own; name its folder, as assistant:dir=FOLDER.")
    if not settings.dir.is_dir():
        raise CrossdraftError(f"There is no folder {settings.dir}; give the folder of an assistant's checkpoint.")
    stored_tensors(settings.dir)
    if (found := read_config(settings.dir).get("model_type")) not in TYPES:
        raise CrossdraftError(
            f"{settings.dir} holds a model of type '{found}', no assistant ({', '.join(TYPES)}); as a model of its own "
            f"it drafts as model:dir={settings.dir}."
        )
    return settings.dir


def check(spec: Spec, settings: AssistantSettings, target: str | None) -> None:
    """Raise CrossdraftError as `folder_of`."""
    folder_of(settings)


def build(spec: Spec, settings: AssistantSettings, context: DrafterContext) -> "Drafter[Any]":
    """Build the drafter from the assistant's folder."""
    from crossdraft.heads.assistant.load import load_assistant

    return load_assistant(context.load_host(), folder_of(settings), settings.tree, context.banned)


RECORDS = (
    Method(
        "assistant", "the assistant that is published beside a Gemma 4 or a Muse Glimmer",
        "Gemma 4, Muse Glimmer: 2026", build, check=check,
        settings=AssistantSettings, drafts_trees=True, senses=("video",), needs_target=True, examples=(),
        weights={"dir": ""},
    ),
)  # fmt: skip
