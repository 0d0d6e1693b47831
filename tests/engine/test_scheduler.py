"""The loop's thread; what it does for requests is tested with the engine."""

import gc
import logging
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass

import pytest
import torch

from crossdraft.engine.fast.cores import available_cores
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.opening import Opening
from crossdraft.engine.passes import Chunk
from crossdraft.engine.prompt_features import PromptReading
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.scheduler import Call, Scheduler, without_frames
from crossdraft.errors import CrossdraftError, QueueFullError, RequestError
from tests.engine.scripted import Scripted
from tests.openmp import cores_of_threads, needs_gnu, use_two_threads
from tests.support import failing, until


def test_memory_is_given_back_when_the_answers_have_been_handed_over(target, monkeypatch):
    tidied, decoder = threading.Event(), DecodeLoop(target)
    scheduler = Scheduler(lambda: decoder)
    monkeypatch.setattr(decoder, "tidy", lambda: decoder.busy or decoder.finished() or tidied.set())
    try:
        scheduler.submit(Request("x", max_new_tokens=4)).result(60)
        assert tidied.wait(10)
    finally:
        scheduler.close()


def test_another_engines_cores_do_not_decide_with_how_many_threads_this_one_computes(target):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        other, own = Scheduler(lambda: DecodeLoop(target), available_cores()[:1]), Scheduler(lambda: DecodeLoop(target))
        try:
            assert other.call(torch.get_num_threads) == 1
            assert own.call(torch.get_num_threads) == 3
        finally:
            other.close()
            own.close()
    finally:
        torch.set_num_threads(before)


@needs_gnu
@pytest.mark.parametrize("who", ["caller", "loop"])
def test_openmp_helpers_of_who_has_nothing_to_do_end(target, who):
    scheduler = Scheduler(lambda: DecodeLoop(target))

    def work():
        scheduler.call(lambda: None)  # the loop's thread has started
        before = cores_of_threads().keys()

        def begun():
            use_two_threads()
            return cores_of_threads().keys() - before

        started = begun() if who == "caller" else scheduler.call(begun)
        if who == "caller":
            scheduler.call(lambda: None)
        until(lambda: not started & cores_of_threads().keys())
        return len(started), started & cores_of_threads().keys()

    try:
        with ThreadPoolExecutor(1) as fresh:
            assert fresh.submit(work).result() == (1, set())
    finally:
        scheduler.close()


def readings():
    """What holds the prompt of a request that is opened, read or answered."""
    return [one for one in gc.get_objects() if type(one) in (Opening, Chunk, PromptReading)]


def failed(error):
    try:
        raise error from KeyError("inner")
    except type(error) as caught:
        return caught


def test_an_error_that_is_handed_over_holds_no_frames():
    error = failed(ZeroDivisionError("x"))
    assert without_frames(error) is error
    assert error.__traceback__ is None
    assert "in failed" in error.__notes__[0]
    refused = without_frames(failed(CrossdraftError("A sentence.")))
    assert refused.__traceback__ is None
    assert not hasattr(refused, "__notes__")


def test_errors_in_a_circle_of_causes_are_let_go_of():
    first, second = failed(ValueError("a")), failed(TypeError("b"))
    first.__context__, second.__context__ = second, first
    without_frames(first)
    assert first.__traceback__ is None is second.__traceback__


@dataclass(frozen=True)
class FrozenError(Exception):
    """Refuses every attribute."""

    why: str


def test_an_error_that_takes_no_attributes_is_the_request_s_alone(target):
    """Whoever waits gets it, and the thread lives on."""
    scheduler = Scheduler(lambda: DecodeLoop(target))

    def watch(piece):
        raise FrozenError("no")

    try:
        for _ in range(2):
            with pytest.raises(RequestError, match="FrozenError") as caught:
                scheduler.submit(Request("x", max_new_tokens=4), watch).result(60)
            assert caught.value.__cause__.__traceback__ is None
        assert len(scheduler.submit(Request("x", max_new_tokens=4)).result(60).tokens) == 4
    finally:
        scheduler.close()


def test_a_request_cancelled_before_it_begins_is_over_for_all_who_wait(target):
    """`concurrent.futures.wait` takes a future for done when its waiters were notified, not when it is cancelled."""
    scheduler, held = Scheduler(lambda: DecodeLoop(target)), threading.Event()
    scheduler.post(Call(held.wait, lambda error: None))
    pending = scheduler.submit(Request("x", max_new_tokens=4))
    pending.cancel()
    held.set()
    try:
        assert wait([pending.future], 10).done
        with pytest.raises(CancelledError):
            pending.result()
    finally:
        scheduler.close()


def test_whoever_asked_is_refused_when_what_was_asked_before_ends_the_thread(target):
    """All of it is taken up at once; the first one's end is told to who does not return, nor does the second one's."""
    scheduler, held = Scheduler(lambda: DecodeLoop(target)), threading.Event()

    def leave(future):
        raise SystemExit

    scheduler.post(Call(held.wait, lambda error: None))
    first, second, third = (scheduler.submit(Request("x", max_new_tokens=4)) for _ in range(3))
    first.future.add_done_callback(leave)
    second.future.add_done_callback(leave)
    first.cancel()
    held.set()
    for one in (second, third):
        with pytest.raises(CrossdraftError, match="This engine's thread ended"):
            one.result(10)
    scheduler.close()


def test_an_error_that_is_raised_again_and_again_does_not_grow():
    error = ZeroDivisionError("x")
    for _ in range(3):
        without_frames(failed(error))
    assert len(error.__notes__) == 1


@pytest.mark.parametrize("spoilt", [True, False])
def test_what_was_read_is_freed_when_a_request_is_over_and_waits_for_no_collection(target, monkeypatch, caplog, spoilt):
    """Also when it fails while its prompt is read, as a traceback would hold all of that."""
    caplog.set_level(logging.CRITICAL, "crossdraft")  # pytest keeps a logged error, with its traceback
    scheduler = Scheduler(lambda: DecodeLoop(target))
    if spoilt:
        monkeypatch.setattr(target, "extend", failing(RuntimeError("no memory")))
    kept = []
    gc.collect()
    before = readings()  # other tests may have left some
    gc.disable()
    try:
        for number in range(3):
            pending = scheduler.submit(Request("x", max_new_tokens=2 + number))
            with suppress(RequestError):
                pending.result(60)
            kept.append(pending.future.exception())
        scheduler.call(lambda: None)  # the loop has done with them
        assert [error is not None for error in kept] == [spoilt] * 3
        assert not [one for one in readings() if not any(one is known for known in before)]
    finally:
        gc.enable()
        scheduler.close()


def test_a_loop_that_fails_leaves_no_request_with_the_drafter(target, monkeypatch, caplog):
    caplog.set_level(logging.CRITICAL, "crossdraft")
    runner = DraftRunner(Scripted([]))
    scheduler = Scheduler(lambda: DecodeLoop(target, runner))
    monkeypatch.setattr(DecodeLoop, "_run", failing(RuntimeError("no memory")))
    try:
        pending = scheduler.submit(Request("x", max_new_tokens=4))
        with pytest.raises(RequestError, match="The engine failed: RuntimeError: no memory"):
            pending.result(60)
        monkeypatch.undo()
        assert scheduler.call(lambda: runner._slots) == {}
        assert scheduler.submit(Request("x", max_new_tokens=4)).result(60).tokens
    finally:
        scheduler.close()


class Held:
    """A check that hands an answer over when it is let."""

    def __init__(self):
        self.settled, self.cancelled, self.held = threading.Event(), threading.Event(), []

    def cancel(self):
        self.cancelled.set()

    def settle(self, result, hand_over):
        self.held.append((result, hand_over))
        self.settled.set()


def test_a_check_hands_the_answer_over_and_until_then_its_request_has_its_room(target):
    """A request that is not counted is taken beside it, however full the queue is."""
    check, scheduler = Held(), Scheduler(lambda: DecodeLoop(target), most=1)
    try:
        pending = scheduler.submit(Request("x", max_new_tokens=4), check=check)
        assert check.settled.wait(20)
        assert not pending.future.done()
        with pytest.raises(QueueFullError, match="1 requests wait or run"):
            scheduler.submit(Request("x", max_new_tokens=4))
        own = scheduler.submit(Request("x", max_new_tokens=4), counted=False).result(20)
        pending.cancel()
        assert check.cancelled.is_set()
        ((result, hand_over),) = check.held
        hand_over(result)
        assert pending.result(20).tokens == own.tokens
        assert scheduler.submit(Request("x", max_new_tokens=4)).result(20).tokens == own.tokens
    finally:
        scheduler.close()
