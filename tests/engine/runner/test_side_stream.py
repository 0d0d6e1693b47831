"""What the drafter's stream waits for, and who waits for it; without a GPU, with streams that take notes."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch

from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.runner.side_stream import StreamDrafter
from crossdraft.engine.tree import DraftTree
from tests.engine.runner.numbered import NumberedRunner

GPU = torch.device("cuda:0")


@dataclass(eq=False)
class NotedStream:
    name: str
    notes: list = field(repr=False)

    def wait_stream(self, other):
        self.notes.append((self.name, "waits for", other.name))

    def wait_event(self, event):
        self.notes.append((self.name, "waits for", event.name))


class NotedEvent:
    def record(self, stream):
        stream.notes.append((stream.name, "is marked", ""))
        self.name = f"mark of {stream.name}"


class OnGpu:
    """Stands for a tensor on the GPU: knows which streams read it."""

    device = GPU

    def __init__(self, notes):
        self.notes = notes

    def __len__(self):
        return 1

    def record_stream(self, stream):
        self.notes.append(("tensor", "is read by", stream.name))


@pytest.fixture
def notes(monkeypatch):
    """Everything that is said to streams, in order; asking the whole device to wait is an error."""
    found, local = [], threading.local()
    default = NotedStream("target", found)

    @contextmanager
    def on(stream):
        before = getattr(local, "stream", default)
        local.stream = stream
        yield
        local.stream = before

    def never(*_):
        raise AssertionError("the whole device was waited for")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: NotedStream("drafter", found))
    monkeypatch.setattr(torch.cuda, "Event", NotedEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: getattr(local, "stream", default))
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "synchronize", never)
    return found


class Noting:
    """A drafter that notes on which stream it works."""

    needs = Needs()

    def __init__(self, notes):
        self.notes = notes

    def _note(self, what):
        self.notes.append((what, "works on", torch.cuda.current_stream(GPU).name))

    def begin(self, requests):
        self._note("begin")
        return [0 for _ in requests]

    def propose(self, states, budgets):
        self._note("propose")
        return [Draft(DraftTree((5,), (-1,), OnGpu(self.notes), (0,))) for _ in states]

    def commit(self, states, outputs):
        self._note("commit")

    def fork(self, states):
        return [*states]

    def end(self, states):
        pass


def test_a_draft_during_the_prefill_waits_for_what_was_launched_before_it_and_nothing_else(notes):
    runner = NumberedRunner(Noting(notes), "beside", GPU)
    runner.start(1, Request("x"), 4, "beside")
    runner._slots[1].hidden()
    before, notes[:] = [*notes], []
    runner.collect(1)
    runner.close()
    assert before == [
        ("target", "is marked", ""),
        ("drafter", "waits for", "mark of target"),
        ("begin", "works on", "drafter"),
        ("propose", "works on", "drafter"),
    ]
    assert notes == [("target", "waits for", "drafter"), ("tensor", "is read by", "target")]


def test_later_rounds_work_on_the_same_stream_and_each_side_waits_for_the_other(notes):
    runner = NumberedRunner(Noting(notes), "beside", GPU)
    runner.start(1, Request("x"), 0, "beside")  # too short an answer for a hidden draft
    runner.collect(1)
    notes.clear()
    runner.ask([1], [Budget(4)])()
    assert notes == [
        ("drafter", "waits for", "target"),
        ("begin", "works on", "drafter"),
        ("drafter", "waits for", "target"),
        ("propose", "works on", "drafter"),
        ("target", "waits for", "drafter"),
        ("tensor", "is read by", "target"),
    ]
    notes.clear()
    output = VerifyOutput((), (5,), hidden={0: OnGpu(notes), 1: OnGpu(notes)})
    runner.commit([1], [output])
    runner.end(1)
    runner.close()
    assert notes[:4] == [
        ("drafter", "waits for", "target"),
        ("tensor", "is read by", "drafter"),
        ("tensor", "is read by", "drafter"),
        ("commit", "works on", "drafter"),
    ]


@pytest.mark.parametrize(
    ("hidden", "device", "own"),
    [
        ("beside", GPU, True),
        ("auto", GPU, True),
        ("before", GPU, False),
        ("off", GPU, False),
        ("beside", torch.device("cpu"), False),
        ("beside", None, False),
    ],
)
def test_only_who_may_work_during_the_prefill_on_a_gpu_has_a_stream(notes, hidden, device, own):
    assert isinstance(DraftRunner(Noting(notes), hidden, device).drafter, StreamDrafter) == own
