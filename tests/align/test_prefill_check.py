"""An engine within a quality budget: how its requests are answered, what checks cost, and what is left behind."""

import asyncio
import gc
import threading
import time
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from transformers import AutoTokenizer, VideoLlavaForConditionalGeneration

import crossdraft as cd
from crossdraft.engine.request import Finish, Origin
from crossdraft.engine.target import Target
from crossdraft_lab.align.prefill import speculative
from crossdraft_lab.align.prefill_check import NOT_ENDED, PrefillCheck
from tests.align.some_gate import predicted_spec

ALWAYS = "budget=0.5,check=1.0,rate=1e-6,confidence=0.4"  # each request is checked
NEVER = "budget=0.5,check=1e-9,rate=1e-6,confidence=0.4"
WHOLE = "budget=0.5,check=1.0,rate=1e-6,confidence=0.6"


@pytest.fixture(scope="module")
def spec(pair, tmp_path_factory):
    return predicted_spec(pair, tmp_path_factory.mktemp("adapter"))


@pytest.fixture(scope="module")
def question(clip):
    return cd.Request("What is ahead?", str(clip.video), str(clip.events), max_new_tokens=16)


@pytest.fixture
def load(pair, spec):
    """An engine within a budget."""

    @contextmanager
    def make(budget, drafter=None, **more):
        options = cd.Options(device="cpu", lossy_prefill=f"{spec},{budget}", placement="inline", **more)
        with cd.Engine.load(str(pair.target), drafter, options) as engine:
            yield engine

    return make


def answers_of(pair, question, lossy_prefill=None):
    with cd.Engine.load(str(pair.target), None, cd.Options(device="cpu", lossy_prefill=lossy_prefill)) as engine:
        return engine.generate(question)


@pytest.fixture(scope="module")
def own(pair, question):
    """The target's own answer."""
    return answers_of(pair, question)


@pytest.fixture(scope="module")
def lossy(pair, question, spec):
    """That after predicted tokens."""
    return answers_of(pair, question, spec)


@pytest.fixture
def second_reading(monkeypatch):
    """Two events: a reading of predicted tokens has begun, and it may go on; it waits for that for 20 s."""
    begun, go, encode = threading.Event(), threading.Event(), Target.encode

    def held(target, prompt):
        if "predicted" in prompt.features:
            begun.set()
            assert go.wait(20)
        return encode(target, prompt)

    monkeypatch.setattr(Target, "encode", held)
    return begun, go


def read(engine):
    return {str(way): count for way, count in engine.prefill_status.reads.items() if count}


@pytest.mark.parametrize("drafter", [None, "event", "union:memory,ngram"])
@pytest.mark.parametrize(("budget", "way"), [(ALWAYS, "checked"), (NEVER, "predicted"), (WHOLE, "whole")])
def test_each_way_says_what_it_is(load, pair, question, own, lossy, budget, way, drafter):
    """With a drafter, too: whoever reads the request verifies what is drafted."""
    with load(budget, str(pair.event) if drafter == "event" else drafter) as engine:
        answer = engine.generate(question)
        assert read(engine) == {way: 1}
        assert engine.rows == 0
    stats, notes = answer.stats, " ".join(answer.other_notes)
    assert answer.tokens == (lossy if way == "predicted" else own).tokens
    assert stats.lossless == (stats.lossy_prefill is None) == (way != "predicted")
    assert ("Lossy: the target reads its clip compressed" in notes) == (way == "predicted")
    assert ("Read whole: the gate was not confident." in notes) == (way == "whole")
    if way == "checked":
        assert 0 < stats.prefill_loss <= 1
        assert f"The check: after predicted tokens the answer would have lost {stats.prefill_loss:.2f}." in notes
        assert stats.check_s > 0
        assert engine.prefill_status.mean_loss == stats.prefill_loss
    else:
        assert (stats.prefill_loss, stats.check_s) == (None, 0)


def test_one_set_of_weights_is_held(load):
    with load(ALWAYS) as engine:
        assert speculative(engine.target)._target.model is engine.target.model


def test_a_loss_moves_the_threshold_until_clips_are_read_whole(load, question):
    """Each check loses more than is allowed: by the rate of 1 the next one is read whole, which moves it back."""
    with load("budget=0.0,check=1.0,rate=1.0,confidence=0.4") as engine:
        loss = engine.generate(question).stats.prefill_loss
        assert engine.prefill_status.threshold == pytest.approx(min(1.0, 0.4 + loss))
        engine.generate(question)
        assert read(engine) == {"checked": 1, "whole": 1}


def test_a_stream_of_a_checked_request_is_the_targets_own(load, question, own):
    """Its pieces come as they are written; the whole answer, which says what was found, after the check."""
    with load(ALWAYS) as engine:
        stream = engine.stream(question)
        assert "".join(piece.text for piece in stream) == own.text
        assert stream.answer.stats.prefill_loss is not None
        assert NOT_ENDED not in stream.answer.other_notes

        async def asked():
            pieces = engine.astream(question)
            text = "".join([piece.text async for piece in pieces])
            return text, pieces.answer, await engine.agenerate(question)

        text, answer, again = asyncio.run(asked())
    assert text == own.text
    assert answer.stats.prefill_loss == again.stats.prefill_loss == stream.answer.stats.prefill_loss


def test_the_pieces_come_before_the_check_has_ended(load, question, own, second_reading):
    """The second reading waits until all of the answer has come out, which therefore does not wait for it."""
    _, go = second_reading
    with load(ALWAYS, max_batch=1) as engine:
        stream, text = engine.stream(question), ""
        for piece in stream:
            text += piece.text
            if text == own.text:
                assert not engine.prefill_status.compared
                go.set()
        assert stream.answer.stats.prefill_loss is not None
    assert text == own.text


@pytest.mark.parametrize("max_batch", [1, 3])
def test_several_requests_at_once_and_from_threads(load, question, own, max_batch):
    """One whose clip has no events among them: it is read whole, and counts nowhere."""
    asked = [question, replace(question, events=None), replace(question, max_new_tokens=4)] * 2
    with load(ALWAYS, "union:memory,ngram", max_batch=max_batch) as engine:
        found = engine.generate(asked)
        with ThreadPoolExecutor(3) as pool:
            found += pool.map(engine.generate, asked)
        assert read(engine) == {"checked": 8}
        assert engine.prefill_status.compared == 8
        assert engine.rows == 0
    assert all(one.stats.lossless for one in found)
    assert {one.tokens for one in found} == {own.tokens, own.tokens[:4]}
    assert [one.stats.prefill_loss is None for one in found] == [False, True, False] * 4
    assert {one.other_notes for one in found[1::3]} == {
        ("Read whole: it takes one clip with events to predict what it looks like.",)
    }


def test_checks_take_no_room_in_the_queue(load, question):
    """With room for two requests there is room for two that are checked; a third is refused as ever."""
    with load(ALWAYS, max_batch=1, max_queue=1) as engine:
        pending = [engine.submit(question) for _ in range(2)]
        with pytest.raises(cd.QueueFullError):
            engine.submit(question)
        assert all(one.result(60).stats.prefill_loss is not None for one in pending)


def test_a_request_keeps_its_room_until_its_check_is_over(load, question, second_reading):
    """The second reading is held: its request still counts."""
    begun, go = second_reading
    with load(ALWAYS, max_batch=1, max_queue=1) as engine:
        first = engine.submit(question)
        assert begun.wait(20)
        second = engine.submit(question)
        with pytest.raises(cd.QueueFullError):
            engine.submit(question)
        assert not first.future.done()
        go.set()
        assert first.result(60).tokens == second.result(60).tokens


@pytest.mark.parametrize("sampled", [0.0, 1.0])
def test_sampled_answers_are_compared_greedily(load, question, own, lossy, sampled):
    """Their answer is drawn as ever; what is compared are two greedy ones, with the loss of a greedy request."""
    asked = replace(question, sampling=cd.Sampling(temperature=sampled, seed=3))
    with load(ALWAYS) as engine:
        answer = engine.generate(asked)
        greedy = engine.generate(question)
        drawn = engine.alone(replace(asked, events=None))
        assert read(engine) == {"checked": 2}
    assert answer.tokens == (drawn if sampled else own).tokens
    assert answer.stats.prefill_loss == greedy.stats.prefill_loss
    assert (own.tokens == answer.tokens) != bool(sampled)
    assert ("would, greedily, have lost" in " ".join(answer.other_notes)) == bool(sampled)


def test_who_wants_no_answer_any_more_leaves_nothing(load, question, second_reading):
    """Cancelled while it is written, and while it waits for its check; before that it has no answer."""
    begun, go = second_reading
    with load(ALWAYS, max_batch=2) as engine:
        stream = engine.stream(replace(question, max_new_tokens=48))
        go.set()
        next(iter(stream))
        stream.cancel()
        begun.clear(), go.clear()
        pending = engine.submit(question)
        waiting = engine.submit(question)
        assert begun.wait(20)
        waiting.cancel()
        pending.cancel()
        go.set()
        for one in (pending, waiting):
            try:
                answer = one.result(60)
            except CancelledError:
                continue
            assert answer.finish is Finish.CANCELLED or NOT_ENDED in answer.other_notes
        until = time.monotonic() + 20
        while engine.rows or engine._scheduler._pending:
            assert time.monotonic() < until, "a check goes on"
            time.sleep(0.01)
        before = engine.prefill_status
        assert before.compared == 0
        assert engine.generate(question).stats.prefill_loss is not None
        assert engine.prefill_status.compared == 1


def test_a_check_that_fails_costs_the_check_alone(load, question, own, monkeypatch):
    with load(ALWAYS) as engine:
        encode = Target.encode

        def failing(target, prompt):
            if "predicted" in prompt.features:
                raise RuntimeError("of the second reading")
            return encode(target, prompt)

        monkeypatch.setattr(Target, "encode", failing)
        answer = engine.generate(question)
        assert answer.tokens == own.tokens
        assert answer.stats.lossless
        assert NOT_ENDED in answer.other_notes
        assert (engine.prefill_status.compared, read(engine)) == (0, {"checked": 1})


def test_a_request_that_fails_takes_its_check_with_it(load, question):
    with load(ALWAYS) as engine:
        with pytest.raises(cd.CrossdraftError, match="context"):
            engine.generate(replace(question, max_new_tokens=100_000))
        assert engine.generate(question).stats.prefill_loss is not None
        assert engine.prefill_status.compared == 1


def test_a_check_takes_no_longer_than_its_request_may(load, question, own, second_reading, monkeypatch):
    """Written with 0.1 s of 300 left: it is handed over then, and the second reading, which is held, is cancelled."""
    begun, go = second_reading
    settle = PrefillCheck.settle

    def late(check, result, hand_over):
        if isinstance(result, cd.Answer):
            result.stats.total_s = 299.9
        settle(check, result, hand_over)

    monkeypatch.setattr(PrefillCheck, "settle", late)
    with load(ALWAYS, max_batch=2) as engine:
        answer = engine.submit(replace(question, max_time=300)).result(15)
        assert begun.wait(20)
        assert not go.is_set()
        assert answer.tokens == own.tokens
        assert answer.finish is own.finish
        assert NOT_ENDED in answer.other_notes
        assert answer.stats.check_s > 0
        assert answer.stats.prefill_loss is None
        go.set()
        until = time.monotonic() + 20
        while engine.rows or engine._scheduler._pending:
            assert time.monotonic() < until, "a check goes on"
            time.sleep(0.01)
        assert (engine.prefill_status.compared, read(engine)) == (0, {"checked": 1})


def test_close_ends_a_check_that_is_under_way(load, question, own, second_reading):
    """The answer was written: it is handed over, and nobody waits for ever."""
    begun, go = second_reading
    with load(ALWAYS, max_batch=1) as engine:
        pending = engine.submit(question)
        assert begun.wait(20)
        closing = threading.Thread(target=engine.close)
        closing.start()
        until = time.monotonic() + 20
        while not engine.closed and time.monotonic() < until:
            time.sleep(0.01)
        go.set()
        closing.join(20)
        answer = pending.result(20)
    assert answer.tokens == own.tokens
    assert NOT_ENDED in answer.other_notes


def test_an_engine_that_nobody_holds_answers_and_goes(load, pair, spec, question, own):
    options = cd.Options(device="cpu", lossy_prefill=f"{spec},{ALWAYS}")
    engine = cd.Engine.load(str(pair.target), None, options)
    gone, future = weakref.ref(engine), engine.submit(question).future
    del engine
    assert future.result(60).stats.prefill_loss is not None
    until = time.monotonic() + 20
    while gone() is not None and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert gone() is None


def test_comparisons_and_warm_ups_read_by_the_threshold_and_move_nothing(load, question, own, lossy):
    with load(ALWAYS) as engine:
        before = engine.prefill_status
        assert engine.alone(question).tokens == lossy.tokens
        assert engine.generate(replace(question, namespace=None)).tokens == lossy.tokens
        loop = engine.decoder()
        number = loop.submit(question)
        while loop.busy:
            loop.step()
        assert loop.answer(number).tokens == lossy.tokens
        assert engine.prefill_status == before
    with load(WHOLE) as engine:
        assert engine.alone(question).tokens == own.tokens


def test_only_a_budget_has_a_status(pair, spec):
    for lossy_prefill in (None, "pool", spec):
        with cd.Engine.load(str(pair.target), None, cd.Options(device="cpu", lossy_prefill=lossy_prefill)) as engine:
            assert engine.prefill_status is None


def test_the_second_answer_is_seen_by_nobody(load, question, own):
    """Not as pieces, not in the figures; and a drafter that remembers answers learns nothing from it."""
    shown = []
    with load(ALWAYS, "memory") as engine:
        answer = engine.submit(question, shown.append).result(60)
        final = [piece for piece in shown if piece.origin is not Origin.PROVISIONAL]
        assert [token for piece in final for token in piece.tokens] == [*own.tokens]
        assert answer.stats.new_tokens == len(own.tokens)
        again = engine.generate(question)
    assert again.stats.accepted == len(own.tokens) - again.stats.rounds  # all that it drafts is what was answered
    assert again.stats.accepted_per_position[0] == 1


def test_the_model_of_a_user_is_left_as_it_was(pair, spec, question):
    """Every adapter around it is gone, also where an engine could not be made."""
    model = VideoLlavaForConditionalGeneration.from_pretrained(pair.target, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(pair.target)

    def hooks():
        return sum(len(module._forward_pre_hooks) for module in model.modules())

    for lossy_prefill in (f"{spec},{ALWAYS}", "pool"):
        options = cd.Options(lossy_prefill=lossy_prefill)
        with cd.Engine.from_model(model, tokenizer, "ngram", options) as engine:
            assert engine.generate(question).tokens
            assert hooks()
        assert not hooks()
    with pytest.raises(cd.CrossdraftError):
        cd.Engine.from_model(model, tokenizer, None, cd.Options(lossy_prefill=f"{spec},frames=8"))
    assert not hooks()
