"""Prompts whose fronts another process reads: the same keys and values, the same answers, and nobody waits."""

import os
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import replace
from threading import Event, Timer, current_thread, main_thread

import numpy as np
import pytest
import torch

import crossdraft as cd
from crossdraft.engine.decode import Decoder
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.engine.remote_fronts import RemoteFronts
from crossdraft.engine.request import Finish
from crossdraft.engine.tree import DraftTree
from crossdraft.engine.workers import prefill
from crossdraft.engine.workers.prefill import RemotePrefill
from crossdraft.load import load_target
from crossdraft.video import write_mp4
from tests.engine.zoo import ZOO, as_target
from tests.support import encodes_clips

CORES = sorted(os.sched_getaffinity(0))[-1:]
BASE = cd.Options(placement="inline", device="cpu", dtype="float32", max_batch=2, adaptive=False)


LONG = cd.Request(inputs={"input_ids": torch.arange(8, 16)[None]}, max_new_tokens=400)  # nothing is read elsewhere


@pytest.fixture(scope="module")
def clips():
    rng = np.random.default_rng(3)
    return [rng.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8) for _ in range(4)]


@pytest.fixture(scope="module")
def asked(clips):
    lengths = (24, 8, 16, 12)
    return [
        cd.Request("what is the car doing?", clip, max_new_tokens=n) for clip, n in zip(clips, lengths, strict=True)
    ]


@pytest.fixture(scope="module")
def alone(pair, asked):
    with cd.Engine.load(str(pair.target), None, BASE) as engine:
        return [engine.generate(request).tokens for request in asked]


@pytest.fixture(scope="module")
def read(pair):
    """A target of packed layers, and the process that reads for it."""
    target = load_target(str(pair.target), "cpu", "float32")
    reader = RemotePrefill(target, CORES)
    yield target, reader
    reader.close()


def front_of(target, prompt, layers=()):
    """As the target itself reads it."""
    with torch.inference_mode():
        pieces, delta = target.chunks(prompt, target.encode(prompt))
        cache = target.new_cache()
        cache.add_row(512)
        cache.rope_deltas[0] = delta
        out = target.extend(cache, slice(0, 1), pieces[:1], [DraftTree.empty()], layers)
    return cache.span(0, 0, len(pieces[0].tokens)), out.hidden[0]


@encodes_clips
def test_keys_values_and_features_are_those_of_the_target_to_the_bit(read, asked):
    target, reader = read
    for request in asked[:2]:
        prompt = target.prepare(request)
        handle = reader.start(prompt, (1, 2))
        prefix, encoded = handle.prefix()
        assert handle.ready
        own, hidden = front_of(target, prompt, (1, 2))
        ((span, count),) = prefix.parts
        assert count == len(own) == reader.front(prompt)
        for (keys, values), (own_keys, own_values) in zip(span.layers, own.layers, strict=True):
            assert torch.equal(keys, own_keys)
            assert torch.equal(values, own_values)
        assert all(torch.equal(prefix.hidden[0][layer], x) for layer, x in zip((1, 2), hidden, strict=True))
        assert torch.equal(target.visual_features(encoded), target.visual_features(target.encode(prompt)))


@encodes_clips
def test_a_front_that_nobody_takes_is_not_taken_for_the_next(read, asked):
    target, reader = read
    prompts = [target.prepare(request) for request in asked[:2]]
    reader.start(prompts[0])
    prefix, _ = reader.start(prompts[1]).prefix()
    assert torch.equal(prefix.parts[0][0].layers[0][0], front_of(target, prompts[1])[0].layers[0][0])


@pytest.mark.parametrize("name", ["video_llava", "qwen2_5_vl", "llava_onevision", "eventgpt"])
def test_other_families(name):
    model, prompt = ZOO[name]()
    target = as_target(model, prompt)
    if not target.traits.takes_encoded:
        pytest.skip("this transformers reads features with the prompt")
    request = cd.Request("?", max_new_tokens=12)
    expected = Decoder(target).generate([request])[0].tokens
    reader = RemotePrefill(target, CORES)
    try:
        decoder = Decoder(target, fronts=RemoteFronts(target, PrefixCache(0), reader))
        answer = decoder.generate([request])[0]
    finally:
        reader.close()
    assert (answer.tokens, answer.other_notes) == (expected, ())


@encodes_clips
@pytest.mark.parametrize("drafter", [None, "memory", "event"])
def test_answers_are_identical(pair, asked, alone, drafter):
    chosen = str(pair.event) if drafter == "event" else drafter
    with cd.Engine.load(str(pair.target), chosen, replace(BASE, disaggregated=CORES)) as engine:
        answers = engine.generate(asked)  # two at a time
        again = engine.generate(asked[0])  # its clip is known by now
    assert [answer.tokens for answer in answers] == alone
    assert again.tokens == alone[0]
    assert again.stats.cached_tokens > 0
    if drafter != "event":  # which has no recording to read, and says so
        assert all(answer.other_notes == () for answer in answers)


@encodes_clips
def test_a_running_answer_goes_on_while_another_ones_front_is_read(read, asked, alone, monkeypatch):
    target, reader = read
    here = []
    monkeypatch.setattr(prefill.PrefillHandle, "ready", property(lambda self: bool(here)))
    decoder = Decoder(target, max_batch=2, fronts=RemoteFronts(target, PrefixCache(0), reader))
    first = decoder.submit(asked[0])
    decoder.step()
    second = decoder.submit(asked[1])
    for _ in range(3):
        before = len(decoder._live[0].tokens)
        decoder.step()
        assert len(decoder._live[0].tokens) > before
        assert second in decoder._waiting
    third = decoder.submit(asked[2])
    decoder.step()
    assert decoder.cancel(second)  # its front is read for nobody
    here.append(True)
    while decoder.busy:
        decoder.step()
    assert (decoder.answer(first).tokens, decoder.answer(third).tokens) == (alone[0], alone[2])


@encodes_clips
def test_a_front_that_waits_for_room_is_not_the_next_ones(read, asked, alone):
    """The second request is read and finds no room; the third passes it, and its front is read meanwhile."""
    target, reader = read
    decoder = Decoder(target, max_batch=4, kv_bytes=1, fronts=RemoteFronts(target, PrefixCache(0), reader))
    decoder.submit(replace(LONG, priority=9))
    decoder.step()
    second = decoder.submit(asked[0])
    while not decoder._readings:
        decoder.step()
        time.sleep(0.05)  # not too many rounds of the first one
    third = decoder.submit(replace(asked[1], priority=1))
    while len(decoder._readings) < 2:
        decoder.step()
        time.sleep(0.05)
    assert decoder._live
    while decoder.busy:
        decoder.step()
    assert [decoder.answer(one).tokens for one in (second, third)] == alone[:2]


@encodes_clips
def test_a_killed_process_costs_one_note(pair, asked, alone):
    with cd.Engine.load(str(pair.target), None, replace(BASE, disaggregated=CORES)) as engine:
        assert engine.generate(asked[0]).other_notes == ()
        os.kill(engine._make.args[-1]._reader.worker.pid, signal.SIGKILL)
        second, third = engine.generate(asked[1]), engine.generate(asked[2])
    assert (second.tokens, third.tokens) == (alone[1], alone[2])
    assert len(second.other_notes) == 1
    assert "The process of the prefill failed" in second.other_notes[0]
    assert third.other_notes == ()


@pytest.fixture
def hanging(read):
    """A target, and a process that was stopped while it read."""
    target, _ = read
    reader = RemotePrefill(target, CORES, silent_s=2.0)
    os.kill(reader.worker.pid, signal.SIGSTOP)
    fronts = RemoteFronts(target, PrefixCache(0), reader)
    yield target, fronts
    fronts.close()


@encodes_clips
def test_nobody_waits_for_a_process_that_hangs_longer_than_he_wants(hanging, asked, alone):
    target, fronts = hanging
    decoder = Decoder(target, fronts=fronts)
    began = time.perf_counter()
    cancelled = decoder.submit(asked[0], cancelled=lambda: time.perf_counter() > began + 0.2)
    late = decoder.submit(replace(asked[1], max_time=0.3))
    while decoder.busy:
        decoder.step()
    assert (decoder.answer(cancelled).finish, decoder.answer(late).finish) == (Finish.CANCELLED, Finish.TIME)
    assert fronts.alive
    answer, other = decoder.generate(asked[2:])
    assert [answer.tokens, other.tokens] == alone[2:]
    assert not fronts.alive
    assert "made no progress for 2 s); the target read the prompt itself" in answer.other_notes[0]
    assert other.other_notes == ()
    assert time.perf_counter() - began < 60


@encodes_clips
def test_answers_go_on_while_a_process_hangs(hanging, asked, alone):
    target, fronts = hanging
    decoder = Decoder(target, max_batch=2, fronts=fronts, adaptive=False)
    first = decoder.submit(LONG)
    decoder.step()
    second, live, rounds = decoder.submit(asked[1]), decoder._live[0], 0
    while fronts.alive and not live.over:
        before = len(live.tokens)
        decoder.step()
        time.sleep(0.01)
        rounds += len(live.tokens) > before
    assert rounds > 10
    while decoder.busy:
        decoder.step()
    assert decoder.answer(second).tokens == alone[1]
    assert len(decoder.answer(first).tokens) == LONG.max_new_tokens


@encodes_clips
def test_waiting_requests_are_identified_and_prepared_once_and_not_in_the_loop(read, asked, alone, monkeypatch):
    target, reader = read
    prefixes, done = PrefixCache(1 << 30), []
    decoder = Decoder(target, max_batch=2, fronts=RemoteFronts(target, prefixes, reader), prefixes=prefixes)
    decoder.submit(LONG)
    decoder.step()

    def noted(name, function):
        def called(request, *rest):
            done.append((name, request.max_new_tokens, current_thread() is main_thread()))
            return function(request, *rest)

        return called

    monkeypatch.setattr(prefixes, "identify", noted("identify", prefixes.identify))
    monkeypatch.setattr(target, "prepare", noted("prepare", target.prepare))
    waiting = [decoder.submit(request) for request in asked]
    while len(decoder.finished()) < len(waiting):
        decoder.step()
        time.sleep(0.01)
        assert decoder._live  # the long one
    decoder.drop()
    assert [decoder.answer(one).tokens for one in waiting] == alone
    elsewhere = [call for call in done if not call[2]]
    assert sorted(elsewhere) == sorted((name, len(x), False) for name in ("identify", "prepare") for x in alone)
    assert not [name for name, _, here in done if here and name == "prepare"]


@encodes_clips
def test_a_clip_that_is_replaced_while_it_waits_is_kept_as_what_was_read(read, clip, tmp_path, monkeypatch):
    """Its pixels were read before, its file is another one when the request is taken up."""
    target, reader = read
    prefixes, path = PrefixCache(1 << 30), tmp_path / "clip.mp4"
    shutil.copy(clip.video, path)
    decoder = Decoder(target, max_batch=2, fronts=RemoteFronts(target, prefixes, reader), prefixes=prefixes)
    decoder.submit(LONG)
    decoder.step()
    request = cd.Request("what is the car doing?", path, max_new_tokens=8)
    asked, fronts = decoder.submit(request), decoder.fronts
    while fronts._current is None or fronts._current.handle is None:
        decoder.step()
    write_mp4(path, np.zeros((8, 32, 32, 3), np.uint8), 8)
    while asked not in decoder.finished():
        decoder.step()
    decoder.drop()
    monkeypatch.setattr(decoder, "fronts", None)
    assert decoder.generate([request])[0].stats.cached_tokens == 0


@pytest.mark.parametrize("cores", [None, pytest.param(CORES, marks=encodes_clips)], ids=["here", "elsewhere"])
def test_a_closed_engine_prepares_nothing_more(pair, asked, monkeypatch, cores):
    """What a thread has begun for a request is finished before the target is let go of: it may be another's then."""
    begun, held, done, released = Event(), Event(), [], []
    with cd.Engine.load(str(pair.target), None, replace(BASE, disaggregated=cores)) as engine:
        target, prepare = engine.target, engine.target.prepare

        def slow(request):
            begun.set()
            held.wait(10)
            done.append(prepare(request))
            return done[0]

        long = iter(engine.stream(LONG))
        next(long)
        monkeypatch.setattr(target, "prepare", slow)
        monkeypatch.setattr(target, "encode_at_home", lambda: released.append(bool(done)))
        pending = engine.submit(asked[0])
        assert begun.wait(30)
        Timer(0.5, held.set).start()
        engine.close()
        assert released == [True]
    with suppress(cd.CrossdraftError):
        list(long)
    assert pending.future.exception() is not None


@encodes_clips
def test_a_planted_bug_in_the_handing_over_changes_answers(pair, asked, alone, monkeypatch):
    unpacked = prefill.PrefillHandle._unpacked

    def swapped(self, pooled, tensors):
        return unpacked(self, pooled, [tensors[1], tensors[0], *tensors[2:]])

    monkeypatch.setattr(prefill.PrefillHandle, "_unpacked", swapped)
    with cd.Engine.load(str(pair.target), None, replace(BASE, disaggregated=CORES)) as engine:
        assert [answer.tokens for answer in engine.generate(asked)] != alone
