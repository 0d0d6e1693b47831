"""While others are answered another thread reads prompts, and every answer is the target's own."""

import threading
from dataclasses import replace

import pytest
import torch

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine import admission
from crossdraft.engine.decode import Decoder
from crossdraft.engine.fast.cores import available_cores
from crossdraft.engine.fast.elastic import borrowing, poll
from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.guarded import GuardedDrafter
from crossdraft.engine.lanes import Lanes
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.engine.request import Finish, Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.errors import RequestError

REQUESTS = [Request("x" * i, max_new_tokens=6 + 5 * i) for i in range(1, 6)]
LONG = Request("xxxxx", max_new_tokens=120)
WAIT_S = 30.0


@pytest.fixture(scope="module")
def alone(target):
    return [answer.tokens for answer in Decoder(target).generate([*REQUESTS, LONG])]


@pytest.fixture(autouse=True)
def _two_lanes(monkeypatch):
    """On cores that are all the same: what is read where does not depend on the machine."""
    cores = available_cores()
    monkeypatch.setattr(admission, "halves", lambda spare: Lanes((cores, cores), 1))


class Prompts:
    """Passes over more than a token, each by the thread that made it; those elsewhere wait while they are held."""

    def __init__(self, target, monkeypatch) -> None:
        self.here: list[int] = []
        self.elsewhere: list[int] = []
        self.waits, self.held = threading.Event(), threading.Event()
        self.held.set()
        self.error: Exception | None = None
        self._extend, self._home = target.extend, threading.current_thread()
        monkeypatch.setattr(target, "extend", self._seen)

    def _seen(self, cache, rows, chunks, *rest):
        tokens = sum(len(chunk.tokens) for chunk in chunks if len(chunk.tokens) > 1)
        if threading.current_thread() is self._home:
            self.here += [tokens] if tokens else []
        else:
            self.elsewhere.append(tokens)
            self.waits.set()
            assert self.held.wait(WAIT_S)
            if self.error is not None:
                raise self.error
        return self._extend(cache, rows, chunks, *rest)


def begun(target, runner=None, **options) -> tuple[Decoder, int]:
    """A loop that answers one long request."""
    decoder = Decoder(target, runner, **{"max_batch": 2, "prefill_chunk": None} | options)
    first = decoder.submit(LONG)
    while not decoder._live:
        decoder.step()
    return decoder, first


def run_out(decoder: Decoder) -> None:
    while decoder.busy:
        decoder.step()


@pytest.mark.parametrize("cached", [0, 1 << 30])
@pytest.mark.parametrize("max_batch", [2, 3])
def test_another_thread_reads_all_of_a_prompt(target, alone, monkeypatch, cached, max_batch):
    """Also its last piece, where nothing rides along; and each prompt once."""
    decoder, first = begun(target, prefixes=PrefixCache(cached), max_batch=max_batch)
    prompts = Prompts(target, monkeypatch)
    request_ids = [decoder.submit(request) for request in REQUESTS]
    run_out(decoder)
    assert [decoder.answer(one).tokens for one in request_ids] == alone[:5]
    assert decoder.answer(first).tokens == alone[5]
    if not cached:  # the last one may find nobody who is answered
        assert [*prompts.elsewhere, *prompts.here] == [len(target.prepare(request)) for request in REQUESTS]
    assert prompts.elsewhere  # how many: a slow thread finds nobody who is answered any more


def under_way(target, monkeypatch, **options):
    """A decoder that answers one request, while another thread is held in the midst of the next one's prompt."""
    decoder, first = begun(target, **options)
    prompts = Prompts(target, monkeypatch)
    prompts.held.clear()
    second = decoder.submit(REQUESTS[0])
    while not prompts.waits.wait(0.001):
        decoder.step()
    return decoder, first, prompts, second


def test_rounds_go_on_meanwhile(target, alone, monkeypatch):
    decoder, first, prompts, second = under_way(target, monkeypatch)
    (state,) = decoder._live
    before = len(state.tokens)
    for _ in range(5):
        decoder.step()
    assert len(state.tokens) == before + 5
    assert decoder._spare_cores() == ()  # they are lent to the other thread
    prompts.held.set()
    run_out(decoder)
    assert [decoder.answer(one).tokens for one in (first, second)] == [alone[5], alone[0]]
    assert not decoder._reads_elsewhere


def test_the_next_prompt_waits_behind_the_one_that_is_read(target, alone, monkeypatch):
    """While its thread is busy some of the others are prepared for it, and no more than `AHEAD` are under way."""
    decoder, _ = begun(target, max_batch=8)
    for tokens in (119, 118, 117):
        decoder.submit(replace(LONG, max_new_tokens=tokens))
    while len(decoder._live) < 4:
        decoder.step()
    prompts = Prompts(target, monkeypatch)
    prompts.held.clear()
    request_ids = [decoder.submit(request) for request in REQUESTS[:4]]
    while not prompts.waits.wait(0.001):
        decoder.step()
    for _ in range(3):
        decoder.step()
    assert len(decoder._readings) == admission.AHEAD == 3
    prompts.held.set()
    run_out(decoder)
    assert [decoder.answer(one).tokens for one in request_ids] == alone[:4]


def test_where_more_wait_than_are_answered_this_thread_reads_a_prompt_before_each_round(target, alone, monkeypatch):
    """As long as more wait than are answered: of five that wait two are read here; then the rounds go on alone."""
    decoder, first, prompts, second = under_way(target, monkeypatch, max_batch=8)
    (state,) = decoder._live
    request_ids = [second, *(decoder.submit(request) for request in REQUESTS[1:])]
    for live, here in ((2, [3]), (3, [3, 4]), (3, [3, 4])):
        before = len(state.tokens)
        decoder.step()
        assert len(decoder._live) == live
        assert prompts.here == [len(target.prepare(REQUESTS[number])) for number in here]
        assert len(state.tokens) == before + 1
    prompts.held.set()
    run_out(decoder)
    assert [decoder.answer(one).tokens for one in (first, *request_ids)] == [alone[5], *alone[:5]]


def test_no_clip_is_read_here_that_is_read_there(target, monkeypatch):
    decoder, *_ = under_way(target, monkeypatch, max_batch=8, prefixes=PrefixCache(1 << 30))
    clip = torch.zeros(2, 4, 4, 3, dtype=torch.uint8).numpy()
    encoded, encode = [], target.encode
    monkeypatch.setattr(target, "encode", lambda prompt: encoded.append(1) or encode(prompt))
    for name in "xyxy":
        decoder.submit(Request(name, clip, max_new_tokens=3))
    for _ in range(3):
        decoder.step()
    assert len(decoder._live) == 1
    assert len(decoder._readings) == admission.AHEAD + 1
    assert not encoded
    decoder.drop()


def test_questions_about_one_clip_hold_nobody_else(target, monkeypatch):
    decoder, *_ = under_way(target, monkeypatch, max_batch=16, prefixes=PrefixCache(1 << 30))
    clip = torch.zeros(2, 4, 4, 3, dtype=torch.uint8).numpy()
    for name in "xy":
        decoder.submit(Request(name, clip, max_new_tokens=3))
    for tokens in (119, 118, 117):
        decoder.submit(replace(LONG, max_new_tokens=tokens))
    for live in (2, 3, 4, 4):
        decoder.step()
        assert len(decoder._live) == live
    decoder.drop()


def test_what_has_no_room_is_read_for_nobody(target, monkeypatch):
    """One prompt more than the other thread has under way may be held, not one more before each round."""
    decoder, *_ = begun(target)
    most = decoder.cache.nbytes_with(200)
    decoder.drop()
    decoder, *_ = under_way(target, monkeypatch, max_batch=16, kv_bytes=most)
    for _ in range(12):
        decoder.submit(replace(REQUESTS[4], max_new_tokens=150))
    for _ in range(8):
        decoder.step()
    assert len(decoder._readings) <= admission.AHEAD + 1
    decoder.drop()


def test_the_other_thread_goes_on_while_this_one_reads(target, alone, monkeypatch):
    """Once it has nothing to do it is given the next steps of its prompts: they are not read here, too."""
    decoder, first, prompts, second = under_way(target, monkeypatch, max_batch=8)
    request_ids = [second, *(decoder.submit(request) for request in REQUESTS[1:])]
    extend, side = target.extend, decoder._side

    def released(*arguments):
        if threading.current_thread() is threading.main_thread():
            monkeypatch.setattr(target, "extend", extend)
            prompts.held.set()
            side.submit(bool).result(WAIT_S)  # all that it was given is done
        return extend(*arguments)

    monkeypatch.setattr(target, "extend", released)
    decoder.step()
    assert prompts.here == [len(target.prepare(REQUESTS[3]))]
    run_out(decoder)
    assert [decoder.answer(one).tokens for one in (first, *request_ids)] == [alone[5], *alone[:5]]


@pytest.mark.parametrize("ends", ["fails", "is cancelled"])
def test_what_ends_while_this_thread_reads_it_ends_alone(target, alone, monkeypatch, ends):
    decoder, first, prompts, second = under_way(target, monkeypatch, max_batch=8)
    request_ids = [second, *(decoder.submit(request) for request in REQUESTS[1:])]
    extend = target.extend

    def ended(*arguments):
        if threading.current_thread() is threading.main_thread():
            monkeypatch.setattr(target, "extend", extend)
            if ends == "fails":
                raise MemoryError("no room")
            decoder.cancel(request_ids[3])
        return extend(*arguments)

    monkeypatch.setattr(target, "extend", ended)
    decoder.step()
    assert request_ids[3] in decoder.finished()
    prompts.held.set()
    run_out(decoder)
    others = [first, *request_ids[:3], request_ids[4]]
    assert [decoder.answer(one).tokens for one in others] == [alone[5], *alone[:3], alone[4]]
    if ends == "fails":
        with pytest.raises(RequestError, match="no room"):
            decoder.answer(request_ids[3])
    else:
        assert decoder.answer(request_ids[3]).finish is Finish.CANCELLED


@pytest.mark.parametrize("elsewhere", [False, True])
def test_with_a_drafter(target, alone, monkeypatch, elsewhere):
    """One elsewhere drafts for the last piece, which is read here; one here may use the target's own layers: chunks."""
    runner = DraftRunner(IndependentDrafter(target), "off")
    monkeypatch.setattr(GuardedDrafter, "elsewhere", elsewhere)
    decoder, first = begun(target, runner, nodes=1, adaptive=False)
    prompts = Prompts(target, monkeypatch)
    second = decoder.submit(REQUESTS[3])
    run_out(decoder)
    assert [decoder.answer(one).tokens for one in (first, second)] == [alone[5], alone[3]]
    assert bool(prompts.elsewhere) is elsewhere


def test_questions_about_one_clip_are_read_one_after_another(target, monkeypatch):
    """The second one finds the clip read."""
    decoder, _ = begun(target, max_batch=6, prefixes=PrefixCache(1 << 30))
    decoder.submit(replace(LONG, max_new_tokens=119))
    while len(decoder._live) < 2:
        decoder.step()
    clip = torch.zeros(2, 4, 4, 3, dtype=torch.uint8).numpy()
    encoded, encode = [], target.encode
    monkeypatch.setattr(target, "encode", lambda prompt: encoded.append(1) or encode(prompt))
    for shown, times in (([clip, clip], 1), ([clip + 1, clip + 2], 2)):
        encoded.clear()
        asked = [Request(name, clip, max_new_tokens=3) for name, clip in zip("xy", shown, strict=True)]
        request_ids = [decoder.submit(request) for request in asked]
        while not set(request_ids) <= set(decoder.finished()):
            decoder.step()
        assert len(encoded) == times
    decoder.drop()


def test_an_error_there_is_that_requests_own(target, alone, monkeypatch):
    decoder, first = begun(target)
    prompts = Prompts(target, monkeypatch)
    prompts.error = MemoryError("no room")
    second = decoder.submit(REQUESTS[0])
    while second not in decoder.finished():
        decoder.step()
    prompts.error = None
    third = decoder.submit(REQUESTS[1])
    run_out(decoder)
    with pytest.raises(RequestError, match="no room"):
        decoder.answer(second)
    assert [decoder.answer(one).tokens for one in (first, third)] == [alone[5], alone[1]]


@pytest.mark.parametrize("way", ["cancel", "drop"])
def test_who_is_cancelled_meanwhile_waits_for_nothing(target, alone, monkeypatch, way):
    decoder, first, prompts, second = under_way(target, monkeypatch)
    if way == "drop":
        decoder.drop()
    else:
        assert decoder.cancel(second)
        decoder.step()
    assert decoder.answer(second).finish is Finish.CANCELLED
    prompts.held.set()
    run_out(decoder)
    tokens = decoder.answer(first).tokens
    assert tokens == alone[5][: len(tokens)]
    assert (tokens == alone[5]) is (way == "cancel")


def test_rounds_have_half_of_the_cores_while_the_other_half_reads(target, alone, monkeypatch):
    """Where no drafter has cores to lend."""
    decoder, first = begun(target)
    prompts = Prompts(target, monkeypatch)
    seen, joins, leaves = [], [], []

    def watch(name, seen):
        method = getattr(decoder, name)

        def watched(*arguments):
            seen.append((decoder._parted, torch.get_num_threads()))
            return method(*arguments)

        monkeypatch.setattr(decoder, name, watched)

    watch("_round", seen)
    watch("_leave", leaves)
    watch("_join", joins)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        second = decoder.submit(REQUESTS[0])
        prompts.held.clear()
        while not prompts.waits.wait(0.1):
            decoder.step()
        decoder.step()
        prompts.held.set()
        run_out(decoder)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert set(seen) == {(True, 1), (False, 2)}
    assert joins == [(True, 1)]  # of the one that was read there
    assert (True, 1) in leaves
    assert (True, 2) not in leaves
    assert [decoder.answer(one).tokens for one in (first, second)] == [alone[5], alone[0]]


@pytest.mark.skipif(len(available_cores()) < 2, reason="needs a core to lend")
def test_what_is_borrowed_is_given_back_before_the_cores_are_halved(target):
    """Else the loop would take what it borrows for its own, and borrow once more."""
    (own, lent), threads = available_cores()[:2], torch.get_num_threads()
    decoder = Decoder(target, max_batch=2)
    with pinned([own]):
        for _ in range(2):
            with borrowing(lambda: () if decoder._parted else (lent,)):
                assert torch.get_num_threads() == 2
                with decoder._lane(Lanes(((own,), (lent,)), 1)):
                    poll()
                    assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads
