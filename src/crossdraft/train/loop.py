"""The training loop: a pure function of the step, so that a resumed run repeats the losses of an unbroken one."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from crossdraft.files import atomic_path
from crossdraft.train.console import say
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
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        window.append(float(loss.detach()))
        step += 1
        _record(stage, step, {"loss": window[-1], "norm": float(norm), **figures}, time.monotonic() - started)
        if step % 25 == 0:
            rate = step * stage.optim.clips / (time.monotonic() - started)
            note = " ".join(f"{name} {value:.3f}" for name, value in figures.items())
            say(f"{stage.name} {step}/{stage.optim.steps} loss {math.fsum(window) / len(window):.3f} {note} "
                f"{rate:.1f} clips/s")  # fmt: skip
            window.clear()
        if step % stage.optim.checkpoint_every == 0 or step == stage.optim.steps:
            _save(stage, modules, optimiser, step, time.monotonic() - started)
            if check is not None:
                modules.eval()
                check(step)
                modules.train()
    return {"steps": float(step), "wall_s": time.monotonic() - started}


def load_weights(stage: Stage, modules: nn.Module) -> None:
    """Take the weights, and only those, from a finished stage's checkpoint."""
    modules.load_state_dict(torch.load(stage.checkpoint, weights_only=True)["modules"])


def _adamw(modules: nn.Module, optim: Optim) -> torch.optim.AdamW:
    """Weight decay on matrices only."""
    parameters = [p for p in modules.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": optim.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=optim.learning_rate, betas=(0.9, optim.beta2), fused=True)


def _save(
    stage: Stage, modules: nn.Module, optimiser: torch.optim.Optimizer, step: int, spent: float
) -> None:
    state = {
        "modules": modules.state_dict(),
        "optimiser": optimiser.state_dict(),
        "step": step,
        "spent": spent,
    }
    with atomic_path(stage.checkpoint) as path:
        torch.save(state, path)


def _restore(stage: Stage, modules: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[int, float]:
    """Load the checkpoint, if any; return (steps done, seconds spent)."""
    stage.folder.mkdir(parents=True, exist_ok=True)
    if not stage.checkpoint.exists():
        return 0, 0.0
    state = torch.load(stage.checkpoint, weights_only=True)
    modules.load_state_dict(state["modules"])
    optimiser.load_state_dict(state["optimiser"])
    step = int(state["step"])
    _cut_log(stage, step)
    say(f"{stage.name}: resumed at step {step}")
    return step, float(state["spent"])


def _cut_log(stage: Stage, step: int) -> None:
    """Forget what was logged after the checkpoint: those steps are taken again."""
    lines = stage.log.read_text(encoding="utf-8").splitlines(keepends=True)
    with atomic_path(stage.log) as path:
        path.write_text("".join(line for line in lines if json.loads(line)["step"] <= step), encoding="utf-8")


def _record(stage: Stage, step: int, figures: dict[str, float], seconds: float) -> None:
    line = {"step": step, "seconds": round(seconds, 2)} | {k: round(v, 5) for k, v in figures.items()}
    with stage.log.open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")
