"""Elastic cores: a drafter's CPU cores belong to the target while the drafter has nothing to do.

Between two layers the thread that runs the target checks if the drafter works (`poll`; see `handled`), and has its next
operations run on the drafter's cores as well, or on its own alone. Only the number of threads changes, no result.

An idle OpenMP thread spins before it sleeps, by default for about 10 ms, and takes that time from a drafter that has
work again. GOMP_SPINCOUNT, read when PyTorch is imported, makes the spinning shorter; the command line sets it.
GNU's OpenMP spins a hundredth of that as soon as a process has more such threads than cores, although some of them
sleep: each operation then waits for a thread to wake. So a thread that has nothing to do ends its own (`disband`).
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import nn

from crossdraft.engine.fast.cores import available_cores, bind_cores
from crossdraft.engine.progress import progress

Cores = tuple[int, ...]
SOFT = 1  # `omp_pause_soft`
FORKED = 0x40  # Linux's flag PF_FORKNOEXEC
PROCESS = os.getpid()


class _Team:
    """The threads that serve the operations of one thread: on its own cores, and on those that it borrows."""

    def __init__(self, spare: Callable[[], Cores]) -> None:
        self.spare = spare
        self.own, self.threads = set(available_cores()), torch.get_num_threads()
        self.started: Cores = ()
        self.wide = False

    def poll(self) -> None:
        """Borrow the cores that are spare now, or give them back."""
        spare = self.spare()
        if bool(spare) == self.wide or (spare and not self.own.isdisjoint(spare)):
            return
        if spare and (spare != self.started or self.threads > 1):  # several run on without them, which ends them
            self._start(spare)
        self.wide = bool(spare)
        torch.set_num_threads(self.threads + len(spare))

    def _start(self, spare: Cores) -> None:
        """Start the threads on the spare cores: a thread stays on the cores that its maker had at that time."""
        _run_on_all_threads()
        bind_cores(spare)
        try:
            torch.set_num_threads(self.threads + len(spare))
            _run_on_all_threads()
        finally:
            bind_cores(self.own)
        self.started = spare

    def narrow(self) -> None:
        """Give the borrowed cores back."""
        if self.wide:
            self.wide = False
            torch.set_num_threads(self.threads)


class _Local(threading.local):
    """Cores that the current thread borrows: cores and thread counts belong to a thread."""

    team: _Team | None = None
    used: _Team | None = None


_local = _Local()


@contextmanager
def borrowing(spare: Callable[[], Cores]) -> Iterator[None]:
    """Let this thread's operations run on the `spare` cores, whenever there are any, while the context is open.

    Those that this thread may use anyway are not borrowed. Where cores cannot be chosen (not Linux), nothing happens.

    Args:
        spare: CPU cores that nothing runs on now; called at every `poll`.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before, used = _local.team, _local.used
    if used is None or used.own != set(available_cores()) or used.threads != torch.get_num_threads():
        used = _local.used = _Team(spare)
    used.spare, _local.team = spare, used
    try:
        used.poll()
        yield
    finally:
        used.narrow()
        used.spare = _nothing  # lets the loop's owner be freed
        _local.team = before


def poll(*_: object) -> None:
    """Borrow the cores that are spare now, or give them back: between two layers, and after calls of the drafter.

    In a drafter's process the call reports that a layer is finished.
    """
    progress()
    if (team := _local.team) is not None:
        team.poll()


class PollHook:
    """Calls `poll` before a layer: one hook for all adapters around its model, until the last holder releases it."""

    def __init__(self, layer: nn.Module) -> None:
        self.holders, self._handle = 0, layer.register_forward_pre_hook(self)

    def __call__(self, *_: object) -> None:
        poll()

    def release(self) -> None:
        """Release one holder's claim; the last release removes the hook."""
        with _hooking:
            self.holders -= 1
            if not self.holders:
                self._handle.remove()


_hooking = threading.Lock()  # guards which layers have a hook, and how many hold it


def poll_between(model: nn.Module, *, hold: bool = False) -> list[PollHook]:
    """Call `poll` before each layer of the model's stacks.

    With `hold` the caller becomes a holder of the returned hooks, and has to `release` each of them once.
    """
    stacks = [stack for stack in model.modules() if isinstance(stack, nn.ModuleList)]
    with _hooking:
        hooks = [_hook_of(layer) for stack in stacks for layer in stack]
        for hook in hooks:
            hook.holders += hold
    return hooks


def _hook_of(layer: nn.Module) -> PollHook:
    known = (hook for hook in layer._forward_pre_hooks.values() if isinstance(hook, PollHook))  # noqa: SLF001
    return next(known, None) or PollHook(layer)


def _nothing() -> Cores:
    return ()


def _run_on_all_threads() -> None:
    torch.zeros(torch.get_num_threads() << 15).add_(1)  # PyTorch gives each thread as many elements


def disband() -> bool:
    """End the idle OpenMP threads that serve the calling thread; its next parallel operation starts others.

    Returns:
        False where nothing is done: with another OpenMP than GNU's (there idle threads do not shorten how long others
        spin), and in the first thread of a forked process, whose memory tells of threads that it does not have.
    """
    pause = _pause()
    if pause is None or (_is_fork(os.getpid()) and threading.current_thread() is threading.main_thread()):
        return False
    if (used := _local.used) is not None:
        used.started = ()
    pause(SOFT)
    return True


@cache
def _pause() -> Callable[[int], object] | None:
    """GNU OpenMP's `omp_pause_resource_all`, which serves the calling thread; `None` if PyTorch has another."""
    try:
        library = ctypes.CDLL(torch._C.__file__)  # noqa: SLF001 - also finds what it is linked with
    except OSError:
        return None
    found = getattr(library, "omp_pause_resource_all", None)
    return None if hasattr(library, "__kmpc_fork_call") else found  # LLVM's has both


@cache
def _is_fork(process: int) -> bool:
    """True if this process was forked, after this module was imported or before."""
    stat = Path("/proc/self/stat")
    flags = int(stat.read_bytes().rpartition(b")")[2].split()[6]) if stat.exists() else 0
    return process != PROCESS or bool(flags & FORKED)
