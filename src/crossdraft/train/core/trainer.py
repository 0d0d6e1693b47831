"""One sitting of a training stage: from where the last one left it, step by step, to what it gives."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from crossdraft.engine.fast.packed_linear import has_bf16
from crossdraft.errors import CrossdraftError
from crossdraft.train.core.average import Average
from crossdraft.train.core.checkpoint import (
    read_checkpoint,
    read_weights,
    take_average,
    take_optimiser,
    take_weights,
    write_checkpoint,
    write_weights,
)
from crossdraft.train.core.console import say
from crossdraft.train.core.dist import Ranks, at_home, spread, syncing
from crossdraft.train.core.identity import plain, require_same
from crossdraft.train.core.log import cut, note_check, note_step
from crossdraft.train.core.recipe import Optim
from crossdraft.train.core.schedule import learning_rate
from crossdraft.train.core.share import LossOf, Part, Share, merged, weight
from crossdraft.train.core.stage import Stage
from crossdraft.train.core.stopping import Standing, watched

Check = Callable[[int], Mapping[str, float] | None]
"""steps done -> figures of a look at validation data, if it measures any. Called on the first rank alone."""


class Sitting:
    """A stage under way: what changes from step to step, and what a checkpoint holds of it.

    Args:
        stage, modules, loss_of, check, describe, ranks: as `loop.optimise` has them.

    Raises:
        CrossdraftError: a step's clips cannot be shared out, or a figure is watched that nothing measures.
    """

    def __init__(
        self,
        stage: Stage,
        modules: nn.Module,
        loss_of: LossOf,
        check: Check | None,
        describe: Callable[[int], str] | None,
        ranks: Ranks,
    ) -> None:
        optim, pieces = stage.optim, stage.optim.accumulate * ranks.count
        if pieces > 1 and optim.clips % pieces:
            raise CrossdraftError(
                f"A step's optim.clips={optim.clips} cannot be shared out evenly among {optim.accumulate} passes of "
                f"{ranks.count} ranks; make it a multiple of {pieces}."
            )
        if optim.watch is not None and check is None:
            raise CrossdraftError(
                f"optim.watch names '{optim.watch}', but this training has no checks that measure it; leave it out."
            )
        self.stage, self.modules, self.check, self.describe, self.ranks = (stage, modules, check, describe, ranks)
        self.device = next(modules.parameters()).device
        self.passes = spread(modules, loss_of, optim.parallel, ranks)
        self.optimiser = _adamw(modules, optim)  # after `spread`, which may exchange the parameters
        self.average = Average(modules, optim.ema) if optim.ema else None
        self.standing = Standing()
        self.step = 0
        self.losses: list[float] = []
        self.started = time.monotonic()

    @property
    def over(self) -> bool:
        optim = self.stage.optim
        return self.step >= optim.steps or self.standing.is_over(optim.patience)

    @property
    def spent(self) -> float:
        return time.monotonic() - self.started

    def restore(self) -> None:
        """Take up the checkpoint, if there is one, and the check that it still owes.

        Raises:
            CrossdraftError: it is damaged, or another training's.
        """
        stage = self.stage
        stage.folder.mkdir(parents=True, exist_ok=True)
        if stage.checkpoint.exists():
            state = read_checkpoint(stage.checkpoint)
            require_same(state.get("identity"), stage.identity, stage.checkpoint)
            take_weights(self.modules, state["modules"], stage.checkpoint)
            take_optimiser(self.optimiser, state["optimiser"], stage.checkpoint)
            if self.average is not None:
                values = state["modules"] | state.get("average", {})  # a stage that only now begins to average
                take_average(self.average, values, stage.checkpoint)
            self.standing = Standing(**state.get("standing", {}))
            self.step = int(state["step"])
            self.started -= float(state["spent"])
            if self.ranks.first:
                say(f"{stage.name}: resumed from step {self.step}")
        self.ranks.wait()
        if self.ranks.first:
            cut(stage.log, self.step, self.standing.checked if stage.optim.watch else self.step)
        if self.step and stage.optim.watch and self.standing.checked < self.step:
            self.look()  # it was stopped between a checkpoint and its check

    def learn(self) -> float:
        """One step of the optimiser, logged; return its loss.

        Raises:
            CrossdraftError: before a step that would ruin the weights.
        """
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(self.stage.optim, self.step)
        parts = [part for sides in self.ranks.gathered(self._passes()) for part in sides]
        self._unweigh(sum(part.weight for part in parts))
        loss, figures = merged(parts)
        norm = nn.utils.clip_grad_norm_(self.modules.parameters(), self.stage.optim.clip_norm)
        length = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        self._refuse_unless_finite(loss, length)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.step)
        self.step += 1
        self.losses.append(loss)
        if self.ranks.first:
            note_step(self.stage.log, self.step, self.spent, {"loss": loss, "norm": length, **figures})
        return loss

    def _passes(self) -> list[Part]:
        """This rank's shares of the step: their gradients, times their weights, add up in the parameters."""
        optim, ranks, parts = self.stage.optim, self.ranks, []
        for turn in range(optim.accumulate):
            share = Share(turn * ranks.count + ranks.rank, optim.accumulate * ranks.count)
            with syncing(self.passes, last=turn + 1 == optim.accumulate):
                with _seeded(self.step * share.of + share.index, self.device), self._precision():
                    loss, figures = self.passes(self.step, share)
                heavy = weight(share, figures)
                (loss * heavy).backward()
            parts.append(Part(float(loss.detach()), heavy, figures))
        return parts

    def _unweigh(self, total: float) -> None:
        """Make gradients, which are means over ranks of weighted sums, those of the weighted mean."""
        factor = self.ranks.count / (total or 1.0)
        if factor != 1:
            for parameter in self.modules.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)

    def _precision(self) -> AbstractContextManager[object]:
        """bf16 products where the recipe asks for them and the processor has them; else what is around stays."""
        able = self.device.type != "cpu" or has_bf16()
        wanted = self.stage.optim.bf16 and able
        return torch.autocast(self.device.type, torch.bfloat16) if wanted else nullcontext()

    def _refuse_unless_finite(self, loss: float, norm: float) -> None:
        """Stop before a step that would ruin the weights: what the last checkpoint holds stays good."""
        if math.isfinite(loss) and math.isfinite(norm):
            return
        stage = self.stage
        kept = (
            f"{stage.checkpoint} holds the last finite weights"
            if stage.checkpoint.exists()
            else "there is no checkpoint yet"
        )
        batch = f", on {self.describe(self.step)}," if self.describe else ""
        raise CrossdraftError(
            f"Step {self.step + 1} of {stage.folder.name}/{stage.name}{batch} diverged: loss {loss}, gradient norm "
            f"{norm}; {kept}. Lower this stage's optim.learning_rate and run it again."
        )

    def keep(self) -> None:
        """Write the checkpoint."""
        more: dict[str, Any] = {"standing": asdict(self.standing)}
        if self.stage.identity is not None:
            more["identity"] = plain(self.stage.identity)
        if self.average is not None:
            more["average"] = self.average.values
        write_checkpoint(self.stage.checkpoint, self.modules, self.optimiser, self.step, self.spent, more, self.ranks)

    def look(self) -> None:
        """Check the weights that would be given if this were the end; where a figure is watched, judge by it."""
        if self.check is None:
            return
        watch = self.stage.optim.watch
        with self.average.in_place() if self.average is not None else nullcontext():
            figures = self._checked(self.check)
            if watch is None:
                return
            self.standing = self.standing.after(self.step, watched(figures, watch))
            if self.standing.best_step == self.step:
                write_weights(self.stage.best, self.modules, self.step, self.ranks)
        self.keep()  # once more, with this check in it

    def _checked(self, check: Check) -> Mapping[str, float]:
        """The first rank's look, which all of them go by."""
        figures: Mapping[str, float] = {}
        self.modules.eval()
        with at_home(self.passes):
            if self.ranks.first:
                figures = check(self.step) or {}
        self.modules.train()
        figures = self.ranks.agreed(figures)
        if figures and self.ranks.first:
            note_check(self.stage.log, self.step, self.spent, figures)
            told = " ".join(f"{name} {value:.3f}" for name, value in figures.items())
            say(f"{self.stage.name} {self.step}: validation {told}")
        return figures

    def tell(self) -> None:
        """One line: how far, and the mean loss since the last line."""
        if self.ranks.first:
            mean = math.fsum(self.losses) / len(self.losses)
            say(f"{self.stage.name} {self.step}/{self.stage.optim.steps} loss {mean:.3f}")
        self.losses.clear()

    def settle(self) -> dict[str, float]:
        """Put in place what the stage gives; return the closing figures."""
        closing = {"steps": float(self.step), "wall_s": self.spent}
        if self.stage.optim.watch and self.standing.best_step:
            take_weights(self.modules, read_weights(self.stage.best), self.stage.best)
            return closing | {"best_step": float(self.standing.best_step), "best": self.standing.best}
        if self.average is not None:
            self.average.put()
        return closing


def _adamw(modules: nn.Module, optim: Optim) -> torch.optim.AdamW:
    """Weight decay on matrices only."""
    parameters = [p for p in modules.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": optim.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=optim.learning_rate, betas=(optim.beta1, optim.beta2), fused=True)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Chance (dropout) that is the same whenever this pass is taken; what is drawn outside goes on undisturbed."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
