"""What runs where: the one place where engines are assembled."""

import os
import time
from dataclasses import replace

import pytest

from crossdraft.assembly import assemble, decided, draft_cores, located
from crossdraft.drafters.ngram.drafter import NgramDrafter
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.errors import CrossdraftError
from crossdraft.methods import needs_target
from crossdraft.options import Options
from crossdraft.records import DrafterContext
from crossdraft.specs import parse
from tests.engine.zoo import ZOO, as_target

INLINE, PROCESS = Options(placement="inline"), Options(placement="process")
REQUESTS = [Request("x" * i, max_new_tokens=6 + 5 * i) for i in range(1, 4)]


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        ("eagle3", True),
        ("union:eagle2,memory", True),
        ("phased:event,eagle3", True),
        ("union:event,memory", False),
        ("phased:event_medusa,ngram", False),
    ],
)
def test_who_looks_into_the_target(spec, needs):
    assert needs_target(parse(spec)) is needs


@pytest.mark.parametrize(
    ("spec", "process"),
    [
        ("event", "event@process"),
        ("memory", "memory@process"),  # it was asked for
        ("eagle2", "eagle2"),
        ("union:event,memory", "(union:event,memory)@process"),  # nothing looks into the target: one process holds all
        ("union:event,eagle2", "union:event@process,eagle2"),
        ("union:memory,eagle2", "union:memory,eagle2"),  # a memory repays no core
        ("phased:event,eagle2", "phased:event@process,eagle2"),
        ("union:(phased:event,blind),eagle2", "union:(phased:event,blind)@process,eagle2"),
        ("union:event@inline,eagle2", "union:event@inline,eagle2"),
        ("union:event@process,memory@inline", "union:event@process,memory@inline"),
        ("union:event@process,memory", "union:event@process,memory"),
    ],
)
def test_every_part_runs_where_it_says_else_where_its_kind_belongs(spec, process):
    assert str(located(parse(spec), "process")) == process
    said = str(located(parse(spec), "inline"))
    assert said == str(parse(spec))  # nothing but what it says itself


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("eagle2@process", "'eagle2@process' looks into the target"),
        ("(union:event,eagle2)@process", "looks into the target"),
        ("(union:event@process,memory)@process", "one process would hold another"),
    ],
)
def test_what_cannot_run_there_is_refused(spec, why):
    with pytest.raises(CrossdraftError, match=why):
        located(parse(spec), "inline")


def test_auto_takes_a_process_for_a_network_of_its_own_where_there_are_two_cores():
    many = len(os.sched_getaffinity(0)) > 1
    on_cpu = Options(device="cpu")
    assert decided(on_cpu, parse("union:event,memory")).placement == ("process" if many else "inline")
    assert decided(on_cpu, parse("union:memory,ngram")).placement == "inline"
    assert decided(on_cpu, parse("model:dir=x")).placement == "inline"  # it reads what the target reads
    assert decided(on_cpu, None).placement == "inline"
    said = decided(on_cpu, parse("union:memory@process,ngram"))
    assert (said.placement, said.draft_cores is not None) == ("inline", many)
    assert decided(Options(device="cpu", hidden="before"), parse("event")).placement == "inline"
    with pytest.raises(CrossdraftError, match="hidden is 'before', which is for an inline drafter, and event@process"):
        decided(Options(hidden="before"), parse("event@process"))


def test_a_drafter_in_the_targets_process_has_no_cores_of_its_own():
    asked = Options(draft_cores=tuple(os.sched_getaffinity(0))[:1], placement="inline", device="cpu")
    with pytest.raises(CrossdraftError, match="draft_cores and placement exclude each other"):
        decided(asked, parse("event"))
    assert decided(asked, parse("event@process")) == decided(asked, None) == asked
    assert decided(replace(asked, placement="auto"), parse("ngram")).placement == "inline"  # it was not asked for


def test_cores_that_nobody_named_are_those_that_the_target_leaves():
    cores = tuple(sorted(os.sched_getaffinity(0)))
    assert draft_cores(Options()) is None
    assert draft_cores(Options(target_cores=cores[:1])) == (cores[1:] or cores)
    assert draft_cores(Options(target_cores=cores[:1], draft_cores=cores[-1:])) == cores[-1:]


@pytest.fixture(scope="module")
def target():
    return as_target(*ZOO["video_llava"]())


@pytest.fixture(scope="module")
def alone(target):
    return [answer.tokens for answer in DecodeLoop(target).generate(REQUESTS)]


@pytest.mark.parametrize(
    ("spec", "processes"),
    [
        ("ngram", 0),
        ("ngram@process", 1),
        ("union:ngram@process,memory", 1),
        ("union:memory@process,ngram@process", 2),
        ("phased:ngram@process,memory", 1),
        ("(union:ngram,memory)@process", 1),
    ],
)
def test_combinators_do_not_know_where_their_parts_run(target, alone, spec, processes):
    runner = assemble(parse(spec), DrafterContext(target=None), target, INLINE)
    try:
        workers = runner.workers
        assert (len(workers), {type(worker) for worker in workers}) == (
            processes,
            {ProcessDrafter} if processes else set(),
        )
        assert runner.needs.runs_in >= ({"process"} if processes else {"here"})
        found = DecodeLoop(target, runner, max_batch=2, adaptive=False).generate(REQUESTS)
        assert [answer.tokens for answer in found] == alone
        assert not any(answer.other_notes for answer in found)
        assert sum(answer.stats.drafted for answer in found) > 0
    finally:
        runner.close()


def test_one_lost_process_loses_the_drafter_and_a_restart_brings_it_back(target, alone):
    runner = assemble(parse("union:ngram@process,memory"), DrafterContext(target=None), target, INLINE)
    try:
        decoder = DecodeLoop(target, runner, adaptive=False)
        (worker,) = runner.workers
        os.kill(worker.pid, 9)
        deadline, notes = time.monotonic() + 60, ""
        while not notes and time.monotonic() < deadline:  # an answer may be over before the loss is seen
            (answer,) = decoder.generate(REQUESTS[:1])
            assert answer.tokens == alone[0]
            notes = " ".join(answer.other_notes)
        assert "target went on alone" in notes
        while runner.drafter is None and time.monotonic() < deadline:
            runner.resume()
            time.sleep(0.01)
        (answer,) = decoder.generate(REQUESTS[:1])
        assert (answer.tokens, answer.other_notes) == (alone[0], ())
    finally:
        runner.close()


def test_a_drafter_that_is_made_already_runs_here(target, alone):
    runner = assemble(NgramDrafter(), DrafterContext(target=None), target, PROCESS)
    assert (runner.workers, runner.needs.runs_in) == ((), {"here"})
    found = DecodeLoop(target, runner, adaptive=False).generate(REQUESTS)
    assert [answer.tokens for answer in found] == alone
