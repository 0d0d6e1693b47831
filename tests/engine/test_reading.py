"""A prompt is read chunk by chunk between the rounds of others, and nothing is said otherwise for it."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine import admission
from crossdraft.engine import reading as reading_module
from crossdraft.engine.cache import KVCache
from crossdraft.engine.decode import Decoder
from crossdraft.engine.drafter import Needs
from crossdraft.engine.fast.cores import available_cores
from crossdraft.engine.lanes import Lanes, halves
from crossdraft.engine.passes import Chunk, PrefillChunk
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.engine.reading import ALONE, FIRST, HELD_ROUNDS, LEAST, ChunkTimes, Reading, read_pair
from crossdraft.engine.request import Finish, Request
from crossdraft.engine.request_state import Job, RequestState
from crossdraft.engine.rules import rule_for
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError, RequestError
from tests.engine.scripted import Scripted
from tests.engine.zoo import IMAGES, ZOO, as_target, noisy
from tests.support import encodes_clips

REQUESTS = [Request("x" * i, max_new_tokens=6 + 5 * i) for i in range(1, 6)]
LONG = Request("xxxxx", max_new_tokens=120)
WHOLE = ("gemma3", "gemma3_image")  # an image's tokens see each other


@pytest.fixture(scope="module")
def alone(target):
    return [answer.tokens for answer in Decoder(target).generate([*REQUESTS, LONG])]


@encodes_clips
@pytest.mark.parametrize("trees", [[DraftTree.empty()] * 2, [DraftTree((7, 8, 9), (-1, -1, 0)), DraftTree.chain([5])]])
@torch.inference_mode()
def test_a_pass_of_rounds_and_a_chunk_is_both_of_them(target, trees):
    """Logits, features, and what is in the caches, in double precision; the rows are of different lengths."""

    def rows():
        cache = target.new_cache(2, 200)
        for request in (REQUESTS[0], REQUESTS[3]):
            prompt = target.prepare(request)
            target.prefill(cache, prompt, target.encode(prompt), 200)
        return cache

    prompt, layers = target.prepare(REQUESTS[4]), (0, 2)
    pieces, _ = target.chunks(prompt, target.encode(prompt))
    first, rest = target.cut(pieces[0], 5)
    roots = [Chunk(torch.tensor([11])), Chunk(torch.tensor([12]))]
    separate, joint = (KVCache(target.text_config.num_hidden_layers, 1, 200) for _ in range(2))
    own, shared = rows(), rows()
    for cache in (separate, joint):
        cache.add_row(100)
    for piece in (first, rest):
        read = target.extend(separate, slice(0, 1), [piece], [DraftTree.empty()], layers)
        out = target.extend(own, slice(0, 2), roots, trees, (1, -1))
        both = target.extend_shared(shared, slice(0, 2), roots, trees, (1, -1), PrefillChunk(joint, piece, layers))
        assert both is not None
        for one, other in zip((out, read), both, strict=True):
            for found, expected in zip(other.logits, one.logits, strict=True):
                assert torch.allclose(found, expected, atol=1e-10)
            for found, expected in zip(other.hidden, one.hidden, strict=True):
                assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(found, expected, strict=True))
        assert joint.lengths == separate.lengths
        for found, expected in zip(joint.view(0).layers, separate.view(0).layers, strict=True):
            assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(found, expected, strict=True))
        own.keep(0, [])
        shared.keep(0, [])


class Watched(Decoder):
    """Notes how many tokens of prompts each step reads."""

    def __init__(self, target: Target, *arguments, **options) -> None:
        super().__init__(target, *arguments, **options)
        self.read: list[int] = []
        self.shared = 0  # passes in which rounds and prompts were one

    def step(self) -> None:
        extend, extend_shared, self.count = self.target.extend, self.target.extend_shared, 0

        def counted(cache, rows, chunks, *rest):
            self.count += sum(len(chunk.tokens) for chunk in chunks if len(chunk.tokens) > 1 or chunk.skip_logits)
            return extend(cache, rows, chunks, *rest)

        def counted_shared(*arguments):
            both = extend_shared(*arguments)
            if both is not None:
                self.count += len(arguments[-1].chunk.tokens)
                self.shared += 1
            return both

        self.target.extend, self.target.extend_shared = counted, counted_shared
        try:
            answered = bool(self._live)
            super().step()
        finally:
            del self.target.extend, self.target.extend_shared
        if answered:
            self.read.append(self.count)


def run_out(decoder: Decoder) -> None:
    while decoder.busy:
        decoder.step()


@pytest.mark.parametrize("name", ZOO | IMAGES)
@pytest.mark.parametrize("size", [1, 5, 1000])
@torch.inference_mode()
def test_pieces_of_a_prompt_read_one_by_one_say_the_same(name, size):
    """As `check_conformance` compares: the logits behind the prompt, in double precision."""
    model, prompt = (ZOO | IMAGES)[name]()
    target = as_target(model, prompt)
    encoded, tree = target.encode(prompt), DraftTree.empty()
    whole = target.prefill(target.new_cache(), prompt, encoded, 200).out.logits[0]
    cache = KVCache(target.text_config.num_hidden_layers, 1, 200)
    cache.add_row(len(prompt))
    pieces, cache.rope_deltas[0] = target.chunks(prompt, encoded)
    widths = []
    for piece in pieces:
        rest = piece
        while rest is not None:
            first, rest = target.cut(rest, size)
            widths.append(len(first.tokens))
            out = target.extend(cache, slice(0, 1), [first], [tree])
    tolerance = 1e-5 if name.endswith("_moe") else 1e-10
    assert (out.logits[0] - whole).abs().max() < tolerance
    assert sum(widths) == len(prompt)
    assert max(widths) <= size or name in WHOLE or not target.traits.takes_encoded


@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("cached", [pytest.param(0, marks=encodes_clips), 1 << 30])
@pytest.mark.parametrize("size", [1, 4, None])
def test_nobody_waits_for_more_than_a_chunk(target, kin, alone, monkeypatch, size, cached, drafted):
    monkeypatch.setattr(ChunkTimes, "fits_prompt", lambda *arguments: False)  # see the next test
    runner = DraftRunner(kin, "auto") if drafted else None
    prefixes = PrefixCache(cached)
    decoder = Watched(target, runner, max_batch=3, adaptive=False, prefill_chunk=size, prefixes=prefixes)
    first = decoder.submit(LONG)
    while not decoder._live:
        decoder.step()
    request_ids = [decoder.submit(request) for request in REQUESTS]
    run_out(decoder)
    assert [decoder.answer(one).tokens for one in request_ids] == alone[:5]
    assert decoder.answer(first).tokens == alone[5]
    lasts = max(len(target.chunks(target.prepare(one), None)[0][-1].tokens) for one in REQUESTS)
    assert 0 < max(decoder.read) <= max(lasts, size or ALONE)
    assert decoder.shared > 0 or cached  # what is known is not read
    assert not decoder.busy


@pytest.mark.parametrize("fits", [False, True])
def test_a_short_prompt_is_read_at_once(target, kin, alone, monkeypatch, fits):
    """One request is answered and one waits, so that no more wait than are answered."""
    waiting: list[int] = []
    monkeypatch.setattr(ChunkTimes, "fits_prompt", lambda times, count, held_s: (waiting.append(count), fits)[1])
    decoder = Watched(target, DraftRunner(kin, "auto"), max_batch=3, adaptive=False, prefill_chunk=None)
    first = decoder.submit(LONG)
    while not decoder._live:
        decoder.step()
    assert decoder.chunks.prompt_s.value > 0
    second = decoder.submit(REQUESTS[0])
    decoder.step()
    assert len(decoder._readings) == (not fits)
    assert set(waiting) == {1}
    run_out(decoder)
    assert [decoder.answer(one).tokens for one in (first, second)] == [alone[5], alone[0]]


def test_a_prompt_is_short_by_rounds_and_by_what_waits():
    """Worked by hand, rounds of 10 ms: 4 of them are 40 ms; with four waiting, chunks of 15 ms each are 60."""
    times = ChunkTimes()
    assert not times.fits_prompt(9, 0.0)
    times.round_s.add(0.010)
    assert not times.fits_prompt(9, 0.0)
    times.prompt_s.add(0.039)
    assert times.fits_prompt(1, 0.0)
    assert not times.fits_prompt(2, 0.002)
    assert times.fits_prompt(4, 0.020)
    assert not times.fits_prompt(4, 0.022)


def test_a_prompt_of_text_is_cut_too(target):
    """Not where the drafter wants all of its features at once."""
    text = Request("x", inputs={"ids": list(range(5, 45))}, max_new_tokens=8)
    plain = Target(target.model, lambda request: _text(request, target), target.decode, target.eos)
    expected = Decoder(plain).generate([text, REQUESTS[0]])
    for needs, most in ((Needs(), 6), (Needs(hidden_layers=(1,)), 40)):
        decoder = Watched(plain, DraftRunner(Scripted([], needs=needs)), max_batch=2, prefill_chunk=6, adaptive=False)
        other = decoder.submit(LONG)
        while not decoder._live:
            decoder.step()
        asked = decoder.submit(text)
        run_out(decoder)
        assert decoder.answer(asked).tokens == expected[0].tokens
        assert max(decoder.read) == most
        decoder.answer(other)


def _text(request, target):
    if request.inputs is None:
        return target.prepare(request)
    prompt = target.prepare(REQUESTS[0])
    return type(prompt)(torch.tensor(request.inputs["ids"]))


@pytest.mark.parametrize("cached", [0, 1 << 30])
def test_features_of_a_front_in_chunks_are_those_of_the_whole(target, cached):
    needs = Needs(hidden_layers=(1, -1), visual_layers=(0, 3))
    found = []
    for others in (False, True):
        drafter = Scripted([], needs=needs)
        decoder = Decoder(target, DraftRunner(drafter), max_batch=2, adaptive=False, prefill_chunk=3,
                          prefixes=PrefixCache(cached))  # fmt: skip
        if others:
            decoder.submit(LONG)
            while not decoder._live:
                decoder.step()
        drafter.outputs.clear()
        asked = decoder.submit(REQUESTS[1])
        while asked not in decoder.finished():
            decoder.step()
        decoder.answer(asked)
        found.append(next(output.prompt for output in drafter.outputs if output.prompt is not None))
        decoder.drop()
    assert found[0].tokens == found[1].tokens
    assert found[0].visual_tokens == found[1].visual_tokens
    for layer in needs.visual_layers:
        assert torch.allclose(found[0].visual[layer], found[1].visual[layer], atol=1e-10)


def test_a_request_cancelled_while_it_is_read_takes_no_further_chunk(target, alone):
    decoder = Watched(target, max_batch=2, prefill_chunk=1)
    first = decoder.submit(LONG)
    decoder.step()
    second = decoder.submit(REQUESTS[0])
    while decoder.busy and 1 not in decoder.read:
        decoder.step()
    assert decoder.cancel(second)
    read = len(decoder.read)
    run_out(decoder)
    assert sum(decoder.read[read:]) == 0
    answer = decoder.answer(second)
    assert (answer.tokens, answer.finish) == ((), Finish.CANCELLED)
    assert decoder.answer(first).tokens == alone[5]
    assert not decoder.cancel(second)


@encodes_clips
def test_alone_a_long_prompt_is_given_up_between_two_chunks(target, monkeypatch):
    monkeypatch.setattr("crossdraft.engine.reading.ALONE", 4)
    decoder, seen = Decoder(target), []
    extend = target.extend
    monkeypatch.setattr(target, "extend", lambda *arguments: (seen.append(1), extend(*arguments))[1])
    asked = decoder.submit(REQUESTS[0], cancelled=lambda: len(seen) == 2)
    run_out(decoder)
    assert decoder.answer(asked).finish is Finish.CANCELLED
    assert len(seen) == 2


def test_what_goes_wrong_in_the_other_thread_is_that_requests_own(target, alone):
    def prepare(request):
        if request.question == "x":
            assert threading.current_thread() is not threading.main_thread()
            raise OSError("no such disk")
        return prepared(request)

    prepared = target.prepare
    broken = Target(target.model, prepare, target.decode, target.eos)
    decoder = Decoder(broken, max_batch=2, prefill_chunk=None)
    first = decoder.submit(LONG)
    decoder.step()
    second, third = decoder.submit(REQUESTS[0]), decoder.submit(REQUESTS[1])
    run_out(decoder)
    with pytest.raises(RequestError, match="no such disk"):
        decoder.answer(second)
    assert decoder.answer(first).tokens == alone[5]
    assert decoder.answer(third).tokens == alone[1]


def test_a_loop_that_is_dropped_gives_up_what_it_reads(target):
    decoder = Decoder(target, max_batch=2, prefill_chunk=1)
    decoder.submit(LONG)
    decoder.step()
    second = decoder.submit(REQUESTS[0])
    decoder.step()
    decoder.drop()
    assert not decoder.busy
    assert decoder.answer(second).finish is Finish.CANCELLED


def test_a_chunk_takes_as_long_as_its_rounds():
    """Worked by hand: 2 ms a chunk and 0.1 ms a token, rounds of 10 ms: 15 ms hold 130 tokens, cut to 128."""
    times = ChunkTimes()
    assert times.tokens == FIRST
    for tokens in (20, 40, 80) * 20:
        times.chunk.add(tokens, 0.002 + 0.0001 * tokens)
        times.round_s.add(0.010)
    assert HELD_ROUNDS == 1.5
    assert times.tokens == 128
    for _ in range(200):
        times.round_s.add(0.0)
    assert times.tokens == LEAST
    for _ in range(200):
        times.round_s.add(9.0)
    assert times.tokens == ALONE
    assert ChunkTimes(7).tokens == 7


@pytest.mark.parametrize("size", [0, pytest.param(4, marks=encodes_clips)])
def test_a_request_waits_where_keys_and_values_would_take_too_much(target, alone, size):
    def widest(kv_bytes):
        decoder = Decoder(target, max_batch=3, kv_bytes=kv_bytes, prefill_chunk=size)
        request_ids, rows, nbytes = [decoder.submit(request) for request in (LONG, *REQUESTS)], 0, 0
        while decoder.busy:
            decoder.step()
            rows = max(rows, decoder.cache.rows)
            if decoder.cache.rows > 1:
                nbytes = decoder.cache.nbytes * 2 // decoder.cache.allocated_rows
        assert [decoder.answer(one).tokens for one in request_ids] == [alone[5], *alone[:5]]
        return rows, nbytes

    rows, of_two = widest(None)
    assert rows == (3 if size == 0 else 2)
    assert widest(of_two)[0] == 2
    assert widest(of_two - 1)[0] == widest(1)[0] == 1


@pytest.mark.parametrize("name", ["video_llava", "qwen2_5_vl", "gemma3"])
@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("cached", [0, 1 << 30])
@pytest.mark.parametrize("bound", ["rows", "bytes"])
def test_who_has_to_leave_goes_on_as_if_nothing_had_been(name, size, cached, bound):
    """Two of low priority run, or are read, a third one comes, and a fourth while the third is answered."""
    model, prompt = ZOO[name]()
    target, kin = as_target(model, prompt), IndependentDrafter(as_target(noisy(model, 1e-3), prompt))
    low, high = [LONG, REQUESTS[4]], [replace(REQUESTS[3], priority=1), replace(REQUESTS[2], priority=2)]
    expected = [answer.tokens for answer in Decoder(target).generate([*low, *high])]
    limits = {"max_batch": 2} if bound == "rows" else {"max_batch": 4, "kv_bytes": 1}
    for drafter in (None, DraftRunner(kin, "before"), DraftRunner(Scripted([], needs=Needs((1,), (0,))))):
        decoder = Watched(target, drafter, adaptive=False, prefill_chunk=size, prefixes=PrefixCache(cached), **limits)
        request_ids, left, steps = [decoder.submit(request) for request in low], 0, 0
        while decoder.busy or steps <= 8:
            if steps in (4, 8):
                request_ids.append(decoder.submit(high[steps // 4 - 1]))
            decoder.step()
            later = len(decoder._readings) - 1  # the first one is read
            steps, left = steps + 1, max(left, len(decoder._paused), later)
        assert left > 0 or steps < 20  # a drafter may have them done before
        assert [decoder.answer(one).tokens for one in request_ids] == expected


def test_who_waits_for_room_does_not_hold_those_of_a_higher_priority(target, alone):
    """The second request is read and finds no room; the third, which came last, is answered first."""
    decoder = Decoder(target, max_batch=4, kv_bytes=1, prefill_chunk=0)
    first, second = (decoder.submit(replace(LONG, priority=one)) for one in (1, 0))
    decoder.step()
    third, ended = decoder.submit(replace(REQUESTS[0], priority=9)), []
    while decoder.busy:
        decoder.step()
        ended += [one for one in decoder.finished() if one not in ended]
    assert ended == [third, first, second]
    assert [decoder.answer(one).tokens for one in ended] == [alone[0], alone[5], alone[5]]


def test_who_waits_for_room_behind_another_is_cancelled_before_the_next_round(target, alone):
    decoder = Decoder(target, max_batch=4, kv_bytes=1, prefill_chunk=0)
    first, second = (decoder.submit(replace(LONG, priority=one)) for one in (9, 0))
    decoder.step()
    third = decoder.submit(replace(REQUESTS[0], priority=1))
    decoder.step()
    assert [reading.state.request_id for reading in decoder._readings] == [third, second]
    assert decoder.cancel(second)
    decoder.step()
    assert decoder.finished() == [second]
    assert decoder.answer(second).finish is Finish.CANCELLED
    run_out(decoder)
    assert [decoder.answer(one).tokens for one in (first, third)] == [alone[5], alone[0]]


def test_nobody_leaves_for_one_that_is_cancelled_while_it_is_read(target, alone, monkeypatch):
    decoder, left = Decoder(target, prefill_chunk=0), []
    first = decoder.submit(LONG)
    decoder.step()
    monkeypatch.setattr(
        decoder, "_drop_row", lambda state, drop=decoder._drop_row: left.append(state.request_id) or drop(state)
    )
    second = decoder.submit(replace(REQUESTS[0], priority=1), cancelled=lambda: True)
    decoder.step()
    assert decoder.answer(second).finish is Finish.CANCELLED
    assert left == []
    run_out(decoder)
    assert decoder.answer(first).tokens == alone[5]


def test_nobody_leaves_for_a_request_that_cannot_be_prepared(target, alone, monkeypatch):
    """A row is given up when the prompt that wants it has been read, not before."""
    prepare = target.prepare

    def checked(request):
        if request.prompt == "wrong":
            raise CrossdraftError("There is no such clip.")
        return prepare(request)

    monkeypatch.setattr(target, "prepare", checked)
    decoder = Decoder(target, prefill_chunk=3)
    first = decoder.submit(LONG)
    decoder.step()
    wrong = decoder.submit(Request("wrong", max_new_tokens=5, priority=5))
    right = decoder.submit(replace(REQUESTS[4], priority=5))
    live = []
    for _ in range(200):
        decoder.step()
        live.append([state.request_id for state in decoder._live])
        if decoder._paused:
            break
    assert live[:-1] == [[first]] * (len(live) - 1)
    assert live[-1] == [right]
    run_out(decoder)
    with pytest.raises(CrossdraftError, match="no such clip"):
        decoder.answer(wrong)
    assert [decoder.answer(one).tokens for one in (first, right)] == [alone[5], alone[4]]


@pytest.mark.parametrize("way", ["paused", "read again"])
def test_an_answer_without_a_row_ends_when_its_time_is_over(target, alone, way):
    """Two are answered, a third one takes a row and gives it back, and the first is read again beside the second."""
    decoder = Decoder(target, max_batch=2, prefill_chunk=8)
    first, _ = decoder.submit(replace(LONG, max_time=50.0)), decoder.submit(replace(LONG, priority=1))
    while len(decoder._live) < 2:
        decoder.step()
    second = decoder.submit(replace(REQUESTS[0], priority=2))
    for _ in range(100):
        decoder.step()
        if decoder._paused if way == "paused" else decoder._readings and decoder._readings[0].again:
            break
    (state,) = decoder._paused or [reading.state for reading in decoder._readings]
    tokens = tuple(state.tokens)
    state.ledger.started -= 100
    run_out(decoder)
    answer = decoder.answer(first)
    assert (answer.finish, answer.tokens) == (Finish.TIME, tokens)
    assert decoder.answer(second).tokens == alone[0]


def test_an_error_in_a_pass_ends_only_those_in_it(target, alone, monkeypatch):
    """Where halves alternate, the other half goes on."""
    decoder = Decoder(target, max_batch=2)
    request_ids = [decoder.submit(request) for request in REQUESTS[:2]]
    decoder.step()
    monkeypatch.setattr(decoder, "_next_rows", lambda: slice(0, 1))
    monkeypatch.setattr(decoder, "_round", lambda rows: 1 / 0)
    decoder.step()
    monkeypatch.undo()
    run_out(decoder)
    with pytest.raises(RequestError, match="ZeroDivisionError"):
        decoder.answer(request_ids[0])
    assert decoder.answer(request_ids[1]).tokens == alone[1]


def test_what_cannot_be_kept_costs_no_answer(target, alone, monkeypatch):
    """Memory runs out while a finished answer's keys and values are copied."""
    prefixes = PrefixCache(1 << 30)
    decoder = Decoder(target, max_batch=2, prefixes=prefixes)

    def full(*_):
        raise MemoryError

    monkeypatch.setattr(KVCache, "span", full)
    answers = decoder.generate([replace(request, namespace="") for request in REQUESTS[:3]])
    assert [answer.tokens for answer in answers] == alone[:3]
    assert prefixes.nbytes == 0


def preempted(target) -> tuple[Decoder, int, int]:
    """A loop in which a request had to leave for a more important one, and the ids of both."""
    decoder = Decoder(target)
    first = decoder.submit(LONG)
    decoder.step()
    second = decoder.submit(replace(REQUESTS[0], priority=1))
    decoder.step()
    return decoder, first, second


def test_who_cannot_be_read_again_is_the_only_one_to_end(target, alone, monkeypatch):
    decoder, first, second = preempted(target)

    def broken(*_, **__):
        raise MemoryError

    monkeypatch.setattr(decoder, "_reading_of", broken)
    run_out(decoder)
    assert decoder.answer(second).tokens == alone[0]
    with pytest.raises(RequestError, match="MemoryError"):
        decoder.answer(first)


def test_a_row_that_cannot_be_filled_again_is_given_back(target, alone, monkeypatch):
    """Memory runs out while one that had to leave gets its keys and values back."""
    decoder, first, second = preempted(target)

    def full(*_):
        raise MemoryError

    monkeypatch.setattr(decoder.cache, "append", full)
    while decoder.busy:
        decoder.step()
        assert decoder.cache.rows == len(decoder._live)
    with pytest.raises(RequestError, match="MemoryError"):
        decoder.answer(first)
    assert decoder.answer(second).tokens == alone[0]
    monkeypatch.undo()
    assert decoder.generate([REQUESTS[1]])[0].tokens == alone[1]


def test_chunks_are_small_only_while_others_are_answered(target, alone):
    decoder = Decoder(target, prefill_chunk=1, max_batch=2)
    first, second = decoder.submit(replace(LONG, max_new_tokens=4)), decoder.submit(REQUESTS[4])
    while not decoder.finished():
        decoder.step()
    assert decoder._readings[0].unread  # a token or two of it have been read
    decoder.step()
    assert [state.request_id for state in decoder._live] == [second]
    run_out(decoder)
    assert [decoder.answer(one).tokens for one in (first, second)] == [alone[5][:4], alone[4]]


@pytest.mark.parametrize("waiting", [1, 2, 3])
@pytest.mark.parametrize("size", [1, None])
def test_where_more_wait_than_are_answered_prompts_are_read_first(target, alone, waiting, size):
    """Until as many are answered as wait; a fixed size of chunks holds nobody for more than that."""
    decoder = Decoder(target, prefill_chunk=size, max_batch=8)
    first = decoder.submit(replace(LONG, max_new_tokens=4))
    while not decoder._live:
        decoder.step()
    others = [decoder.submit(request) for request in REQUESTS[:waiting]]
    decoder.step()
    held = waiting // 2 if size is None else 0  # with 3: two answered and two waiting after one, so that is enough
    assert len(decoder._live) == 1 + held
    assert len(decoder._readings) + len(decoder._waiting) == waiting - held
    run_out(decoder)
    assert decoder.answer(first).tokens == alone[5][:4]
    assert [decoder.answer(one).tokens for one in others] == alone[:waiting]


class Paired(Decoder):
    """Two prompts are read at once whatever that takes, on cores that are all the same one; counts them."""

    pairs = 0

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.policy.reads_pairs = lambda: True

    def _read_pair(self) -> int:
        read = super()._read_pair()
        self.pairs += read == 2
        return read


@pytest.fixture
def two_lanes(monkeypatch):
    cores = available_cores()
    monkeypatch.setattr(admission, "halves", lambda spare: Lanes((cores, cores), 1))


@encodes_clips
@pytest.mark.parametrize("size", [0, 2, None])
@pytest.mark.parametrize("cached", [0, 1 << 30])
def test_two_prompts_are_read_at_once(target, alone, two_lanes, size, cached):
    """The tokens are those of one alone; chunk by chunk only while nobody is answered."""
    for make in (list, lambda requests: [replace(request, max_new_tokens=1) for request in requests]):
        decoder = Paired(target, max_batch=3, prefill_chunk=size, prefixes=PrefixCache(cached))
        asked = make(REQUESTS)
        answers = decoder.generate(asked)
        assert decoder.pairs >= 1
        for answer, request, tokens in zip(answers, asked, alone, strict=False):
            assert answer.tokens == tokens[: request.max_new_tokens]
            assert {span.name for span in answer.timeline.spans} >= {"prepare", "encode", "prefill"}


@pytest.mark.parametrize("name", ZOO | IMAGES)
@torch.inference_mode()
def test_a_prompt_along_with_which_nothing_rides_is_read_in_one_pass(name):
    """Where passes are lean; its logits, keys and values are those of two pieces, in double precision."""
    model, prompt = (ZOO | IMAGES)[name]()
    target = as_target(model, prompt)
    encoded, passes = target.encode(prompt), []
    extend = target.extend
    target.extend = lambda *given: passes.append(1) or extend(*given)
    caches = target.new_cache(), target.new_cache()
    two = target.prefill(caches[0], prompt, encoded, 200, lambda: (DraftTree.empty(), None))
    before = len(passes)
    one = target.prefill(caches[1], prompt, encoded, 200)
    joined = target.joins and len(two.pieces) > 1
    assert len(one.pieces) == (1 if joined else len(two.pieces))
    assert one.cut == two.cut == (len(prompt) - two.last) % len(prompt)
    assert len(passes) - before == len(one.pieces)
    tolerance = 1e-5 if name.endswith("_moe") else 1e-10
    assert (one.out.logits[0] - two.out.logits[0]).abs().max() < tolerance
    for (keys, values), (own_keys, own_values) in zip(*(cache.view(0).layers for cache in caches), strict=True):
        assert (keys - own_keys).abs().max() < tolerance
        assert (values - own_values).abs().max() < tolerance


@pytest.mark.parametrize("drafter", [None, Scripted([])])
def test_a_pair_alone_reads_its_last_pieces_too(target, alone, two_lanes, monkeypatch, drafter):
    """No pass of its own is left for them; with a drafter there is one, along with which its draft rides."""
    decoder = Paired(target, drafter and DraftRunner(drafter, "off"), max_batch=2, prefill_chunk=0)
    joined = []
    monkeypatch.setattr(
        target, "prefill", lambda *given, own=target.prefill: joined.append(given[-1] is not None) or own(*given)
    )
    answers = decoder.generate(REQUESTS[:2])
    assert [answer.tokens for answer in answers] == alone[:2]
    assert joined == [drafter is None and target.joins] * 2


@torch.inference_mode()
def test_a_pair_reads_what_each_would_by_itself(target):
    """Keys and values are the same to the bit."""

    def reading(request):
        state = RequestState(Job(0, request), rule_for(None, request.sampling))
        return Reading(state, target, PrefixCache(0), None, Needs(), ChunkTimes(), lambda encoded: None)

    cores = available_cores()
    for _ in range(5):
        pair = [reading(REQUESTS[0]), reading(REQUESTS[4])]
        with ThreadPoolExecutor(1) as pool:
            read_pair(pair, Lanes((cores, cores), 1), pool)
        for one in pair:
            cache = target.new_cache()
            pieces, _ = target.chunks(one.prompt, one.encoded, joined=target.joins)
            cache.add_row(100)
            target.extend(cache, slice(0, 1), pieces[:1], [DraftTree.empty()])
            ((found, count),) = one.front.prefix.parts
            assert count == len(pieces[0].tokens)
            for (keys, values), expected in zip(found.layers, cache.view(0).layers, strict=True):
                assert torch.equal(keys, expected[0])
                assert torch.equal(values, expected[1])


@encodes_clips
def test_of_a_pair_only_the_one_with_an_error_ends(target, alone, two_lanes, monkeypatch):
    prepare, encode = target.prepare, target.encode

    def broken(request):
        if request.prompt == "no clip":
            raise CrossdraftError("There is no such clip.")
        return prepare(request)

    def failing(prompt):
        if torch.equal(prompt.input_ids, last):
            raise ValueError("not encoded")
        return encode(prompt)

    last = prepare(REQUESTS[4]).input_ids
    monkeypatch.setattr(target, "prepare", broken)
    monkeypatch.setattr(target, "encode", failing)
    for wrong, error in ((Request("no clip", max_new_tokens=5), CrossdraftError), (REQUESTS[4], RequestError)):
        for asked in ([wrong, REQUESTS[0]], [REQUESTS[0], wrong]):
            decoder = Paired(target, max_batch=2)
            request_ids = [decoder.submit(request) for request in asked]
            run_out(decoder)
            assert decoder.pairs == 1
            assert decoder.answer(request_ids[asked.index(REQUESTS[0])]).tokens == alone[0]
            with pytest.raises(error):
                decoder.answer(request_ids[asked.index(wrong)])


@encodes_clips
def test_questions_about_one_clip_are_no_pair(target, two_lanes):
    """The second one finds the clip read."""
    decoder = Paired(target, max_batch=2, prefixes=PrefixCache(1 << 30))
    clip = torch.zeros(2, 4, 4, 3, dtype=torch.uint8).numpy()
    for asked, pairs in (([clip, clip], 0), ([clip, clip + 1], 0), ([clip + 2, clip + 3], 1)):
        decoder.generate([Request("x", video=one, max_new_tokens=3) for one in asked])
        assert decoder.pairs == pairs


def test_who_is_being_prepared_elsewhere_is_not_prepared_again(target, alone, two_lanes, monkeypatch):
    """The first answer is over while the second request's clip is prepared, and a third one is there."""
    prepare, prepared, held = target.prepare, [], threading.Event()

    def slow(request):
        prepared.append(request.prompt)
        if request.prompt == REQUESTS[1].prompt:
            held.wait(5)
        return prepare(request)

    monkeypatch.setattr(target, "prepare", slow)
    decoder = Paired(target, max_batch=3, prefill_chunk=4)
    asked = [replace(REQUESTS[0], max_new_tokens=3), REQUESTS[1]]
    request_ids = [decoder.submit(asked[0])]
    decoder.step()
    request_ids.append(decoder.submit(asked[1]))
    while not decoder.finished():
        decoder.step()
    request_ids.append(decoder.submit(REQUESTS[2]))
    threading.Timer(0.1, held.set).start()
    run_out(decoder)
    assert decoder.pairs == 0
    assert sorted(prepared) == sorted(request.prompt for request in REQUESTS[:3])
    found = [decoder.answer(one).tokens for one in request_ids]
    assert found == [alone[0][:3], alone[1], alone[2]]


def test_cores_in_halves(monkeypatch):
    """The first half is this thread's; a core that it has anyway is no spare one."""
    monkeypatch.setattr(reading_module, "available_cores", lambda: (0, 1))
    for threads, spare, expected in (
        (2, (), Lanes(([0], [1]), 1)),
        (1, (), None),
        (1, (2,), Lanes(([0, 1], [2]), 1)),
        (2, (1, 2, 3), Lanes(([0, 1], [2, 3]), 2)),
    ):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert halves(spare) == expected


def test_a_request_without_a_row_can_be_cancelled(target, alone):
    decoder = Decoder(target)
    first = decoder.submit(LONG)
    for _ in range(3):
        decoder.step()
    second = decoder.submit(replace(REQUESTS[0], priority=1))
    decoder.step()
    assert decoder.cancel(first)
    run_out(decoder)
    answer = decoder.answer(first)
    assert answer.finish is Finish.CANCELLED
    assert 0 < len(answer.tokens) < len(alone[5])
    assert answer.tokens == alone[5][: len(answer.tokens)]
    assert decoder.answer(second).tokens == alone[0]
