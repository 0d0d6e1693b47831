"""The two kinds of checkpoint that a pair is made of, checked before PyTorch is imported."""

from pathlib import Path

from crossdraft.checkpoints.files import check_files, read_config, target_class
from crossdraft.checkpoints.locate import EVENT_MODELS, TARGETS, shipped_or_found
from crossdraft.errors import CrossdraftError


def check_target(source: str) -> Path:
    """Find the folder of a target: a whole checkpoint of a class that can be a target.

    Args:
        source: as in `load.load_target`.

    Raises:
        CrossdraftError: the checkpoint is missing, lacks a file, or holds a model of another kind.
    """
    folder = shipped_or_found(source, TARGETS)
    check_files(folder)
    target_class(folder)
    return folder


def check_event_model(source: str) -> Path:
    """Find the folder of an event model: `event`, `blind`, `foreign` or an EventGPT.

    Raises:
        CrossdraftError: the checkpoint is missing, lacks a file, or holds a model of another kind.
    """
    folder = shipped_or_found(source, EVENT_MODELS)
    check_files(folder)
    found = read_config(folder).get("model_type")
    if found != "eventgpt":
        raise CrossdraftError(f"{folder} holds a model of type '{found}', the drafter must be an 'eventgpt'.")
    return folder
