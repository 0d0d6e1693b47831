"""A stage's checkpoint: written whole, and refused with a sentence where it cannot be gone on from."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path

_ANEW = "remove it to train this stage anew."
# Damage shows where torch's reader of archives and pickles happens to stumble over it.
_UNREADABLE = (
    OSError, RuntimeError, EOFError, ValueError, TypeError, LookupError, AttributeError, pickle.UnpicklingError,
)  # fmt: skip


def write_checkpoint(
    path: Path, modules: nn.Module, optimiser: torch.optim.Optimizer, step: int, spent: float
) -> None:
    """Weights, optimiser, steps done and seconds spent."""
    state = {
        "modules": modules.state_dict(),
        "optimiser": optimiser.state_dict(),
        "step": step,
        "spent": spent,
    }
    with atomic_path(path) as temporary:
        torch.save(state, temporary)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `write_checkpoint` wrote.

    Raises:
        CrossdraftError: the file is damaged or something else.
    """
    try:
        state = torch.load(path, weights_only=True)
    except _UNREADABLE as error:
        raise CrossdraftError(f"The checkpoint {path} is damaged; {_ANEW}") from error
    if not isinstance(state, dict) or not {"modules", "optimiser", "step", "spent"} <= set(state):
        raise CrossdraftError(f"The checkpoint {path} is none of a training stage; {_ANEW}")
    return state


def take_weights(module: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Put a checkpoint's weights in place.

    Raises:
        CrossdraftError: they are those of another network.
    """
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        raise _of_another_recipe(path) from error


def take_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any], path: Path) -> None:
    """Go on with a checkpoint's moments.

    Raises:
        CrossdraftError: they are of other parameters, as where another recipe froze the tower.
    """
    try:
        optimiser.load_state_dict(state)
    except (ValueError, KeyError) as error:
        raise _of_another_recipe(path) from error


def _of_another_recipe(path: Path) -> CrossdraftError:
    return CrossdraftError(
        f"The checkpoint {path} is of another network than the recipe's; choose another --out, or {_ANEW}"
    )
