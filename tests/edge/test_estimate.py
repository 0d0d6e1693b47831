"""Round trip, bandwidth and drafting from what is measured, and what follows of them, worked by hand."""

import random
import threading

import pytest

from crossdraft.edge.estimate import PROBE_EVERY, WINDOW, LineTimes, LinkEstimate
from crossdraft.engine.estimates import Ema

CLOCKS = 1234.5  # the edge's clock is ahead by that: it must not matter
DELAY = 0.05


def sent_over(line: LineTimes, frames, bytes_per_s: float, noise=lambda: 0.0) -> None:
    """Frames (bytes, when they are sent) over a line that sends one after another."""
    free = 0.0
    for nbytes, sent in frames:
        free = max(free, sent) + nbytes / bytes_per_s
        line.came(nbytes, sent + CLOCKS, free + DELAY + noise())


def test_the_bandwidth_of_frames_that_come_one_by_one():
    line = LineTimes()
    sent_over(line, [(100 + 50 * (i % 4), 1.0 * i) for i in range(20)], 10_000)
    assert line.bytes_per_s == pytest.approx(10_000)
    assert line.seconds(500) == pytest.approx(0.05)


def test_the_bandwidth_of_frames_that_wait_for_each_other():
    line = LineTimes()
    sent_over(line, [(1, 0.0), *((100 + 50 * (i % 4), 0.001 * i) for i in range(1, 40))], 10_000)
    assert line.bytes_per_s == pytest.approx(10_000, rel=0.01)


def test_a_line_that_bounds_nothing_has_no_bandwidth():
    line = LineTimes()
    for number in range(40):
        line.came(100 + number % 7, 1.0 * number, 1.0 * number + 0.1)
    assert line.bytes_per_s is None
    assert line.seconds(1000) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_jitter_makes_the_bandwidth_uncertain_and_no_more(seed):
    chance, line = random.Random(seed), LineTimes()
    frames = [(chance.choice((90, 150, 400, 600)), 0.2 * i) for i in range(60)]
    sent_over(line, frames, 12_500, lambda: chance.uniform(0.0, 0.01))
    assert line.bytes_per_s == pytest.approx(12_500, rel=0.4)


def test_frames_that_were_held_up_by_a_stall_do_not_count():
    """Of the network, or of a machine: each fifth frame comes seconds late, whatever its size."""
    line = LineTimes()
    for number in range(40):
        nbytes = 100 + 50 * (number % 4)
        line.came(nbytes, 10.0 * number + CLOCKS, 10.0 * number + DELAY + nbytes / 10_000 + 3.0 * (number % 5 == 2))
    assert line.bytes_per_s == pytest.approx(10_000, rel=0.01)


def test_a_route_that_became_longer_is_learned():
    line = LineTimes()
    for number in range(WINDOW):
        line.came(100, number, number + 0.01)
    for number in range(WINDOW, 3 * WINDOW):
        line.came(100, number, number + 0.2)
    assert line.quickest_s == pytest.approx(0.2)


def estimate(rtt: float, bytes_per_s: float, drafting: float = 0.03) -> LinkEstimate:
    made = LinkEstimate()
    made.rtt_s.add(rtt)
    sent_over(made.line, [(100 + 100 * (i % 2), 10.0 * i) for i in range(20)], bytes_per_s)
    made.replied(rtt + drafting + 200 / bytes_per_s, 200)
    return made


def test_a_reply_is_round_trip_drafting_and_bytes():
    assert estimate(0.1, 1e4).reply_s == pytest.approx(0.1 + 0.03 + 0.02)


def test_a_reply_is_predicted_anew_when_the_round_trip_changes():
    made = estimate(0.1, 1e4)
    for _ in range(200):
        made.rtt_s.add(0.4)
    assert made.reply_s == pytest.approx(0.4 + 0.03 + 0.02, rel=1e-3)


def test_what_is_not_known_is_not_guessed():
    made = LinkEstimate()
    assert made.reply_s is None
    assert made.rounds_pay(0.01, 64, 64)
    assert made.drafts_pay
    made.rtt_s.add(0.15)
    assert (made.reply_s, made.seen_reply_s) == (0.15, None), "it takes that at least; but none is waited for"
    made = LinkEstimate()
    made.replied(0.2, 100)  # before any ping came back
    made.rtt_s.add(0.15)
    assert (made.reply_s, made.seen_reply_s) == (0.2, 0.2)


def test_a_reply_time_is_not_read_while_it_is_changed():
    """Between its weight and its total the first one would be 0 s."""
    begun, goes_on, read = threading.Event(), threading.Event(), []

    class Interrupted(Ema):
        def add(self, value: float) -> None:
            self.weight += 1
            begun.set()
            assert goes_on.wait(10)
            self.total += value

    made = LinkEstimate(_replied_s=Interrupted())
    threads = [
        threading.Thread(target=made.replied, args=(0.3, 100)),
        threading.Thread(target=lambda: read.append(made.seen_reply_s)),
    ]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    threads[1].join(0.1)
    goes_on.set()
    for thread in threads:
        thread.join()
    assert read == [0.3]


@pytest.mark.parametrize(
    ("pass_s", "nodes", "left", "pays"),
    [
        (0.010, 64, 64, True),  # a reply takes 150 ms: 15 passes
        (0.010, 64, 15, False),  # the answer is over by then
        (0.010, 12, 64, False),  # and the target past the draft
        (0.002, 64, 96, False),
        (0.030, 12, 64, True),
    ],
)
def test_rounds_pay_while_the_target_is_not_past_them(pass_s, nodes, left, pays):
    assert estimate(0.1, 1e4).rounds_pay(pass_s, nodes, left) is pays


@pytest.mark.parametrize(("bytes_per_s", "pays"), [(1e6, True), (1e4, True), (250, False)])
def test_drafts_pay_where_they_come_before_the_answers_end(bytes_per_s, pays):
    made = estimate(0.1, bytes_per_s)
    made.began(0.04 + 200 / bytes_per_s, 200)
    made.answered(0.5, 0.004, drafted=True, came=True)
    assert made.first_s == pytest.approx(0.04 + 200 / bytes_per_s)
    assert made.drafts_pay is pays


def test_drafts_that_never_came_do_not_pay_and_are_tried_again():
    made = LinkEstimate()
    made.answered(0.2, None, drafted=True, came=False)
    for _ in range(PROBE_EVERY):
        assert not made.drafts_pay
        made.answered(0.2, 0.01, drafted=False, came=False)
    assert made.drafts_pay
    made.began(0.05, 100)
    made.began(0.05, 100)
    made.answered(0.2, 0.01, drafted=True, came=True)
    assert made.drafts_pay, "the link is better now"


def test_figures_are_plain_values():
    assert estimate(0.1, 12_500).to_json() == {
        "rtt_ms": 100.0, "reply_ms": pytest.approx(146.0), "first_ms": None, "pass_ms": None,
        "mbit_s": pytest.approx(0.1),
    }  # fmt: skip
