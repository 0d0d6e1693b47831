import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.engine.cost import (
    CostModel,
    LinearFit,
    Mean,
    expected_accepted,
    hidden_time,
    hiding_bound,
    steady_speedup,
)


def test_expected_accepted_counts_only_the_prefix():
    # The audit's examples: iid acceptance over a long chain, not k times the rate.
    assert expected_accepted([0.65] * 28) == pytest.approx(1.857, abs=1e-3)
    assert expected_accepted([0.8] * 27) == pytest.approx(3.990, abs=1e-3)
    assert expected_accepted([0.279] * 26) == pytest.approx(0.387, abs=1e-3)


@given(st.floats(0, 0.99), st.integers(0, 20))
def test_the_closed_form_is_the_sum(alpha, gamma):
    emitted = steady_speedup(alpha, gamma, 0.0, 1.0)
    assert emitted == pytest.approx(1 + expected_accepted([alpha] * gamma))


def test_steady_speedup_by_hand():
    # Two drafts at α = 0.5 emit 1.75 tokens; they cost 2·0.25 and a pass of 1.25.
    assert steady_speedup(0.5, 2, 0.25, 1.25) == pytest.approx(1.75 / 1.75)
    assert steady_speedup(1.0, 3, 0.0, 1.0) == 4


def test_hidden_time_of_the_published_pair():
    # P_T 326, 22 tokens hidden, verify 68.9, 9 accepted, 50 tokens at 15.2 ms: slower than it looks.
    assert hidden_time(326, 83 + 220, 68.9, 9, 50, 15.2) == pytest.approx(326 + 68.9 + 39 * 15.2)
    assert hiding_bound(326, 326 + 49 * 15.2) == pytest.approx(3.285, abs=1e-3)


def test_linear_fit_recovers_a_line_and_never_slopes_down():
    fit = LinearFit()
    for n in (1, 4, 9, 16):
        fit.add(n, 5 + 0.25 * n)
    assert fit(1) == pytest.approx(5.25)
    assert fit.slope == pytest.approx(0.25)
    down = LinearFit()
    for n in (1, 2, 3):
        down.add(n, 10 - n)
    assert down.slope == 0
    assert down(7) == pytest.approx(8, abs=0.1)
    assert LinearFit()(3) == 0


def test_a_mean_fades():
    mean = Mean(decay=0.5)
    assert mean.value is None
    mean.add(0.0)
    mean.add(3.0)
    assert mean.value == pytest.approx(2.0)


def trained(alpha, step, slope=0.02):
    model = CostModel()
    for n in (1, 2, 8, 16):
        model.verify.add(n, 1 + slope * (n - 1))
    model.step.add(step)
    for _ in range(400):
        for hidden in (False, True):
            model.observe_acceptance(16, round(alpha / (1 - alpha)), hidden=hidden)
    return model


def test_a_cheap_drafter_drafts_deep_and_an_expensive_one_not_at_all():
    assert trained(0.95, 0.05).best_depth(16) > 8
    assert trained(0.5, 1.2).best_depth(16) == 0


def test_the_best_depth_is_the_argmax_of_the_rate():
    model = trained(0.8, 0.2)

    def rate(gamma):
        accepted = expected_accepted([model.alpha] * gamma)
        return (1 + accepted) / (gamma * 0.2 + model.verify(gamma + 1))

    assert model.best_depth(16) == max(range(17), key=rate)


def test_short_drafts_that_are_always_kept_grow_longer():
    model = trained(0.3, 0.2)
    short = model.best_depth(16)
    for _ in range(60):
        model.observe_acceptance(1, 1)
    assert model.alpha > 0.75
    assert model.best_depth(16) > short + 2


def test_unknown_times_draft_what_is_allowed():
    assert CostModel().best_depth(7) == 7
    assert CostModel().verify_depth(40) == 40
    assert CostModel().worth([0.5, 0.01]) == 2
    assert CostModel().node_gain() == 0


def test_a_long_hidden_draft_is_verified_only_as_far_as_it_may_be_reached():
    model = trained(0.5, 0.1, slope=0.2)
    depth = model.verify_depth(60)
    assert 0 < depth < 10


def test_hiding_measures_first_and_then_takes_the_cheapest():
    model = CostModel()
    assert model.hiding(32) == "before"
    model = trained(0.95, 0.05)
    model.read.add(20.0)
    model.draft_read.add(2.0)
    assert model.hiding(16) == "beside"  # once, to see what it costs
    model.beside.add(0.6)  # a free second device: side by side takes as long as the longer one
    assert model.hiding(16) == "beside"
    for _ in range(50):
        model.beside.add(1.3)  # a shared one: worse than one after the other
    assert model.hiding(16) == "before"
    costly = trained(0.95, 5.0)
    costly.read.add(20.0)
    costly.beside.add(1.3)
    assert costly.hiding(16) == "off"


def test_a_node_is_worth_its_place_while_its_chance_repays_the_wider_pass():
    model = CostModel()
    for n in (1, 2, 9):
        model.verify.add(n, 10.0 + 1.0 * (n - 1))  # t = 10, one more token costs 1: worth a chance of 0.1
    assert model.worth([0.9, 0.5, 0.11, 0.09, 0.08]) == 3
    assert model.worth([0.05]) == 0
    assert model.worth([]) == 0


def test_of_a_tree_the_worthwhile_nodes_come_best_first_and_with_their_parents():
    model = CostModel()
    for n in (1, 2, 9):
        model.verify.add(n, 10.0 + 1.0 * (n - 1))  # worth a chance of 0.1
    #  root ─┬─ 0: .5 ─┬─ 2: .09
    #        │         └─ 3: .4 ── 4: .2
    #        └─ 1: .3
    assert model.worthwhile((-1, -1, 0, 0, 3), (0.5, 0.3, 0.09, 0.4, 0.2)) == [0, 3, 1, 4]
    # A drafter that thinks better of a node than of its parent is corrected: 2 goes with 0, and 3 stays behind 1.
    assert model.worthwhile((-1, -1, 0, 1), (0.05, 0.3, 0.9, 0.8)) == [1, 3]
    assert model.worthwhile((), ()) == []
    assert CostModel().worthwhile((-1, -1), (0.0, 0.4)) == [1, 0]  # nothing is known yet: all


@given(st.lists(st.floats(0, 1), max_size=12), st.data())
def test_the_worthwhile_nodes_are_a_tree(reach, data):
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(len(reach))]
    model = CostModel()
    for n in (1, 2, 9):
        model.verify.add(n, 10.0 + 2.0 * (n - 1))
    kept = model.worthwhile(parents, reach)
    assert all(parent < 0 or parent in kept[:place] for place, parent in enumerate(parents[i] for i in kept))


def test_probe_rows_make_drafting_dearer():
    """V(n) = 10 + 2n ms, d = 1 ms, α = 0.8: with forty probes in every pass no draft repays them."""
    cost = CostModel()
    for n in (1, 2, 4, 8, 16, 32, 64):
        cost.verify.add(n, 0.010 + 0.002 * n)
    cost.step.add(0.001)
    assert cost.best_depth(8) > 0
    assert cost.best_depth(8, probes=40) == 0
