"""A rule chosen for the loop: it verifies, and the answer names it."""

from dataclasses import replace

import pytest

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError
from tests.engine.zoo import ZOO, as_target, noisy

COLD = Request("xx", max_new_tokens=24)
WARM = replace(COLD, sampling=Sampling(temperature=1.0, seed=0))


@pytest.fixture(scope="module")
def target():
    return as_target(*ZOO["video_llava"]())


@pytest.fixture(scope="module")
def stranger():
    model, prompt = ZOO["video_llava"]()
    return IndependentDrafter(as_target(noisy(model, 0.05), prompt))


def answer(target, drafter, rule, request):
    runner = DraftRunner(drafter, "before")
    return DecodeLoop(target, runner, rule=rule, adaptive=False).generate([request])[0]


def tau(answers):
    """Tokens a round, of all answers."""
    return sum(len(got.tokens) for got in answers) / sum(got.stats.rounds for got in answers)


@pytest.mark.parametrize(
    ("rule", "request_", "spec"),
    [(None, COLD, "greedy"), (None, WARM, "gumbel"), ("rejection", WARM, "rejection"), ("block", WARM, "block")],
)
def test_an_answer_names_its_lossless_rule(target, stranger, rule, request_, spec):
    stats = answer(target, stranger, rule, request_).stats
    assert (stats.rule, stats.lossless) == (spec, True)
    assert (stats.to_json()["rule"], stats.to_json()["lossless"]) == (spec, True)


@pytest.mark.parametrize(
    ("rule", "request_", "spec"),
    [
        ("relaxed:r=1000000", COLD, "relaxed:r=1000000"),
        ("typical:eps=0", WARM, "typical:eps=0.0,delta=0.3"),
        ("fuzzy:threshold=0.69", WARM, "fuzzy:threshold=0.69"),
        ("ensemble:w=0.01", WARM, "ensemble:w=0.01"),
        ("ears:tolerance=1", WARM, "ears:tolerance=1.0"),
        ("judi:threshold=9,confidence=1", WARM, "judi:threshold=9.0,confidence=1.0"),
    ],
)
def test_an_answer_names_its_lossy_rule_which_keeps_what_an_exact_one_would_not(target, stranger, rule, request_, spec):
    requests = [replace(request_, sampling=replace(request_.sampling, seed=seed)) for seed in range(4)]
    if request_.sampling.greedy:
        requests = [request_]
    lossy = [answer(target, stranger, rule, request) for request in requests]
    exact = [answer(target, stranger, None, request) for request in requests]
    assert {(got.stats.rule, got.stats.lossless) for got in lossy} == {(spec, False)}
    assert tau(lossy) > tau(exact)
    assert [got.tokens for got in lossy] != [got.tokens for got in exact]


def test_a_wrong_rule_is_refused_before_anything_is_read(target, stranger):
    with pytest.raises(CrossdraftError, match="no acceptance rule 'greddy' \\(did you mean 'greedy'"):
        answer(target, stranger, "greddy", COLD)
    with pytest.raises(CrossdraftError, match="'typical' does not fit temperature 0"):
        answer(target, stranger, "typical", COLD)
    assert answer(target, stranger, None, COLD).stats.rounds > 0  # the drafter is none the worse
