"""A stage's checkpoint: written whole, and refused with a sentence where it cannot be resumed from."""

import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path
from crossdraft_lab.train.core.dist import SINGLE, Distributed, full_tensors, shard_like, shard_optimiser

_ANEW = "remove it to train this stage anew."
DECIDES_NOTHING = ("optim.accumulate", "optim.parallel")  # settings that only divide a step's work
_QUOTED = 24  # characters of a setting's value that a complaint quotes
# Errors that torch's reader of archives and pickles raises for damaged files.
_UNREADABLE = (
    OSError, RuntimeError, EOFError, ValueError, TypeError, LookupError, AttributeError, pickle.UnpicklingError,
)  # fmt: skip


def write_checkpoint(path: Path, state: Mapping[str, Any], ranks: Distributed = SINGLE) -> None:
    """Write a state with its tensors whole. All ranks must call; only the first rank holds the whole state and writes.

    Keys: `modules` (weights), `step` (steps done); to resume also `optimiser`, `spent` (seconds) and further values of
    the stage.
    """
    gathered = full_tensors(state, keep=ranks.first)
    if ranks.first:
        with atomic_path(path) as temporary:
            torch.save(gathered, temporary)
    ranks.barrier()  # no rank may read the file before it exists


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a state that a stage can resume from.

    Raises:
        CrossdraftError: the file is damaged or something else.
    """
    return _read(path, {"modules", "optimiser", "step", "spent"})


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights of a state, even if no stage can resume from it.

    Raises:
        CrossdraftError: the file is damaged or something else.
    """
    return _read(path, {"modules", "step"})["modules"]


def restore_weights(module: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Load a checkpoint's weights into a module.

    Raises:
        CrossdraftError: the weights are those of another network.
    """
    try:
        module.load_state_dict(shard_like(weights, module.state_dict()))
    except RuntimeError as error:
        raise _of_another_network(path) from error


def restore_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any], path: Path) -> None:
    """Load a checkpoint's optimiser moments.

    Raises:
        CrossdraftError: the tensors belong to other parameters, as where another recipe froze the vision encoder.
    """
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    try:
        optimiser.load_state_dict(shard_optimiser(state, parameters))
    except (ValueError, KeyError) as error:
        raise _of_another_network(path) from error


@torch.no_grad()
def restore_tensors(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor], path: Path) -> None:
    """Copy a checkpoint's tensors into the tensors of the same names.

    Raises:
        CrossdraftError: the checkpoint has no tensor of such a name or shape.
    """
    try:
        for name, value in shard_like({name: values[name] for name in tensors}, tensors).items():
            tensors[name].copy_(value)
    except (KeyError, RuntimeError) as error:
        raise _of_another_network(path) from error


def config_fingerprint(config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a config to the form that a checkpoint gives back: tuples become lists."""
    return json.loads(json.dumps(config))


def require_same_config(kept: Mapping[str, Any] | None, config: Mapping[str, Any] | None, path: Path) -> None:
    """Refuse to resume another training's checkpoint.

    Args:
        kept: the checkpoint's fingerprint; `None` = it was written without one, and is accepted.
        config: settings that decide this training's weights; `None` = no comparison.
        path: path of the checkpoint.

    Raises:
        CrossdraftError: the settings differ; the first difference is named.
    """
    if kept is None or config is None:
        return
    theirs, ours = dict(_flat(kept)), dict(_flat(config_fingerprint(config)))
    for name in DECIDES_NOTHING:
        if name not in ours:  # checkpoints of earlier versions name it
            theirs.pop(name, None)
    for name in {**ours, **theirs}:
        if name not in theirs or name not in ours or theirs[name] != ours[name]:
            raise CrossdraftError(
                f"The checkpoint {path} is of another training: its {name} is {_shown(theirs, name)}, not "
                f"{_shown(ours, name)}; choose another --out, or delete it."
            )


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted name, value) of nested mappings, in their order."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def _shown(values: Mapping[str, object], name: str) -> str:
    """Shorten a value for a sentence: a number in full, the beginning of a hash."""
    if name not in values:
        return "left out"
    text = str(values[name])
    return text if len(text) <= _QUOTED else f"{text[: _QUOTED // 2]}…"


def _read(path: Path, keys: set[str]) -> dict[str, Any]:
    try:
        # Loaded onto the CPU, whatever device it was written on: a later copy moves it. Mapped, not read: a rank that
        # keeps its shard of the weights does not take memory for all of them.
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except _UNREADABLE as error:
        raise CrossdraftError(f"The checkpoint {path} is damaged; {_ANEW}") from error
    if not isinstance(state, dict) or not keys <= set(state):
        raise CrossdraftError(f"The checkpoint {path} is none of a training stage; {_ANEW}")
    return state


def _of_another_network(path: Path) -> CrossdraftError:
    return CrossdraftError(
        f"The checkpoint {path} is of another network than the recipe's; choose another --out, or {_ANEW}"
    )
