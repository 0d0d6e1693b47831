"""The advice of `crossdraft plan`: the audit's worked cases, brute force, and what must never go the wrong way."""

import json
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.cli.cores import choose_cores
from crossdraft.cli.main import main
from crossdraft.engine.request import Answer, Finish
from crossdraft.engine.stats import Stats
from crossdraft.engine.timeline import Span, Timeline
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.formulas import steady_speedup
from crossdraft_lab.bench.plan import ALONE, BOTH, HIDDEN, STEADY, Stages, advise, figures, sentence, to_json
from crossdraft_lab.bench.plan_measure import Pair, measure_stages, stages_of, undisturbed

# The published 7B pair on one RTX 4090 as it was re-analysed: prefills 326 and 99 ms (the gap is 227), steps 15.2 and
# 10.3, and for each draft position the chance to be accepted given those before it.
ACCEPTANCES = (0.87, 0.68, 0.96, 0.96, 0.94, 0.66, 0.79, 0.73, 0.66, 0.55, 0.97, 0.71, 0.13, 0.0)
PUBLISHED = Stages(326, 15.2, 10.3, ACCEPTANCES, 50, draft_prefill=99)
# A pass over 22 tokens took 68.9 ms, an adapter 2.2 more; the cost is about the same whatever the number of tokens.
DEAR = replace(PUBLISHED, passes=((2, 71.1), (22, 71.1)))
FAIR = replace(PUBLISHED, passes=((2, 1.05 * 15.2), (22, 1.05 * 15.2)))


def test_the_published_pair_breaks_even_at_4_7_tokens_and_gains_one_percent():
    advice = advise(DEAR)
    hidden = advice.strategy(HIDDEN)
    assert hidden.needs == pytest.approx(4.68, abs=0.01)
    assert hidden.yields == pytest.approx(5.21, abs=0.01)
    assert hidden.speedup == pytest.approx(1.01, abs=0.005)
    assert hidden.hidden == 13  # the 14th is never accepted
    assert advice.best is hidden
    assert sentence(advice).startswith("Drafting hardly pays: a hidden draft of 13 tokens, then plain steps,")


def test_with_a_fair_kernel_the_same_drafts_gain_six_percent():
    hidden = advise(FAIR).strategy(HIDDEN)
    assert hidden.speedup == pytest.approx(1.063, abs=0.001)
    # By hand: 326 + 15.96 + (48 − 4.2112)·15.2 ms against 326 + 49·15.2.
    assert hidden.total == pytest.approx(326 + 15.96 + (48 - 4.21116) * 15.2, abs=0.01)
    assert hidden.needs == pytest.approx(1.05)


def test_drafts_that_are_all_accepted_gain_what_the_gap_allows():
    perfect = replace(FAIR, acceptance=(1.0,))
    assert perfect.free == 22
    # 22 hidden tokens, and a few more while the target waits: each costs 10.3 and saves 15.2.
    assert advise(perfect).strategy(HIDDEN).speedup > 1.4


def test_four_of_ten_questions_accept_too_little():
    advice = advise(replace(DEAR, acceptance=(0.5,)))
    assert advice.best.name == ALONE
    assert advice.best.speedup == 1
    text = sentence(advice)
    assert text.startswith("Do not draft: a hidden draft of ")
    assert "yields 2.0 tokens and pays above 4.7" in text


def test_no_hiding_beats_the_bound():
    advice = advise(replace(PUBLISHED, acceptance=(1.0,), draft_step=0.0, tokens=50))
    assert advice.bound == pytest.approx((326 + 49 * 15.2) / 326)
    assert advice.strategy(HIDDEN).speedup < advice.bound
    assert advice.strategy(HIDDEN).total == pytest.approx(326 + 15.2)


def test_rounds_pay_above_c_where_passes_cost_a_step():
    for c in (0.1, 0.68, 0.95):
        stages = Stages(300, 10, 10 * c, (0.8,), 50)
        assert advise(stages).least_alpha == pytest.approx(c, abs=1e-6)
    assert advise(Stages(300, 10, 10.5, (1.0,), 50)).least_alpha is None


def test_rounds_of_the_published_pair_do_not_pay():
    # A pass over two tokens is dearer than four steps: even at the pooled 0.81 ≈ a / (a + 1).
    assert DEAR.alpha == pytest.approx(4.2112 / 5.2112, abs=1e-4)
    advice = advise(DEAR)
    assert advice.strategy(STEADY).speedup < 1
    assert advice.least_alpha > 0.9


def test_pooled_acceptance_by_hand():
    # Verified: the first always, the second in half of the drafts. Accepted: 0.5 and 0.25.
    assert Stages(1, 1, 0, (0.5, 0.5), 9).alpha == pytest.approx(0.75 / 1.5)
    assert Stages(1, 1, 0, (1.0, 0.0), 9).alpha == pytest.approx(0.5)
    assert Stages(1, 1, 0, (0.5,), 9).acceptances(3) == (0.5, 0.5, 0.5)
    assert Stages(1, 1, 0, (0.5, 0.4), 9).acceptances(3) == (0.5, 0.4, 0.0)
    assert Stages(1, 1, 0, (0.5, 0.4), 9).acceptances(1) == (0.5,)


def test_passes_are_joined_by_straight_lines_and_never_fall():
    stages = Stages(300, 10, 2, (0.8,), 50, passes=((9, 13), (5, 14), (13, 22)))
    assert [stages.verify(n) for n in (1, 3, 5, 7, 9, 11, 15)] == [10, 12, 14, 14, 14, 18, 26]
    assert Stages(300, 10, 2, (0.8,), 50).verify(40) == 10


def test_where_the_time_goes_by_hand():
    # One shared device: 4 + 2·1 ms of drafter work before a prefill of 100; V(3) = 12; 0.75 accepted of 2.
    stages = Stages(100, 10, 1, (0.5, 0.5), 5, draft_prefill=4, passes=((3, 12),), contention=1.0)
    hidden = advise(stages).strategy(HIDDEN)
    assert hidden.hidden == 2
    assert hidden.waiting == pytest.approx(6)
    assert hidden.total == pytest.approx(106 + 12 + (5 - 2 - 0.75) * 10)
    assert hidden.needs == pytest.approx((6 + 12) / 10)
    assert hidden.passes == pytest.approx(12 + 22.5)
    assert stages.free == 0
    # Rounds of one token at α = 0.4 emit 1.4 and cost 1 + 11; rounds of two emit 1.56 and cost 2 + 12.
    steady = advise(replace(stages, acceptance=(0.4,), tokens=100)).strategy(STEADY)
    assert steady.budget == 1
    assert steady.total == pytest.approx(104 + 99 * 12 / 1.4)
    assert steady.drafting == pytest.approx(99 * 1 / 1.4)
    assert steady.passes == pytest.approx(99 * 11 / 1.4)
    assert steady.waiting == pytest.approx(4)


PROBS = st.lists(st.integers(0, 20).map(lambda n: n / 20), min_size=1, max_size=8).map(tuple)
TIMES = st.floats(0.1, 400)
DRAFTER_TIMES = st.floats(0, 400)
PAIRS = st.builds(
    Stages,
    prefill=TIMES,
    step=TIMES,
    draft_step=DRAFTER_TIMES,
    acceptance=PROBS,
    tokens=st.integers(3, 30),
    draft_prefill=DRAFTER_TIMES,
    passes=st.lists(st.tuples(st.integers(2, 40), TIMES), max_size=4, unique_by=lambda point: point[0]).map(tuple),
    contention=st.sampled_from((0.0, 0.3, 1.0)),
)


@given(PAIRS)
def test_the_parts_make_the_whole_and_nothing_beats_the_bound(stages):
    advice = advise(stages)
    assert advice.best.speedup >= 1
    for strategy in advice.strategies:
        assert sum(strategy.shares.values()) == pytest.approx(1)
        assert min(strategy.shares.values()) > -1e-9
        assert strategy.total >= stages.prefill
        assert strategy.speedup <= advice.bound * (1 + 1e-9)
    for name, without in ((HIDDEN, ALONE), (BOTH, STEADY)):
        strategy, other = advice.strategy(name), advice.strategy(without)
        gain = other.total - strategy.total
        assert gain * (strategy.yields - strategy.needs) >= -1e-6  # faster exactly where it yields more than it needs


@given(PAIRS)
def test_budgets_are_those_of_brute_force(stages):
    advice = advise(stages)
    rates = [
        steady_speedup(stages.alpha, gamma, stages.c, stages.verify(gamma + 1) / stages.step) for gamma in range(1, 65)
    ]
    steady = advice.strategy(STEADY)
    assert rates[steady.budget - 1] == max(rates)
    assert (max(rates) > 1 + 1e-6) <= (advice.least_alpha is not None and stages.alpha >= advice.least_alpha)
    path_prob, accepted, totals = 1.0, 0.0, []
    for k, prob in enumerate(stages.acceptances(stages.tokens - 2), start=1):
        path_prob *= prob
        accepted += path_prob
        work = stages.draft_prefill + k * stages.draft_step
        reading = max(stages.prefill, work) + stages.contention * min(stages.prefill, work)
        totals.append(reading + stages.verify(k + 1) + max(0, stages.tokens - 2 - accepted) * stages.step)
    assert advice.strategy(HIDDEN).total == pytest.approx(min(totals))


@given(PAIRS, st.data())
def test_more_acceptance_never_lowers_the_best_speedup(stages, data):
    position = data.draw(st.integers(0, len(stages.acceptance) - 1))
    more = list(stages.acceptance)
    more[position] = data.draw(st.integers(round(20 * more[position]), 20)) / 20
    better = advise(replace(stages, acceptance=tuple(more)))
    assert better.best.speedup >= advise(stages).best.speedup * (1 - 1e-9)


@given(PAIRS, st.floats(0, 100), st.floats(0, 100))
def test_a_dearer_drafter_never_raises_the_best_speedup(stages, step, prefill):
    dearer = replace(stages, draft_step=stages.draft_step + step, draft_prefill=stages.draft_prefill + prefill)
    assert advise(dearer).best.speedup <= advise(stages).best.speedup * (1 + 1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prefill": 0.0}, "The prefill is 0;"),
        ({"step": 0.0}, "The step is 0;"),
        ({"step": float("nan")}, "The step is nan;"),
        ({"draft_step": -1.0}, "The draft step is -1;"),
        ({"draft_prefill": float("inf")}, "The draft prefill is inf;"),
        ({"acceptance": (0.5, 1.1)}, "The acceptance is 1.1; give a probability from 0 to 1."),
        ({"acceptance": ()}, "No acceptance"),
        ({"tokens": 2}, "The answer is 2 tokens long;"),
        ({"contention": -0.5}, "The contention is -0.5;"),
        ({"passes": ((0, 5.0),)}, "There is no pass over 0 tokens;"),
        ({"passes": ((3, 25.0), (3, 26.0))}, r"V\(3\) is given twice"),
        ({"passes": ((1, 16.0),)}, r"V\(1\) is 16 ms and the step 15.2 ms"),
        ({"passes": ((4, -1.0),)}, r"The time V\(4\) is -1;"),
    ],
)
def test_numbers_out_of_range_are_refused(change, message):
    with pytest.raises(CrossdraftError, match=message):
        replace(PUBLISHED, **change)


@pytest.mark.parametrize("measured", [False, True])
def test_every_report_says_simulated(measured):
    advice = advise(FAIR, measured=measured)
    report = json.loads(json.dumps(to_json(advice)))
    source = "measured stages" if measured else "typed-in numbers"
    assert report["source"] == f"simulated from {source}"
    assert report["source"] in report["advice"] == sentence(advice)
    assert report["best"] == advice.best.name
    assert report["stages"]["acceptance"] == list(ACCEPTANCES)
    assert [strategy["name"] for strategy in report["ways"]] == [ALONE, STEADY, HIDDEN, BOTH]


def test_a_losing_draft_is_not_called_the_best():
    losing = Stages(300, 10, 11, (0.3,), 50, passes=((2, 20),))  # every token of a pass costs a step
    rows = dict(figures(advise(losing)))
    assert rows["hidden draft: length"] == "none (1 token would lose least)"
    assert rows["draft of a round: length"] == "none (1 token would lose least)"
    assert rows["draft of a round: break-even"] == "acceptance: none is enough; given 0.30 (c = 1.10)"
    assert rows["hidden draft: free, inside the prefill"] == "27 tokens"


def test_work_that_nobody_hides_is_named_where_it_loses():
    slow_reader = Stages(100, 10, 1, (0.5,), 9, draft_prefill=300)
    assert "ms of the drafter's work are not hidden" in sentence(advise(slow_reader))


def test_the_answers_of_extremes_are_finite():
    for change in ({"draft_step": 1e9}, {"draft_step": 0.0}, {"step": 1e-6}, {"prefill": 1e9}, {"tokens": 10**9}):
        report = to_json(advise(replace(PUBLISHED, **change)))
        assert "inf" not in json.dumps(report)
        assert "nan" not in json.dumps(report)


PASSES = [(1, 10.0), (2, 10.5)]


def answer(reading, draft_s=0.0, read=0.0, hidden=0.0, accepted_at=(), drafted_at=(), hidden_drafted=0):
    stages = {"prepare": 0.0, "encode": reading / 2, "prefill": reading / 2, "ride-along": 0.01, "draft": draft_s}
    stats = Stats(
        stages_s=stages,
        drafted=sum(drafted_at),
        accepted=sum(accepted_at),
        hidden_drafted=hidden_drafted,
        drafted_at=list(drafted_at),
        accepted_at=list(accepted_at),
    )
    spans = [Span("drafter", "read", 0.0, read), Span("drafter", "hidden draft", read, read + hidden)]
    return Answer("", (1,) * 20, (), Finish.LENGTH, stats, Timeline(spans))


def test_stages_by_hand():
    # The prefill grows from 0.10 to 0.13 s with 0.02 + 0.04 s of drafting: half of the shorter comes on top.
    # Of 6 + 5 + 3 tokens drafted, 4 during the prefill; 5 + 2 + 1 accepted. Verified: 6, then 5, then 2.
    concurrent = answer(0.13, 0.05, 0.02, 0.04, (5, 2, 1), (6, 5, 3), hidden_drafted=4)
    stages = stages_of([answer(0.10)], [concurrent], PASSES, shared=False)
    assert stages.prefill == pytest.approx(110)
    assert stages.step == 10
    assert stages.draft_step == pytest.approx(5)
    assert stages.draft_prefill == pytest.approx(20)
    assert stages.acceptance == (pytest.approx(8 / 13),)
    assert stages.contention == pytest.approx(0.5)
    assert stages.tokens == 20
    assert stages_of([answer(0.10)], [concurrent], PASSES, shared=True).contention == 1
    faster = answer(0.09, 0.05, 0.02, 0.04, (5, 2, 1), (6, 5, 3))
    assert stages_of([answer(0.10)], [faster], PASSES, shared=False).contention == 0


def test_answers_without_a_round_tell_nothing():
    with pytest.raises(CrossdraftError, match="measure more pairs"):
        stages_of(
            [answer(0.1)], [answer(0.1, drafted_at=(4,), accepted_at=(4,), hidden_drafted=4)], PASSES, shared=True
        )


def test_a_disturbed_pass_is_no_longer_than_a_wider_one():
    assert undisturbed([(1, 13.0), (2, 12.0), (4, 21.0), (8, 20.0)]) == [(1, 12.0), (2, 12.0), (4, 20.0), (8, 20.0)]


def test_a_quantised_pair_is_loaded_quantised():
    options = Pair(quantize="int8", draft_quantize="none").options
    assert (options.quantize, options.draft_quantize) == ("int8", "none")


def test_a_width_that_is_none_is_refused_before_loading(capsys):
    assert main(["plan", "--measure", "--draft-quantize", "int5"]) == 2
    assert "--draft-quantize" in capsys.readouterr().err


@pytest.mark.slow
def test_a_drafter_with_cores_of_its_own(pair):
    ticks = []
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("needs two cores")
    here = Pair(str(pair.target), str(pair.event), "cpu", "float32", cores=choose_cores())
    stages = measure_stages(here, 1, ticks.append)
    assert ticks == ["alone", "drafting"] * 2 + ["V(n)"]
    assert 0 < stages.alpha < 1
    assert stages.prefill > stages.step > 0
    assert stages.draft_prefill > 0
    assert os.sched_getaffinity(0) == allowed
