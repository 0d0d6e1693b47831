"""Passes that rows share: a prompt is read chunk by chunk along others, and nothing is said otherwise for it."""

import threading
from dataclasses import replace

import pytest
import torch

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine import queue
from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Needs
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.passes import EMPTY, Chunk, PassRow
from crossdraft.engine.prefill import prefill
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.queue import ALONE, FIRST, HELD_ROUNDS, HELD_S, LEAST, ChunkSize
from crossdraft.engine.request import Finish, Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError, RequestError
from tests.engine.fast.test_forward import FAST
from tests.engine.scripted import Scripted
from tests.engine.zoo import IMAGES, ZOO, as_target, noisy
from tests.support import encodes_clips, failing

REQUESTS = [Request("x" * i, max_new_tokens=6 + 5 * i) for i in range(1, 6)]
LONG = Request("xxxxx", max_new_tokens=120)
WHOLE = ("gemma3", "gemma3_image")  # an image's tokens see each other


@pytest.fixture(scope="module")
def alone(target):
    return [answer.tokens for answer in DecodeLoop(target).generate([*REQUESTS, LONG])]


def run_out(decoder: DecodeLoop) -> None:
    while decoder.busy:
        decoder.step()


def answered(decoder: DecodeLoop) -> list[int]:
    """Ids of the requests that have a row and an answer that grows."""
    return [row.request_id for row in decoder.queue.rows if not row.pending]


def begin(decoder: DecodeLoop, request: Request = LONG) -> int:
    """Submit a request, and go on until its answer grows."""
    asked = decoder.submit(request)
    while asked not in answered(decoder):
        decoder.step()
    return asked


# -- passes ------------------------------------------------------------------------------------------------------------


@encodes_clips
@pytest.mark.parametrize("executor", ["fast", "hf"])
@pytest.mark.parametrize("name", ["video_llava", "llava_onevision", "qwen2_5_vl", "gemma3"])
@pytest.mark.parametrize("trees", [[EMPTY] * 2, [DraftTree((7, 8, 9), (-1, -1, 0)), DraftTree.chain([5])]])
@torch.inference_mode()
def test_a_pass_of_rounds_and_a_chunk_is_both_of_them(name, executor, trees):
    """Logits, features, and what is in the cache, in double precision; the rows are of different lengths."""
    model, prompt = ZOO[name]()
    target = as_target(model, prompt)
    if executor == "hf":
        target.fast = None
    elif name not in FAST:
        assert target.fast is None
        pytest.skip("no executor `fast`")

    pieces, delta = target.chunks(prompt, target.encode(prompt))
    parts = [one for one in (*target.split(pieces[0], 5), *pieces[1:]) if one is not None]

    def filled() -> KVCache:
        cache = target.new_cache(3, 256)
        for row, longer in enumerate((0, 3)):
            prefill(target, cache, prompt, target.encode(prompt), 256)
            if longer:
                target.extend(cache, [PassRow(row, Chunk(torch.arange(5, 5 + longer)))])
        cache.rope_deltas[cache.add_row(256)] = delta
        return cache

    roots = [PassRow(row, Chunk(torch.tensor([11 + row])), tree, capture=(1, -1)) for row, tree in enumerate(trees)]
    separate, shared = filled(), filled()
    for part in parts:
        read = PassRow(2, part, EMPTY if part.skip_logits else DraftTree.chain([6]), capture=(0, 2))
        by_themselves = [target.extend(separate, rows) for rows in (roots, [read])]
        logits = [one for out in by_themselves for one in out.logits]
        hidden = [one for out in by_themselves for one in out.hidden]
        both = target.extend(shared, [*roots, read])
        assert_same(both.logits, logits)
        for found, expected in zip(both.hidden, hidden, strict=True):
            assert_same(found, expected)
        assert shared.lengths == separate.lengths
        for row, one in enumerate((*roots, read)):
            written = shared.lengths[row] + len(one.tree)
            assert_same(*(sum(cache.span(row, 0, written).layers.values(), ()) for cache in (shared, separate)))
        for cache in (separate, shared):
            cache.keep(0, [0] if len(trees[0]) else [])


def assert_same(found, expected) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert torch.allclose(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ZOO | IMAGES)
@pytest.mark.parametrize("size", [1, 5, 1000])
@torch.inference_mode()
def test_pieces_of_a_prompt_read_one_by_one_say_the_same(name, size):
    """As `check_conformance` compares: the logits behind the prompt, in double precision."""
    model, prompt = (ZOO | IMAGES)[name]()
    target = as_target(model, prompt)
    encoded = target.encode(prompt)
    whole = prefill(target, target.new_cache(), prompt, encoded, 200).logits[0]
    cache = KVCache(target.text_config.num_hidden_layers, 1, 200)
    cache.add_row(len(prompt))
    pieces, cache.rope_deltas[0] = target.chunks(prompt, encoded)
    widths = []
    for piece in pieces:
        rest = piece
        while rest is not None:
            first, rest = target.split(rest, size)
            widths.append(len(first.tokens))
            out = target.extend(cache, [PassRow(0, first)])
    tolerance = 1e-5 if name.endswith("_moe") else 1e-10
    assert (out.logits[0] - whole).abs().max() < tolerance
    assert sum(widths) == len(prompt)
    assert max(widths) <= size or name in WHOLE or not target.traits.takes_encoded


@pytest.mark.parametrize("name", ZOO | IMAGES)
@torch.inference_mode()
def test_a_prompt_along_with_which_nothing_rides_is_read_in_one_pass(name):
    """Where the executor is `fast`; its logits, keys and values are those of two pieces, in double precision."""
    model, prompt = (ZOO | IMAGES)[name]()
    target = as_target(model, prompt)
    encoded, passes = target.encode(prompt), []
    extend = target.extend
    target.extend = lambda *given: passes.append(1) or extend(*given)
    caches = target.new_cache(), target.new_cache()
    two = prefill(target, caches[0], prompt, encoded, 200, capture=(0,))
    before = len(passes)
    one = prefill(target, caches[1], prompt, encoded, 200)
    whole = target.fast is not None and target.fast.embeds_features and target.traits.takes_encoded
    assert len(passes) - before == (1 if whole else before)
    assert before == 1 + (target.visual_end(prompt) > 0)
    tolerance = 1e-5 if name.endswith("_moe") else 1e-10
    assert (one.logits[0] - two.logits[0]).abs().max() < tolerance
    spans = [cache.span(0, 0, len(prompt)).layers.values() for cache in caches]
    for mine, its in zip(*spans, strict=True):
        assert all((a - b).abs().max() < tolerance for a, b in zip(mine, its, strict=True))


# -- chunks ------------------------------------------------------------------------------------------------------------


class Watched(DecodeLoop):
    """Notes how many tokens of prompts are read in each pass along answers, and in how many passes both are."""

    def __init__(self, target: Target, *arguments, **options) -> None:
        super().__init__(target, *arguments, **options)
        self.read: list[int] = []
        self.shared = 0

    def _pass(self, rows) -> None:
        before = [row.request_id for row in rows if not row.pending]
        extend = self.target.extend

        def counted(cache, passed):
            prompts = [one for row, one in zip(rows, passed, strict=True) if row.request_id not in before]
            if before:
                self.read.append(sum(len(one.chunk.tokens) for one in prompts))
                self.shared += bool(prompts)
            return extend(cache, passed)

        self.target.extend = counted
        try:
            super()._pass(rows)
        finally:
            del self.target.extend


@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("cached", [0, 1 << 30])
@pytest.mark.parametrize("size", [1, 4, None])
def test_between_two_tokens_lies_one_pass_with_at_most_a_chunk(target, kin, alone, size, cached, drafted):
    """Everyone whose answer grows is in every pass, and no pass reads more of a prompt than a chunk."""
    runner = DraftRunner(kin, "auto") if drafted else None
    decoder = Watched(target, runner, max_batch=3, adaptive=False, prefill_chunk=size, prefixes=PrefixCache(cached))
    first = begin(decoder)
    request_ids, growing = [decoder.submit(request) for request in REQUESTS], {}
    while decoder.busy:
        waited = {one: growing.get(one, 0) for one in answered(decoder)}
        noted = {row.request_id: len(row.tokens) for row in decoder.queue.rows}
        decoder.step()
        for row in decoder.queue.rows:
            if row.request_id in waited:
                assert len(row.tokens) > noted[row.request_id]
    assert [decoder.answer(one).tokens for one in request_ids] == alone[:5]
    assert decoder.answer(first).tokens == alone[5]
    assert 0 < max(decoder.read) <= (size or ALONE)
    assert decoder.shared > 0


@pytest.mark.parametrize("size", [3, 0])
def test_a_prompt_of_text_is_cut_too(target, size):
    """All of it at once where chunks are 0; features behind what is visual come chunk by chunk."""
    text = Request("x", inputs={"ids": list(range(5, 45))}, max_new_tokens=8)
    plain = Target(target.model, lambda request: _text(request, target), target.decode, target.eos)
    expected = DecodeLoop(plain).generate([text, REQUESTS[0]])
    for needs in (Needs(), Needs(hidden_layers=(1,))):
        drafter = Scripted([], needs=needs)
        decoder = Watched(plain, DraftRunner(drafter), max_batch=2, prefill_chunk=size, adaptive=False)
        other = begin(decoder)
        drafter.outputs.clear()
        asked = decoder.submit(text)
        run_out(decoder)
        assert decoder.answer(asked).tokens == expected[0].tokens
        assert max(decoder.read) == (size or 40)
        if needs.hidden_layers:
            (prompt,) = [output for output in drafter.outputs if output.prompt is not None]
            assert len(prompt.prompt.tokens) == 40
            assert len(prompt.hidden[1]) >= 40
        decoder.answer(other)


def _text(request, target):
    return Prompt(torch.tensor(request.inputs["ids"])) if request.inputs else target.prepare(request)


@pytest.mark.parametrize("cached", [0, 1 << 30])
@pytest.mark.parametrize("size", [1, 3])
def test_features_of_a_prompt_in_chunks_are_those_of_the_whole(target, size, cached):
    needs = Needs(hidden_layers=(1, -1), visual_layers=(0, 3))
    found = []
    for others in (False, True):
        drafter = Scripted([], needs=needs)
        decoder = DecodeLoop(
            target, DraftRunner(drafter), max_batch=2, adaptive=False, prefill_chunk=size, prefixes=PrefixCache(cached)
        )
        if others:
            begin(decoder)
        drafter.outputs.clear()
        asked = decoder.submit(REQUESTS[4])
        while asked not in decoder.finished():
            decoder.step()
        decoder.answer(asked)
        found.append(next(output for output in drafter.outputs if output.prompt is not None))
        decoder.drop()
    alone, along = found
    assert alone.prompt.tokens == along.prompt.tokens
    assert alone.prompt.visual_tokens == along.prompt.visual_tokens
    for layer in needs.visual_layers:
        assert torch.allclose(alone.prompt.visual[layer], along.prompt.visual[layer], atol=1e-10)
    for layer in needs.hidden_layers:
        assert torch.allclose(alone.hidden[layer], along.hidden[layer], atol=1e-10)


def test_a_chunk_takes_a_tenth_of_a_second_or_a_round_and_a_half():
    """Worked by hand: 1 ms a token, rounds of 10 ms: 100 tokens, cut to 96; rounds of 0.1 s: 150 tokens, cut to 144."""
    alone, times = ChunkSize(), ChunkSize()
    alone.saw(0.4, 0, 400)
    assert (alone.tokens(2, 9999), ChunkSize(0).held_s) == (96, None)
    assert times.tokens(2, 9999) == FIRST
    for tokens in (20, 40, 80) * 20:
        times.saw(0.001 * tokens + 0.010, 1, tokens)  # no round was seen yet: nothing can be noted
    assert times.tokens(2, 9999) == FIRST
    for tokens in (20, 40, 80) * 20:
        times.saw(0.010, 1, 0)
        times.saw(0.010 + 0.001 * tokens, 1, tokens)
    assert (HELD_S, HELD_ROUNDS) == (0.1, 1.5)
    assert times.held_s == HELD_S
    assert times.tokens(2, 9999) == 96
    assert times.tokens(1, 9999) == ALONE
    for _ in range(200):
        times.saw(0.1, 1, 0)
    assert times.held_s == pytest.approx(0.15)
    assert times.tokens(2, 9999) == 144
    for _ in range(200):
        times.saw(9.0, 1, 0)
    assert times.tokens(2, 9999) == ALONE
    for _ in range(200):
        times.saw(9.0, 0, 1)
    assert times.tokens(2, 9999) == LEAST
    assert [ChunkSize(7).tokens(rows, 9999) for rows in (2, 1)] == [7, ALONE]


def test_a_piece_is_read_whole_where_that_was_asked_for_or_hardly_more_than_a_chunk_is_left():
    assert ChunkSize(0).tokens(1, 9999) == ChunkSize(0).tokens(9, 9999) == 9999
    assert [ChunkSize(7).tokens(1, left) for left in (2056, 2560, 2561)] == [2056, 2560, ALONE]


def test_chunks_are_small_only_while_others_are_answered(target, alone):
    decoder = DecodeLoop(target, prefill_chunk=1, max_batch=2)
    first, second = decoder.submit(replace(LONG, max_new_tokens=4)), decoder.submit(REQUESTS[4])
    while not decoder.finished():
        decoder.step()
    (row,) = decoder.queue.rows
    assert row.pending  # a token or two of it have been read
    for _ in range(2):  # what is visual, and the text behind it
        decoder.step()
    assert answered(decoder) == [second]
    run_out(decoder)
    assert [decoder.answer(one).tokens for one in (first, second)] == [alone[5][:4], alone[4]]


def test_one_prompt_is_read_at_a_time(target, alone):
    """The others wait for it: what it leaves in the prefix cache may serve them."""
    decoder = DecodeLoop(target, max_batch=4, prefill_chunk=4)
    begin(decoder)
    request_ids, most = [decoder.submit(request) for request in REQUESTS[:3]], 0
    while decoder.busy:
        decoder.step()
        most = max(most, sum(bool(row.pending) for row in decoder.queue.rows) + len(decoder.queue.openings))
    assert most == 1
    assert [decoder.answer(one).tokens for one in request_ids] == alone[:3]


# -- cancelled, out of time, without a row -----------------------------------------------------------------------------


def test_a_request_cancelled_while_it_is_read_takes_no_further_chunk(target, alone):
    decoder = Watched(target, max_batch=2, prefill_chunk=1)
    first = begin(decoder)
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
    monkeypatch.setattr(queue, "ALONE", 4)
    decoder, seen = DecodeLoop(target, prefill_chunk=None), []
    extend = target.extend
    monkeypatch.setattr(target, "extend", lambda *arguments: (seen.append(1), extend(*arguments))[1])
    asked = decoder.submit(REQUESTS[0], cancelled=lambda: len(seen) == 2)
    run_out(decoder)
    assert decoder.answer(asked).finish is Finish.CANCELLED
    assert len(seen) == 2


def test_a_loop_that_is_dropped_gives_up_what_it_reads(target):
    decoder = DecodeLoop(target, max_batch=2, prefill_chunk=1)
    begin(decoder)
    second = decoder.submit(REQUESTS[0])
    while not any(row.pending for row in decoder.queue.rows):
        decoder.step()
    decoder.drop()
    assert not decoder.busy
    assert decoder.cache.rows == 0
    assert decoder.answer(second).finish is Finish.CANCELLED


def test_a_request_without_a_row_can_be_cancelled(target, alone):
    decoder, first, second = preempted(target)
    assert decoder.cancel(first)
    run_out(decoder)
    answer = decoder.answer(first)
    assert answer.finish is Finish.CANCELLED
    assert 0 < len(answer.tokens) < len(alone[5])
    assert answer.tokens == alone[5][: len(answer.tokens)]
    assert decoder.answer(second).tokens == alone[0]


@pytest.mark.parametrize("way", ["paused", "read again"])
def test_an_answer_that_does_not_grow_ends_when_its_time_is_over(target, alone, way):
    """Two are answered, a third one takes a row and gives it back, and the first is read again along the second."""
    decoder = DecodeLoop(target, max_batch=2, prefill_chunk=8)
    first, _ = begin(decoder, replace(LONG, max_time=50.0)), begin(decoder, replace(LONG, priority=1))
    second = decoder.submit(replace(REQUESTS[0], priority=2))
    for _ in range(100):
        decoder.step()
        found = decoder.queue.paused if way == "paused" else [row for row in decoder.queue.rows if row.pending]
        if found and found[0].tokens:
            break
    (state,) = found
    assert state.request_id == first
    tokens = tuple(state.tokens)
    state.ledger.started -= 100
    run_out(decoder)
    answer = decoder.answer(first)
    assert (answer.finish, answer.tokens) == (Finish.TIME, tokens)
    assert decoder.answer(second).tokens == alone[0]


# -- room and priority -------------------------------------------------------------------------------------------------


def preempted(target) -> tuple[DecodeLoop, int, int]:
    """A loop in which a request had to leave for a more important one, and the ids of both."""
    decoder = DecodeLoop(target)
    first = begin(decoder)
    for _ in range(3):
        decoder.step()
    second = begin(decoder, replace(REQUESTS[0], priority=1))
    assert [state.request_id for state in decoder.queue.paused] == [first]
    return decoder, first, second


@pytest.mark.parametrize("size", [0, pytest.param(4, marks=encodes_clips)])
def test_a_request_waits_where_keys_and_values_would_take_too_much(target, alone, size):
    def widest(kv_bytes):
        decoder = DecodeLoop(target, max_batch=3, kv_bytes=kv_bytes, prefill_chunk=size)
        request_ids, rows, nbytes = [decoder.submit(request) for request in (LONG, *REQUESTS)], 0, 0
        while decoder.busy:
            decoder.step()
            rows = max(rows, decoder.cache.rows)
            if decoder.cache.rows > 1:
                nbytes = decoder.cache.nbytes * 2 // decoder.cache.allocated_rows
        assert [decoder.answer(one).tokens for one in request_ids] == [alone[5], *alone[:5]]
        return rows, nbytes

    rows, of_two = widest(None)
    assert rows >= 2
    assert widest(of_two)[0] == 2
    assert widest(of_two - 1)[0] == widest(1)[0] == 1


def test_rows_that_others_left_do_not_make_a_request_wait(target):
    """Their memory is kept for a while, but not where it would keep another request out."""
    decoder = DecodeLoop(target, max_batch=8, prefill_chunk=0)
    decoder.submit(replace(LONG, max_new_tokens=60))
    short = [decoder.submit(replace(REQUESTS[0], max_new_tokens=2)) for _ in range(7)]
    while not set(short) <= set(decoder.finished()):
        decoder.step()
    cache = decoder.cache
    assert (cache.rows, cache.allocated_rows) == (1, 8)
    decoder._admission.kv_bytes = cache.nbytes // 4
    decoder.submit(REQUESTS[0])
    decoder.step()
    assert (cache.rows, cache.allocated_rows) == (2, 2)
    decoder.drop()


@pytest.mark.parametrize(
    ("name", "size", "cached", "bound"),
    [  # any two settings of any two of the four stand together
        ("video_llava", 0, 0, "rows"),
        ("video_llava", 3, 1 << 30, "bytes"),
        ("qwen2_5_vl", 0, 1 << 30, "bytes"),
        ("qwen2_5_vl", 3, 0, "rows"),
        ("gemma3", 0, 0, "bytes"),
        ("gemma3", 3, 1 << 30, "rows"),
    ],
)
def test_who_has_to_leave_goes_on_as_if_nothing_had_been(name, size, cached, bound):
    """Two of low priority run, or are read, a third one comes, and a fourth while the third is answered."""
    model, prompt = ZOO[name]()
    target, kin = as_target(model, prompt), IndependentDrafter(as_target(noisy(model, 1e-3), prompt))
    low, high = [LONG, REQUESTS[4]], [replace(REQUESTS[3], priority=1), replace(REQUESTS[2], priority=2)]
    expected = [answer.tokens for answer in DecodeLoop(target).generate([*low, *high])]
    limits = {"max_batch": 2} if bound == "rows" else {"max_batch": 4, "kv_bytes": 1}
    for drafter in (None, DraftRunner(kin, "before"), DraftRunner(Scripted([], needs=Needs((1,), (0,))))):
        decoder = Watched(target, drafter, adaptive=False, prefill_chunk=size, prefixes=PrefixCache(cached), **limits)
        request_ids, left, steps = [decoder.submit(request) for request in low], 0, 0
        while decoder.busy or steps <= 8:
            if steps in (4, 8):
                request_ids.append(decoder.submit(high[steps // 4 - 1]))
            decoder.step()
            later = len(decoder.queue.openings) - 1
            steps, left = steps + 1, max(left, len(decoder.queue.paused), later)
        assert left > 0 or steps < 20  # a drafter may have them done before
        assert [decoder.answer(one).tokens for one in request_ids] == expected


def test_who_waits_for_room_does_not_hold_those_of_a_higher_priority(target, alone):
    """The second request is opened and finds no room; the third, which came last, is answered first."""
    decoder = DecodeLoop(target, max_batch=4, kv_bytes=1, prefill_chunk=0)
    first, second = (decoder.submit(replace(LONG, priority=one)) for one in (1, 0))
    while first not in answered(decoder):
        decoder.step()
    third, ended = decoder.submit(replace(REQUESTS[0], priority=9)), []
    while decoder.busy:
        decoder.step()
        ended += [one for one in decoder.finished() if one not in ended]
    assert ended == [third, first, second]
    assert [decoder.answer(one).tokens for one in ended] == [alone[0], alone[5], alone[5]]


def test_who_waits_for_room_behind_another_is_cancelled_before_the_next_round(target, alone):
    decoder = DecodeLoop(target, max_batch=4, kv_bytes=1, prefill_chunk=0)
    first, second = (decoder.submit(replace(LONG, priority=one)) for one in (9, 0))
    while not decoder.queue.openings:
        decoder.step()
    third = decoder.submit(replace(REQUESTS[0], priority=1))
    decoder.step()
    assert [opening.state.request_id for opening in decoder.queue.openings] == [third, second]
    assert decoder.cancel(second)
    decoder.step()
    assert decoder.finished() == [second]
    assert decoder.answer(second).finish is Finish.CANCELLED
    run_out(decoder)
    assert [decoder.answer(one).tokens for one in (first, third)] == [alone[5], alone[0]]


def test_nobody_leaves_for_one_that_is_cancelled_while_it_is_opened(target, alone):
    decoder = DecodeLoop(target, prefill_chunk=0)
    first = begin(decoder)
    second = decoder.submit(replace(REQUESTS[0], priority=1), cancelled=lambda: True)
    while second not in decoder.finished():
        decoder.step()
        assert [row.request_id for row in decoder.queue.rows] == [first]
    assert decoder.answer(second).finish is Finish.CANCELLED
    run_out(decoder)
    assert decoder.answer(first).tokens == alone[5]


def test_nobody_leaves_for_a_request_that_cannot_be_prepared(target, alone, monkeypatch):
    """A row is given up when the prompt that wants it has been encoded, not before."""
    prepare = target.prepare

    def checked(request):
        if request.prompt == "wrong":
            raise CrossdraftError("There is no such clip.")
        return prepare(request)

    monkeypatch.setattr(target, "prepare", checked)
    decoder = DecodeLoop(target, prefill_chunk=3)
    first = begin(decoder)
    wrong = decoder.submit(Request("wrong", max_new_tokens=5, priority=5))
    right = decoder.submit(replace(REQUESTS[4], priority=5))
    rows = []
    for _ in range(200):
        decoder.step()
        rows.append([state.request_id for state in decoder.queue.rows])
        if decoder.queue.paused:
            break
    assert rows[:-1] == [[first]] * (len(rows) - 1)
    assert rows[-1] == [right]
    run_out(decoder)
    with pytest.raises(CrossdraftError, match="no such clip"):
        decoder.answer(wrong)
    assert [decoder.answer(one).tokens for one in (first, right)] == [alone[5], alone[4]]


# -- errors ------------------------------------------------------------------------------------------------------------


def test_what_goes_wrong_in_the_other_thread_is_that_requests_own(target, alone):
    def prepare(request):
        if request.question == "x":
            assert threading.current_thread() is not threading.main_thread()
            raise OSError("no such disk")
        return prepared(request)

    prepared = target.prepare
    broken = Target(target.model, prepare, target.decode, target.eos)
    decoder = DecodeLoop(broken, max_batch=2, prefill_chunk=None)
    first = begin(decoder)
    second, third = decoder.submit(REQUESTS[0]), decoder.submit(REQUESTS[1])
    run_out(decoder)
    with pytest.raises(RequestError, match="no such disk"):
        decoder.answer(second)
    assert decoder.answer(first).tokens == alone[5]
    assert decoder.answer(third).tokens == alone[1]


def test_what_fails_behind_a_pass_is_not_read_twice(target, alone, monkeypatch):
    """The tokens of the pass are committed: run again, a row would hold its root twice. So its requests end."""
    loop = DecodeLoop(target, max_batch=2)
    request_ids = [begin(loop, REQUESTS[0]), loop.submit(REQUESTS[1])]
    while len(answered(loop)) < 2:
        loop.step()

    with monkeypatch.context() as patched:
        patched.setattr("crossdraft.engine.loop.SharedPassTimes.verified", failing(RuntimeError("the device is lost")))
        loop.step()
    run_out(loop)
    for request_id in request_ids:
        with pytest.raises(RequestError, match="the device is lost"):
            loop.answer(request_id)
    assert loop.generate([REQUESTS[1]])[0].tokens == alone[1]


@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("reads", [False, True])
def test_a_pass_that_fails_ends_the_row_that_is_at_fault(target, kin, alone, monkeypatch, drafted, where, reads):
    """Three rows share a pass, which fails for want of memory where the second one is in it, or is a prompt's chunk."""
    runner = DraftRunner(kin, "before") if drafted else None
    decoder = DecodeLoop(target, runner, max_batch=3, prefill_chunk=4, adaptive=False, nodes=1, hidden_nodes=1)
    extend = target.extend
    request_ids = [begin(decoder, LONG), decoder.submit(REQUESTS[4]), decoder.submit(REQUESTS[3])]
    spoilt, failed = request_ids[1], []
    while not reads and spoilt not in answered(decoder):
        decoder.step()

    def full(cache, passed):
        rows = decoder.queue.rows
        bad = any(rows[one.index].request_id == spoilt for one in passed)
        if bad and where == "before":
            failed.append(len(passed))
            raise torch.OutOfMemoryError("no memory")
        lengths = [*cache.lengths]
        out = extend(cache, passed)
        if bad:
            failed.append(len(passed))
            cache.lengths[:] = lengths  # a pass fails before its tokens count
            raise torch.OutOfMemoryError("no memory")
        return out

    monkeypatch.setattr(target, "extend", full)
    run_out(decoder)
    assert failed[0] > 1 == failed[-1]
    with pytest.raises(RequestError, match="no memory"):
        decoder.answer(spoilt)
    assert [decoder.answer(one).tokens for one in (request_ids[0], request_ids[2])] == [alone[5], alone[3]]
    assert decoder.cache.rows == 0


def test_what_cannot_be_kept_costs_no_answer(target, alone, monkeypatch):
    """Memory runs out while a finished answer's keys and values are copied."""
    prefixes = PrefixCache(1 << 30)
    decoder = DecodeLoop(target, max_batch=2, prefixes=prefixes)

    monkeypatch.setattr(KVCache, "span", failing(MemoryError()))
    answers = decoder.generate([replace(request, namespace="") for request in REQUESTS[:3]])
    assert [answer.tokens for answer in answers] == alone[:3]
    assert prefixes.nbytes == 0


def test_who_cannot_be_read_again_is_the_only_one_to_end(target, alone, monkeypatch):
    decoder, first, second = preempted(target)

    monkeypatch.setattr(decoder.prefixes, "lookup", failing(MemoryError()))
    run_out(decoder)
    assert decoder.answer(second).tokens == alone[0]
    with pytest.raises(RequestError, match="MemoryError"):
        decoder.answer(first)


def test_a_row_that_cannot_be_filled_again_is_given_back(target, alone, monkeypatch):
    """Memory runs out while one that had to leave gets its keys and values back."""
    decoder, first, second = preempted(target)

    monkeypatch.setattr(decoder.cache, "append", failing(MemoryError()))
    while decoder.busy:
        decoder.step()
        assert decoder.cache.rows == len(decoder.queue.rows)
    with pytest.raises(RequestError, match="MemoryError"):
        decoder.answer(first)
    assert decoder.answer(second).tokens == alone[0]
    monkeypatch.undo()
    assert decoder.generate([REQUESTS[1]])[0].tokens == alone[1]
