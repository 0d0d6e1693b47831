"""The soak: which answers it takes for right, and a short one of a tiny pair."""

import json
import random
import subprocess
from dataclasses import replace
from multiprocessing.forkserver import ensure_running
from pathlib import Path

import pytest

import crossdraft as cd
from crossdraft.engine.request import Finish
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.stats import Stats
from crossdraft.engine.target import Target
from crossdraft.engine.timeline import Timeline
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.resources import Leftovers, MemorySample
from crossdraft_lab.bench.soak import Ask, Mix, Soak, check, check_error, lines, report_of, run_soak

REQUEST = cd.Request("?", "clip.mp4", max_new_tokens=3)


def answer(tokens, finish=Finish.LENGTH, logprobs=None):
    return cd.Answer("", tuple(tokens), (), finish, Stats(), Timeline(), logprobs)


def ask(tokens=(1, 2, 3), **changes):
    given = {name: changes.pop(name) for name in ("cancel_s", "refusal") if name in changes}
    return Ask(0, replace(REQUEST, **changes), tokens, "submit", **given)


@pytest.mark.parametrize(
    ("asked", "found", "right"),
    [
        (ask(), answer([1, 2, 3]), True),
        (ask(), answer([1, 2, 4]), False),
        (ask(), answer([1, 2], Finish.EOS), False),
        (ask((1, 2)), answer([1, 2, 3]), False),
        (ask(), answer([1], Finish.CANCELLED), False),
        (ask(cancel_s=0.0), answer([1], Finish.CANCELLED), True),
        (ask(cancel_s=0.0), answer([], Finish.CANCELLED), True),
        (ask(cancel_s=0.0), answer([2], Finish.CANCELLED), False),
        (ask(cancel_s=0.0), answer([1, 2], Finish.EOS), False),
        (ask(max_time=0.1), answer([1], Finish.TIME), True),
        (ask(), answer([1], Finish.TIME), False),
        (ask(refusal="missing"), answer([1, 2, 3]), False),
        (ask(logprobs=True), answer([1, 2, 3], logprobs=(-1.0, -1.0, -1.0)), True),
        (ask(logprobs=True), answer([1, 2, 3], logprobs=(-1.0,)), False),
        (ask(None), answer([7, 8, 9]), True),
        (ask(None), answer([7, 8, 9, 9]), False),
        (ask(None), answer([]), False),
    ],
)
def test_which_answers_are_right(asked, found, right):
    assert check(asked, found).startswith("!") is not right


def test_which_errors_are_right():
    missing = CrossdraftError("There is no missing.mp4.")
    assert check_error(ask(refusal="missing.mp4"), missing) == "refused"
    assert check_error(ask(refusal="room for"), missing).startswith("!CrossdraftError: There is no")
    assert check_error(ask(), missing).startswith("!")


def test_a_mix_is_the_same_for_the_same_seed_and_has_its_shares(tmp_path):
    plan = Soak(tmp_path, requests=2000, cancelled=0.1, wrong=0.05)
    mix = Mix(plan, [(REQUEST, (1, 2, 3)), (replace(REQUEST, sampling=Sampling(temperature=1)), None)])
    asked = [mix[number] for number in range(plan.requests)]
    numbers = random.sample(range(plan.requests), 50)
    assert [mix[number] for number in numbers] == [asked[number] for number in numbers]
    assert sum(one.cancel_s is not None for one in asked) == pytest.approx(200, abs=60)
    assert sum(one.refusal is not None for one in asked) == pytest.approx(100, abs=40)
    assert len({one.request.priority for one in asked}) == 4
    assert mix[7] != Mix(replace(plan, seed=1), [(REQUEST, (1, 2, 3))])[7]


def report(samples, requests=1000, **changes):
    return report_of(requests, samples, **{"left": Leftovers(), **changes})


def test_memory_counts_after_the_first_fifth_while_the_drafter_runs():
    samples = [MemorySample(done, mib, 0.0, whole, 9) for done, mib, whole in (
        (100, 50.0, True), (200, 100.0, True), (500, 60.0, False), (600, 102.0, True), (900, 103.0, True),
    )]  # fmt: skip
    found = report(samples)
    assert found["memory"]["growth"] == found["memory"]["swing"] == pytest.approx(3 / 102, abs=1e-4)
    assert found["memory"]["range_mib"] == [100.0, 103.0]
    assert report(samples[:1])["memory"]["range_mib"] is None
    assert found["passed"]
    assert not report([*samples, MemorySample(950, 104.0, 0.0, True, 9)])["passed"]
    assert report([*samples, MemorySample(950, 104.0, 0.0, True, 9)], requests=900)["passed"]  # too few to say
    for wrong in ({"rows": 1}, {"failed": 1}, {"left": Leftovers(files=("x",))}):
        assert not report(samples, **wrong)["passed"]


def test_memory_that_requests_hold_for_a_moment_is_a_swing_and_what_stays_is_growth():
    swinging = [MemorySample(200 + done, 100.0 + 8 * (done % 2), 0.0, True, 9) for done in range(800)]
    found = report(swinging)
    assert (found["memory"]["growth"], found["passed"]) == (0.0, True)
    assert found["memory"]["swing"] == pytest.approx(8 / 104, abs=1e-4)
    # 8 MiB in all, a seventh less between medians.
    growing = [replace(one, parent_mib=one.parent_mib + one.done / 100) for one in swinging]
    assert report(growing)["memory"]["growth"] == pytest.approx(
        7 / 109, abs=2e-3
    )  # 8 MiB in all, a seventh less between medians
    assert not report(growing)["passed"]


def test_wrong_numbers_are_refused(tmp_path):
    for wrong in ({"requests": 0}, {"kills": -1}, {"cancelled": 0.8, "wrong": 0.3}, {"wrong": -0.1}):
        with pytest.raises(CrossdraftError):
            Soak(tmp_path, **wrong)


@pytest.fixture
def small(pair, tmp_path):
    ensure_running()  # the tests' own fork server would else be started in the soak, and left over
    return Soak(
        tmp_path, str(pair.target), str(pair.event), requests=60, threads=4, clips=3, kills=1, cancelled=0.2, wrong=0.2
    )


def test_sixty_requests_of_a_tiny_pair(small):
    ticks = []
    found = run_soak(replace(small, options=cd.Options(placement="process")), ticks.append)
    assert found["passed"], lines(found)
    assert sum(found["outcomes"].values()) == 60
    assert found["outcomes"]["refused"] > 2
    assert found["outcomes"]["as the target alone, length"] > 10
    assert found["memory"]["samples"]
    kept = json.loads((Path(__file__).parents[2] / "docs/results/soak.json").read_text())
    assert kept.keys() == found.keys()
    assert kept["memory"].keys() == found["memory"].keys()


def test_a_process_that_was_there_before_is_nothing_left_over(small):
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            left = run_soak(replace(small, drafter=None, kills=0, requests=5))["left"]
        finally:
            other.kill()
    assert not any(left.values())


def test_an_engine_that_answers_something_else_does_not_pass(small, monkeypatch):
    """From the round on in which requests share a pass, the target sees other tokens than were written."""
    extend = Target.extend

    def shifted(self, cache, rows):
        out = extend(self, cache, rows)
        return replace(out, logits=[logits.roll(1, -1) for logits in out.logits]) if len(rows) > 1 else out

    monkeypatch.setattr(Target, "extend", shifted)
    found = run_soak(replace(small, drafter=None, kills=0))
    assert not found["passed"]
    assert "the target alone writes" in found["failures"][0]
