"""The order of runs, interleaved and balanced, and the process that measures a method's peak memory."""

import os
import signal
from contextlib import nullcontext
from itertools import pairwise, permutations

import pytest

from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench import suite
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.forking import forking
from crossdraft_lab.bench.measure import Run, measure
from crossdraft_lab.bench.workload import Item


class Recorder:
    """A method that takes as long as it is set to and writes down when its turn was."""

    cores = None

    def __init__(self, name, log, seconds=1.0):
        self.name, self.log, self.seconds = name, log, seconds

    def answer(self, item):
        self.log.append((self.name, item.seed))
        return Run((1, 2), self.seconds, 0.1, {"other": self.seconds}, rounds=2)

    def close(self):
        pass


def item(seed):
    return Item(seed, "layout", Request("What is ahead?"))


def test_everybody_answers_everything_in_turn():
    log, ticks = [], []
    methods = {name: Recorder(name, log, seconds) for name, seconds in (("a", 1.0), ("b", 2.0))}
    results = measure(methods, [item(0), item(1)], 2, [item(9)], ticks.append)
    warm, timed = log[:2], log[2:]
    assert warm == [("a", 9), ("b", 9)]
    assert [seed for _, seed in timed] == [0] * 4 + [1] * 4
    turns = ["".join(name for name, _ in timed[at : at + 2]) for at in range(0, 8, 2)]
    assert sorted(turns[:2]) == sorted(turns[2:]) == ["ab", "ba"]  # each once in every block of two
    assert ticks == [name for name, _ in log]
    assert [[len(runs) for runs in results.runs[name]] for name in "ab"] == [[2, 2], [2, 2]]
    assert results.seconds("b") == [4.0, 4.0]
    assert results.tokens("b") == [4, 4]
    assert len(results.of("a")) == 4


def test_nobody_always_runs_behind_the_same_predecessor():
    log = []
    measure({name: Recorder(name, log) for name in "abc"}, [item(0)], 6)
    turns = [[name for name, _ in log[at : at + 3]] for at in range(0, 18, 3)]
    followers = [pair for turn in turns for pair in pairwise(turn)]
    assert {pair: followers.count(pair) for pair in followers} == dict.fromkeys(permutations("abc", 2), 2)


def test_at_least_one_repeat():
    with pytest.raises(CrossdraftError, match="repeats"):
        measure({"a": Recorder("a", [])}, [item(0)], 0)


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("started", [forking([]), nullcontext()], ids=["forked", "fresh"])
def test_one_that_dies_is_reported_in_a_sentence(started, monkeypatch):
    monkeypatch.setattr(suite, "_footprint", die)
    with started, pytest.raises(CrossdraftError, match=r"memory of union died.*--no-memory"):
        suite.measure_footprints(["union"], Models(), None, Item(0, "left", Request("?")))
