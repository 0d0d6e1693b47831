"""Two ranks, as `torchrun` starts them: real processes, forked from a server that has imported what they need."""

import faulthandler
import multiprocessing
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from crossdraft_lab.train.core.dist import Distributed, init_distributed

Train = Callable[[Path, Mapping[str, Any], Distributed], object]
"""(folder, settings, ranks): one training, in one of the ranks."""

Trainings = tuple[tuple[str, Mapping[str, Any]], ...]
CONTEXT = multiprocessing.get_context("forkserver")
# An interpreter takes seconds to import torch and transformers: the server does it once for all ranks of a test run.
CONTEXT.set_forkserver_preload(["tests.train.core.learner", "tests.train.heads.counting"])


def run_two(train: Train, folder: Path, *trainings: tuple[str, Mapping[str, Any]]) -> None:
    """Train in two ranks, one training after the other, each in the subfolder of its name.

    Args:
        train: a function of a module, which the ranks import.
        trainings: names and settings.
    """
    _run(_train, train, folder, trainings)


def run_command(*line: str) -> None:
    """`torchrun --nproc-per-node 2 -m crossdraft …`, which must end well."""
    _run(_command, line)


def _run(work: Callable[..., None], *args: object) -> None:
    """Call a function of this module in two ranks."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    ranks = [CONTEXT.Process(target=_rank, args=(rank, port, work, *args), daemon=True) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=120)
        code = rank.exitcode
        rank.kill()
        assert code == 0, f"a rank ended with {code} (None: it still ran); its traceback is on stderr"


def _rank(rank: int, port: int, work: Callable[..., None], *args: object) -> None:
    """What `torchrun` sets in a rank's environment, then its work."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    faulthandler.enable()
    work(*args)
    os._exit(0)  # all is written; gloo's threads now and then abort an interpreter that ends


def _train(train: Train, folder: Path, trainings: Trainings) -> None:
    with init_distributed() as (mine, _):
        for name, settings in trainings:
            train(folder / name, settings, mine)


def _command(line: tuple[str, ...]) -> None:
    from crossdraft.cli.main import main  # imported by these ranks alone

    assert main(list(line)) == 0
