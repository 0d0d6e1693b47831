"""What the cost model says of hidden drafts, and of reading a request at all."""

import pytest

from crossdraft.engine.cost_model import CostModel, is_sure
from crossdraft.engine.estimates import RequestDifficulty
from tests.engine.cost_models import depth, reader, trained


def test_a_long_hidden_draft_is_verified_only_as_far_as_it_may_be_reached():
    assert 0 < trained(0.5, 0.1, slope=0.2).verify_depth(60) < 10


def test_the_ride_along_pass_has_its_own_price():
    model = trained(0.8, 0.1, slope=0.01)
    cheap = model.verify_depth(60)
    for n in (10, 20, 60):
        model.ride.add(n, 5 + 0.2 * n)
    assert model.verify_depth(60) < cheap


def test_a_hidden_draft_ends_where_waiting_for_it_no_longer_pays():
    model = trained(0.8, 0.1)
    for nodes in (10, 30, 60):
        model.wait_hidden.add(nodes, 0.0)
    assert model.hidden_nodes(64) == 64  # beside the prefill: free
    for _ in range(50):
        for nodes in (10, 30, 60):
            model.wait_hidden.add(nodes, 0.3 * nodes)  # before it: 0.3 of a step each
    assert 3 <= model.hidden_nodes(64) <= 7  # 0.8^5 = 0.33
    assert model.hidden_nodes(0) == 0


def test_on_the_targets_own_device_a_hidden_draft_is_made_where_it_repays_its_time():
    """Nine tokens in ten are right and a round's token takes some 0.15: sixteen tokens at 5 each never repay that."""
    assert CostModel().hiding_pays(32)  # nothing is known
    cheap = trained(0.95, 0.05)
    assert cheap.hiding_pays(16)
    cheap.step.add(0.05)
    assert cheap.hiding_pays(16)
    costly = trained(0.95, 5.0)
    costly.step.add(5.0)
    found = []
    for _ in range(1000):
        found.append(costly.hiding_pays(16))
        costly.began_request("before" if found[-1] else "off", reads=True)
    again = found.index(True)  # what was measured so long ago may have changed
    assert again > 30
    assert not found[again + 1]
    costly.unhidden = again
    costly.began_request("before", reads=False)
    assert costly.hiding_pays(16)  # of a request that the drafter did not read nothing was measured


def test_a_cold_first_answer_does_not_cap_hidden_drafts():
    """One request waited 50 ms for 3 nodes: that says nothing of what a fourth would take."""
    model = CostModel()
    model.verify.add(1, 0.007)
    model.wait_hidden.add(3, 0.05)
    assert model.hidden_nodes(40) == 40
    assert model.verify_depth(8) == 8


@pytest.mark.parametrize(("waited", "counts"), [(1e-4, False), (4e-3, True)])
def test_an_empty_draft_counts_where_it_was_waited_for(waited, counts):
    model = CostModel()
    model.verify.add(1, 0.007)
    for _ in range(50):
        model.saw_draft(8, 0, 0, waited)
    assert (model.rounds.arrivals(8)[0] < 0.1) is counts


OPENINGS = (-1, -1, -1, -1, 0, 1, 2, 3)  # of four earlier answers, two tokens each
SPREAD = (0.25,) * 8


def test_of_a_drafter_that_is_sure_of_nothing_less_is_verified_the_less_came_of_it():
    model = trained(0.9, 0.1, slope=0.1)
    assert len(model.worthwhile(OPENINGS, SPREAD, hidden=True)) == 8
    for _ in range(8):
        model.saw_acceptance(RequestDifficulty(), 1, 0, (1.0,), hidden=True, sure=False)
    assert model.worthwhile(OPENINGS, SPREAD, hidden=True) == [0]  # one is tried, always
    assert len(model.worthwhile(OPENINGS, SPREAD)) == 8  # rounds are another matter


def test_what_a_sure_drafter_says_is_not_doubted_for_an_unsure_ones_sake():
    model = trained(0.95, 0.1, slope=0.1)
    for _ in range(8):
        model.saw_acceptance(RequestDifficulty(), 1, 0, hidden=True, sure=False)
    chain = (-1, 0, 1, 2)
    assert model.worthwhile(chain, (0.9, 0.9, 0.8, 0.8), hidden=True) == [0, 1, 2, 3]


def test_what_unsure_drafts_yield_counts_where_hidden_drafting_is_planned():
    model = CostModel()
    for _ in range(200):
        model.saw_acceptance(RequestDifficulty(), 1, 0, (0.3,), hidden=True, sure=False)
    assert sum(model.hidden.path_probs(16)) < 0.1


def test_a_drafter_is_sure_by_its_likeliest_first_token():
    assert is_sure((-1, -1, 0), (0.3, 0.5, 0.3))
    assert not is_sure((-1, -1, 0), (0.3, 0.4, 0.3))
    assert is_sure((-1, 0), ())  # it gives no probabilities


def test_a_request_is_not_read_where_that_takes_longer_than_drafting_saves():
    assert reader(0.0).reading_pays(64)
    assert reader(0.01).reading_pays(64)
    assert not reader(1000.0).reading_pays(64)
    t = reader(0.0).verify(1)
    saved = t - reader(0.0).plan(16, RequestDifficulty()).token_s
    assert saved > 0
    usual = 20 * saved + 0.02
    assert reader(0.9 * usual).reading_pays(64)
    assert not reader(0.9 * usual).reading_pays(2)  # a short answer saves less


def test_a_drafter_that_takes_cores_and_a_pass_is_not_asked_where_many_share_a_pass():
    """Worked by hand: 6 s on cores that double the target's speed cost 3 s, a ride-along pass 2 s; V(1) is 1 s."""
    model = reader(0.0)
    model.drafting.add(6.0)
    model.reading_worth = 2.0
    model.ride.add(20, 2.0)
    assert model.why_unread(64).startswith("The drafter did not read the request: that costs the target 5000 ms")
    assert model.reading_pays(64)
    one = model.verify(1)
    for _ in range(20):
        model.saw_pass(16, 1, one / 16)  # sixteen tokens take as long as one
    assert not model.reading_pays(64, 16)
    assert model.reading_pays(64, 1)
    model.reading_worth = 0.0  # nothing is lent
    assert "costs the target 2000 ms" in model.why_unread(64, 16)


def reads(model) -> bool:
    """A request is taken up: whether the drafter reads it."""
    pays = model.reading_pays(64)
    model.began_request("before", reads=pays)
    return pays


def test_a_slow_target_loses_no_steps_to_reading_that_gains_nothing():
    """A step of a second: what is told from noise is no number of steps."""
    model = trained(0.1, step=1.0)  # drafting never pays
    model.length.add(20)
    model.read_waits.extend([1.5] * 3)
    assert not model.reading_pays(64)


def test_a_drafter_is_read_for_the_requests_that_it_knows():
    """Drafting loses on average, and gains for the easiest third of requests."""
    model = trained(0.4, step=0.5)
    model.length.add(20)
    model.read_waits.extend([1.2] * 3)
    assert depth(model) == 0 < depth(model, request=RequestDifficulty.known(0.45))
    assert model.reading_pays(64)
    model.read_waits.extend([2.0] * 3)
    assert not model.reading_pays(64)


def test_one_slow_reading_is_no_habit_and_a_slow_reader_is_tried_again():
    model = reader(1000.0)
    model.read_waits.append(0.001)
    assert model.reading_pays(64)
    model = reader(1.5 * 20)
    found = [reads(model) for _ in range(200)]
    assert not any(found[:8])
    assert 5 <= found.count(True) < 20
    model.read_waits.append(0.001)
    assert all(reads(model) for _ in range(5))
    assert CostModel().reading_pays(64)


def test_times_of_other_numbers_of_rows_are_taken_until_there_are_own_ones():
    """Plain passes take 1 s for one row and 1.6 s for four, so 1.8 s for five: 0.36 s a row."""
    model = trained(0.8, 0.05)
    assert model.costs(4).wait == model.wait
    for n in (1, 1, 2, 8):
        model.saw_pass(4, n, 0.4 * n)
    for _ in range(30):
        model.saw_draft(8, 8, 8, 0.8, rows=4)
    assert model.costs(5).verify(1) == pytest.approx(0.36)
    assert model.costs(5).wait(8) == model.costs(4).wait(8) == pytest.approx(0.8, rel=0.1)
    for _ in range(40):
        for rows in (1, 5):
            model.saw_pass(rows, 1, 1 / rows)
    assert model.costs(5).verify(1) == pytest.approx(0.2, rel=0.05)
    assert model.costs(1).wait is model.wait
