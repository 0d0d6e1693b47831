"""Latest window wins, alerts, times; and answers that are those of `Engine.generate`."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from crossdraft.api import Engine, Options, Request
from crossdraft.engine.request import Answer, Finish, Origin, Piece
from crossdraft.engine.stats import Stats
from crossdraft.engine.timeline import Timeline
from crossdraft.errors import CrossdraftError
from crossdraft.events import Excerpt
from crossdraft.streams import (
    RecordedEvents,
    ReplayClock,
    SlidingWindows,
    StreamWindow,
    Watch,
    Windowing,
    ask_engine,
    frames_per_window,
    replay,
)
from crossdraft.video import iter_frames
from tests.support import encodes_clips, failing

QUESTION = Request("What is ahead?", max_new_tokens=8)


def answer(text: str) -> Answer:
    stats = Stats(new_tokens=6, rounds=2, hidden_drafting_s=0.4, hidden_inside_s=0.3)
    return Answer(text, (1, 2), (), Finish.EOS, stats, Timeline())


def window(number: int, due_at: float = 0.0) -> StreamWindow:
    frames = np.full((2, 4, 4, 3), number, np.uint8)
    return StreamWindow(number, number / 2, number / 2 + 1, frames, (number / 2, number / 2 + 1), None, due_at)


class Slow:
    """Answers by the number of the window that it is shown; meanwhile others fall due."""

    def __init__(self, says=str) -> None:
        self.seconds, self.says, self.meanwhile, self.watch = 0.0, says, {}, None

    def __call__(self, request, on_piece):
        number = int(request.video.pixels[0, 0, 0, 0])
        assert request.video.times_s.tolist() == [0, 1]  # of the window's frames, for prompts that have times
        self.seconds += 0.25
        on_piece(Piece((1,), "draft", Origin.PROVISIONAL))
        self.seconds += 0.5
        on_piece(Piece((1,), "a", Origin.HIDDEN))
        for other in self.meanwhile.pop(number, ()):
            self.watch.offer(window(other))
        self.seconds += 1.0
        on_piece(Piece((2,), "b", Origin.TARGET))
        return answer(self.says(number))


def test_of_the_windows_that_fall_due_meanwhile_the_latest_is_answered_next():
    slow = Slow()
    slow.meanwhile = {0: (1, 2, 3), 3: (4,), 4: (5, 6)}
    watch = slow.watch = Watch(slow, [QUESTION], now=lambda: slow.seconds)
    watch.offer(window(0))
    found = []
    for answered in watch.answers():
        found.append((answered.number, answered.dropped))
        if answered.number == 4:
            watch.close()  # it ends when no window waits
    assert found == [(0, 2), (3, 2), (4, 3), (6, 3)]
    summary = watch.summary
    assert (summary.due, summary.answered, summary.dropped, summary.unfinished) == (7, 4, 3, 0)


def test_once_closed_it_answers_the_window_that_waits_and_no_later_one():
    slow = Slow()
    slow.meanwhile = {0: (2, 3), 1: (4,)}
    watch = slow.watch = Watch(slow, [QUESTION], now=lambda: slow.seconds)
    watch.offer(window(0))
    watch.close()
    watch.offer(window(1))
    watch.count_dropped(5)
    assert [answered.number for answered in watch.answers()] == [0]
    summary = watch.summary
    assert (summary.due, summary.answered, summary.dropped, summary.unfinished) == (1, 1, 0, 0)


def test_times_count_from_the_last_frame_to_the_first_final_token_and_to_the_end():
    slow = Slow()
    watch = Watch(slow, [QUESTION, QUESTION], now=lambda: slow.seconds)
    watch.offer(window(0, due_at=-1.0))
    watch.close()
    (answered,) = watch.answers()
    assert [(one.first_s, one.whole_s) for one in answered.answers] == [(1.75, 2.75), (3.5, 4.5)]
    found = watch.summary.to_json()
    assert found["last_frame_to_whole_answer_ms"] == {"p50": 3625.0, "p99": 4482.5}
    assert (found["tau"], found["hidden_share"], found["answers"]) == (3.0, 0.75, 2)
    assert found["windows_per_s"] == round(1 / 3.5, 3)


def test_an_alert_says_that_an_answer_is_not_the_one_before():
    slow = Slow(says=lambda number: ("red", "red ", "green", "green")[number])
    watch = Watch(slow, [QUESTION], now=lambda: slow.seconds)
    found = []
    watch.offer(window(0))
    for answered in watch.answers():
        found.append(answered.answers[0])
        if answered.number < 3:
            watch.offer(window(answered.number + 1))
        else:
            watch.close()
    assert [one.changed for one in found] == [False, False, True, False]
    assert found[2].before == "red"
    assert watch.summary.changes == 1


def test_each_question_is_compared_with_its_own_last_answer():
    watch = Watch(lambda request, on_piece: answer(request.prompt), [Request("one"), Request("two")])
    watch.offer(window(0))
    for answered in watch.answers():
        assert not any(one.changed for one in answered.answers)
        if answered.number == 0:
            watch.offer(window(1))
        else:
            watch.close()
    assert watch.summary.changes == 0


def test_interrupted_it_counts_what_was_left():
    watch = Watch(failing(KeyboardInterrupt), [QUESTION])
    watch.offer(window(0))
    with pytest.raises(KeyboardInterrupt):
        list(watch.answers())
    assert (watch.summary.due, watch.summary.answered, watch.summary.unfinished) == (1, 0, 1)
    assert "1 unfinished" in watch.summary.sentences()[0]


def test_what_the_stream_ended_with_is_raised_after_the_window_that_waits():
    watch = Watch(Slow(), [QUESTION])
    watch.offer(window(0))
    watch.close(CrossdraftError("The camera is gone."))
    answers = watch.answers()
    assert next(answers).number == 0
    with pytest.raises(CrossdraftError, match="camera"):
        next(answers)


def test_a_watch_that_is_closed_again_still_raises_what_the_stream_ended_with():
    watch = Watch(Slow(), [QUESTION])
    watch.close(CrossdraftError("The camera is gone."))
    watch.close()
    with pytest.raises(CrossdraftError, match="camera"):
        list(watch.answers())


@pytest.mark.parametrize("questions", [[], [Request("What?", video="clip.mp4")], [Request("What?", events="x.h5")]])
def test_questions_bring_no_clip_of_their_own(questions):
    with pytest.raises(CrossdraftError, match="question"):
        Watch(Slow(), questions)


def test_answers_are_those_of_generate_on_the_same_excerpt(pair, clip):
    """Frames and events are taken from the files anew, by the rule as it is written down."""
    every, length, count = 0.2, 0.4, 8
    with Engine.load(str(pair.target), str(pair.event), Options(placement="inline", device="cpu")) as engine:
        assert frames_per_window(engine.target, length) == count
        excerpt = Excerpt(clip.events, 0, 1_000_000)
        watch = Watch(ask_engine(engine), [QUESTION])
        windows = SlidingWindows(Windowing(every, length, count), RecordedEvents(excerpt))
        given = []
        replay(iter_frames(clip.video), windows, given.append, ReplayClock(wait=lambda _: False))
        found = {}
        watch.offer(given[0])
        for answered in watch.answers():
            found[answered.number] = answered
            following = answered.number + 1
            watch.offer(given[following]) if following < len(given) else watch.close()
        assert sorted(found) == [0, 1, 2, 3]

        frames = list(iter_frames(clip.video))
        for number, answered in found.items():
            ends = [number * every + length - length / count * back for back in reversed(range(count))]
            picked = [next((one for one in frames if one[0] >= end - 1e-6), (1.0, frames[-1][1])) for end in ends]
            assert all(one[0] <= other[0] for one, other in pairwise(picked))
            end_us = round(picked[-1][0] * 1e6)
            events = Excerpt(clip.events, end_us - 400_000, end_us)
            request = Request(
                "What is ahead?", np.stack([pixels for _, pixels in picked]), events, max_new_tokens=8, namespace=None
            )
            expected = engine.generate(request)
            assert answered.answers[0].answer.tokens == expected.tokens
            assert expected.tokens == engine.alone(request).tokens
            assert engine.generate(request).drafter_error is None
            assert answered.answers[0].answer.drafter_error is None


def windows_of(clip, windowing):
    given = []
    windows = SlidingWindows(windowing, RecordedEvents(Excerpt(clip.events, 0, 1_000_000)))
    replay(iter_frames(clip.video), windows, given.append, ReplayClock(wait=lambda _: False))
    return given


def watched(engine, given, questions):
    watch = Watch(ask_engine(engine), questions)
    watch.offer(given[0])
    for answered in watch.answers():
        yield answered
        following = answered.number + 1
        watch.offer(given[following]) if following < len(given) else watch.close()


@encodes_clips
@pytest.mark.parametrize("questions", [("What is ahead?",), ("What is ahead?", "Is the road free?")])
@pytest.mark.parametrize("every", [0.1, 0.13])
def test_of_overlapping_windows_answers_are_those_of_a_fresh_target_alone(pair, clip, every, questions):
    asked = [Request(question, max_new_tokens=8) for question in questions]
    options = Options(placement="inline", device="cpu")
    given = windows_of(clip, Windowing(every, 0.4, 8))
    with Engine.load(str(pair.target), str(pair.event), options) as engine:
        found = list(watched(engine, given, asked))
    with Engine.load(str(pair.target), None, options) as fresh:
        for one, window in zip(found, given, strict=True):
            shown = [replace(request, video=window.frames) for request in asked]
            assert [a.answer.tokens for a in one.answers] == [fresh.alone(request).tokens for request in shown]
