"""One process or several: `torchrun` starts ranks, which share every step's batch, and with FSDP the weights too.

What a rank sums over its shares is added up over all of them before the optimiser sees it, so a run has the same
losses, within rounding, on any number of ranks; and its checkpoints hold whole tensors, so it may change that number
between two sittings.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from crossdraft.train.core.share import LossOf, Share

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that train together. The first of them writes; the others look on."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.count > 1:
            dist.barrier()

    def gathered(self, value: Value) -> list[Value]:
        """Every rank's value, in order of ranks."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def agreed(self, value: Value) -> Value:
        """The first rank's value, on all of them."""
        if self.count == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]


ALONE = Ranks()


@contextmanager
def joined(device: torch.device | str = "cpu") -> Iterator[tuple[Ranks, torch.device]]:
    """Join the ranks that `torchrun` started, if it did; yield this one and its device.

    gloo joins CPUs, NCCL joins GPUs, of which each rank takes the one of its local number.
    """
    device = torch.device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE, device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size()), device
        dist.barrier()  # all leave together: the connections of the others end with the first one's process
    finally:
        dist.destroy_process_group()


class Passes(nn.Module):
    """The loss as a module's forward, which is where DDP and FSDP take hold of the weights in it."""

    def __init__(self, modules: nn.Module, loss_of: LossOf) -> None:
        super().__init__()
        self.learner = modules
        self.loss_of = loss_of

    def forward(self, step: int, share: Share) -> tuple[Tensor, dict[str, float]]:
        return self.loss_of(step, share)


def spread(modules: nn.Module, loss_of: LossOf, parallel: Literal["ddp", "fsdp"], ranks: Ranks) -> nn.Module:
    """The loss as a module whose gradients are means over the ranks; all begin with the first one's weights.

    With FSDP2 (`fully_shard`) each rank keeps its part of `modules`, whose parameters become `DTensor`s.
    """
    passes = Passes(modules, loss_of)
    if ranks.count == 1:
        return passes
    if parallel == "ddp":
        # A head may leave a part of itself out of a step (a frozen table, a guess nobody judges).
        return DistributedDataParallel(passes, find_unused_parameters=True, broadcast_buffers=False)
    for value in (*modules.parameters(), *modules.buffers()):
        dist.broadcast(value.data, src=0)
    device = next(modules.parameters()).device
    fully_shard(passes, mesh=init_device_mesh(device.type, (ranks.count,)))
    return passes


def syncing(passes: nn.Module, last: bool) -> AbstractContextManager[object]:
    """Ranks exchange gradients in the last pass of a step only; those before it add up at home."""
    if isinstance(passes, DistributedDataParallel):
        return nullcontext() if last else passes.no_sync()
    if isinstance(passes, FSDPModule):
        passes.set_requires_gradient_sync(last)
    return nullcontext()


@contextmanager
def at_home(passes: nn.Module) -> Iterator[None]:
    """Every rank holds all the weights for a while, so that a check may use the modules as they are."""
    if not isinstance(passes, FSDPModule):
        yield
        return
    passes.unshard()
    try:
        yield
    finally:
        passes.reshard()


def all_of(state: Any) -> Any:
    """A state with whole tensors in place of a rank's parts of them; every rank must ask for it."""
    if isinstance(state, DTensor):
        return state.full_tensor()
    if isinstance(state, Mapping):
        return {key: all_of(value) for key, value in state.items()}
    if isinstance(state, list):
        return [all_of(value) for value in state]
    return state


def part_of(whole: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors laid out as those of the same name in `like` are."""
    return {name: _laid_out(value, like.get(name)) for name, value in whole.items()}


def moments_of(state: dict[str, Any], parameters: Sequence[Tensor]) -> dict[str, Any]:
    """An optimiser's whole state laid out as its parameters are; they are numbered in their order."""
    laid: dict[int, Any] = {}
    for number, moments in state["state"].items():
        like = parameters[number] if number < len(parameters) else None
        laid[number] = {key: _laid_out(value, like if value.ndim else None) for key, value in moments.items()}
    return state | {"state": laid}


def _laid_out(value: Tensor, like: Tensor | None) -> Tensor:
    if not isinstance(like, DTensor):
        return value
    # Every rank has read the whole: each keeps its own part, and nothing is sent.
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
