"""What the cost model says of drafts in rounds, from times and acceptances; and the policy that asks it."""

import copy
import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.engine.cost_model import FADING, OUTLIER, CostModel
from crossdraft.engine.drafter import Draft
from crossdraft.engine.estimates import RequestDifficulty, expected_accepted
from crossdraft.engine.policy import FIRST_NODES, SpeculationPolicy
from crossdraft.engine.request import Request
from crossdraft.engine.request_state import LATE, Job, RequestState
from crossdraft.engine.rules import rule_for
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.timeline import Span
from crossdraft.engine.tree import DraftTree
from tests.engine.cost_models import depth, drafted, passes, reader, trained, waits

# -- how deep ----------------------------------------------------------------------------------------------------------


def test_a_cheap_drafter_drafts_deep_and_an_expensive_one_not_at_all():
    assert depth(trained(0.95, 0.05)) > 8
    assert depth(trained(0.5, 1.2)) == 0


def test_the_plan_is_the_argmax_of_the_rate():
    model = trained(0.8, 0.2)
    rates = model.rounds.rates(16)

    def token_s(gamma):
        cost = (model.wait(gamma) if gamma else 0.0) + model.verify(1 + gamma)
        return cost / (1 + expected_accepted(rates[:gamma]))

    plan = model.plan(16, RequestDifficulty())
    assert plan.depth == min(range(17), key=token_s)
    assert plan.token_s == pytest.approx(token_s(plan.depth))


def test_drafts_that_are_waited_for_no_longer_the_deeper_they_are_go_deep():
    """Drafted while the target verifies: the wait is the message's, whatever the number of tokens."""
    one_by_one, prepared = trained(0.8, 0.3), trained(0.8, 0.3)
    for _ in range(200):
        for levels in (4, 8, 16):
            prepared.wait.add(levels, 0.2)
    assert depth(one_by_one) < 4
    assert depth(prepared) > 8


def test_a_levels_price_is_known_though_every_draft_has_been_as_deep():
    """Nothing costs nothing: eight levels for 1.6 are 0.2 each, not 1.6 whatever the depth."""
    model = CostModel()
    for _ in range(50):
        model.wait.add(8, 1.6)
    assert model.wait(2) == pytest.approx(0.4, rel=0.01)


def test_short_drafts_that_are_always_kept_grow_longer():
    model = trained(0.3, 0.2)
    short = depth(model)
    for _ in range(300):
        model.saw_acceptance(RequestDifficulty(), 1, 1)
    assert depth(model) > short + 2


def test_a_position_that_is_never_reached_is_not_drafted():
    """Two levels always hold and the third never: a budget of two, though two of three levels are accepted."""
    model = trained(0.8, 0.1)
    for _ in range(300):
        model.saw_acceptance(RequestDifficulty(), 3, 2)
    assert depth(model) == 2


def test_levels_that_do_not_come_promise_nothing():
    """A drafter that returns nothing, at the price of a question, is not asked; were it to answer, it would be."""
    silent = trained(0.9, 0.05)
    for _ in range(300):
        silent.saw_draft(16, 0, 0, waited=0.1)
    assert depth(silent) == 0
    assert depth(trained(0.9, 0.05)) > 0


def test_a_node_is_drafted_before_its_probability_is_known():
    """W(γ) = 0.15·γ: at 1 a token, and every second node accepted, the path above needs 0.3."""
    model, known = CostModel(), RequestDifficulty()
    passes(model, 1.0, 0.1)
    waits(model, 0.15)
    model.rounds.rate.total, model.rounds.rate.weight = 2.0, 4.0
    assert model.node_gain(known, 1.0) == pytest.approx(0.3)
    assert model.node_gain(known, 2.0) == pytest.approx(0.15)
    model.rounds.rate.total = 4.0
    assert model.node_gain(known, 1.0) == pytest.approx(0.15, rel=0.01)
    model.step.add(0.4)
    model.hidden.rate.total, model.hidden.rate.weight = 3.0, 4.0
    assert model.hidden_gain == pytest.approx(0.5 / 0.75)


@pytest.mark.parametrize(("hidden", "sampling", "stops"), [
    ("before", Sampling(), True), ("auto", Sampling(), True), ("beside", Sampling(), False),
    ("before", Sampling(temperature=1.0), False),
])  # fmt: skip
def test_a_hidden_draft_before_the_prefill_ends_at_unlikely_nodes(hidden, sampling, stops):
    policy = SpeculationPolicy(trained(0.9, 0.05), 16, 64, adaptive=True)
    plan = policy.plan_request(Request("x", max_new_tokens=200, sampling=sampling), hidden, learns=False)
    assert (plan.least > 0) is stops
    assert plan.nodes == (FIRST_NODES if hidden == "auto" else plan.nodes)
    policy.cost.step.add(0.3)  # 0.9^10 = 0.35 of a token that takes at least a third as long as a pass
    assert policy.plan_request(Request("x", max_new_tokens=200), "auto", learns=False).nodes < 16


def test_unknown_times_draft_what_is_allowed():
    assert depth(CostModel(), 7) == 7
    assert CostModel().verify_depth(40) == 40
    assert CostModel().worthwhile((-1, 0), [0.5, 0.01]) == [0, 1]
    assert CostModel().node_gain(RequestDifficulty(), 0.0) == 0
    assert CostModel().hidden_nodes(40) == 40


def test_requests_that_share_a_pass_draft_less_where_width_is_what_costs():
    """Alone V(n) is nearly flat; four rows at a time are bound by arithmetic, and each pays a token's full price."""
    model = trained(0.8, 0.05)
    for n in (1, 2, 4, 6, 8, 16) * 10:
        model.saw_pass(4, n, (1.0 + 0.3 * 4 * (n - 1)) / 4)
    assert depth(model) > 2 + depth(model, rows=4)
    assert model.verify(1) == 1.0  # what rows share is no part of it


# -- trees -------------------------------------------------------------------------------------------------------------


def test_a_bushy_drafter_is_asked_for_levels_in_nodes():
    """Three nodes a level: four levels are twelve nodes, and a limit of sixteen nodes is six levels."""
    model = CostModel()
    for _ in range(200):
        model.saw_draft(5, 4, 12, waited=0.1)
    assert model.nodes(4, 16) == 12
    assert model.nodes(8, 16) == 16
    assert model.levels(16) == 6
    assert CostModel().nodes(4, 16) == 4  # a chain until a tree has been seen


def test_a_bushy_tree_widens_the_pass_by_its_nodes():
    chain, bushy = trained(0.8, 0.05, slope=0.1), trained(0.8, 0.05, slope=0.1)
    for _ in range(200):
        bushy.width.add(3.0)
    assert depth(bushy) < depth(chain)


def test_of_a_tree_the_worthwhile_nodes_come_best_first_and_with_their_parents():
    model = CostModel()
    for n in (1, 2, 8):
        model.verify.add(n, 10.0 + 1.0 * (n - 1))  # worth a probability of 0.1
    #  root ─┬─ 0: .5 ─┬─ 2: .09
    #        │         └─ 3: .4 ── 4: .2
    #        └─ 1: .3
    assert model.worthwhile((-1, -1, 0, 0, 3), (0.5, 0.3, 0.09, 0.4, 0.2)) == [0, 3, 1, 4]
    # A drafter that thinks better of a node than of its parent is corrected: 2 goes with 0, and 3 stays after 1.
    assert model.worthwhile((-1, -1, 0, 1), (0.05, 0.3, 0.9, 0.8)) == [1, 3]
    assert model.worthwhile((), ()) == []
    assert CostModel().worthwhile((-1, -1), (0.0, 0.4)) == [1, 0]  # nothing is known yet: all
    # Where drafting has brought a token down to 2.6, an accepted node saves no more: worth a probability of 0.38.
    model.token_s = 2.6
    assert model.worthwhile((-1, -1, 0, 0, 3), (0.5, 0.3, 0.09, 0.4, 0.2)) == [0, 3]
    model.planned_rows = 8  # that was the share of one of eight rows: of a row alone nothing is known
    assert model.worthwhile((-1, -1, 0, 0, 3), (0.5, 0.3, 0.09, 0.4, 0.2)) == [0, 3, 1, 4]


def test_a_tree_fills_the_width_that_costs_nothing_and_a_step_is_paid_by_all_nodes_together():
    """A pass takes 10 up to four tokens and 1 for each one more; or it takes 12 from two tokens on."""
    flat, step = CostModel(), CostModel()
    for n in (1, 2, 3, 4, 6, 8, 12, 16):
        flat.verify.add(n, 10.0 + max(0, n - 4))
        step.verify.add(n, 10.0 + 2.0 * (n > 1))
    assert flat.worthwhile((-1,) * 5, (0.03, 0.02, 0.2, 0.01, 0.15)) == [2, 4, 0]
    assert step.worthwhile((-1,) * 2, (0.11, 0.1)) == [0, 1]
    assert step.worthwhile((-1,) * 2, (0.1, 0.09)) == []


def test_what_a_drafter_says_of_a_whole_level_is_corrected_not_of_each_node():
    """Of 0.11 for a level, 0.41 came: so the likelier of its two nodes counts 0.38, the other 0.04 and no 0.16."""
    model, stated = CostModel(), RequestDifficulty(prior=1.0, exposure=1.5)  # to the power of 0.4
    passes(model, 10.0, 1.0)  # a node repays its row from 0.1
    assert model.worthwhile((-1, -1), (0.1, 0.01), stated) == [0]
    assert model.worthwhile((-1, -1), (0.1, 0.05), stated) == [0, 1]


def test_levels_that_are_trimmed_were_waited_for_all_the_same():
    model = CostModel()
    passes(model, 1.0, 0.02)
    for _ in range(50):
        model.saw_draft(8, 2, 6, waited=1.6, drafted=8)
    assert model.wait(2) == pytest.approx(0.4, rel=0.01)
    assert model.width.value == pytest.approx(3.0, rel=0.05)
    assert model.rounds.arrivals(3)[2] < 0.05
    # By hand, for eight levels of which two are verified: 8 · 0.2 + V(7) = 2.72 for at most three tokens.
    (*_, last) = model.rounds_of(8, RequestDifficulty())
    assert last.seconds == pytest.approx(2.72, rel=0.03)


def test_siblings_that_sum_to_one_do_not_hide_that_the_drafter_is_too_sure():
    """One of the two is right, it says, and none is: to the power of 5 each is worth 0.03, not half of a level."""
    model = CostModel()
    passes(model, 10.0, 1.0)
    assert model.worthwhile((-1, -1), (0.5, 0.5), RequestDifficulty()) == [0, 1]
    assert model.worthwhile((-1, -1), (0.5, 0.5), RequestDifficulty(prior=1.0, failures=4.0)) == []


def test_a_drafter_that_was_too_sure_is_believed_less():
    """It said 0.9 ten times and was wrong every other time: its 0.3 is then worth less than a row that costs 0.2."""
    model = CostModel()
    passes(model, 10.0, 2.0)
    stated = RequestDifficulty()
    assert model.worthwhile((-1,), (0.3,), stated) == [0]
    for _ in range(10):
        model.saw_acceptance(RequestDifficulty(), 2, 1, [0.9, 0.9], stated=stated)
    assert model.calibration.value > 1.5
    assert stated.value > 1
    assert model.worthwhile((-1,), (0.3,), stated) == []


def test_a_drafter_that_says_truly_how_unsure_it_is_of_a_request_drafts_less_for_it_and_is_believed():
    """Of all requests four tokens in five are right, of this one 0.3, as the drafter says each time."""
    model, draw = trained(0.8, 0.3), random.Random(1)
    request, stated = RequestDifficulty(), RequestDifficulty()
    before = model.plan(16, request)
    assert before.depth >= 2
    for _ in range(12):
        model.saw_acceptance(request, 1, int(draw.random() < 0.3), [0.3], stated=stated)
    assert model.plan(16, request).depth < before.depth
    assert request.value > 1.5
    assert stated.value == pytest.approx(1.0, abs=0.3)


@given(st.lists(st.floats(0, 1), max_size=12), st.data())
def test_the_worthwhile_nodes_are_a_tree(path_probs, data):
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(len(path_probs))]
    model = CostModel()
    for n in (1, 2, 9):
        model.verify.add(n, 10.0 + 2.0 * (n - 1))
    kept = model.worthwhile(parents, path_probs)
    assert all(parent < 0 or parent in kept[:index] for index, parent in enumerate(parents[i] for i in kept))


# -- one request is not like another -----------------------------------------------------------------------------------


def test_a_dark_request_is_noticed_and_the_next_one_starts_afresh():
    model = trained(0.9, 0.25)
    dark, light = RequestDifficulty(), RequestDifficulty()
    start = depth(model)
    for _ in range(3):
        model.saw_acceptance(dark, 1, 0)
        model.saw_acceptance(light, 8, 8)
    assert depth(model, request=dark) < start < depth(model, request=light)
    assert abs(depth(model) - start) <= 2  # what three rounds of either kind have taught about all others


def test_bad_luck_is_forgotten():
    model, unlucky = trained(0.8, 0.65), RequestDifficulty()
    start = depth(model)
    assert start > 0
    for _ in range(8):
        unlucky.add([0.8], 0)
    assert depth(model, request=unlucky) == 0
    for _ in range(60):
        unlucky.forget()
    assert depth(model, request=unlucky) == start


def test_a_hidden_draft_that_is_refused_at_once_is_a_warning():
    model, request = trained(0.9, 0.25), RequestDifficulty()
    before = model.plan(16, request)
    model.saw_acceptance(request, 1, 0, hidden=True)
    after = model.plan(16, request)
    assert after.depth <= before.depth
    assert after.token_s > before.token_s


def test_the_first_draft_of_a_cold_drafter_is_no_measure():
    """Nothing is known yet that would bound it, and a mean of fifty rounds would hold it against every later one."""
    model = CostModel()
    model.saw_draft(4, 4, 4, waited=5.0)
    for _ in range(6):
        model.saw_pass(1, 5, 0.1)
        model.saw_draft(4, 4, 4, waited=0.02)
        model.saw_acceptance(RequestDifficulty(), 4, 4)
    assert model.wait(4) == pytest.approx(0.02, rel=0.3)
    assert model.plan(4, RequestDifficulty()).depth == 4


def test_an_outlier_counts_for_no_more_than_a_few_usual_waits():
    once, long = CostModel(), CostModel()
    for model in (once, long):
        model.verify.add(1, 1.0)
        model.saw_draft(4, 4, 4, waited=1.0)
    once.saw_draft(4, 4, 4, waited=OUTLIER * 1.0)
    long.saw_draft(4, 4, 4, waited=1000.0)
    assert long.wait == once.wait


# -- off, and on again -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "step"), [(0.5, 0.6), (0.5, 1.2), (0.2, 2.0), (0.05, 9.0)])
def test_where_drafting_loses_rounds_go_without_until_that_is_so_long_ago_that_it_may_have_changed(alpha, step):
    """By hand: a cost of x times the gain counts for less than it after log x / log(1 / 0.99) rounds."""
    model = trained(alpha, step)
    nearest = model.plan(16, RequestDifficulty()).nearest
    gap = math.ceil(math.log(nearest.token_s / model.verify(1)) / -math.log(FADING))
    turns = [turn for turn in range(1000) if drafted(model)]
    assert turns[0] in (gap, gap + 1)
    assert {after - before for before, after in itertools.pairwise(turns)} <= {turns[0] + 1}
    assert (nearest.token_s - model.verify(1)) * nearest.tokens / turns[0] < 0.04  # what is lost by it, in passes


def test_a_round_that_many_share_is_one_round_and_a_draft_in_it_is_one_for_all():
    alone, shared = trained(0.5, 1.2), trained(0.5, 1.2)
    rounds = next(turn for turn in range(1000) if drafted(alone))
    for _ in range(rounds - 1):
        for _ in range(4):
            shared.began_round(0, 4)
    assert shared.undrafted == pytest.approx(rounds - 1)
    shared.began_round(2, 4)
    assert shared.undrafted == 0


def test_a_request_that_drafts_well_behind_one_that_did_not_is_soon_drafted_for():
    """However long nothing was drafted: what that costs decides, not how many were in vain."""
    model = trained(0.5, 0.6)
    for _ in range(400):
        drafted(model)
    request, turns = RequestDifficulty(), []
    for turn in range(96):
        if levels := drafted(model, request=request):
            model.saw_acceptance(request, levels, levels)  # all of it is right
            turns.append(turn)
        else:
            request.forget()
    assert len([turn for turn in turns if turn < 48]) >= 12
    assert len(turns) > 48


def test_drafts_that_have_become_cheap_switch_drafting_on_again():
    """The drafter's core was busy, and is free again: one draft at the new price is no proof, a few are."""
    model = trained(0.8, 2.0)
    assert depth(model) == 0
    for _ in range(150):
        model.saw_draft(2, 2, 2, waited=0.2)
    assert depth(model) > 0


def test_a_machine_that_was_busy_while_it_was_timed_is_not_taken_to_be_slow():
    """V(1) was measured as 5 s, and passes over eight tokens take 1 s: one over a token takes no longer."""
    model = CostModel()
    model.saw_pass(1, 1, 5.0)
    for _ in range(60):
        model.saw_pass(1, 8, 1.0)
    assert model.verify(1) == pytest.approx(1.0, abs=0.12)


def test_a_width_that_was_too_slow_is_tried_again_after_many_passes_without_it():
    """A node of 0.3 is worth 0.3 passes; the pass over two tokens took a whole one more, while the machine was busy.

    By hand: it counts for less after log 0.3 / log 0.997 = 400.7 passes over one token.
    """
    model = CostModel()
    model.saw_pass(1, 1, 1.0)
    model.saw_pass(1, 2, 2.0)
    passed = 0
    while not model.worthwhile((-1,), (0.3,)) and passed < 1000:
        model.saw_pass(1, 1, 1.0)
        passed += 1
    assert passed == 401
    model.saw_pass(1, 2, 2.0)
    assert not model.worthwhile((-1,), (0.3,))


def test_rows_that_were_not_timed_yet_have_times_from_their_first_draft_on():
    model = trained(0.8, 0.05)
    model.saw_draft(4, 4, 4, 0.2, rows=3)
    assert 0 < model.costs(3).verify(1) < model.verify(1)
    assert depth(model, rows=3) < 16
    model.saw_pass(1, 1, 1.0)
    assert model.costs(5).verify(1) == pytest.approx(model.verify(5) / 5)  # one number of rows says nothing of others


def test_at_the_answers_end_nothing_is_asked_nor_counted():
    model = CostModel()
    model.undrafted = 3
    policy = SpeculationPolicy(model, 16, 64, adaptive=True)
    state = RequestState(Job(0, Request("x", max_new_tokens=2)), rule_for(None, Sampling()))
    state.tokens.append(5)
    plan = policy.plan_round(state, 1)
    assert plan.budget.nodes == 0
    policy.began_round(state, plan)
    assert model.undrafted == 3
    state.tokens.clear()
    policy.began_round(state, policy.plan_round(state, 1))
    assert model.undrafted == 0


def test_a_draft_that_comes_unasked_is_taken_where_drafting_loses_and_never_waited_for_longer_than_a_pass():
    loses, state = trained(0.05, 5.0), RequestState(Job(0, Request("x", max_new_tokens=40)), rule_for(None, Sampling()))
    for unasked, nodes in ((False, 0), (True, 16)):
        policy = SpeculationPolicy(loses, 16, 64, adaptive=True, unasked=unasked)
        policy.gives_probs = True
        assert policy.plan_round(state, 1).budget.nodes == nodes
    assert policy.plan_round(state, 1).budget.wait_s == 0.0
    policy.gives_probs = False  # it could not be trimmed
    assert policy.plan_round(state, 1).budget.nodes == 0
    gains = trained(0.9, 0.05)
    wait_s = SpeculationPolicy(gains, 16, 64, adaptive=True, unasked=True).plan_round(state, 1).budget.wait_s
    assert wait_s == gains.verify(1) < (gains.longest_wait(16, RequestDifficulty()) or 0.0)


# -- queries and observations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["new", "trained", "reader", "idle"])
def test_queries_of_the_cost_model_change_nothing(kind):
    """Whoever asks twice is answered the same: only `began_…` and `saw_…` change it."""
    model = {
        "new": CostModel,
        "trained": lambda: trained(0.9, 0.05),
        "reader": lambda: reader(1000.0),
        "idle": lambda: trained(0.5, 5.0),
    }[kind]()
    model.undrafted, model.unhidden, model.unread = 3, 31, 31
    if kind != "new":
        model.step.add(0.05)
    request = RequestDifficulty()
    request.add([0.8, 0.8], 1)

    def queries():
        plan = model.plan(16, request, 3)
        return [
            plan,
            model.nodes(4, 16),
            model.levels(16),
            model.longest_wait(4, request),
            model.node_gain(request, plan.token_s, 3),
            model.worthwhile((-1, 0), (0.5, 0.01), request),
            model.worthwhile((-1, 0), (0.5, 0.01), request, hidden=True),
            model.verify_depth(40),
            model.hidden_nodes(40),
            model.reading_pays(64),
            model.hiding_pays(16),
        ]

    before, difficulty = copy.deepcopy(model), copy.deepcopy(request)
    first = queries()
    assert queries() == first
    assert (model, request) == (before, difficulty)


def test_a_policy_plans_without_a_trace_and_counts_a_round_when_it_is_under_way():
    model = trained(0.9, 0.05)
    policy = SpeculationPolicy(model, 16, 64, adaptive=True)
    state = RequestState(Job(0, Request("x", max_new_tokens=40)), rule_for(None, Sampling()))
    before = copy.deepcopy(model)
    plan = policy.plan_round(state, 1)
    assert policy.plan_request(state.request, "auto", learns=False).reads
    draft = Draft(DraftTree.chain([1, 2, 3]), (0.9, 0.5, 0.01))
    policy.trim(draft, state, 8)
    policy.trim(Draft(draft.tree), state, 8, hidden=True)
    assert (model, state.stats.policy_errors) == (before, 0)
    model.undrafted = 5
    policy.began_round(state, plan, 3)
    assert model.undrafted == 0
    assert (model.token_s, model.planned_rows) == (plan.chosen.token_s, 3)


def test_a_drafter_that_knows_how_sure_it_is_is_waited_for_as_long_as_all_of_its_draft_may_save():
    model = trained(0.7, 0.05)
    state = RequestState(Job(0, Request("x", max_new_tokens=40)), rule_for(None, Sampling()))
    policy = SpeculationPolicy(model, 16, 64, adaptive=True)
    usual = policy.plan_round(state, 1).budget.wait_s
    policy.gives_probs = True
    assert usual < policy.plan_round(state, 1).budget.wait_s == 16 * model.verify(1)


# -- why hardly anything was drafted -----------------------------------------------------------------------------------


def rounds_of(model, count, *, drafted=0, adaptive=True):
    """A request after so many rounds as the policy of that model plans them."""
    policy = SpeculationPolicy(model, 16, 16, adaptive=adaptive)
    state = RequestState(Job(0, Request("x", max_new_tokens=200)), rule_for(None, Sampling()))
    for _ in range(count):
        policy.began_round(state, policy.plan_round(state, 1))
        state.stats.rounds += 1
        state.stats.drafted += drafted
    return state


def test_an_answer_without_drafts_says_what_a_draft_would_have_cost():
    state = rounds_of(trained(0.5, 1.2), 40)
    assert 30 < state.stats.rounds_off <= 40
    # One drafted token takes 1.2, a pass over two 1.02; a little more than every second one was kept.
    assert state.why_undrafted() == (
        f"Drafting did not pay in {state.stats.rounds_off} of 40 rounds: in the last of them a draft of 1 and its pass "
        "would have taken 2.2 times as long as a pass without, for 1.6 tokens."
    )


def test_a_drafter_that_proposes_nothing_is_named():
    for adaptive in (True, False):
        state = rounds_of(trained(0.9, 0.01), 12, adaptive=adaptive)
        assert state.why_undrafted() == LATE
        state.ledger.waited(0.0, 1.0, [Span("drafter", "draft", state.ledger.started, math.inf)])
        assert state.why_undrafted() == "The drafter proposed nothing in 12 rounds."


@pytest.mark.parametrize(
    ("model", "rounds", "drafted", "adaptive"),
    [(trained(0.9, 0.01), 12, 1, True), (trained(0.5, 1.2), 7, 0, True), (trained(0.5, 1.2), 40, 1, False)],
    ids=["drafts", "short answer", "nothing adapts"],
)
def test_other_answers_say_nothing_of_it(model, rounds, drafted, adaptive):
    state = rounds_of(model, rounds, drafted=drafted, adaptive=adaptive)
    assert state.why_undrafted() is None


def test_rounds_that_draft_nothing_of_themselves_are_not_called_late():
    """Of five rounds the first and the last, at the limit, ask for nothing; in the others drafting did not pay."""
    state = rounds_of(trained(0.5, 1.2), 5)
    state.stats.rounds_off = 3
    assert state.why_undrafted() is None
    state.stats.rounds_off = 2
    assert state.why_undrafted() == LATE
