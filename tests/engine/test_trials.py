"""Which of two ways is faster: found, kept, and looked at again."""

from itertools import pairwise

from crossdraft.engine.trials import LENDING_GAP, TRIAL, TRIAL_FIRST, TRIAL_LAST, FasterWay, Trials


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


def test_cores_are_lent_until_the_first_trial_and_a_period_has_as_many_answers_as_rows():
    trials = Trials()
    used = []
    for _ in range(LENDING_GAP + 2):
        assert trials.ended_period is None
        used.append(trials.lends_cores(8, usual=True))
        trials.period.answers += 8
        trials.period.seconds = 1.0 if used[-1] else 2.0
        assert trials.ended_period is trials.period
        trials.saw_period(1.0)
    assert used == [True] * LENDING_GAP + [False, True]  # one trial, which is slower


def test_a_round_counts_for_the_way_that_it_went():
    trials = Trials()
    assert trials.alternates(4) is False
    trials.saw_round(4, 1.0, 3, alternates=True)  # begun before the way changed
    trials.saw_round(9, 1.0, 3, alternates=False)  # of a number that nobody asked about
    assert trials.ways[3].seconds[False].value is None
    trials.saw_round(4, 1.0, 3, alternates=False)
    assert trials.ways[3].seconds[False].value == 1.0
