"""A stage's checkpoint: written whole, and refused with a sentence where it cannot be resumed from."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path
from crossdraft.train.core.average import Average
from crossdraft.train.core.dist import ALONE, Ranks, all_of, moments_of, part_of

_ANEW = "remove it to train this stage anew."
# Damage shows where torch's reader of archives and pickles happens to stumble over it.
_UNREADABLE = (
    OSError, RuntimeError, EOFError, ValueError, TypeError, LookupError, AttributeError, pickle.UnpicklingError,
)  # fmt: skip


def write_checkpoint(
    path: Path,
    modules: nn.Module,
    optimiser: torch.optim.Optimizer,
    step: int,
    spent: float,
    more: Mapping[str, Any] | None = None,
    ranks: Ranks = ALONE,
) -> None:
    """Weights, optimiser, steps done, seconds spent, and what else a stage resumes from.

    All ranks must call; the first one writes.
    """
    state = {
        "modules": modules.state_dict(),
        "optimiser": optimiser.state_dict(),
        "step": step,
        "spent": spent,
        **(more or {}),
    }
    _save(path, state, ranks)


def write_weights(path: Path, modules: nn.Module, step: int, ranks: Ranks = ALONE) -> None:
    """Weights alone, and the steps they took. All ranks must call; the first one writes."""
    _save(path, {"modules": modules.state_dict(), "step": step}, ranks)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `write_checkpoint` wrote.

    Raises:
        CrossdraftError: the file is damaged or something else.
    """
    return _read(path, {"modules", "optimiser", "step", "spent"})


def read_weights(path: Path) -> dict[str, Tensor]:
    """What `write_weights` wrote of a network.

    Raises:
        CrossdraftError: the file is damaged or something else.
    """
    return _read(path, {"modules", "step"})["modules"]


def take_weights(module: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Put a checkpoint's weights in place.

    Raises:
        CrossdraftError: they are those of another network.
    """
    try:
        module.load_state_dict(part_of(weights, module.state_dict()))
    except RuntimeError as error:
        raise _of_another_recipe(path) from error


def take_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any], path: Path) -> None:
    """Resume a checkpoint's optimiser moments.

    Raises:
        CrossdraftError: they are of other parameters, as where another recipe froze the tower.
    """
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    try:
        optimiser.load_state_dict(moments_of(state, parameters))
    except (ValueError, KeyError) as error:
        raise _of_another_recipe(path) from error


def take_average(average: Average, values: Mapping[str, Tensor], path: Path) -> None:
    """Resume a checkpoint's averaged weights.

    Raises:
        CrossdraftError: they are of other parameters.
    """
    try:
        average.take(part_of(values, average.values))
    except (KeyError, RuntimeError) as error:
        raise _of_another_recipe(path) from error


def _save(path: Path, state: Mapping[str, Any], ranks: Ranks) -> None:
    gathered = all_of(state)
    if ranks.first:
        with atomic_path(path) as temporary:
            torch.save(gathered, temporary)
    ranks.wait()  # nobody reads what is not there yet


def _read(path: Path, keys: set[str]) -> dict[str, Any]:
    try:
        # Where it was written matters not: what takes its tensors moves them.
        state = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise CrossdraftError(f"The checkpoint {path} is damaged; {_ANEW}") from error
    if not isinstance(state, dict) or not keys <= set(state):
        raise CrossdraftError(f"The checkpoint {path} is none of a training stage; {_ANEW}")
    return state


def _of_another_recipe(path: Path) -> CrossdraftError:
    return CrossdraftError(
        f"The checkpoint {path} is of another network than the recipe's; choose another --out, or {_ANEW}"
    )
