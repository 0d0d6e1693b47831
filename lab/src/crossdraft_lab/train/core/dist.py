"""Data-parallel training: a step's batch in micro-batches, on one process or on several that `torchrun` started.

Loss and gradient of a step are the weighted means over its micro-batches, summed over all ranks before the optimiser
step. So a run has the same losses, within rounding, on any number of ranks. Checkpoints hold whole tensors, so a run
may be resumed on another number of ranks.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from typing import Any, Literal, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from crossdraft.engine.devices import usable_device
from crossdraft.errors import CrossdraftError
from crossdraft_lab.objective import LOSS_POSITIONS, PREFIX, PREFIXES

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Part number `index` of the `of` equal parts of a step's batch; by default all of it."""

    index: int = 0
    of: int = 1

    def take(self, batch: Sequence[Item]) -> Sequence[Item]:
        """Return the micro-batch's part of a step's batch. Example: part 1 of 2 of (a, b, c, d) is (c, d)."""
        return batch[len(batch) * self.index // self.of : len(batch) * (self.index + 1) // self.of]


LossFn = Callable[[int, MicroBatch], tuple[Tensor, dict[str, float]]]
"""(step, micro-batch) -> (loss with a graph, figures for the log). Pure: the same arguments give the same loss."""


def full_batch(loss_fn: Callable[[int], tuple[Tensor, dict[str, float]]]) -> LossFn:
    """Adapt the loss of a training that takes each step's batch in one piece.

    Raises:
        CrossdraftError: raised by the adapted loss if it is asked for one of several parts.
    """

    def loss_of(step: int, batch: MicroBatch) -> tuple[Tensor, dict[str, float]]:
        require_one_piece(batch.of)
        return loss_fn(step)

    return loss_of


def require_one_piece(parts: int) -> None:
    """Refuse to divide a step's batch into parts.

    Raises:
        CrossdraftError: there is more than one part.
    """
    if parts > 1:
        raise CrossdraftError(
            "This training takes a step in one piece; set optim.accumulate to 1 and run it in one process."
        )


@dataclass(frozen=True, slots=True)
class MicroLoss:
    """Result of one micro-batch: its mean loss, the weight of this mean, its figures."""

    loss: float
    weight: float
    figures: dict[str, float]


def micro_weight(batch: MicroBatch, figures: dict[str, float]) -> float:
    """Weight of a micro-batch's mean: the number of its loss positions."""
    return 1.0 if batch.of == 1 else figures.get(LOSS_POSITIONS, 1.0)


def merge_losses(parts: Sequence[MicroLoss]) -> tuple[float, dict[str, float]]:
    """Merge micro-batches into loss and figures of the step: weighted means, and sums of the counts."""
    figures: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part.figures):
        known = [part for part in parts if name in part.figures]
        values = [part.figures[name] for part in known]
        # An accepted prefix is one number per answer, however many positions the answer has.
        weights = [part.figures.get(PREFIXES, part.weight) if name == PREFIX else part.weight for part in known]
        figures[name] = sum(values) if name in {LOSS_POSITIONS, PREFIXES} else _mean(values, weights)
    return _mean([part.loss for part in parts], [part.weight for part in parts]), figures


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    if len(values) == 1:
        return values[0]
    return sum(v * w for v, w in zip(values, weights, strict=True)) / (sum(weights) or 1.0)


@dataclass(frozen=True, slots=True)
class Distributed:
    """The running process among the ranks that train together. The first rank writes files and the log."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        if self.count > 1:
            dist.barrier()

    def all_gather(self, value: Value) -> list[Value]:
        """Every rank's value, in order of ranks."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def agree(self, check: Callable[[], None]) -> None:
        """Run a check on every rank's part: if it fails on one rank, all ranks raise, and none waits for another.

        Raises:
            CrossdraftError: the error of the first rank whose check failed.
        """
        said: str | None = None
        try:
            check()
        except CrossdraftError as error:
            said = str(error)
        refused = next((one for one in self.all_gather(said) if one is not None), None)
        if refused is not None:
            raise CrossdraftError(refused)

    def broadcast(self, value: Value) -> Value:
        """Return the first rank's value on all ranks."""
        if self.count == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]


SINGLE = Distributed()


@contextmanager
def init_distributed(
    device: torch.device | str = "cpu", wait: timedelta | None = None
) -> Iterator[tuple[Distributed, torch.device]]:
    """Join the ranks that `torchrun` started, if it did; yield this rank and its device.

    gloo joins CPUs, NCCL joins GPUs; each rank takes the GPU of its local number.

    Args:
        device: device of the training.
        wait: longest time that one rank waits for another; by default minutes.

    Raises:
        CrossdraftError: this machine does not have the device.
    """
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    if not alone and str(device).startswith("cuda"):
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    device = usable_device(device, "device")
    if alone:
        yield SINGLE, device
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=wait)
    try:
        yield Distributed(dist.get_rank(), dist.get_world_size()), device
        dist.barrier()  # all ranks leave together: connections end with the first rank's process
    finally:
        dist.destroy_process_group()


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """A pool of processes with one thread each, to prepare data."""
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_one_thread)


def use_threads(most: int) -> None:
    """Limit the threads that compute to `most`; the present number is never raised."""
    torch.set_num_threads(min(most, torch.get_num_threads()))


def _one_thread() -> None:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


class StepModule(nn.Module):
    """Module whose forward runs any work on its weights, so that DDP and FSDP can hook into it."""

    def __init__(self, modules: nn.Module) -> None:
        super().__init__()
        self.learner = modules

    def forward(self, work: Callable[[], Value]) -> Value:
        return work()


def parallelise(
    modules: nn.Module, parallel: Literal["ddp", "fsdp"], ranks: Distributed, network: nn.Module | None = None
) -> nn.Module:
    """Wrap modules so that a call runs a micro-batch's loss, and gradients become means over the ranks.

    All ranks begin with the first rank's weights. With FSDP2 (`fully_shard`) each rank keeps its shard of the weights,
    and parameters become `DTensor`s.

    Args:
        modules: modules that learn.
        parallel: `ddp` divides steps among the ranks, `fsdp` weights as well.
        ranks: the processes.
        network: with `fsdp`, the whole network of a step, `modules` included, if its frozen weights are to be sharded,
            too. Units that `shard_units` has sharded stay so; the rest becomes one more unit.
    """
    if ranks.count == 1:
        return StepModule(modules)
    if parallel == "ddp":
        # A head may leave out a part of itself in a step (a frozen table, logits without a label).
        return DistributedDataParallel(StepModule(modules), find_unused_parameters=True, broadcast_buffers=False)
    module = StepModule(network or modules)
    done: set[nn.Parameter] = {weight for weight in module.parameters() if isinstance(weight, DTensor)}
    for value in (*modules.parameters(), *modules.buffers()):
        if not isinstance(value, DTensor):
            dist.broadcast(value.data, src=0)
    device = next(modules.parameters()).device
    fully_shard(module, mesh=rank_mesh(device, ranks), ignored_params=done)
    return module


def rank_mesh(device: torch.device, ranks: Distributed) -> DeviceMesh:
    """One-dimensional mesh of all ranks, among which FSDP shares weights out."""
    return init_device_mesh(device.type, (ranks.count,))


def shard_units(units: Iterable[nn.Module], mesh: DeviceMesh, fill: Callable[[nn.Module], None]) -> None:
    """Share the weights of modules out among the ranks, one after the other; each is whole only while it is called.

    Every rank reads the same weights, and keeps its part: nothing is sent.

    Args:
        units: modules that are called in every step, by all ranks alike.
        mesh: mesh that `rank_mesh` returns.
        fill: reads the weights of a module, if they are still in their files.
    """
    for unit in units:
        fill(unit)
        fully_shard(unit, mesh=mesh)


def gradient_sync(module: nn.Module, last: bool) -> AbstractContextManager[object]:
    """With DDP, exchange gradients in the last micro-batch of a step only; those before it add up locally.

    With FSDP, exchange them in every micro-batch: otherwise a rank would hold the whole gradient, not only its shard.
    """
    return module.no_sync() if isinstance(module, DistributedDataParallel) and not last else nullcontext()


def evaluate(module: nn.Module, ranks: Distributed, work: Callable[[], Value]) -> Value:
    """Run `work` on the first rank and return its result on all ranks.

    The other ranks wait, except where ranks share weights: there each runs it too, so that the weights of one unit at
    a time are whole on all of them.

    Args:
        module: module that `parallelise` returns.
        ranks: the processes.
        work: function to run without gradients.
    """
    if not isinstance(module, FSDPModule):
        return cast("Value", ranks.broadcast(work() if ranks.first else None))
    with torch.no_grad():
        found = module(work)
    module.reshard()  # the outermost unit stays whole after a forward, for a backward that does not come
    return ranks.broadcast(found)


def full_tensors(state: Any, keep: bool = True) -> Any:
    """Return a state with whole tensors in place of a rank's shards, on the CPU; every rank must call this.

    Args:
        state: tensors in mappings and lists.
        keep: false on a rank that does not need them: it helps to gather them, one by one, and gets `None` for each.
    """
    if isinstance(state, DTensor):
        whole = state.full_tensor()
        return whole.cpu() if keep else None
    if isinstance(state, Mapping):
        return {key: full_tensors(value, keep) for key, value in state.items()}
    if isinstance(state, list):
        return [full_tensors(value, keep) for value in state]
    return state


def shard_like(whole: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Shard whole tensors in the layout of the tensors of the same names in `like`."""
    return {name: _shard(value, like.get(name)) for name, value in whole.items()}


def shard_optimiser(state: dict[str, Any], parameters: Sequence[Tensor]) -> dict[str, Any]:
    """Shard an optimiser's whole state in the layout of its parameters, which it numbers in order.

    The result is copied: an optimiser keeps what it is given, and a checkpoint's values are mapped from its file.
    """
    laid: dict[int, Any] = {}
    for number, moments in state["state"].items():
        like = parameters[number] if number < len(parameters) else None
        laid[number] = {key: _shard(value.clone(), like if value.ndim else None) for key, value in moments.items()}
    return state | {"state": laid}


def _shard(value: Tensor, like: Tensor | None) -> Tensor:
    if not isinstance(like, DTensor):
        return value
    # Every rank has read the whole tensor: each keeps its own part, and nothing is sent.
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
