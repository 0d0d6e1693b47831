"""The trainer for all trainings of this package. A step is a pure function of its number.

So a resumed run repeats the losses of an unbroken one, and neither the number of micro-batches in a step nor the number
of ranks that share them changes what is learned, except for rounding. One exception: random numbers that a network
draws while it learns (dropout, DFlash's anchors) are drawn per micro-batch. They
are the same whenever that micro-batch is run, but not if a step is divided otherwise.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from crossdraft.checks import suggestion
from crossdraft.engine.fast.packed_linear import has_bf16
from crossdraft.errors import CrossdraftError
from crossdraft_lab.folders import make_folder
from crossdraft_lab.outputs import progress_bar
from crossdraft_lab.train.core.checkpoint import (
    config_fingerprint,
    read_checkpoint,
    read_weights,
    require_same_config,
    restore_optimiser,
    restore_tensors,
    restore_weights,
    write_checkpoint,
)
from crossdraft_lab.train.core.dist import (
    SINGLE,
    Distributed,
    LossFn,
    MicroBatch,
    MicroLoss,
    evaluate,
    gradient_sync,
    merge_losses,
    micro_weight,
    parallelise,
)
from crossdraft_lab.train.core.log import MetricsLog, say
from crossdraft_lab.train.core.recipe import Optim, learning_rate

Check = Callable[[int], Mapping[str, float] | None]
"""steps done -> figures on validation data, if any are measured. Called on the first rank alone; with FSDP on all."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One training stage: its folder of checkpoints and log, and its optimiser settings.

    Args:
        config: settings that decide the weights: a checkpoint with other settings is refused. `None` = no comparison:
            the caller knows whose folder it is.
        checked_on: data that chooses the weights, where a figure is watched; `None` = no comparison. Old checkpoints do
            not name it, and are accepted.
    """

    folder: Path
    name: str
    optim: Optim
    config: Mapping[str, Any] | None = None
    checked_on: Mapping[str, Any] | None = None

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"{self.name}.ckpt"

    @property
    def best(self) -> Path:
        """Path of the weights of the best check, where a figure is watched."""
        return self.folder / f"{self.name}.best.ckpt"

    @property
    def log(self) -> MetricsLog:
        return MetricsLog(self.folder / f"{self.name}.log.jsonl")


def load_weights(stage: Stage, modules: nn.Module) -> None:
    """Load the weights of a finished stage into modules, without the optimiser's state."""
    state = read_checkpoint(stage.checkpoint)
    if stage.optim.watch and stage.best.exists():
        restore_weights(modules, read_weights(stage.best), stage.best)
    else:
        restore_weights(modules, state["modules"] | state.get("average", {}), stage.checkpoint)


class Trainer:
    """One training stage: steps, checks, checkpoints, exact resume.

    `Trainer(stage, modules, loss_fn).run()` trains `modules` to the recipe's last step, from the checkpoint if there is
    one. A finished run is not repeated.

    Args:
        loss_fn: loss of a micro-batch, with `step` counted from 0; `dist.full_batch` adapts a loss that takes no parts.
        check: figures on validation data, measured every `checkpoint_every` steps and at the end.
        describe: describes what a step learns from ("answers 13, 77"), for the error if its loss is not finite.
        ranks: the processes that train together.
        shares: largest number of parts of a step, evenly divided or not; `None` = `optim.clips`, divided evenly.
        network: all modules that a step runs through, if frozen weights are to be sharded, too; see `dist.parallelise`.

    Raises:
        CrossdraftError: a step's clips cannot be divided, or a watched figure is not measured.
    """

    def __init__(
        self,
        stage: Stage,
        modules: nn.Module,
        loss_fn: LossFn,
        *,
        check: Check | None = None,
        describe: Callable[[int], str] | None = None,
        ranks: Distributed = SINGLE,
        shares: int | None = None,
        network: nn.Module | None = None,
    ) -> None:
        optim, parts = stage.optim, stage.optim.accumulate * ranks.count
        if shares is not None and parts > shares:
            raise CrossdraftError(
                f"A step can be cut into {shares} parts, not into {optim.accumulate} passes of {ranks.count} ranks; "
                "lower optim.accumulate or the number of processes."
            )
        if shares is None and optim.clips % parts:
            raise CrossdraftError(
                f"A step's optim.clips={optim.clips} cannot be shared out evenly among {optim.accumulate} passes of "
                f"{ranks.count} ranks; make it a multiple of {parts}."
            )
        if optim.watch is not None and check is None:
            raise CrossdraftError(
                f"optim.watch names '{optim.watch}', but this training has no checks that measure it; leave it out."
            )
        self.stage, self.optim, self.modules, self.ranks = stage, optim, modules, ranks
        self.loss_fn, self.check, self.describe = loss_fn, check, describe
        self.device = next(modules.parameters()).device
        self.step_module = parallelise(modules, optim.parallel, ranks, network)
        self.optimiser = _adamw(modules, optim)  # after `parallelise`, which may exchange the parameters
        self.average = AveragedWeights(modules, optim.ema) if optim.ema else None
        self.early_stop = EarlyStop()
        self.step = 0
        self.recent_losses: list[float] = []
        self.started = time.monotonic()

    @property
    def finished(self) -> bool:
        return self.step >= self.optim.steps or self.early_stop.should_stop(self.optim.patience)

    @property
    def seconds(self) -> float:
        """Seconds of training so far, those before a resume included."""
        return time.monotonic() - self.started

    def run(self) -> dict[str, float]:
        """Train to the end; return the closing figures.

        At the end `modules` hold the best checked weights where the recipe watches a figure, else the averages where it
        averages, else the last ones. With FSDP, `modules` stay sharded: `load_weights` loads the result into whole
        modules.

        Raises:
            CrossdraftError: the loss or its gradient is not finite, the checkpoint cannot be resumed from, or the
                checks do not give the figure that is watched.
        """
        self.resume()
        self.modules.train()
        if not self.step:
            self._require_watched()
        with self._progress() as advance:
            while not self.finished:
                advance(self.train_step())
                if self.step % self.optim.checkpoint_every == 0 or self.step == self.optim.steps:
                    self.save()
                    self.report()
                    self.validate()
        return self.finish()

    def resume(self) -> None:
        """Resume from the checkpoint, if there is one, and run its check if that is missing.

        Raises:
            CrossdraftError: the checkpoint is damaged, or another training's.
        """
        stage = self.stage
        make_folder(stage.folder)
        if stage.checkpoint.exists():
            self._restore(read_checkpoint(stage.checkpoint))
            if self.ranks.first:
                say(f"{stage.name}: resumed from step {self.step}")
        self.ranks.barrier()
        if self.ranks.first:
            stage.log.truncate(self.step, self.early_stop.checked if self.optim.watch else self.step)
        if self.step and self.optim.watch and self.early_stop.checked < self.step:
            self.validate()  # it was stopped between a checkpoint and its check

    def _restore(self, state: dict[str, Any]) -> None:
        path = self.stage.checkpoint
        require_same_config(state.get("identity"), self.stage.config, path)
        require_same_config(state.get("checked_on"), self.stage.checked_on, path)
        restore_weights(self.modules, state["modules"], path)
        restore_optimiser(self.optimiser, state["optimiser"], path)
        if self.average is not None:
            # The weights themselves where the stage only now begins to average.
            restore_tensors(self.average.values, state["modules"] | state.get("average", {}), path)
        self.early_stop = EarlyStop(**state.get("standing", {}))
        self.step = int(state["step"])
        self.started -= float(state["spent"])

    def train_step(self) -> float:
        """Take one optimiser step and log it; return its loss.

        Raises:
            CrossdraftError: loss or gradient is not finite; raised before the weights change.
        """
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(self.optim, self.step)
        parts = [part for own in self.ranks.all_gather(self._backward()) for part in own]
        self._scale_gradients(sum(part.weight for part in parts))
        loss, figures = merge_losses(parts)
        norm = nn.utils.clip_grad_norm_(self.modules.parameters(), self.optim.clip_norm)
        length = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        self._require_finite(loss, length)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.step)
        self.step += 1
        self.recent_losses.append(loss)
        if self.ranks.first:
            self.stage.log.add_step(self.step, self.seconds, {"loss": loss, "norm": length, **figures})
        return loss

    def _backward(self) -> list[MicroLoss]:
        """Run this rank's micro-batches: their gradients, times their weights, add up in the parameters."""
        parts, of = [], self.optim.accumulate * self.ranks.count
        for turn in range(self.optim.accumulate):
            batch = MicroBatch(turn * self.ranks.count + self.ranks.rank, of)
            with gradient_sync(self.step_module, last=turn + 1 == self.optim.accumulate):
                with _seeded(self.step * of + batch.index, self.device), self._autocast():
                    loss, figures = self.step_module(partial(self.loss_fn, self.step, batch))
                weight = micro_weight(batch, figures)
                (loss * weight).backward()
            parts.append(MicroLoss(float(loss.detach()), weight, figures))
        return parts

    def _scale_gradients(self, total_weight: float) -> None:
        """Convert gradients, which are means over ranks of weighted sums, into the gradient of the weighted mean."""
        factor = self.ranks.count / (total_weight or 1.0)
        if factor != 1:
            for parameter in self.modules.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)

    def _autocast(self) -> AbstractContextManager[object]:
        """Context for bf16 products where the recipe asks for them and the processor has them."""
        able = self.device.type != "cpu" or has_bf16()
        return torch.autocast(self.device.type, torch.bfloat16) if self.optim.bf16 and able else nullcontext()

    def _require_finite(self, loss: float, norm: float) -> None:
        """Stop before a step that would make weights NaN or infinite: the last checkpoint stays usable."""
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

    def save(self) -> None:
        """Write the checkpoint. The keys `standing` and `identity` are named as in earlier versions' files."""
        state = {
            "modules": self.modules.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "spent": self.seconds,
            "standing": asdict(self.early_stop),
        }
        if self.stage.config is not None:
            state["identity"] = config_fingerprint(self.stage.config)
        if self.stage.checked_on is not None:
            state["checked_on"] = config_fingerprint(self.stage.checked_on)
        if self.average is not None:
            state["average"] = self.average.values
        write_checkpoint(self.stage.checkpoint, state, self.ranks)

    def report(self) -> None:
        """Print the stage's progress, and the mean loss since the last report."""
        if self.ranks.first:
            mean = math.fsum(self.recent_losses) / len(self.recent_losses)
            say(f"{self.stage.name} {self.step}/{self.optim.steps} loss {mean:.3f}")
        self.recent_losses.clear()

    def validate(self) -> None:
        """Check the weights that training would return if it ended now; where a figure is watched, keep the best."""
        if self.check is None:
            return
        watch = self.optim.watch
        with self.average.swapped_in() if self.average is not None else nullcontext():
            figures = self._run_check(self.check)
            if watch is None:
                return
            self.early_stop = self.early_stop.after(self.step, watched_figure(figures, watch))
            if self.early_stop.best_step == self.step:
                best = {"modules": self.modules.state_dict(), "step": self.step}
                write_checkpoint(self.stage.best, best, self.ranks)
        self.save()  # again, now with this check

    def _require_watched(self) -> None:
        """Refuse a watched figure that the checks do not give, before the first step."""
        if self.optim.watch is None or self.check is None:
            return
        figures = self._figures(self.check)
        if figures:
            watched_figure(figures, self.optim.watch)

    def _figures(self, check: Check) -> Mapping[str, float]:
        """Return the figures of the first rank's check, which all ranks use."""
        self.modules.eval()
        figures = evaluate(self.step_module, self.ranks, partial(check, self.step))
        self.modules.train()
        return figures or {}

    def _run_check(self, check: Check) -> Mapping[str, float]:
        """Run a check and log its figures."""
        figures = self._figures(check)
        if figures and self.ranks.first:
            self.stage.log.add_check(self.step, self.seconds, figures)
            shown = " ".join(f"{name} {value:.3f}" for name, value in figures.items())
            say(f"{self.stage.name} {self.step}: validation {shown}")
        return figures

    def finish(self) -> dict[str, float]:
        """Put the stage's final weights into `modules`; return the closing figures."""
        closing = {"steps": float(self.step), "wall_s": self.seconds}
        if self.optim.watch and self.early_stop.best_step:
            restore_weights(self.modules, read_weights(self.stage.best), self.stage.best)
            return closing | {"best_step": float(self.early_stop.best_step), "best": self.early_stop.best}
        if self.average is not None:
            self.average.copy_to_weights()
        return closing

    @contextmanager
    def _progress(self) -> Iterator[Callable[[float], None]]:
        """Show a bar with loss and rate; yield the function that advances it after a step."""
        name, first_step, began = self.stage.name, self.step, time.monotonic()
        with progress_bar() as bar:
            task = bar.add_task(name, total=self.optim.steps, completed=self.step, visible=self.ranks.first)

            def advance(loss: float) -> None:
                rate = (self.step - first_step) * self.optim.clips / (time.monotonic() - began)
                bar.update(task, completed=self.step, description=f"{name} loss {loss:.3f} {rate:.1f} clips/s")

            yield advance


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """Early stopping: the best check so far, and the number of later checks that were no better; in the checkpoint.

    Args:
        best: best value so far of the watched figure; more is better.
        best_step: number of steps done then; 0 before the first check.
        missed: number of checks since then, none of them better.
        checked: number of steps done at the last check.
    """

    best: float = -math.inf
    best_step: int = 0
    missed: int = 0
    checked: int = 0

    def after(self, step: int, value: float) -> "EarlyStop":
        """The state after one more check. NaN is no better than any value."""
        if value > self.best:
            return EarlyStop(value, step, 0, step)
        return replace(self, missed=self.missed + 1, checked=step)

    def should_stop(self, patience: int) -> bool:
        """True once `patience` checks in a row were no better; a patience of 0 never stops."""
        return 0 < patience <= self.missed


def watched_figure(figures: Mapping[str, float], watch: str) -> float:
    """Return the watched figure, signed so that more is better: a leading '-' in `watch` negates it.

    Raises:
        CrossdraftError: the checks do not give this figure; the nearest name is suggested.
    """
    name = require_figure(figures, watch)
    return -figures[name] if watch.startswith("-") else figures[name]


def require_figure(known: Collection[str], watch: str) -> str:
    """Return the name of the watched figure.

    Raises:
        CrossdraftError: the figure does not exist; the nearest name is suggested.
    """
    name = watch.removeprefix("-")
    if name not in known:
        hint = suggestion(name, known, f"choose from {', '.join(known) or 'none'}.")
        raise CrossdraftError(f"The checks give no figure '{name}', which optim.watch names; {hint}")
    return name


class AveragedWeights:
    """Exponential moving average (EMA) of the trained weights.

    Every step moves the average (1 − d) of the way to the weights. d grows to `decay` with the steps done, as
    min(decay, (1 + step) / (10 + step)): so a short run does not depend on its initial weights.

    Args:
        modules: modules whose weights are averaged, beginning with their present values.
        decay: share of the average that a step keeps, 0 to 1; 0.999 is common.
    """

    def __init__(self, modules: nn.Module, decay: float) -> None:
        self._decay = decay
        self._weights = {name: p for name, p in modules.named_parameters() if p.requires_grad}
        self.values: dict[str, Tensor] = {name: p.detach().clone() for name, p in self._weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average with the weights after the `step`-th step."""
        decay = min(self._decay, (1 + step) / (10 + step))
        get_ema_multi_avg_fn(decay)(list(self.values.values()), list(self._weights.values()), step)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Replace the weights by their averages, until the end of the `with` block."""
        kept = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self.copy_to_weights()
        try:
            yield
        finally:
            self._copy(kept)

    def copy_to_weights(self) -> None:
        """Replace the weights by their averages."""
        self._copy(self.values)

    @torch.no_grad()
    def _copy(self, values: Mapping[str, Tensor]) -> None:
        for name, weight in self._weights.items():
            weight.copy_(values[name])


def _adamw(modules: nn.Module, optim: Optim) -> torch.optim.AdamW:
    """Build AdamW with weight decay on matrices only."""
    parameters = [p for p in modules.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": optim.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=optim.learning_rate, betas=(optim.beta1, optim.beta2), fused=True)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed random draws within the block (dropout); afterwards the generators continue as before the block."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
