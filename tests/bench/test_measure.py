"""The order of runs: interleaved, rotated, warm-ups thrown away."""

import pytest

from crossdraft.bench.measure import Run, measure, rotated
from crossdraft.bench.workload import Item
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError


class Recorder:
    """A contestant that takes as long as it is told and writes down when its turn was."""

    def __init__(self, name, log, seconds=1.0):
        self.name, self.log, self.seconds = name, log, seconds

    def answer(self, item):
        self.log.append((self.name, item.seed))
        return Run((1, 2), self.seconds, 0.1, {"other": self.seconds}, rounds=2, accepted=0)

    def close(self):
        pass


def item(seed):
    return Item(seed, "layout", Request("What is ahead?"))


def test_rotation():
    assert [rotated("abc", i) for i in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


def test_everybody_answers_everything_in_turn():
    log, told = [], []
    contestants = {name: Recorder(name, log, seconds) for name, seconds in (("a", 1.0), ("b", 2.0))}
    results = measure(contestants, [item(0), item(1)], 2, [item(9)], told.append)
    warm, timed = log[:2], log[2:]
    assert warm == [("a", 9), ("b", 9)]
    expected = [("a", 0), ("b", 0), ("b", 0), ("a", 0), ("b", 1), ("a", 1), ("a", 1), ("b", 1)]
    assert timed == expected
    assert told == [name for name, _ in log]
    assert [[len(runs) for runs in results.runs[name]] for name in "ab"] == [[2, 2], [2, 2]]
    assert results.seconds("b") == [4.0, 4.0]
    assert len(results.of("a")) == 4


def test_at_least_one_repeat():
    with pytest.raises(CrossdraftError, match="repeats"):
        measure({"a": Recorder("a", [])}, [item(0)], 0)
