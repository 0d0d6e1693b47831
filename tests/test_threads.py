"""An engine in many hands: threads, nested calls, asyncio, batches with bad requests, Ctrl-C, closing."""

import asyncio
import signal
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

import crossdraft as cd
from crossdraft.engine.request import Finish, Origin
from crossdraft.engine.target import Target
from crossdraft_lab.bench.workload import Workload, items
from tests.support import encodes_clips, failing

QUESTIONS = ("what is the car doing?", "is there a red light?", "where is the car?", "what is near?")
LENGTHS = (6, 14, 22)


@pytest.fixture(scope="module")
def requests(clip):
    return [
        cd.Request(question, str(clip.video), str(clip.events), max_new_tokens=length)
        for question in QUESTIONS
        for length in LENGTHS
    ]


@pytest.fixture(scope="module")
def alone(pair, requests):
    with cd.Engine.load(str(pair.target), None) as engine:
        return [answer.tokens for answer in engine.generate(requests)]


WAYS = {
    "none": (None, {}),
    "inline": ("event", {"placement": "inline"}),
    "inline, beside": ("event", {"placement": "inline", "hidden": "beside"}),
    "process": ("event", {"placement": "process"}),
    "union": ("union:event,memory", {"placement": "inline"}),
    "union, process": ("union:event,memory", {"placement": "process"}),
}


@pytest.fixture(scope="module", params=WAYS)
def engine(request, pair):
    drafter, options = WAYS[request.param]
    if drafter is not None:
        drafter = drafter.replace("event", str(pair.event))
    options = cd.Options(adaptive=False, max_batch=2, **options)
    with cd.Engine.load(str(pair.target), drafter, options) as engine:
        yield engine


def test_many_threads_at_once(engine, requests, alone):
    had_drafter = engine.drafter is not None

    def ask(position):
        order = [(position + step) % len(requests) for step in range(6)]
        return [(at, engine.generate(requests[at])) for at in order]

    with ThreadPoolExecutor(4) as pool:
        found = [pair for answers in pool.map(ask, range(4)) for pair in answers]
    assert all(answer.tokens == alone[at] for at, answer in found)
    assert not any(answer.other_notes for _, answer in found)
    assert (engine.drafter is not None) == had_drafter
    assert len({piece.request for _, answer in found for piece in answer.pieces}) == len(found)  # ids are unique


def test_asking_inside_a_stream_s_loop_and_two_streams_at_once(engine, requests, alone):
    stream = engine.stream(requests[2])
    for piece in stream:
        if piece.origin is not Origin.PROVISIONAL:
            assert engine.generate(requests[4]).tokens == alone[4]
    assert stream.answer.tokens == alone[2]
    streams = [engine.stream(requests[at]) for at in (1, 7)]
    for _ in zip(*streams, strict=False):
        pass
    for stream, at in zip(streams, (1, 7), strict=True):
        if stream.answer is not None:  # `zip` leaves the longer one early
            assert stream.answer.tokens == alone[at][: len(stream.answer.tokens)]


def test_asyncio(engine, requests, alone):
    async def streamed(request):
        stream = engine.astream(request, final_only=True)
        pieces = [piece async for piece in stream]
        assert "".join(piece.text for piece in pieces) == stream.answer.text
        assert not any(piece.origin is Origin.PROVISIONAL for piece in pieces)
        return stream.answer

    async def ask():
        tasks = [engine.agenerate(request) for request in requests[:4]]
        return await asyncio.gather(*tasks, *(streamed(request) for request in requests[4:8]))

    assert [answer.tokens for answer in asyncio.run(ask())] == alone[:8]


def test_cancelling_a_task_cancels_its_request(pair, requests, alone):
    with cd.Engine.load(str(pair.target), None) as engine:

        async def cancelled():
            first = asyncio.create_task(engine.agenerate(requests[2]))
            second = asyncio.create_task(engine.agenerate(requests[5]))
            await asyncio.sleep(0)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            seen = 0
            stream = engine.astream(requests[8])
            async for _ in stream:
                seen += 1
                break
            return await first, seen

        answer, seen = asyncio.run(cancelled())
        assert (answer.tokens, seen) == (alone[2], 1)
        assert engine.generate(requests[0]).tokens == alone[0]


def test_the_step_interface_from_several_threads(engine, requests, alone):
    stepped = engine.decoder()

    def drive(at):
        request_id = stepped.submit(requests[at])
        while request_id not in stepped.finished():
            stepped.step()
        return stepped.answer(request_id).tokens

    with ThreadPoolExecutor(3) as pool:
        asked = pool.submit(engine.generate, requests[9])
        assert list(pool.map(drive, range(4))) == alone[:4]
        assert asked.result().tokens == alone[9]
    assert not stepped.busy
    stepped.drop()


def test_a_bad_request_of_a_batch_costs_the_others_nothing(engine, requests, alone):
    bad = cd.Request("where?", "missing.mp4", requests[0].events)
    long = cd.Request("where?", requests[0].video, requests[0].events, max_new_tokens=10_000)
    with pytest.raises(
        cd.BatchError, match=r"2 of 4 requests failed, the first of them request 2: .*missing\.mp4.*errors and answers"
    ) as raised:
        engine.generate([requests[0], bad, long, requests[4]])
    first, missing, too_long, last = raised.value.results
    assert (first.tokens, last.tokens) == (alone[0], alone[4])
    assert "missing.mp4" in str(missing)
    assert "room for" in str(too_long)
    assert engine.generate(requests[5]).tokens == alone[5]


def test_a_missing_recording_ends_drafting_for_that_request_alone(pair, requests, alone):
    for where in ({"hidden": "off"}, {"hidden": "before"}, {"hidden": "beside"}, {"placement": "process"}):
        options = cd.Options(**{"placement": "inline", **where}, adaptive=False, max_batch=2)
        with cd.Engine.load(str(pair.target), str(pair.event), options) as engine:
            lacking = cd.Request(requests[2].prompt, requests[2].video, "/nope.h5", max_new_tokens=22)
            answer, other = engine.generate([lacking, requests[5]])
            (note,) = answer.other_notes
            assert "/nope.h5" in note
            assert (answer.tokens, other.tokens) == (alone[2], alone[5])
            assert other.other_notes == ()
            assert engine.drafter is not None
            # On a busy machine a tiny answer is over before another process has read the question.
            assert any(engine.generate(requests[5]).stats.drafted > 0 for _ in range(50))


def test_an_internal_error_names_its_request_and_the_next_one_is_answered(pair, requests, alone, monkeypatch):
    with cd.Engine.load(str(pair.target), str(pair.event), cd.Options(placement="inline")) as engine:
        extend, calls = Target.extend, []

        def fail_once(*given, **named):
            calls.append(1)
            if len(calls) == 4:
                raise ZeroDivisionError("a bug")
            return extend(*given, **named)

        monkeypatch.setattr(Target, "extend", fail_once)
        with pytest.raises(
            cd.RequestError, match=r"'what is the car doing\?'\) failed: ZeroDivisionError: a bug"
        ) as raised:
            engine.generate(cd.Request(requests[2].prompt, requests[2].video, None, max_new_tokens=22))
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        assert engine.generate(requests[2]).tokens == alone[2]


def test_who_cannot_take_a_piece_fails_alone(pair, requests, alone):
    with cd.Engine.load(str(pair.target), None, cd.Options(max_batch=2)) as engine:
        pending = [engine.submit(requests[2], failing(OSError("the client is gone"))), engine.submit(requests[5])]
        with pytest.raises(cd.RequestError, match="the client is gone"):
            pending[0].result()
        assert pending[1].result().tokens == alone[5]


def test_a_closed_engine_refuses(pair, requests):
    engine = cd.Engine.load(str(pair.target), str(pair.event), cd.Options(placement="inline"))
    running = engine.submit(requests[2])
    engine.close()
    engine.close()
    for ask in (engine.generate, engine.submit, lambda r: list(engine.stream(r)), lambda r: engine.decoder()):
        with pytest.raises(cd.CrossdraftError, match="closed"):
            ask(requests[0])
    assert running.future.done()


def test_cancelling_what_waits_and_what_runs(pair, requests, alone):
    with cd.Engine.load(str(pair.target), None) as engine:
        begun = threading.Event()
        first = engine.submit(requests[2], lambda piece: begun.set())
        second = engine.submit(requests[5])
        second.cancel()
        with pytest.raises(CancelledError):
            second.result()
        assert begun.wait(60)
        first.cancel()
        answer = first.result()
        assert answer.tokens == alone[2][: len(answer.tokens)]
        if len(answer.tokens) < len(alone[2]):
            assert answer.finish is Finish.CANCELLED
        first.cancel()  # it is over


def test_ctrl_c_stays_ctrl_c_whatever_runs(pair, requests, alone):
    """With several live rows, too: dropping them must not hide it."""
    with cd.Engine.load(
        str(pair.target), str(pair.event), cd.Options(placement="inline", max_batch=3, nodes=1)
    ) as engine:
        long = [cd.Request(r.prompt, r.video, r.events, max_new_tokens=300) for r in requests[:3]]
        before = signal.signal(signal.SIGALRM, failing(KeyboardInterrupt))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(KeyboardInterrupt):
                while True:
                    engine.generate(long)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert engine.generate(requests[0]).tokens == alone[0]


def test_who_is_reported_pieces_cannot_ask_in_the_same_breath(pair, requests):
    with (
        cd.Engine.load(str(pair.target), None) as engine,
        pytest.raises(cd.CrossdraftError, match="do it in another thread"),
    ):
        engine.submit(requests[0], lambda piece: engine.decoder()).result()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "placement"),
    [
        (None, "auto"),
        ("event", "inline"),
        ("event", "process"),
        ("union:event,memory", "process"),
        ("eagle2", "inline"),
        ("glance", "process"),
    ],
)
def test_eight_threads_of_forty_requests_on_the_reference_pair(tmp_path, drafter, placement):
    items_ = items(Workload(pairs=20, answers="any", max_new_tokens=24))
    requests = [item.request for item in items_]
    with cd.Engine.load("reference", None) as engine:
        alone = [answer.tokens for answer in engine.generate(requests)]
    options = cd.Options(placement=placement, max_batch=4)
    with cd.Engine.load("reference", drafter, options) as engine:

        def ask(thread):
            order = [(5 * thread + step) % len(requests) for step in range(40)]
            return [(at, engine.generate(requests[at])) for at in order]

        with ThreadPoolExecutor(8) as pool:
            found = [pair for answers in pool.map(ask, range(8)) for pair in answers]
        assert len(found) == 320
        assert all(answer.tokens == alone[at] for at, answer in found)
        assert not any(answer.other_notes for _, answer in found)
        assert (engine.drafter is None) == (drafter is None)


def test_a_full_queue_refuses_and_takes_requests_again_when_it_is_not(pair, requests, alone):
    held, free = threading.Event(), threading.Event()

    def hold(piece):
        held.set()
        free.wait(60)

    with cd.Engine.load(str(pair.target), None, cd.Options(max_queue=2)) as engine:
        first = engine.submit(requests[0], on_piece=hold)
        assert held.wait(60)  # it runs, and goes on when we say so
        waiting = [engine.submit(request) for request in requests[1:3]]
        with pytest.raises(cd.QueueFullError, match="3 requests wait or run"):
            engine.submit(requests[3])
        with pytest.raises(cd.QueueFullError):
            engine.generate(requests[:2])
        free.set()
        found = [one.result(60) for one in (first, *waiting)]
        assert [answer.tokens for answer in found] == alone[:3]
        assert found[1].stats.queued_s > 0
        assert engine.generate(requests[3]).tokens == alone[3]


@encodes_clips
def test_a_drafter_that_wants_the_targets_features_drafts_for_all_of_a_batch(tmp_path):
    """Prompts are read while others are answered: the drafter's process waits for no features, and loses no request."""
    asked = [item.request for item in items(Workload(8, max_new_tokens=48, files=tmp_path))]
    with cd.Engine.load("reference", None, cd.Options(device="cpu")) as engine:
        expected = [engine.generate(request).tokens for request in asked]
    options = cd.Options(device="cpu", max_batch=4, cache_bytes=0, placement="process")
    with cd.Engine.load("reference", "glance", options) as engine:
        found = engine.generate(asked)
    assert [answer.tokens for answer in found] == expected
    assert not any(answer.other_notes for answer in found)
    assert all(answer.drafter_error is None for answer in found)


@pytest.fixture
def hold():
    """A first piece holds the loop until it may go on: `hold.held` says that it does, `hold.free` lets it go on."""

    class Hold:
        held, free = threading.Event(), threading.Event()

        def __call__(self, piece):
            self.held.set()
            self.free.wait(60)

    one = Hold()
    yield one
    one.free.set()


def load_of(engine):
    return engine._scheduler._count


def test_a_batch_that_is_longer_than_the_queue_waits_for_room(pair, requests, alone):
    with cd.Engine.load(str(pair.target), None, cd.Options(max_queue=1)) as engine:
        assert [answer.tokens for answer in engine.generate(requests)] == alone
        assert not load_of(engine)


def test_a_batch_that_waits_for_room_ends_with_the_engine(pair, requests, hold):
    engine = cd.Engine.load(str(pair.target), None, cd.Options(max_queue=1))
    with ThreadPoolExecutor(2) as pool:
        first = engine.submit(requests[0], on_piece=hold)
        assert hold.held.wait(60)
        batch = pool.submit(engine.generate, requests[1:4])  # one has room, the next waits
        while load_of(engine) < 2:
            time.sleep(0.01)
        time.sleep(0.1)
        closing = pool.submit(engine.close)
        with pytest.raises(cd.CrossdraftError, match="closed"):
            batch.result(60)
        hold.free.set()
        closing.result(60)
    assert first.future.done()
    assert not load_of(engine)


def test_a_cancelled_request_counts_until_the_loop_has_done_with_it(pair, requests, alone, hold):
    """asyncio cancels the future at once, while the request still waits or runs: nobody gets in beyond the limit so."""
    with cd.Engine.load(str(pair.target), None, cd.Options(max_queue=1)) as engine:
        first = engine.submit(requests[0], on_piece=hold)
        assert hold.held.wait(60)
        second = engine.submit(requests[1])
        for pending in (second, first):
            pending.future.cancel()
            pending.cancel()
            with pytest.raises(cd.QueueFullError, match="2 requests wait or run"):
                engine.submit(requests[2])
        hold.free.set()
        deadline, found = time.monotonic() + 60, None
        while found is None and time.monotonic() < deadline:
            with suppress(cd.QueueFullError):
                found = engine.generate(requests[2])
        assert found is not None
        assert found.tokens == alone[2]
        assert not load_of(engine)


def test_priority_goes_before_arrival(pair, requests):
    with cd.Engine.load(str(pair.target), None) as engine:
        decoder, order = engine.decoder(), []
        for number, priority in enumerate((0, 5, -1, 5)):
            request = replace(requests[number], priority=priority)
            decoder.submit(request, on_piece=lambda piece, number=number: order.append(number))
        while decoder.busy:
            decoder.step()
    assert list(dict.fromkeys(order)) == [1, 3, 0, 2]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: cd.Options(max_queue=0), "max_queue is 0"),
        (lambda: cd.Options(cache_bytes=-1), "cache_bytes is -1"),
        (lambda: cd.Request("?", priority=0.5), "priority is 0.5"),
    ],
)
def test_queues_and_priorities_that_are_none(make, said):
    with pytest.raises(cd.CrossdraftError, match=said):
        make()
