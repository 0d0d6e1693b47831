"""Online distillation (Liu et al. 2024): a copy of a head's weights trains on served answers, within a time budget.

`OnlineTrainer` runs after every round of the engine, as long as `TimeBudget` allows: training steps of a `StudentCopy`
on answers from a `ReplayBuffer`; every `STEPS` of them an evaluation of both sets of weights on held-out answers; and
the copy's weights replace those that serve if the τ of its chains is higher.
"""

import copy
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from crossdraft.engine.fast.packed_linear import PrepackedLinear
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft_lab.objective import Objective, acceptance, pad_batch, score, target_to_draft, teacher

log = logging.getLogger(__name__)

# ReplayBuffer
HELD_OUT = 4  # every fourth answer is for evaluation, not for training
FEWEST = 2 * HELD_OUT
# TimeBudget
LARGEST = 1.0  # seconds a round
SAVED = 20  # most rounds whose time is saved up
FORGET = 0.9  # factor on an old cost after a round in which it could not be paid
# StudentCopy
FULL_PRECISION = (torch.float32, torch.float64)
OBJECTIVE = Objective({"soft_cross_entropy": 1.0}, step_weight=0.8)  # EAGLE-3's: any head has the logits it needs
CLIP = 1.0  # norm of the gradients
DECAY = 0.01  # AdamW's
# OnlineTrainer
BATCH = 4  # answers of a training step, and of one step of an evaluation
STEPS = 16  # between evaluations
PATIENCE = 8  # evaluations in a row without a gain, after which the copy starts again from the weights that serve
STEP, EVALUATION = "step", "evaluation"


@dataclass(frozen=True, eq=False)
class Sample:
    """One answer of the target, text as in `TrainBatch`.

    Args:
        tokens: [T] ids of the text after the visual part and of the answer.
        start: index of the answer's first token.
        hidden: layer -> [T - 1, H] features at all positions but the last.
    """

    tokens: tuple[int, ...]
    start: int
    hidden: Mapping[int, Tensor]

    @property
    def bytes(self) -> int:
        """Memory of the features."""
        return sum(features.numel() * features.element_size() for features in self.hidden.values())


class ReplayBuffer:
    """The newest answers, of which each fourth is held out for evaluation.

    An answer with the text of an earlier one replaces it, in the same split: no text is ever in both.

    Args:
        keep: most answers.
        room: most bytes; an answer that is larger by itself is not taken.

    Raises:
        CrossdraftError: too few answers to hold some out.
    """

    def __init__(self, keep: int, room: int) -> None:
        if keep < FEWEST:
            raise CrossdraftError(f"keep is {keep}; online training needs {FEWEST} answers or more.")
        self.keep, self.room = keep, room
        self._held_out: dict[Sample, bool] = {}  # the oldest first
        self._seen = 0

    def __len__(self) -> int:
        return len(self._held_out)

    @property
    def bytes(self) -> int:
        """Bytes of memory in use."""
        return sum(sample.bytes for sample in self._held_out)

    def add(self, sample: Sample) -> None:
        """Keep an answer; the oldest answers are dropped to make room."""
        if sample.bytes > self.room:
            return
        same = next((old for old in self._held_out if old.tokens == sample.tokens), None)
        if same is None:
            held_out = self._seen % HELD_OUT == 1
            self._seen += 1
        else:
            held_out = self._held_out.pop(same)
        self._held_out[sample] = held_out
        while len(self) > self.keep or self.bytes > self.room:
            del self._held_out[next(iter(self._held_out))]

    def split(self, *, held_out: bool) -> list[Sample]:
        """The answers to evaluate with, or those to train on; the oldest first."""
        return [sample for sample, held in self._held_out.items() if held is held_out]


class TimeBudget:
    """Token bucket for background work: a round adds `seconds`, and at most `SAVED` rounds' time is saved up.

    A task starts only when all it is expected to cost is saved up, and none once the round's own time is used. What it
    cost beyond that is a debt. So whatever tasks cost,

        spent ≤ rounds · seconds + one task      over any number of rounds,
        spent ≤ seconds + one task               in any one of them.

    Args:
        seconds: added each round.
        clock: seconds that have gone by.

    Raises:
        CrossdraftError: `seconds` is not above 0, or above `LARGEST`.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        if not 0 < seconds <= LARGEST:
            raise CrossdraftError(
                f"seconds is {seconds}; online training takes more than 0 and at most {LARGEST} of every round."
            )
        self.seconds, self.most, self.clock = seconds, SAVED * seconds, clock
        self.saved = self.spent = 0.0
        self._this_round = 0.0
        self._costs: dict[str, float] = {}

    def refill(self) -> None:
        """Begin a round: add its seconds to the budget."""
        self.saved = min(self.saved + self.seconds, self.most)
        self._this_round = 0.0

    def allows(self, kind: str) -> bool:
        """True if a task of that kind may run now."""
        return self._this_round < self.seconds and self._expected(kind) <= self.saved

    def skip(self, kind: str) -> None:
        """Note that a task did not run; if the budget is full, its expected cost shrinks until the task fits."""
        if self.saved == self.most:
            self._costs[kind] = FORGET * self._expected(kind)

    @contextmanager
    def spend(self, kind: str) -> Iterator[None]:
        """Measure the task that runs in the context, and subtract its time from the budget."""
        start = self.clock()
        try:
            yield
        finally:
            cost = self.clock() - start
            self.saved -= cost
            self.spent += cost
            self._this_round += cost
            self._costs[kind] = max(cost, FORGET * self._costs.get(kind, 0.0))

    def _expected(self, kind: str) -> float:
        """Expected cost of a task in seconds; as much as can be saved, if none has run yet."""
        return self._costs.get(kind, self.most)


class StudentCopy:
    """A trainable copy of a head and its optimiser; tensors that are not trained are shared with the original.

    Args:
        head: the one that serves.
        lm_head: [D, H] the target's, rows of the draft vocabulary.
        rate: AdamW's.
    """

    def __init__(self, head: Head, lm_head: Tensor, rate: float) -> None:
        shared = [*head.buffers(), *(weight for weight in head.parameters() if not weight.requires_grad)]
        self.network = copy.deepcopy(head, {id(tensor): tensor for tensor in shared})
        self.lm_head = lm_head
        self.lookup = target_to_draft(head.draft_ids, head.config.vocab_size)
        self.weights = trained(self.network)
        # A step is smaller than bf16's resolution: the optimiser updates weights of full precision.
        self.masters = [
            weight if weight.dtype in FULL_PRECISION else nn.Parameter(weight.detach().float())
            for weight in self.weights
        ]
        self.optimiser = torch.optim.AdamW(self.masters, lr=rate, weight_decay=DECAY)

    @property
    def bytes(self) -> int:
        """Memory of weights, gradients and the optimiser's two moments."""
        masters = sum(map(_bytes, self.masters))
        narrow = sum(2 * _bytes(w) for w, m in zip(self.weights, self.masters, strict=True) if w is not m)
        return 4 * masters + narrow

    def step(self, batch: TrainBatch) -> bool:
        """One optimiser step; false if loss or gradients are not finite, and nothing changed."""
        logits, labels = self._teacher(batch)
        loss, _ = score(OBJECTIVE, self.network(batch), batch, logits, labels)
        loss.backward()
        for weight, master in zip(self.weights, self.masters, strict=True):
            if master is not weight and weight.grad is not None:
                master.grad = weight.grad.float()
        norm = nn.utils.clip_grad_norm_(self.masters, CLIP)
        finite = bool(loss.isfinite() & norm.isfinite())
        if finite:
            self.optimiser.step()
            _copy_into(self.weights, self.masters)
        for weight in (*self.weights, *self.masters):
            weight.grad = None
        return finite

    @torch.no_grad()
    def evaluate(self, head: Head, batch: TrainBatch) -> tuple[float, float]:
        """(τ of teacher-forced chains of `head`, summed over positions; the number of positions)."""
        predictions = sorted(head(batch), key=lambda prediction: prediction.offset)
        labels = self._teacher(batch)[1]
        mask = batch.loss_mask(predictions[0].offset)
        if predictions[0].valid is not None:
            mask &= predictions[0].valid
        count = float(mask.sum())
        return count * acceptance(predictions, batch, labels).get("tau", 0.0), count

    def _teacher(self, batch: TrainBatch) -> tuple[Tensor, Tensor]:
        return teacher(batch, self.lm_head, self.network.config.num_layers, self.lookup)


@dataclass(frozen=True)
class OnlineStats:
    """Counts and figures of online training.

    Args:
        answers, bytes: answers in the buffer, and the memory of these and of all copies of the weights.
        steps, evaluations, swaps: how often the copy was trained, evaluated, and took over.
        restarts: how often the copy was reset because a loss or gradient was not finite.
        tau_served, tau_learned: τ of teacher-forced chains over the held-out answers at the last evaluation, of the
            weights that served and of the copy.
        seconds: time spent.
    """

    answers: int = 0
    bytes: int = 0
    steps: int = 0
    evaluations: int = 0
    swaps: int = 0
    restarts: int = 0
    tau_served: float = 0.0
    tau_learned: float = 0.0
    seconds: float = 0.0


@dataclass
class _Evaluation:
    """Served and learned weights compared on the held-out answers, a few at a time: [tokens, positions] so far."""

    left: list[Sample]
    served: list[float] = field(default_factory=lambda: [0.0, 0.0])
    learned: list[float] = field(default_factory=lambda: [0.0, 0.0])


class OnlineTrainer:
    """Trains a copy of a serving head and swaps it in when it is better.

    Args:
        head: the one that serves; its weights are changed in place, between two rounds, all at once.
        lm_head: [D, H] the target's, rows of the draft vocabulary.
        buffer: what it trains on.
        budget: the time it may take.
        rate: AdamW's.

    Raises:
        CrossdraftError: the head's layers are packed, so that they cannot be written to.
    """

    def __init__(self, head: Head, lm_head: Tensor, buffer: ReplayBuffer, budget: TimeBudget, rate: float) -> None:
        if any(isinstance(module, PrepackedLinear) for module in head.modules()):
            raise CrossdraftError("A head whose layers are packed cannot be trained; load it with packed=False.")
        self.head, self.lm_head, self.buffer, self.budget, self.rate = head, lm_head, buffer, budget, rate
        self.frozen = False
        self._generator = torch.Generator().manual_seed(0)
        self._stats = OnlineStats()
        with torch.inference_mode(mode=False):
            self._loaded = self._before = _copied(head)
            self._restart()

    @property
    def stats(self) -> OnlineStats:
        """Counts and figures so far."""
        copies = [*self._loaded, *(() if self._before is self._loaded else self._before)]
        held = self.buffer.bytes + self._copy.bytes + sum(map(_bytes, copies))
        return replace(self._stats, answers=len(self.buffer), bytes=held, seconds=self.budget.spent)

    def run(self) -> None:
        """Train and evaluate after a round, within the time budget."""
        if self.frozen:
            return
        self.budget.refill()
        if len(self.buffer.split(held_out=True)) < 2:
            return
        with torch.inference_mode(mode=False), torch.enable_grad():
            while self.budget.allows(kind := STEP if self._evaluation is None else EVALUATION):
                with self.budget.spend(kind):
                    self._step() if self._evaluation is None else self._evaluate(self._evaluation)
            self.budget.skip(kind)

    def rollback(self, *, loaded: bool = False) -> None:
        """Restore the weights from before the last swap, or those that were loaded."""
        with torch.inference_mode(mode=False):
            _copy_into(trained(self.head), self._loaded if loaded else self._before)
            self._restart()

    def _restart(self) -> None:
        """A new copy of the weights that serve."""
        self._copy = StudentCopy(self.head, self.lm_head, self.rate)
        self._evaluation: _Evaluation | None = None
        self._since_evaluation = self._without_gain = 0

    def _step(self) -> None:
        answers = self.buffer.split(held_out=False)
        drawn = torch.randperm(len(answers), generator=self._generator)[:BATCH]
        if not self._copy.step(self._batch([answers[index] for index in drawn.tolist()])):
            if not self._stats.restarts:
                log.warning("A loss of online training was not finite; the copy of the head was reset.")
            self._count(restarts=1)
            self._restart()
            return
        self._count(steps=1)
        self._since_evaluation += 1
        if self._since_evaluation >= STEPS:
            self._evaluation = _Evaluation(self.buffer.split(held_out=True))

    def _evaluate(self, running: _Evaluation) -> None:
        """One batch of an evaluation; after the last one, the copy replaces the weights if its τ is higher."""
        some, running.left = running.left[:BATCH], running.left[BATCH:]
        batch = self._batch(some)
        for head, sums in ((self.head, running.served), (self._copy.network, running.learned)):
            for index, value in enumerate(self._copy.evaluate(head, batch)):
                sums[index] += value
        if running.left:
            return
        served, learned = (tokens / max(count, 1) for tokens, count in (running.served, running.learned))
        self._stats = replace(self._stats, tau_served=served, tau_learned=learned)
        self._count(evaluations=1)
        self._evaluation, self._since_evaluation = None, 0
        if learned > served:
            self._before = _copied(self.head)
            _copy_into(trained(self.head), trained(self._copy.network))
            self._count(swaps=1)
            self._without_gain = 0
            return
        self._without_gain += 1
        if self._without_gain >= PATIENCE:
            self._restart()

    def _batch(self, answers: list[Sample]) -> TrainBatch:
        hidden = {layer: [answer.hidden[layer] for answer in answers] for layer in answers[0].hidden}
        tokens = [torch.tensor(answer.tokens) for answer in answers]
        batch = pad_batch(tokens, [answer.start for answer in answers], hidden)
        return batch.to(self.head.draft_ids.device, self.head.lm_head.weight.dtype)

    def _count(self, **more: int) -> None:
        values: dict[str, Any] = {name: getattr(self._stats, name) + value for name, value in more.items()}
        self._stats = replace(self._stats, **values)


def trained(head: Head) -> list[nn.Parameter]:
    """Return the weights that training changes."""
    return [weight for weight in head.parameters() if weight.requires_grad]


def _copied(head: Head) -> list[Tensor]:
    return [weight.detach().clone() for weight in trained(head)]


@torch.no_grad()
def _copy_into(weights: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for weight, value in zip(weights, values, strict=True):
        if weight is not value:
            weight.copy_(value)


def _bytes(weight: Tensor) -> int:
    return weight.numel() * weight.element_size()
