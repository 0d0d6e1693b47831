"""A drafter in a process of its own: same tokens, and an answer even if the process dies, hangs or refuses."""

import gc
import os
import pickle
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from crossdraft.drafters.base import PerRequestDrafter
from crossdraft.drafters.event.load import load_drafter
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.fast.elastic import poll
from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.ledger import READING
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.policy import SpeculationPolicy
from crossdraft.engine.request import Origin, Request
from crossdraft.engine.runner import child
from crossdraft.engine.runner import process as runner_process
from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.engine.runner.restarts import Restarts
from crossdraft.engine.runner.runner import DrafterLost, DraftRunner
from crossdraft.engine.runner.wire import pack_draft, unpack_draft
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, read_events
from crossdraft.load import load_target
from crossdraft.video import sample_frames
from tests.engine.late_target import wait_for
from tests.engine.runner.numbered import NumberedRunner
from tests.support import failing, until

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: none can be spare")
QUESTIONS = ("what is the car doing?", "is there a red light?", "where is the car?")


@pytest.fixture(scope="module")
def target(pair):
    return load_target(str(pair.target))


@pytest.fixture(scope="module")
def requests(clip):
    return [
        Request(question, str(clip.video), str(clip.events), max_new_tokens=24 + 4 * i)
        for i, question in enumerate(QUESTIONS)
    ]


@pytest.fixture(scope="module")
def alone(target, requests):
    return [answer.tokens for answer in DecodeLoop(target).generate(requests)]


@pytest.fixture(scope="module")
def factory(pair, target):
    return partial(load_drafter, str(pair.event), banned=tuple(sorted(target.reserved)))


def start_process(factory, **options) -> ProcessDrafter:
    return ProcessDrafter(factory, [max(os.sched_getaffinity(0))], drafter_timeout_s=60, drain_timeout_s=60, **options)


@pytest.fixture(scope="module")
def shared_process(factory):
    """Holds the process of the tests so far, as long as none of them has ended it."""
    held: list[ProcessDrafter] = []
    yield held
    for drafter in held:
        drafter.close()


@pytest.fixture
def process(shared_process, factory):
    """A drafter's process that drafts for no request."""
    drafter = shared_process.pop() if shared_process else start_process(factory)
    yield drafter
    drafter.drafter_timeout_s = drafter.drain_timeout_s = 60
    try:
        drafter.end([*drafter._states.values()])
        drafter._fetch(drafter._ask("propose", []), 5)  # answered after all that was asked before
    except (DrafterLost, TimeoutError):
        drafter.close()
    else:
        drafter._spans, drafter._open, drafter._replies = [], {}, {}
        shared_process.append(drafter)


@pytest.fixture
def runner(process):
    return run(process)


def run(drafter: ProcessDrafter, restarts: Restarts | None = None) -> NumberedRunner:
    return NumberedRunner(drafter, workers=[drafter], restarts=restarts)


@pytest.mark.parametrize("batch", [1, 3])
def test_answers_are_the_targets_own_and_drafted_during_its_prefill(
    target, process, requests, alone, batch, monkeypatch
):
    wait_for(monkeypatch, process)
    pieces = []
    found = DecodeLoop(target, run(process), max_batch=batch, adaptive=False, on_piece=pieces.append).generate(requests)
    assert [answer.tokens for answer in found] == alone
    assert sum(answer.stats.accepted for answer in found) > 0
    target_reads = [span for span in found[0].timeline.spans if span.name in READING]
    for answer in found:
        drafter = [span for span in answer.timeline.spans if span.name in ("read", "hidden draft")]
        assert [span.name for span in drafter] == ["read", "hidden draft"]
        if answer is found[0]:  # those after it are read while it is answered
            assert all(sum(span.overlap(part.start, part.end) for part in target_reads) > 0 for span in drafter)
    assert found[0].stats.hidden_share > 0.5
    shown = sum(len(piece.tokens) for piece in pieces if piece.origin is Origin.PROVISIONAL)
    spans = [span for answer in found for span in answer.timeline.spans if span.name == "hidden draft"]
    assert shown == sum(span.tokens for span in spans) > 0
    assert not any(answer.other_notes for answer in found)


def test_a_hidden_draft_that_came_late_is_handed_over(process, requests):
    """For a caller that waits for nothing and has committed nothing meanwhile."""
    process.drain_timeout_s = 0.0
    (state,) = process.begin(requests[:1])
    wanted = threading.Event()
    proposal = process.propose_async([state], [Budget(8, until=wanted)])
    wanted.set()
    (draft,) = proposal()
    end = time.monotonic() + 60
    while state.hidden is not None and time.monotonic() < end:
        draft = process.late_hidden(state) or draft
        time.sleep(0.001)
    assert state.hidden is None
    process.commit([state], [VerifyOutput((), (draft.tree.tokens or (65,))[:1])])
    assert len(process.propose([state], [Budget(4)])[0].tree)


@needs_two_cores
def test_the_drafters_core_is_spare_while_it_has_nothing_to_do(process, runner, requests):
    core = (max(os.sched_getaffinity(0)),)
    assert until(lambda: process.spare_cores() == core)
    os.kill(process.pid, signal.SIGSTOP)
    runner.start(0, requests[0], 4, "beside")
    assert process.spare_cores() == ()
    os.kill(process.pid, signal.SIGCONT)
    assert until(lambda: process.spare_cores() == core)
    assert len(runner.collect(0).tree) == 4


@needs_two_cores
def test_the_target_runs_on_both_cores_while_the_drafter_idles(target, runner, requests, alone):
    threads = []
    hook = target.model.get_output_embeddings().register_forward_pre_hook(
        lambda *_: threads.append(torch.get_num_threads())
    )
    try:
        with pinned((min(os.sched_getaffinity(0)),)):
            found = DecodeLoop(target, runner).generate(requests)
            assert torch.get_num_threads() == 1
    finally:
        hook.remove()
    assert [answer.tokens for answer in found] == alone
    assert max(threads) == 2


class ThreadCounter(PerRequestDrafter[list[int]]):
    """Drafts the number of threads that its operations have, in a twentieth of a second."""

    needs = Needs()

    def _begin(self, request: Request) -> list[int]:
        return []

    def _propose(self, state: list[int], budget: Budget) -> Draft:
        end = time.perf_counter() + 0.05
        while time.perf_counter() < end:
            poll()
            state.append(torch.get_num_threads())
        return Draft(DraftTree.chain([max(state)]))

    def _commit(self, state: list[int], output: VerifyOutput) -> None:
        state.clear()


@needs_two_cores
@pytest.mark.parametrize(
    ("lent", "least_s", "threads"), [(True, 0.01, [1, 2, 2]), (False, 0.01, [1, 1, 1]), (True, 60.0, [1, 1, 1])]
)
def test_the_targets_cores_serve_a_slow_drafter_that_it_waits_for(lent, least_s, threads, monkeypatch):
    monkeypatch.setattr(runner_process, "LENDING_S", least_s)
    cores = sorted(os.sched_getaffinity(0))
    drafter = ProcessDrafter(ThreadCounter, cores[-1:], lent_cores=cores[:1] if lent else None)
    try:
        (state,) = drafter.begin([Request("?", np.zeros((1, 4, 4, 3), np.uint8))])
        found = []
        for _ in threads:
            (draft,) = drafter.propose([state], [Budget(1)])
            found.append(draft.tree.tokens[0])
            drafter.commit([state], [VerifyOutput((), (9,))])
        assert found == threads
    finally:
        drafter.close()


def drafted_ahead(process, state) -> tuple[int, ...]:
    """The next draft, of up to four tokens, as far as it is here; the child has all the time for another."""
    (draft,) = process.propose([state], [Budget(4, wait_s=0.0)])
    assert until(lambda: process._sort_all() or state.asked is None or state.asked in process._replies)
    return draft.tree.tokens


def test_drafts_that_nobody_waits_for_are_made_for_the_text_that_is_to_come(process, requests):
    known, state = process.begin([requests[0], requests[0]])
    (whole,) = process.propose([known], [Budget(14)])
    text = whole.tree.tokens
    assert drafted_ahead(process, state) == ()
    process.commit([state], [VerifyOutput((), text[:1])])  # the target went on alone meanwhile
    assert drafted_ahead(process, state) == text[1:5]
    process.commit([state], [VerifyOutput((0, 1, 2, 3), text[1:6])])
    assert drafted_ahead(process, state) == text[6:10]
    process.commit([state], [VerifyOutput((0,), (text[6], 9))])  # a rejection
    assert drafted_ahead(process, state) == ()
    (draft,) = process.propose([state], [Budget(4, wait_s=0.0)])
    assert len(draft.tree) == 4
    assert "ahead" in {span.name for span in draft.spans}


def test_a_draft_that_is_still_made_is_not_asked_for_again(process, runner, requests):
    runner.start(0, requests[0], 4, "beside")
    serial = process._serial
    assert len(runner.ask([0], [Budget(4, wait_s=0.0)])()[0].tree) == 0  # it still reads
    assert process._serial == serial
    runner.collect(0)
    runner.commit([0], [VerifyOutput((), (9,))])
    assert until(process.spare_cores)
    os.kill(process.pid, signal.SIGSTOP)
    for _ in range(3):
        assert len(runner.ask([0], [Budget(4, wait_s=0.0)])()[0].tree) == 0
        assert process._serial == serial + 1
    os.kill(process.pid, signal.SIGCONT)


def test_drawn_drafts_are_not_made_where_nobody_waits(process, requests):
    """Those that end early would come in time and others not."""
    (state,) = process.begin([replace(requests[0], sampling=Sampling(temperature=1.0))])
    serial = process._serial
    assert drafted_ahead(process, state) == ()
    assert process._serial == serial


@pytest.mark.parametrize("batch", [1, 3])
def test_answers_whose_drafts_nobody_waits_for_are_the_targets_own(
    target, process, requests, alone, batch, monkeypatch
):
    wait_for(monkeypatch, process)
    plan = SpeculationPolicy.plan_round

    def unawaited(self, *given):
        made = plan(self, *given)
        return replace(made, budget=replace(made.budget, wait_s=0.0))

    monkeypatch.setattr(SpeculationPolicy, "plan_round", unawaited)
    decoding = DecodeLoop(target, run(process), max_batch=batch, adaptive=False, nodes=4, hidden_nodes=2)
    found = decoding.generate(requests)
    assert [answer.tokens for answer in found] == alone
    assert all(answer.stats.accepted > 2 for answer in found)
    assert not any(answer.other_notes for answer in found)


def drawn_behind_its_first_word(process, runner, request, *, late: bool) -> bool:
    """Whether what a sampled answer's hidden draft said after its first word is what is drafted next."""
    nodes, first = 6, ()
    while len(first) < 3:  # where all words are as likely, an end may be drawn early
        if first:
            runner.end(0)
        runner.start(0, request, nodes, "beside")
        serial = state_of(runner).hidden
        reply = process._fetch(serial, 60)
        process._replies[serial] = "answer", reply
        first = unpack_draft(reply if late else pack_draft(runner.collect(0))).tree.tokens
        assert first
    runner.commit([0], [VerifyOutput((0,) if not late else (), first[:1])])
    after = runner.ask([0], [Budget(nodes)])()[0].tree.tokens
    runner.end(0)
    return after[: len(first) - 1] == first[1:]


def test_a_sampled_draft_that_was_not_waited_for_is_not_drafted_on(process, runner, requests):
    """That it took long says something of what was drawn; see `ServedRequest.missed`."""
    request = replace(requests[0], sampling=Sampling(temperature=50.0))  # told no seed, it draws by numbers of its own
    assert drawn_behind_its_first_word(process, runner, request, late=False)
    assert not drawn_behind_its_first_word(process, runner, request, late=True)
    assert drawn_behind_its_first_word(process, runner, requests[0], late=True)  # greedy: it would say the same again


def state_of(runner: DraftRunner, request_id: int = 0):
    return runner._slots[request_id].state


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"])
def test_a_lost_drafter_costs_nothing_but_time(target, process, runner, requests, alone, blow):
    pid = process.pid
    decoding = DecodeLoop(target, runner, adaptive=False, nodes=2, hidden_nodes=1)
    request_id = decoding.submit(requests[2])
    for _ in range(3):
        decoding.step()
    process.drafter_timeout_s = 0.5
    os.kill(pid, blow)
    while decoding.busy:
        decoding.step()
    assert "target went on alone" in the_one_note(decoding.answer(request_id), alone[2])
    assert decoding.drafter.drafter is None
    assert decoding.generate(requests[:1])[0].tokens == alone[0]


def the_one_note(answer, tokens):
    """The answer is the target's own, and says one thing about its drafter."""
    assert answer.tokens == tokens
    (note,) = answer.other_notes
    return note


def test_a_process_that_ended_is_not_alive_though_no_request_has_met_its_end(process, runner):
    assert runner.alive
    os.kill(process.pid, signal.SIGKILL)
    end = time.monotonic() + 20
    while runner.alive:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert runner.drafter is process


def test_a_drafter_that_dies_before_the_prefill_is_over(target, process, runner, requests, alone):
    os.kill(process.pid, signal.SIGKILL)
    time.sleep(0.1)
    answer = DecodeLoop(target, runner).generate(requests[:1])[0]
    assert answer.tokens == alone[0]
    assert answer.other_notes


def test_what_one_request_lacks_ends_drafting_for_that_request_alone(target, runner, requests, alone):
    decoding = DecodeLoop(target, runner, max_batch=2)
    bad = replace(requests[0], events="nowhere.h5")
    answer, good = decoding.generate([bad, requests[1]])
    assert "nowhere.h5" in the_one_note(answer, alone[0])
    assert (good.tokens, good.other_notes) == (alone[1], ())
    assert runner.drafter is not None


def test_a_refusal_after_the_answer_has_begun_is_a_note(target, process, runner, requests, alone, tmp_path):
    """The worker is held until the target has read; what it then cannot read does not end the answer."""
    broken = tmp_path / "broken.h5"
    broken.write_bytes(b"no recording")
    process.drain_timeout_s = 0.0
    os.kill(process.pid, signal.SIGSTOP)
    decoding = DecodeLoop(target, runner, adaptive=False)
    request_id = decoding.submit(replace(requests[2], events=str(broken)))
    for _ in range(3):
        decoding.step()
    os.kill(process.pid, signal.SIGCONT)
    time.sleep(0.5)
    while decoding.busy:
        decoding.step()
    assert "broken.h5" in the_one_note(decoding.answer(request_id), alone[2])
    process.drain_timeout_s = 60
    assert decoding.generate(requests[:1])[0].other_notes == ()  # the drafter itself is well


def test_a_long_prefill_does_not_make_a_drafter_hang(process, runner, requests):
    """Patience counts from the stop signal, not from the start of a prefill that may take minutes."""
    process.drafter_timeout_s, process.drain_timeout_s = 0.2, 0.0
    os.kill(process.pid, signal.SIGSTOP)
    runner.start(0, requests[0], 4, "beside")
    time.sleep(0.4)
    assert len(runner.collect(0).tree) == 0
    os.kill(process.pid, signal.SIGCONT)
    process.drafter_timeout_s = 60
    while not len(runner.ask([0], [Budget(3)])()[0].tree):
        time.sleep(0.05)


def test_tensors_in_a_request_stay_behind(target, runner, requests, alone):
    frames = sample_frames(requests[0].video).frames
    decoding = DecodeLoop(target, runner, adaptive=False)
    answer = decoding.generate([replace(requests[0], video=frames)])[0]
    assert answer.other_notes == ()
    assert answer.tokens == alone[0]
    assert answer.stats.accepted > 0


def test_a_child_that_never_got_its_drafter_is_ended():
    before = drafters_processes()
    with pytest.raises((pickle.PicklingError, AttributeError)):
        ProcessDrafter(lambda: None)
    assert not drafters_processes() - before


def drafters_processes() -> set[str]:
    """Ids of this process's children that run a drafter."""
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        ids = file.read().split()
    return {i for i in ids if "crossdraft.engine.runner" in Path(f"/proc/{i}/cmdline").read_text()}


def test_a_drafter_that_cannot_be_loaded_is_refused_at_once(tmp_path):
    with pytest.raises(CrossdraftError, match="lacks"):
        ProcessDrafter(partial(load_drafter, str(tmp_path)))


def test_a_worker_that_cannot_start_is_said_not_awaited(fresh_processes, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CrossdraftError, match="could not be started"):
        ProcessDrafter(partial(load_drafter, "event"))


def test_one_that_the_system_does_not_start_is_one_sentence(fresh_processes, monkeypatch):
    monkeypatch.setattr(child.subprocess, "Popen", failing(BlockingIOError(11, "Resource temporarily unavailable")))
    with pytest.raises(CrossdraftError, match=r"could not be started \(Resource temporarily unavailable\)"):
        ProcessDrafter(list)


def test_the_target_does_not_wait_for_a_slow_reader(target, process, runner, requests, alone):
    process.drain_timeout_s = 0.0
    os.kill(process.pid, signal.SIGSTOP)
    decoding = DecodeLoop(target, runner, adaptive=False)
    request_id = decoding.submit(requests[2])
    for _ in range(4):
        decoding.step()
    os.kill(process.pid, signal.SIGCONT)
    time.sleep(1.0)  # it reads the request and catches up with the four commits
    while decoding.busy:
        decoding.step()
    answer = decoding.answer(request_id)
    assert answer.tokens == alone[2]
    assert answer.stats.drafted > 0
    assert answer.other_notes == ()


def test_a_stale_reply_is_dropped(runner, requests):
    """A question whose answer was never awaited (Ctrl-C) must not answer the next one."""
    runner.start(0, requests[0], 4, "beside")
    runner.start(1, requests[1], 6, "beside")
    assert len(runner.collect(1).tree) <= 6
    assert len(runner.ask([1], [Budget(3)])()[0].tree) == 3


def heavy(request: Request) -> Request:
    """With megabytes of events: the last one over and over."""
    events = read_events(request.events)
    parts = (np.pad(part, (0, 400_000), "edge") for part in (events.x, events.y, events.t, events.p))
    return replace(request, events=Events(*parts, events.width, events.height))


def test_a_large_request_is_not_waited_for(process, runner, requests):
    """The child is held, so it takes nothing from the socket; the target goes on reading, and nothing is lost."""
    os.kill(process.pid, signal.SIGSTOP)
    large = replace(heavy(requests[0]), video=None, inputs=None, namespace="x" * 5_000_000)
    starting = threading.Thread(target=runner.start, args=(0, large, 4, "beside"), daemon=True)
    starting.start()
    starting.join(20)
    held = starting.is_alive()
    os.kill(process.pid, signal.SIGCONT)
    assert not held
    assert len(runner.collect(0).tree) <= 4
    assert len(runner.ask([0], [Budget(4)])()[0].tree) > 0


def test_who_is_interrupted_while_a_request_is_on_its_way_writes_nothing_into_it(process, runner, requests):
    """Ctrl-C in `collect`, and the end of the request after it: the arrays arrive whole all the same."""
    os.kill(process.pid, signal.SIGSTOP)
    runner.start(0, heavy(requests[0]), 4, "beside")
    before = signal.signal(signal.SIGALRM, failing(KeyboardInterrupt))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            runner.collect(0)
    finally:
        signal.signal(signal.SIGALRM, before)
    threading.Timer(0.3, os.kill, (process.pid, signal.SIGCONT)).start()
    runner.end(0)
    runner.start(1, requests[1], 4, "beside")
    runner.collect(1)
    assert len(runner.ask([1], [Budget(3)])()[0].tree) == 3


def test_a_child_that_takes_nothing_is_given_up(process, runner, requests, monkeypatch):
    monkeypatch.setattr(process, "drafter_timeout_s", 0.2)
    monkeypatch.setattr(process, "drain_timeout_s", 0.3)
    os.kill(process.pid, signal.SIGSTOP)
    runner.start(0, heavy(requests[0]), 4, "beside")
    assert len(runner.collect(0).tree) == 0
    assert "made no progress" in runner.absence


def test_a_draft_is_waited_for_as_long_as_it_can_save(process, runner, requests):
    """A child that hangs costs one such wait; nothing more is asked until its reply is here, which is then dropped."""
    runner.start(0, requests[0], 4, "beside")
    runner.collect(0)
    runner.commit([0], [VerifyOutput((), (9,))])
    os.kill(process.pid, signal.SIGSTOP)
    assert runner.ask([0], [Budget(3, wait_s=0.05)])()[0] == Draft(DraftTree.empty())
    serial = process._serial
    assert runner.ask([0], [Budget(3, wait_s=30.0)])()[0] == Draft(DraftTree.empty())
    assert process._serial == serial  # nobody was asked, nobody was waited for
    runner.commit([0], [VerifyOutput((), (8,))])
    os.kill(process.pid, signal.SIGCONT)
    while not len(runner.ask([0], [Budget(3)])()[0].tree):
        time.sleep(0.01)
    assert process._serial == serial + 1


def test_what_was_drawn_and_came_too_late_ends_drafting_for_that_request(process, runner, requests, monkeypatch):
    monkeypatch.setattr("crossdraft.engine.runner.process.LONGEST_WAIT_S", 0.05)
    sampled = replace(requests[0], sampling=Sampling(temperature=1.0))
    runner.start(0, sampled, 4, "beside")
    runner.start(1, requests[1], 4, "beside")
    for request_id in (0, 1):
        runner.collect(request_id)
        runner.commit([request_id], [VerifyOutput((), (9,))])
    os.kill(process.pid, signal.SIGSTOP)
    drawn, greedy = runner.ask([0, 1], [Budget(3, wait_s=0.05)] * 2)()
    os.kill(process.pid, signal.SIGCONT)
    assert "came too late" in drawn.refusal
    assert greedy == Draft(DraftTree.empty())
    assert len(runner.ask([0], [Budget(3)])()[0].tree) == 0  # nor is it asked again
    assert "came too late" in runner._slots[0].row.drafter_error


def test_who_is_silent_too_long_is_lost_though_nobody_waits(process, runner, requests):
    process.drafter_timeout_s, process.drain_timeout_s = 0.3, 0.01
    os.kill(process.pid, signal.SIGSTOP)
    runner.start(0, requests[0], 4, "beside")
    assert runner.collect(0) == Draft(DraftTree.empty())
    runner.end(0)  # the answer was shorter than that
    time.sleep(0.4)
    runner.start(1, requests[1], 4, "beside")
    runner.collect(1)
    assert "within 0.3 s" in runner.absence


def test_a_slow_reader_skips_what_is_over(process, runner, requests):
    process.drafter_timeout_s, process.drain_timeout_s = 60, 0.01
    os.kill(process.pid, signal.SIGSTOP)
    for request_id in range(5):
        runner.start(request_id, requests[0], 4, "beside")
        runner.collect(request_id)
        runner.end(request_id)
    os.kill(process.pid, signal.SIGCONT)
    runner.start(9, requests[1], 4, "beside")
    while not len(runner.ask([9], [Budget(3)])()[0].tree):
        time.sleep(0.05)
    assert [span.name for span in runner.spans(9)].count("read") == 1


def test_a_restarted_one_is_a_new_process_and_drafts(process, runner, requests, target, alone):
    before = process.pid
    os.kill(before, signal.SIGKILL)
    again = run(process, Restarts(1, backoff_s=0.0))
    again.lose("it was killed")
    assert until(lambda: again.resume() or again.drafter)
    try:
        (answer,) = DecodeLoop(target, again, adaptive=False).generate(requests[:1])
        assert (answer.tokens, answer.other_notes) == (alone[0], ())
        assert answer.stats.accepted > 0
        assert process.pid != before
    finally:
        again.close()


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.4, 1.0, 2.0])
def test_closing_while_it_is_restarted_leaves_no_process_and_no_thread(factory, after_s):
    drafter = start_process(factory)
    os.kill(drafter.pid, signal.SIGKILL)
    runner = run(drafter, Restarts(3, backoff_s=0.0))
    runner.lose("it was killed")
    time.sleep(after_s)  # not begun, starting, loading, or there
    runner.close()
    assert not [one for one in threading.enumerate() if one.name == "drafter-restart"]
    with pytest.raises(ProcessLookupError):
        os.kill(drafter.pid, 0)


def test_one_that_is_closed_while_its_process_starts_is_not_loaded(factory, monkeypatch, capfd):
    drafter = start_process(factory)
    start = runner_process.start_child

    def closed_meanwhile(cores):
        started = start(cores)
        drafter.close()
        return started

    monkeypatch.setattr(runner_process, "start_child", closed_meanwhile)
    with pytest.raises(CrossdraftError, match="is closed"):
        drafter.restart()
    assert not drafter.alive
    assert "Traceback" not in capfd.readouterr().err


def babbling(folder: str, banned: tuple[int, ...]):
    """In the child: a drafter whose messages are damaged on their way out."""
    from crossdraft.engine.runner import worker
    from tests.engine.test_checks import damaged

    pack, rng = worker.pack_draft, random.Random(0)
    worker.pack_draft = lambda *made: damaged(pack(*made), rng) if rng.random() < 0.7 else pack(*made)
    return load_drafter(folder, banned=banned)


def test_damaged_messages_of_a_process_cost_drafts_and_no_answer(pair, target, requests, alone):
    factory = partial(babbling, str(pair.event), tuple(sorted(target.reserved)))
    drafter = ProcessDrafter(factory, drafter_timeout_s=60, drain_timeout_s=60)
    try:
        found = DecodeLoop(target, run(drafter), max_batch=2, adaptive=False, nodes=2).generate(requests * 3)
    finally:
        drafter.close()
    assert [answer.tokens for answer in found] == alone * 3
    assert sum(answer.stats.bad_drafts for answer in found) > 5
    assert sum(answer.stats.accepted for answer in found) > 0


def test_closing_ends_the_child(process, runner):
    process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    runner.start(0, Request("x"), 1, "beside")
    assert runner.drafter is None


def test_arrays_of_any_size_reach_the_child_and_what_follows_is_not_taken_for_one(runner, requests, alone, target):
    events = read_events(requests[0].events)
    runner.start(9, replace(requests[0], events=events.slice(0, 0)), 4, "beside")  # nothing to see in it
    with suppress(CrossdraftError):
        runner.collect(9)
    runner.end(9)
    for request, tokens in zip(requests, alone, strict=True):
        (answer,) = DecodeLoop(target, runner, adaptive=False).generate([replace(request, events=events)])
        assert answer.tokens == tokens
        assert answer.stats.accepted > 0


class Counted:
    """In the child: writes how many states it was begun the end of, after what is committed."""

    needs = Needs()

    def __init__(self) -> None:
        self.ended = 0

    def begin(self, requests):
        return [[0] for _ in requests]

    def propose(self, states, budgets):
        return [Draft(DraftTree.chain([*state[-1:], 100 + self.ended])) for state in states]

    def commit(self, states, outputs):
        for state, output in zip(states, outputs, strict=True):
            state.extend(output.tokens)

    def fork(self, states):
        return [[*state] for state in states]

    def end(self, states):
        self.ended += len(states)


def test_copies_go_their_own_way_and_are_forgotten_in_the_child_when_collected(requests):
    drafter = ProcessDrafter(Counted, drafter_timeout_s=60, drain_timeout_s=60)

    def drafted(state) -> Draft:
        return drafter.propose([state], [Budget(4)])[0]

    try:
        state, other = drafter.begin(requests[:2])
        drafter.commit([state], [VerifyOutput((), (5,))])
        (copy,) = drafter.fork([state])
        drafter.commit([copy], [VerifyOutput((), (6,))])
        assert [drafted(one).tree.tokens for one in (state, copy)] == [(5, 100), (6, 100)]
        drafter.commit([state], [VerifyOutput((), (7,))])
        assert [drafted(one).tree.tokens for one in (state, copy)] == [(7, 100), (6, 100)]
        ghost = replace(copy)  # the copy's key, which nothing in the child stands for any more once that is collected
        del copy
        gc.collect()
        assert "does not know" in drafted(ghost).refusal
        assert drafted(state).tree.tokens == (7, 100)  # a copy is dropped without `end`
        drafter.end([other])
        assert drafted(state).tree.tokens == (7, 101)
    finally:
        drafter.close()


@needs_two_cores
def test_two_requests_are_drafted_for_in_one_hidden_proposal(process, requests):
    """The second question waits for the first one's draft."""
    states, stop_messages = process.begin(requests[:2]), threading.Event()
    drafts = process.propose_async(states, [Budget(nodes, until=stop_messages) for nodes in (4, 6)])
    assert until(process.spare_cores)
    stop_messages.set()
    first, second = drafts()
    assert (first.refusal, second.refusal) == (None, None)
    assert (len(first.tree), len(second.tree)) == (4, 6)
    process.commit(states, [VerifyOutput((), (9,))] * 2)
    assert all(len(draft.tree) == 3 for draft in process.propose(states, [Budget(3)] * 2))


@needs_two_cores
def test_the_stop_of_one_hidden_draft_does_not_stop_the_next_requests(process, runner, requests):
    process.drain_timeout_s = 0.0
    os.kill(process.pid, signal.SIGSTOP)
    runner.start(0, requests[0], 4, "beside")
    runner.start(1, requests[1], 6, "beside")
    runner.collect(0)  # its stop lies after the second question
    os.kill(process.pid, signal.SIGCONT)
    assert until(process.spare_cores)
    process.drain_timeout_s = 60
    assert len(runner.collect(1).tree) == 6


def test_drafts_for_some_are_kept_while_others_are_asked_for(process, target, requests):
    """Replies that came and were not taken yet are dropped for those alone who want none any more."""
    states = process.begin(requests)
    budgets = [Budget(4)] * 3
    alone = [draft.tree for draft in process.propose(states, budgets)]
    questions = [process.propose_async([state], [budget]) for state, budget in zip(states, budgets, strict=True)]
    deadline = time.monotonic() + 60
    while len(process._replies) < 3 and time.monotonic() < deadline:
        process._sort_all()
        time.sleep(0.01)
    last = process.propose_async(states[:1], budgets[:1])
    began = time.monotonic()
    assert [question()[0].tree for question in questions[1:]] == alone[1:]
    assert last()[0].tree == alone[0]
    assert time.monotonic() - began < 30
    process.end(states)
    assert not process._awaited()
