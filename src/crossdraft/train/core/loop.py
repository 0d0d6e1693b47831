"""The training loop, one for everything that is trained here: a pure function of the step.

So a resumed run repeats the losses of an unbroken one, and neither the number of passes that a step's batch is cut into
nor the number of ranks that share them changes what is learned, rounding apart. One thing excepted: what a network
draws for itself while it learns (dropout, DFlash's anchors, SpecVLM's soft choice of a compressor) is drawn pass by
pass, the same whenever that pass is taken, but not the same where a step is cut otherwise.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

from crossdraft.train.core.checkpoint import read_checkpoint, read_weights, take_weights
from crossdraft.train.core.console import progress_bar
from crossdraft.train.core.dist import ALONE, Ranks
from crossdraft.train.core.share import LossOf
from crossdraft.train.core.stage import Stage
from crossdraft.train.core.trainer import Check, Sitting


def optimise(
    stage: Stage,
    modules: nn.Module,
    loss_of: LossOf,
    *,
    check: Check | None = None,
    describe: Callable[[int], str] | None = None,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """Train `modules` to the recipe's last step, from the checkpoint if there is one; return the closing figures.

    What is left in `modules` is the best checked weights where the recipe watches a figure, else the averaged ones
    where it averages, else the last. A run that is finished is not repeated. With FSDP, `modules` stay in parts:
    `load_weights` puts what was learned in whole ones.

    Args:
        loss_of: the loss of a step's share, `step` counted from 0; `share.whole` adapts one that takes no shares.
        check: a look at validation data, every `checkpoint_every` steps and at the end.
        describe: what a step learns from ("answers 13, 77"), for the complaint if it ruins the loss.
        ranks: those who train together.

    Raises:
        CrossdraftError: the loss or its gradient is not finite, the checkpoint cannot be resumed from, the checks
            do not give the figure that is watched, or a step's clips cannot be shared out.
    """
    sitting = Sitting(stage, modules, loss_of, check, describe, ranks)
    sitting.restore()
    modules.train()
    with _bar(sitting) as advance:
        while not sitting.over:
            advance(sitting.learn())
            if sitting.step % stage.optim.checkpoint_every == 0 or sitting.step == stage.optim.steps:
                sitting.keep()
                sitting.tell()
                sitting.look()
    return sitting.settle()


def load_weights(stage: Stage, modules: nn.Module) -> None:
    """Take from a finished stage the weights, and only those, that it left in its modules."""
    state = read_checkpoint(stage.checkpoint)
    if stage.optim.watch and stage.best.exists():
        take_weights(modules, read_weights(stage.best), stage.best)
    else:
        take_weights(modules, state["modules"] | state.get("average", {}), stage.checkpoint)


@contextmanager
def _bar(sitting: Sitting) -> Iterator[Callable[[float], None]]:
    """A bar with loss and rate; yield what moves it on after a step."""
    optim, begun, began = sitting.stage.optim, sitting.step, time.monotonic()
    with progress_bar() as bar:
        task = bar.add_task(sitting.stage.name, total=optim.steps, completed=sitting.step, visible=sitting.ranks.first)

        def advance(loss: float) -> None:
            rate = (sitting.step - begun) * optim.clips / (time.monotonic() - began)
            bar.update(
                task, completed=sitting.step, description=f"{sitting.stage.name} loss {loss:.3f} {rate:.1f} clips/s"
            )

        yield advance
