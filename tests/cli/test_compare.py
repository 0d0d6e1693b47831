"""`--compare` must notice a difference: answers with a planted one."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from crossdraft.api import Engine, Options, Request
from crossdraft.cli.compare import AnswerComparison, compare, find_difference, summarise
from crossdraft.engine.sampling import Sampling


@pytest.fixture(scope="module")
def engine(pair):
    with Engine.load(str(pair.target), str(pair.event), Options(device="cpu")) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def request_(clip):
    return Request("Describe the road.", clip.video, clip.events, max_new_tokens=12)


def test_the_same_tokens_are_identical(engine, request_):
    found = compare(engine, request_, engine.generate(request_), repeats=1)
    assert found.identical
    assert found.difference is None
    assert found.alone_ms > 0 < found.drafted_ms
    assert "the tokens are identical" in found.sentence()


def test_a_planted_difference_shows(engine, request_):
    answer = engine.generate(request_)
    wrong = (answer.tokens[3] + 1) % 256
    planted = replace(answer, tokens=(*answer.tokens[:3], wrong, *answer.tokens[4:]))
    found = compare(engine, request_, planted, repeats=1)
    assert found.identical is False
    assert found.difference is not None
    assert found.difference.position == 3
    assert found.difference.gap > 0
    assert found.difference.drafted == engine.target.decode([wrong])
    assert "the tokens DIFFER from token 3 on" in found.sentence()


def planted(answer, position=3):
    wrong = (answer.tokens[position] + 1) % 256
    return replace(answer, tokens=(*answer.tokens[:position], wrong, *answer.tokens[position + 1 :]))


def test_every_run_is_compared_with_every_other_and_not_only_the_first(engine, request_):
    answer = engine.generate(request_)
    for at in range(3):
        drafted = [answer] * 3
        drafted[at] = planted(answer)
        found = summarise(engine, request_, [answer] * 3, drafted, answer)
        assert found.identical is False
        assert found.notes == ()


def test_a_target_that_does_not_repeat_itself_shows_and_is_named(engine, request_):
    answer = engine.generate(request_)
    found = summarise(engine, request_, [answer, planted(answer, 5)], [answer] * 2, answer)
    assert found.identical is False
    assert (found.difference.position, found.repeats) == (5, 2)
    assert found.difference.drafted == engine.target.decode(answer.tokens[5:6])
    assert "The target alone did not repeat its own tokens either." in found.sentence()


def test_a_note_that_runs_repeat_with_other_figures_is_said_once(engine, request_):
    said = "Drafting did not pay in {} of 40 rounds."
    first, *runs = (
        replace(engine.generate(request_), notes=(said.format(count), *more))
        for count, more in ((35, ()), (36, ()), (37, ("A frame is damaged.",)), (38, ("A frame is damaged.",)))
    )
    assert summarise(engine, request_, [first], runs, first).notes == ("A frame is damaged.",)
    plain = engine.generate(request_)
    assert summarise(engine, request_, [plain], runs[:1] * 2, plain).notes == (said.format(36),)


def test_sampled_answers_are_neither_identical_nor_not(engine, request_):
    sampled = replace(request_, sampling=Sampling(temperature=1.0))
    answer = engine.generate(sampled)
    found = summarise(engine, sampled, [answer, planted(answer)], [planted(answer, 2)], answer)
    assert found.identical is found.difference is None
    assert found.notes == ()
    assert "identical" not in found.sentence()
    assert "DIFFER" not in found.sentence()


def test_an_answer_that_ends_early_differs_where_it_ends(engine, request_):
    tokens = engine.generate(request_).tokens
    found = find_difference(engine.target, request_, tokens, tokens[:5])
    assert (found.position, found.drafted) == (5, "")
    assert found.alone == engine.target.decode(tokens[5:6])


def test_a_lossy_rule_is_named_and_the_target_alone_is_verified_exactly(pair, clip):
    request = Request("Describe the road.", clip.video, clip.events, max_new_tokens=12)
    options = Options(placement="inline", device="cpu", rule="relaxed:r=4000", adaptive=False)
    with (
        Engine.load(str(pair.target), str(pair.event), options) as engine,
        Engine.load(str(pair.target), None, Options(device="cpu")) as exact,
    ):
        answer, own = engine.generate(request), exact.generate(request)
        found = compare(engine, request, answer, repeats=1)
    assert answer.tokens != own.tokens  # whatever is drafted is accepted
    assert found.identical is False
    assert found.lossy is not None
    assert "verified by the lossy rule 'relaxed" in found.sentence()
    assert "The target alone did not repeat" not in found.sentence()


@pytest.mark.parametrize("spec", ["memory", "union:memory,ngram"])
def test_the_headline_of_a_drafter_that_learns_is_its_first_answer(pair, clip, spec, monkeypatch):
    request, runs = Request("Describe the road.", clip.video, max_new_tokens=24), []
    monkeypatch.setattr("crossdraft.cli.compare.saying", lambda _: nullcontext(runs.append))
    options = Options(placement="inline", device="cpu", adaptive=False)
    with Engine.load(str(pair.target), spec, options) as engine:
        answer = engine.generate(request)
        found = compare(engine, request, answer, repeats=2)
    assert found.drafted is answer
    assert found.drafted_ms == 1e3 * answer.stats.total_s
    assert found.learned.tau > answer.stats.tau
    first, second = found.sentence().splitlines()
    assert "its first answer" in first
    assert second.startswith("What it has learned: asked the same again, ")
    assert set(found.to_json()["learned"]) == {"speedup", "drafted_ms", "tau"}
    assert "the target alone, run 2 of 2" in runs
    assert "with the drafter, run 1 of 2" in runs


def test_the_target_alone_is_named_with_all_cores_that_it_was_tried_on():
    found = AnswerComparison(True, None, 1.5, 30.0, 20.0, 3, cores=(0,), compared_cores=(1, 2))
    assert "30 ms alone on 1, the faster of 1 and 2 cores, " in found.sentence()
    assert found.to_json()["compared_cores"] == (1, 2)


def test_a_time_is_rounded_once():
    """Else it differs by a millisecond from the same time in the figures beside it."""
    found = AnswerComparison(
        identical=True, difference=None, speedup=1.0, alone_ms=37.4961, drafted_ms=37.4949, repeats=1
    )
    assert "(37 ms alone, 37 ms with the drafter)" in found.sentence()
    assert (found.to_json()["alone_ms"], found.to_json()["drafted_ms"]) == (37.5, 37.49)
