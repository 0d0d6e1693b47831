"""Work that is launched is not done: the hidden draft, and the times, wait for the device."""

import threading
import time

import pytest
import torch

from crossdraft.engine.clock import HostClock, clock_of
from crossdraft.engine.drafter import Draft
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.passes import PassRow
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.tree import DraftTree
from tests.engine.deferred import Device, deferred, waiting
from tests.engine.scripted import IgnoresCommits
from tests.engine.zoo import ZOO, as_target

READ_FOR = 16  # the prefill lasts as long as the drafter takes for so many tokens
REQUEST = Request("xx", max_new_tokens=40)


class Typist(IgnoresCommits):
    """Writes a known answer token by token until it is stopped, and tells how far it has come."""

    def __init__(self, answer):
        self.answer, self.written, self.stopped = answer, 0, threading.Event()
        self.moved = threading.Condition()

    def begin(self, requests):
        self.written = 0
        self.stopped.clear()
        return [0] * len(requests)

    def propose(self, states, budgets):
        (budget,), tokens = budgets, []
        while len(tokens) < min(budget.nodes, len(self.answer)) and not budget.stopped:
            with self.moved:
                tokens.append(self.answer[len(tokens)])
                self.written = len(tokens)
                self.moved.notify_all()
            time.sleep(0.002)  # others get their turn
        with self.moved:
            self.stopped.set()
            self.moved.notify_all()
        return [Draft(DraftTree.chain(tokens))]

    def until(self, count):
        """Return when it has written so many tokens, or was stopped."""
        with self.moved:
            assert self.moved.wait_for(lambda: self.written >= count or self.stopped.is_set(), timeout=60)


@pytest.fixture(scope="module")
def target():
    return as_target(*ZOO["video_llava"]())


@pytest.fixture(scope="module")
def alone(target):
    return DecodeLoop(target).generate([REQUEST])[0].tokens


def hidden_draft(target, typist):
    """The answer with everything but the hidden draft switched off."""
    runner = DraftRunner(typist, "beside")
    decoder = DecodeLoop(target, runner, adaptive=False, nodes=1)
    try:
        return decoder.generate([REQUEST])[0]
    finally:
        runner.close()


def drafted(target, alone, clock=None, around=lambda slow: slow):
    typist = Typist(alone)
    device = Device(lambda: typist.until(READ_FOR))
    slow = deferred(target, device)
    slow.clock = clock or slow.clock
    slow = around(slow)
    try:
        answer = hidden_draft(slow, typist)
    finally:
        device.close()
    assert answer.tokens == alone
    return answer


def test_a_deferred_prefill_hides_as_much_drafting_as_a_synchronous_one(target, alone):
    synchronous = drafted(target, alone, around=waiting).stats
    launched = drafted(target, alone).stats
    assert synchronous.hidden_accepted >= READ_FOR
    assert launched.hidden_drafted >= 0.95 * READ_FOR
    assert launched.hidden_accepted >= 0.95 * READ_FOR


def test_a_clock_that_takes_the_launch_for_the_end_loses_the_draft(target, alone):
    """The planted fault: with it the test above is red."""
    early = drafted(target, alone, clock=HostClock())
    assert early.stats.hidden_drafted < 0.5 * READ_FOR


def test_spans_and_the_cost_model_see_the_devices_time_not_the_launch(target, alone):
    answer = drafted(target, alone)
    spans = {span.name: span for span in answer.timeline.spans if span.lane == "target"}
    assert spans["encode"].end <= spans["prefill"].start
    assert spans["prefill"].seconds >= READ_FOR * 0.001  # it slept 2 ms between them, and began a little earlier
    assert spans["ride-along"].start >= spans["prefill"].end
    assert answer.stats.stages_s["ride-along"] <= spans["ride-along"].seconds
    assert answer.stats.hidden_share == pytest.approx(1.0, abs=0.35)


@torch.inference_mode()
def test_a_pass_that_was_only_launched_says_when_it_is_done(target):
    gate = threading.Event()
    device = Device(gate.wait)
    slow = deferred(target, device)
    try:
        prompt = slow.prepare(REQUEST)
        cache = slow.new_cache()
        cache.add_row(len(prompt) + 1)
        pieces, _ = slow.chunks(prompt, slow.encode(prompt))
        start = time.perf_counter()
        out = slow.extend(cache, [PassRow(0, pieces[0])])
        launched = time.perf_counter()
        time.sleep(0.05)
        gate.set()
        assert out.done.wait() - start >= 0.05 > launched - start
        assert out.seconds >= 0.04
    finally:
        gate.set()
        device.close()


def test_on_a_cpu_a_mark_is_the_time():
    clock = clock_of(torch.device("cpu"))
    before = time.perf_counter()
    mark = clock.mark()
    assert isinstance(clock, HostClock)
    assert before <= mark.wait() <= time.perf_counter()
    assert mark.wait() == mark.wait()
