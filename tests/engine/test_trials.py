"""Which of two ways is faster: found, kept, and looked at again."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from crossdraft.engine.trials import LENDING_GAP, LENDING_SOON, TRIAL, TRIAL_FIRST, TRIAL_LAST, FasterWay, Trials


def rounds(way: FasterWay, count: int, seconds: tuple[float, float]) -> list[bool]:
    """The ways of so many rounds of three tokens, that take so long."""
    used = []
    for _ in range(count):
        used.append(way.now)
        way.add(seconds[way.now], 3)
    return used


def test_of_two_ways_the_faster_one_is_found_and_kept():
    assert sum(rounds(FasterWay(), 2000, (1.0, 0.5))) > 0.95 * 2000
    lost = rounds(FasterWay(), 4000, (0.5, 1.0))
    assert TRIAL <= sum(lost) < 0.03 * 4000


def test_trials_of_the_slower_way_are_rarer_and_rarer_and_the_change_is_noticed():
    way = FasterWay()
    used = rounds(way, 5000, (0.5, 1.0))
    begins = [number for number in range(1, 5000) if used[number] and not used[number - 1]]
    gaps = [later - earlier - TRIAL for earlier, later in pairwise(begins)]
    assert gaps[:4] == [2 * TRIAL_FIRST, 4 * TRIAL_FIRST, 8 * TRIAL_FIRST, 16 * TRIAL_FIRST]
    assert max(gaps) == TRIAL_LAST
    assert sum(rounds(way, 4000, (1.0, 0.5))) > 0.6 * 4000


def test_what_counts_is_the_time_of_a_token_not_of_a_round():
    way = FasterWay()
    for _ in range(500):
        way.add(1.0, 8 if way.now else 3)
    assert way.usual


def periods(
    trials: Trials, rows: Sequence[int], seconds: Callable[[int, bool], float], *, idle: bool = False
) -> list[bool]:
    """The ways of periods in each of which so many answers come, that take so long; `idle` = of closed batches."""
    used = []
    for number, count in enumerate(rows):
        assert trials.ended_period is None
        used.append(trials.lends_cores(count, usual=True))
        trials.period.answers += trials.period.rows
        trials.period.seconds = seconds(number, used[-1])
        assert trials.ended_period is trials.period
        trials.saw_period(1.0, idle=idle)
    return used


def test_lending_is_tried_soon_and_the_slower_way_is_left():
    """The period in which the way changes has answers that began before: it is not counted, however long it took."""
    lent, kept = [True], [False]
    first = 1 + LENDING_SOON  # with the one in which it began
    used = periods(Trials(), [8] * (first + 2 * LENDING_GAP + 6), lambda _, lends: 1.0 if lends else 2.0)
    assert used == lent * first + kept * 2 + lent * (1 + 2 * LENDING_GAP) + kept * 2 + lent
    used = periods(Trials(), [8] * 20, lambda _, lends: 2.0 if lends else 1.0)
    assert used[: first + 2 + LENDING_GAP] == lent * first + kept * (2 + LENDING_GAP)
    used = periods(Trials(), [8] * 12, lambda number, lends: 9.0 if number == first else 2.0 if lends else 1.0)
    assert used == lent * first + kept * (12 - first)


def test_of_closed_batches_the_first_one_in_another_way_counts():
    """Nothing of it began before: a trial of the slower way takes one batch, and not two."""
    used = periods(Trials(), [8] * 14, lambda _, lends: 1.0 if lends else 2.0, idle=True)
    first = 1 + LENDING_SOON
    assert used == [True] * first + [False] + [True] * (13 - first)


def test_a_period_goes_on_while_a_few_requests_more_or_less_are_there():
    """Of sixteen clients some are between two questions: 13 and 16 are one size, 8 and 9 are two."""
    trials = Trials()
    trials.lends_cores(16, usual=True)
    trials.period.answers = 5
    for rows in (13, 15, 9, 16):
        trials.lends_cores(rows, usual=True)
    assert (trials.period.rows, trials.period.answers) == (16, 5)
    trials.lends_cores(8, usual=True)
    assert (trials.period.rows, trials.period.answers) == (8, 0)


def test_a_round_counts_for_the_way_that_it_went():
    trials = Trials()
    assert trials.alternates(4) is False
    trials.saw_round(4, 1.0, 3, alternates=True)  # begun before the way changed
    trials.saw_round(9, 1.0, 3, alternates=False)  # of a number that nobody asked about
    assert trials.ways[3].seconds[False].value is None
    trials.saw_round(4, 1.0, 3, alternates=False)
    assert trials.ways[3].seconds[False].value == 1.0
