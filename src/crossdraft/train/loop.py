"""The training loop: a pure function of the step, so that a resumed run repeats the losses of an unbroken one."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path
from crossdraft.train.checkpoint import read_checkpoint, take_optimiser, take_weights, write_checkpoint
from crossdraft.train.console import say
from crossdraft.train.lines import whole_lines
from crossdraft.train.recipe import Optim

LossOf = Callable[[int], tuple[Tensor, dict[str, float]]]
"""step -> (loss with a graph, figures for the log)."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One training stage: where it keeps its checkpoint and log, and what it optimises."""

    folder: Path
    name: str
    optim: Optim

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"{self.name}.ckpt"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log.jsonl"


def learning_rate(optim: Optim, step: int) -> float:
    """Warm-up, stable, then linear decay to zero over the last `decay_steps` (WSD)."""
    warm = min(1.0, (step + 1) / optim.warmup_steps) if optim.warmup_steps else 1.0
    left = min(1.0, (optim.steps - step) / optim.decay_steps) if optim.decay_steps else 1.0
    return optim.learning_rate * warm * left


def optimise(
    stage: Stage, modules: nn.Module, loss_of: LossOf, *, check: Callable[[int], None] | None = None
) -> dict[str, float]:
    """Train `modules` to the recipe's last step, from the checkpoint if there is one; return the closing figures.

    `check` is called after every checkpoint, for a look at validation scenes.

    Raises:
        CrossdraftError: the loss or its gradient is no finite number, or the checkpoint cannot be gone on from.
    """
    optimiser = _adamw(modules, stage.optim)
    step, spent = _restore(stage, modules, optimiser)
    modules.train()
    started = time.monotonic() - spent
    window: list[float] = []
    while step < stage.optim.steps:
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(stage.optim, step)
        loss, figures = loss_of(step)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(modules.parameters(), stage.optim.clip_norm)
        value, length = float(loss.detach()), float(norm)
        step += 1
        _refuse_unless_finite(stage, step, value, length)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        window.append(value)
        _record(stage, step, {"loss": value, "norm": length, **figures}, time.monotonic() - started)
        if step % 25 == 0:
            rate = step * stage.optim.clips / (time.monotonic() - started)
            note = " ".join(f"{name} {value:.3f}" for name, value in figures.items())
            say(f"{stage.name} {step}/{stage.optim.steps} loss {math.fsum(window) / len(window):.3f} {note} "
                f"{rate:.1f} clips/s")  # fmt: skip
            window.clear()
        if step % stage.optim.checkpoint_every == 0 or step == stage.optim.steps:
            write_checkpoint(stage.checkpoint, modules, optimiser, step, time.monotonic() - started)
            if check is not None:
                modules.eval()
                check(step)
                modules.train()
    return {"steps": float(step), "wall_s": time.monotonic() - started}


def load_weights(stage: Stage, modules: nn.Module) -> None:
    """Take the weights, and only those, from a finished stage's checkpoint."""
    take_weights(modules, read_checkpoint(stage.checkpoint)["modules"], stage.checkpoint)


def _adamw(modules: nn.Module, optim: Optim) -> torch.optim.AdamW:
    """Weight decay on matrices only."""
    parameters = [p for p in modules.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": optim.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=optim.learning_rate, betas=(0.9, optim.beta2), fused=True)


def _refuse_unless_finite(stage: Stage, step: int, loss: float, norm: float) -> None:
    """Stop before a step that would ruin the weights: what the last checkpoint holds stays good."""
    if math.isfinite(loss) and math.isfinite(norm):
        return
    kept = (
        f"{stage.checkpoint} holds the last good weights" if stage.checkpoint.exists() else "nothing is kept"
    )
    raise CrossdraftError(
        f"Step {step} of {stage.folder.name}/{stage.name} has loss {loss} and a gradient of length {norm}; {kept}: "
        "lower this stage's optim.learning_rate and run it again."
    )


def _restore(stage: Stage, modules: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[int, float]:
    """Load the checkpoint, if any; return (steps done, seconds spent)."""
    stage.folder.mkdir(parents=True, exist_ok=True)
    if not stage.checkpoint.exists():
        _cut_log(stage, 0)
        return 0, 0.0
    state = read_checkpoint(stage.checkpoint)
    take_weights(modules, state["modules"], stage.checkpoint)
    take_optimiser(optimiser, state["optimiser"], stage.checkpoint)
    step = int(state["step"])
    _cut_log(stage, step)
    say(f"{stage.name}: resumed at step {step}")
    return step, float(state["spent"])


def _cut_log(stage: Stage, step: int) -> None:
    """Forget what was logged after the checkpoint: those steps are taken again."""
    try:
        kept = [line for line in whole_lines(stage.log) if json.loads(line)["step"] <= step]
    except (ValueError, KeyError, TypeError) as error:
        raise CrossdraftError(f"The log {stage.log} is damaged; remove it to go on without it.") from error
    with atomic_path(stage.log) as path:
        path.write_text("".join(kept), encoding="utf-8")


def _record(stage: Stage, step: int, figures: dict[str, float], seconds: float) -> None:
    line = {"step": step, "seconds": round(seconds, 2)} | {k: round(v, 5) for k, v in figures.items()}
    with stage.log.open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")
