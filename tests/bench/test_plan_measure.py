"""Stages out of answers whose times are known."""

import os

import pytest

from crossdraft.cli.cores import choose_cores
from crossdraft.cli.main import main
from crossdraft.engine.request import Answer, Finish
from crossdraft.engine.stats import Stats
from crossdraft.engine.timeline import Span, Timeline
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.plan_measure import Pair, measure_stages, stages_of, undisturbed

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
