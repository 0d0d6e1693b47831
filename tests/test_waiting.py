"""Nobody waits for ever: not for himself, not for another process, not for a thread that has ended."""

import asyncio
import gc
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import crossdraft as cd
from crossdraft.engine.request import Finish
from crossdraft.engine.scheduler import Call
from crossdraft.engine.target import Target
from tests.support import failing

SECONDS = 60.0  # after which it counts as for ever


@pytest.fixture
def request_(clip):
    return cd.Request("what is the car doing?", str(clip.video), str(clip.events), max_new_tokens=6)


@pytest.fixture
def engine(pair) -> Iterator[cd.Engine]:
    engine = cd.Engine.load(str(pair.target), None)
    yield engine
    engine.close()


def long(request_):
    return cd.Request(request_.prompt, request_.video, max_new_tokens=400)


def soon(work: Any) -> Any:
    """What another thread makes of it, in time."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(SECONDS)


def test_a_stream_that_is_collected_in_the_loop_s_thread(engine, request_):
    class Holder:
        """Goes when the garbage collector comes, in whatever thread."""

    holder = Holder()
    holder.itself = holder
    holder.pieces = iter(engine.stream(long(request_)))
    next(holder.pieces)
    del holder
    soon(lambda: engine._scheduler.call(gc.collect))
    assert len(engine.submit(request_).result(SECONDS).tokens) == 6


def test_what_was_written_until_a_stream_was_left_is_there(engine, request_):
    stream = engine.stream(long(request_))
    for _ in stream:
        assert stream.answer is None
        break
    assert stream.answer.finish == Finish.CANCELLED
    assert 0 < len(stream.answer.tokens) < 400


@pytest.mark.parametrize("error", [SystemExit(3), KeyError("x")])
def test_whatever_a_watcher_raises_ends_its_request_alone(engine, request_, error):
    with pytest.raises(cd.CrossdraftError):
        engine.submit(request_, failing(error)).result(SECONDS)
    assert len(engine.submit(request_).result(SECONDS).tokens) == 6


def test_who_is_reported_cannot_wait(engine, request_):
    received: list[BaseException] = []

    def watch(piece):
        for wait in (
            lambda: engine.generate(request_),
            lambda: list(engine.stream(request_)),
            lambda: engine.submit(request_).result(),
            lambda: engine.alone(request_),
        ):
            try:
                wait()
            except cd.CrossdraftError as refused:
                received.append(refused)

    engine.submit(request_, watch).result(SECONDS)
    assert len(received) >= 4
    assert all("do it in another thread" in str(one) for one in received)


def test_a_loop_that_cannot_be_made_fails_its_request_alone(engine, request_, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(engine._scheduler, "_make", failing(MemoryError("no room")))
        with pytest.raises(cd.CrossdraftError, match="no room"):
            engine.submit(request_).result(SECONDS)
    assert len(engine.submit(request_).result(SECONDS).tokens) == 6


def test_a_thread_that_ends_takes_nobody_along(engine, request_):
    pending = engine.submit(long(request_))
    engine._scheduler.post(Call(failing(SystemExit), lambda error: None))
    with pytest.raises(cd.CrossdraftError, match="thread ended"):
        pending.result(SECONDS)
    with pytest.raises(cd.CrossdraftError, match="closed"):
        engine.submit(request_)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_is_refused_and_leaves_its_parent_s_drafter_alone(pair, request_):
    with cd.Engine.load(str(pair.target), str(pair.event), cd.Options(placement="process")) as engine:
        first = engine.generate(request_)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                engine.submit(request_)
            except cd.CrossdraftError as refused:
                engine.close()
                status = 0 if "load another one here" in str(refused) else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        again = engine.generate(request_)
        assert again.tokens == first.tokens
        assert engine.drafter is not None


@pytest.fixture
def passes(monkeypatch):
    """How many passes the target has made, each of which takes a while."""
    made, extend = [], Target.extend

    def slow(self, *arguments, **settings):
        made.append(None)
        time.sleep(0.02)
        return extend(self, *arguments, **settings)

    monkeypatch.setattr(Target, "extend", slow)
    return made


@pytest.mark.parametrize("end", ["task", "timeout", "future"])
def test_cancelling_who_waits_ends_the_request(engine, request_, passes, end):
    async def cancelled():
        task = asyncio.create_task(engine.agenerate(long(request_)))
        while len(passes) < 4:
            await asyncio.sleep(0.01)
        if end == "timeout":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(task, 0.01)
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    if end == "future":
        pending = engine.submit(long(request_))
        while len(passes) < 4:
            time.sleep(0.01)
        pending.future.cancel()
        pending.cancel()
    else:
        asyncio.run(cancelled())
    engine.submit(request_).result(SECONDS)  # it waits for the row
    assert len(passes) < 200


def test_closing_ends_a_comparison(pair, request_, passes):
    engine = cd.Engine.load(str(pair.target), None)
    found: list[cd.Answer] = []
    thread = threading.Thread(target=lambda: found.append(engine.alone(long(request_))))
    thread.start()
    while len(passes) < 4:
        time.sleep(0.01)
    engine.close()
    thread.join(SECONDS)
    assert found[0].finish == Finish.CANCELLED
    assert len(passes) < 200


def test_an_engine_that_nobody_holds_still_answers_what_it_was_asked(pair, request_):
    others = set(threading.enumerate())
    pending = cd.Engine.load(str(pair.target), None).submit(request_)
    gc.collect()
    assert len(pending.result(SECONDS).tokens) == 6
    stepped = cd.Engine.load(str(pair.target), None).decoder()
    gc.collect()
    request_id = stepped.submit(request_)
    while stepped.busy:
        stepped.step()
    assert len(stepped.answer(request_id).tokens) == 6
    del stepped
    end = time.monotonic() + SECONDS
    while any(thread.name == "crossdraft" for thread in set(threading.enumerate()) - others):  # both are closed
        assert time.monotonic() < end
        gc.collect()


def test_a_step_interface_that_is_forgotten_leaves_nothing_behind(engine, request_):
    stepped = engine.decoder()
    stepped.submit(long(request_))
    stepped.step()
    inner = stepped._loop
    assert inner.busy
    del stepped
    gc.collect()
    engine.submit(request_).result(SECONDS)
    assert not inner.busy
