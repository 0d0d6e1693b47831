"""A worker's process: objects and tensors by shared memory, errors, its end."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from crossdraft.engine.fast.packed_linear import prepack
from crossdraft.engine.workers import process
from crossdraft.engine.workers.objects import restored, share
from crossdraft.engine.workers.process import WorkerLost, WorkerProcess
from crossdraft.errors import CrossdraftError
from tests.engine.workers.answers import Echo

CORE = sorted(os.sched_getaffinity(0))[:1]


@pytest.fixture(scope="module")
def worker():
    echo = Echo(nn.Linear(3, 2))
    worker = WorkerProcess(share(echo, moved=True), CORE)
    worker.ready()
    yield worker, echo
    worker.close()


def ask(worker, question, tensors=()):
    worker.send(question, tensors)
    return worker.receive()


def test_an_object_is_restored_around_the_same_memory():
    layer = nn.Linear(4, 4)
    layer.tied = layer.weight
    before = layer.weight.clone()
    shared = share(layer, moved=True)
    other = restored(shared.pickled, shared.memory, shared.slots)
    assert other.tied is other.weight
    assert torch.equal(other.weight, before)
    with torch.no_grad():
        layer.weight[0, 0] = 7.0
    assert other.weight[0, 0] == 7.0  # nothing was copied


def test_packed_layers_are_sent_as_plain_ones_that_give_the_same_bits():
    model = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 32)).requires_grad_(False)
    rows = torch.randn(200, 64)
    if prepack(model) == 0:
        pytest.skip("this PyTorch packs nothing")
    packed = model(rows)
    copy = share(model, moved=False)
    assert torch.equal(restored(copy.pickled, copy.memory, copy.slots)(rows), packed)


def test_tensors_go_there_and_back(worker):
    running, echo = worker
    for size in (1, 5, 100_000, 3):  # the buffers grow, and stay
        rows = torch.randn(size, 3)
        reply, (made, kept) = ask(running, "linear", [rows])
        assert reply == ("linear", CORE)
        assert torch.allclose(made, echo.layer(rows), atol=1e-6)
        assert torch.equal(kept, rows)
    assert ask(running, "nothing")[1] == []


def test_an_error_there_is_one_sentence_and_the_next_question_is_answered(worker):
    with pytest.raises(CrossdraftError, match=r"CPU core .* failed: ValueError: no"):
        ask(worker[0], "fail")
    assert ask(worker[0], "nothing")[0][0] == "nothing"


def test_a_worker_that_takes_long_is_kept_while_it_finishes_module_after_module():
    worker = WorkerProcess(share(Echo(nn.Linear(3, 2)), moved=False), CORE, silent_s=1.4)
    worker.ready()
    assert ask(worker, "work")[0][0] == "work"
    worker.close()


def test_a_worker_that_finishes_none_is_lost_although_its_process_could_answer():
    worker = WorkerProcess(share(Echo(nn.Linear(3, 2)), moved=False), CORE, silent_s=1.4)
    worker.ready()
    with pytest.raises(WorkerLost, match=r"made no progress for 1\.4 s"):
        ask(worker, "hang")
    worker.close()


def test_a_worker_that_is_stopped_is_lost():
    worker = WorkerProcess(share(Echo(nn.Linear(3, 2)), moved=False), CORE, silent_s=0.4)
    worker.ready()
    os.kill(worker.pid, signal.SIGSTOP)
    worker.send("nothing")
    assert not worker.answered()
    with pytest.raises(WorkerLost, match=r"made no progress for 0\.4 s"):
        worker.receive()
    assert worker.answered()
    worker.close()  # it is killed: it would not end by itself
    worker.close()


def test_who_was_suspended_does_not_take_a_worker_for_hanging(monkeypatch):
    worker = WorkerProcess(share(Echo(nn.Linear(3, 2)), moved=False), CORE)
    worker.ready()
    os.kill(worker.pid, signal.SIGSTOP)
    worker.send("nothing")
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 300.0))
    assert not worker.answered()
    os.kill(worker.pid, signal.SIGCONT)
    assert worker.receive()[0][0] == "nothing"
    worker.close()


def test_a_worker_that_never_answers_is_lost(monkeypatch):
    worker = WorkerProcess(share(Echo(nn.Linear(3, 2)), moved=False), CORE)
    worker.ready()
    monkeypatch.setattr(process, "ANSWER_S", 0.3)
    with pytest.raises(WorkerLost, match=r"has not answered for 0\.3 s"):
        ask(worker, "work")
    worker.close()


def test_a_worker_that_is_killed_is_lost():
    worker = WorkerProcess(share(Echo(nn.Linear(3, 2)), moved=False), CORE)
    worker.ready()
    os.kill(worker.pid, signal.SIGKILL)
    worker.send("nothing")
    with pytest.raises(WorkerLost, match=r"ended \(exit status -9\)"):
        worker.receive()
    worker.close()
    worker.close()


def test_it_ends_when_it_is_closed():
    worker = WorkerProcess(share(Echo(nn.Linear(3, 2)), moved=False), CORE)
    worker.ready()
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)


def test_one_that_cannot_be_started_is_one_sentence_and_leaves_nothing_open(monkeypatch):
    def full(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    echo = share(Echo(nn.Linear(3, 2)), moved=True)
    monkeypatch.setattr(process.subprocess, "Popen", full)
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(CrossdraftError, match=r"core \d+ could not be started \(Resource temporarily unavailable\)"):
        WorkerProcess(echo, CORE)
    assert len([*Path("/proc/self/fd").iterdir()]) == before
