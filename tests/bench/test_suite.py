"""The process that measures a method's peak memory."""

import os
import signal
from contextlib import nullcontext

import pytest

from crossdraft.engine.request import Request
from crossdraft.engine.runner.forks import forking
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench import suite
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.workload import Item


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("started", [forking([]), nullcontext()], ids=["forked", "fresh"])
def test_one_that_dies_is_reported_in_a_sentence(started, monkeypatch):
    monkeypatch.setattr(suite, "_footprint", die)
    with started, pytest.raises(CrossdraftError, match=r"memory of union died.*--no-memory"):
        suite.measure_footprints(["union"], Models(), None, Item(0, "left", Request("?")))
