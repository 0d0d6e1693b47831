"""A head and batches small enough to train at once, in one process or in one rank of several."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft_lab.objective import Objective, score, target_to_draft, teacher
from crossdraft_lab.train.core.dist import SINGLE, Distributed, MicroBatch
from crossdraft_lab.train.core.recipe import Optim
from crossdraft_lab.train.core.trainer import Stage, Trainer

WORDS, WIDTH, ANSWERS, LONGEST = 11, 6, 4, 9
DRAFTED = torch.tensor([10, 8, 7, 5, 3, 2, 1, 0])
OUT = torch.randn(len(DRAFTED), WIDTH, generator=torch.Generator().manual_seed(0))
OBJECTIVE = Objective({"soft_cross_entropy": 1.0, "smooth_l1": 0.5}, step_weight=0.8)


class TinyHead(nn.Module):
    """Two draft steps: one from feature and token, the other from the first's own feature."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.mix = nn.Linear(2 * WIDTH, WIDTH)
        self.on = nn.Linear(WIDTH, WIDTH)
        self.idle = nn.Linear(WIDTH, 2)  # no draft goes through it
        self.register_buffer("out", OUT, persistent=False)

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        root = batch.tokens.roll(-1, 1)
        first = self.mix(torch.cat([batch.hidden[0], self.words(root)], -1)).tanh()
        second = first + self.on(first)
        return [DraftLogits(1, first @ self.out.T, first), DraftLogits(2, second @ self.out.T, second)]


def fresh() -> TinyHead:
    torch.manual_seed(0)
    return TinyHead()


def batch_of(step: int, share: MicroBatch) -> TrainBatch:
    """A share of a step's four answers, each of its own length: shares differ in loss positions."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, WORDS, (ANSWERS, LONGEST), generator=generator)
    hidden = torch.randn(ANSWERS, LONGEST, WIDTH, generator=generator)
    lengths = torch.randint(4, LONGEST + 1, (ANSWERS,), generator=generator)
    rows = share.take(range(ANSWERS))
    taken = slice(rows[0], rows[-1] + 1)
    return TrainBatch(tokens[taken], {0: hidden[taken]}, torch.full((len(rows),), 2), lengths[taken])


def loss_for(head: nn.Module) -> Callable[[int, MicroBatch], tuple[Tensor, dict[str, float]]]:
    def loss_of(step: int, share: MicroBatch) -> tuple[Tensor, dict[str, float]]:
        batch = batch_of(step, share)
        logits, labels = teacher(batch, OUT, 0, target_to_draft(DRAFTED, WORDS))
        return score(OBJECTIVE, head(batch), batch, logits, labels, batch.hidden[0].roll(-1, 1))

    return loss_of


def settings(**changes: object) -> Optim:
    settings = {"steps": 6, "warmup_steps": 2, "learning_rate": 0.05, "clips": ANSWERS, "checkpoint_every": 2}
    return Optim.model_validate(settings | changes)


def learn(folder: Path, optim: Optim, ranks: Distributed = SINGLE) -> TinyHead:
    """Train a fresh head; a step later than the last is what it is checked on."""
    head = fresh()
    loss_of = loss_for(head)

    def check(step: int) -> dict[str, float]:
        with torch.no_grad():
            loss, figures = loss_of(1000, MicroBatch())
        return {"loss": float(loss), "tau": figures["tau"]}

    Trainer(Stage(folder, "head", optim), head, loss_of, check=check, ranks=ranks).run()
    return head


def logged(folder: Path) -> list[dict[str, float]]:
    """The steps that a run took."""
    return [entry for entry in entries(folder) if "check" not in entry]


def entries(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "head.log.jsonl").read_text().splitlines()]


def held(weight: Tensor) -> int:
    """Numbers of a weight that this rank keeps."""
    return (weight.to_local() if isinstance(weight, DTensor) else weight).numel()


def train(folder: Path, changes: Mapping[str, Any], ranks: Distributed) -> None:
    """Train in one of several ranks; `held.json` says how much of a weight each of them keeps."""
    head = learn(folder, settings(**changes), ranks)
    sizes = ranks.all_gather(held(head.mix.weight))
    if ranks.first:
        (folder / "held.json").write_text(json.dumps(sizes))


def refused(folder: Path, changes: Mapping[str, Any], ranks: Distributed) -> None:
    """Train in one of several ranks what none of them takes; `refused.json` says why, by rank, and what was done."""
    try:
        learn(folder, settings(**changes), ranks)
        reason = ""
    except CrossdraftError as error:
        reason = str(error)
    reasons = ranks.all_gather(reason)
    if ranks.first:
        (folder / "refused.json").write_text(json.dumps(reasons))


def disagreed(folder: Path, changes: Mapping[str, Any], ranks: Distributed) -> None:
    """A check that one rank alone refuses (`rank`); `refused.json` holds what each of them then says."""

    def check() -> None:
        if ranks.rank == changes["rank"]:
            raise CrossdraftError(f"The part of rank {ranks.rank} is not finite.")

    said = "nothing"
    try:
        ranks.agree(check)
    except CrossdraftError as error:
        said = str(error)
    reasons = ranks.all_gather(said)
    if ranks.first:
        folder.mkdir()
        (folder / "refused.json").write_text(json.dumps(reasons))
