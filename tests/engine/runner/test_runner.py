"""A lost drafter is restarted, not too often; until then every answer says that it was written without it."""

import threading
import time

import pytest

from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.request_state import Job, RequestState
from crossdraft.engine.rules import rule_for
from crossdraft.engine.runner.restarts import BACKOFF_S, RESTARTS, WINDOW_S, Restarts
from crossdraft.engine.runner.runner import DrafterLost, DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from tests.engine.scripted import Refusing
from tests.engine.zoo import ZOO, as_target
from tests.support import failing, until

ADVICE = (
    "plan", "node_gain", "worthwhile", "hidden_nodes", "reading_pays", "saw_draft", "saw_acceptance",
    "hiding_pays", "began_request", "began_round",
)  # fmt: skip


class Scripted:
    """Proposes given trees, one a round."""

    def __init__(self, trees):
        self.needs, self.trees = Needs(), trees

    def begin(self, requests):
        return [0 for _ in requests]

    def propose(self, states, budgets):
        return [Draft(self.trees.pop(0) if self.trees else DraftTree.empty()) for _ in states]

    def commit(self, states, outputs):
        pass

    def fork(self, states):
        return list(states)

    def end(self, states):
        pass


class Fragile(Scripted):
    """Is lost whenever it is told to be."""

    broken = False

    def propose(self, states, budgets):
        if self.broken:
            raise DrafterLost("its process ended")
        return super().propose(states, budgets)


class Worker:
    """Counts what is asked of it."""

    alive = True

    def __init__(self):
        self.stopped = self.restarted = self.closed = 0

    def spare_cores(self):
        return ()

    def stop(self):
        self.stopped += 1

    def restart(self):
        self.restarted += 1

    def close(self):
        self.closed += 1


def runner_of(worker, clock=time.monotonic, backoff_s=BACKOFF_S, restarts=RESTARTS):
    drafter = Fragile([DraftTree.chain([1])] * 99)
    return DraftRunner(drafter, "before", workers=[worker], restarts=Restarts(restarts, clock, backoff_s))


def taken_up(runner):
    runner.resume()
    return runner.drafter is not None


def row_of(number, question):
    request = Request(question, max_new_tokens=8)
    return RequestState(Job(number, request), rule_for(None, request.sampling))


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def worker():
    return Worker()


def test_it_is_restarted_three_times_in_ten_minutes_and_again_when_they_are_over(worker):
    clock = Clock()
    runner = runner_of(worker, clock, 0.001)
    for loss in range(RESTARTS):
        clock.now += 1
        runner.lose("it is on fire")
        assert runner.drafter is None
        assert runner.absence == "it was lost (it is on fire), and is being restarted"
        assert until(lambda: taken_up(runner))
        assert runner.absence is None
        assert (worker.stopped, worker.restarted) == (loss + 1, loss + 1)
    runner.lose("again")
    assert until(lambda: worker.stopped == RESTARTS + 1)  # it is not kept for those ten minutes
    time.sleep(0.1)
    assert not taken_up(runner)
    assert "for the 4th time in 10 minutes, and is restarted 10 minutes later" in runner.absence
    runner.close()

    other = runner_of(worker, clock, 0.001)
    for _ in range(5):  # one a window is no matter
        clock.now += WINDOW_S
        other.lose("now and then")
        assert until(lambda: taken_up(other))


def waiting(runner, monkeypatch):
    """The seconds that it waits for, one after another; it does not."""
    waits = []
    monkeypatch.setattr(runner._closed, "wait", lambda seconds: waits.append(seconds) or False)
    return waits


def test_each_restart_waits_longer_and_the_fourth_until_the_window_allows_it(worker, monkeypatch):
    clock = Clock()
    runner = runner_of(worker, clock)
    waits = waiting(runner, monkeypatch)
    for _ in range(RESTARTS + 2):
        clock.now += 1
        runner.lose("it is on fire")
        assert until(lambda: taken_up(runner))
    # Lost at 1, 2, 3, 4 and 5 s: what was at 1 s is forgotten at 601 s, what was at 2 s a second later.
    assert waits == [BACKOFF_S, 4 * BACKOFF_S, 16 * BACKOFF_S, 597, 597]


def test_a_restart_that_fails_is_tried_again(worker, monkeypatch):
    attempts = []

    def fail():
        attempts.append(None)
        if len(attempts) < 3:
            raise OSError("no memory")

    worker.restart = fail
    runner = runner_of(worker, Clock())
    waits = waiting(runner, monkeypatch)
    runner.lose("it is on fire")
    assert until(lambda: taken_up(runner))
    assert waits == [BACKOFF_S, 4 * BACKOFF_S, 16 * BACKOFF_S]


def test_one_that_cannot_be_restarted_is_said_so(worker):
    worker.restart = failing(OSError("no memory"))
    runner = runner_of(worker, backoff_s=0.001)
    runner.lose("it is on fire")
    assert until(lambda: "could not be restarted (no memory), for the 4th time" in runner.absence)
    assert not taken_up(runner)
    runner.close()


def test_without_restarts_it_stays_lost(worker):
    runner = runner_of(worker, restarts=0)
    runner.lose("it is on fire")
    assert runner.absence == "it was lost (it is on fire), and is not restarted"
    assert (worker.closed, worker.restarted) == (1, 0)


def test_after_closing_nothing_is_restarted(worker):
    runner = runner_of(worker, backoff_s=0.05)
    runner.lose("it is on fire")
    runner.close()
    time.sleep(0.2)
    assert worker.restarted == 0
    assert worker.closed
    runner.close()


def test_answers_say_that_they_were_written_without_until_the_drafter_is_back(worker):
    target = as_target(*ZOO["video_llava"]())
    request = Request("x", max_new_tokens=12)
    alone = DecodeLoop(target).generate([request])[0].tokens
    runner = runner_of(worker, backoff_s=0.3)
    loop = DecodeLoop(target, runner, adaptive=False)
    runner.drafter.broken = True
    first, second = loop.generate([request, request])
    (lost,), (without,) = first.other_notes, second.other_notes
    assert lost == "The drafter was lost (its process ended); the target went on alone."
    assert without == ("Written without the drafter: it was lost (its process ended), and is being restarted.")
    assert until(lambda: taken_up(runner))
    runner.drafter.broken = False
    (third,) = loop.generate([request])
    assert (third.other_notes, third.stats.drafted > 0) == ((), True)
    assert {first.tokens, second.tokens, third.tokens} == {alone}


def test_a_loss_and_a_restart_are_logged_and_alive_says_what_is_true_now(worker, caplog):
    caplog.set_level("INFO", "crossdraft.engine.runner.runner")
    runner = runner_of(worker, backoff_s=0.05)
    assert runner.alive
    runner.lose("it is on fire")
    assert not runner.alive
    assert until(lambda: runner.alive)  # nobody has taken it up
    assert runner.drafter is None
    assert taken_up(runner)
    assert runner.alive
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "Answers are written without the drafter: it was lost (it is on fire), and is being restarted."),
        ("INFO", "The drafter was restarted."),
    ]
    worker.alive = False
    assert not runner.alive
    runner.close()
    assert not DraftRunner(None).alive


def test_closing_in_the_midst_of_a_restart_is_no_error(worker, caplog):
    begun, ended = threading.Event(), threading.Event()

    def restart():
        begun.set()
        assert ended.wait(20)
        raise CrossdraftError("The drafter could not be loaded: its process ended.")

    worker.restart = restart
    worker.close = ended.set  # as a process that is killed while it loads
    runner = runner_of(worker, backoff_s=0.001)
    runner.lose("it is on fire")
    assert begun.wait(20)
    runner.close()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
    assert runner.absence == "it was lost (it is on fire), and is being restarted"


def test_two_loops_over_one_drafter_both_see_it_lost(worker):
    target = as_target(*ZOO["video_llava"]())
    request = Request("x", max_new_tokens=12)
    runner = runner_of(worker, backoff_s=0.001)
    loops = [DecodeLoop(target, runner, adaptive=False) for _ in range(2)]
    request_ids = [loop.submit(request) for loop in loops]
    for loop in loops:
        while not (loop.queue.rows and loop.queue.rows[0].tokens):
            loop.step()
    runner.drafter.broken = True
    loops[0].step()
    assert until(lambda: taken_up(runner))
    for loop in loops:
        while loop.busy:
            loop.step()
    answers = [loop.answer(request_id) for loop, request_id in zip(loops, request_ids, strict=True)]
    assert answers[0].tokens == answers[1].tokens
    assert [len(answer.other_notes) for answer in answers] == [1, 1]


@pytest.mark.parametrize("method", ["begin", "propose", "commit", "end"])
@pytest.mark.parametrize("error", [ValueError, KeyError, RuntimeError, MemoryError])
def test_whatever_a_drafter_raises_costs_no_answer(method, error):
    """An inline drafter is a library's code: it may raise anything, anywhere."""
    target = as_target(*ZOO["video_llava"]())
    request = Request("x", max_new_tokens=12)
    alone = DecodeLoop(target).generate([request])[0].tokens

    class Failing(Scripted):
        pass

    setattr(Failing, method, failing(error("boom")))
    runner = DraftRunner(Failing([DraftTree.chain([1])] * 9), "before", restarts=Restarts(RESTARTS))
    (answer,) = DecodeLoop(target, runner, adaptive=False).generate([request])
    assert answer.tokens == alone
    assert any("boom" in note for note in answer.other_notes) or method == "end"
    assert (runner.drafter is None) == (method != "begin")
    runner.close()


@pytest.mark.parametrize("hidden", ["before", "beside", "off"])
@pytest.mark.parametrize("method", ["begin", "propose", "commit", "end"])
def test_what_a_drafter_refuses_is_that_requests_and_costs_nobody_the_drafter(method, hidden):
    target = as_target(*ZOO["video_llava"]())
    requests = [Request(question, max_new_tokens=8) for question in ("x", "no", "xx")]
    alone = [answer.tokens for answer in DecodeLoop(target).generate(requests)]
    runner = DraftRunner(Refusing(method), hidden, restarts=Restarts(RESTARTS))
    decoder = DecodeLoop(target, runner, adaptive=False, max_batch=1 if method == "commit" else 3)
    found = decoder.generate(requests)
    assert [answer.tokens for answer in found] == alone
    assert runner.drafter is not None
    assert runner.absence is None
    notes = [answer.other_notes for answer in found]
    gave_up = ("The drafter gave up (not this one); the target went on alone.",)
    assert notes == [(), () if method == "end" else gave_up, ()]
    assert found[0].stats.drafted > 0
    assert found[2].stats.drafted > 0
    runner.close()


def test_what_is_refused_of_several_at_once_is_refused_of_them_and_not_committed_twice():
    drafter = Refusing("commit")
    runner = DraftRunner(drafter, "off")
    rows = [row_of(number, question) for number, question in enumerate(("x", "no", "xx", "later"))]
    for row in rows:
        runner.start(row, row.request, 4, "off")
    runner.ask(rows, [Budget(4)] * 4)()
    runner.commit(rows[:3], [VerifyOutput((), (7,))] * 3)
    runner.commit([rows[0], rows[3]], [VerifyOutput((), (7,))] * 2)
    drafts = runner.ask(rows, [Budget(4)] * 4)()
    assert [draft.refusal for draft in drafts] == ["not this one"] * 3 + [None]
    assert drafter.committed == ["x", "later"]


@pytest.mark.parametrize("learns", [False, True])
def test_a_drafter_reads_a_request_when_a_draft_is_asked_for_unless_it_learns_from_it(learns):
    drafter, came = Refusing("", Needs(learns=learns)), []
    commit = drafter.commit
    drafter.commit = lambda states, outputs: came.extend(outputs) or commit(states, outputs)
    runner, row = DraftRunner(drafter, "off"), row_of(0, "x")
    runner.start(row, row.request, 4, "off")
    for token in (7, 8):
        runner.commit([row], [VerifyOutput((), (token,))])
    assert len(drafter.begun) == learns
    (draft,) = runner.ask([row], [Budget(4)])()
    assert draft.tree.tokens == (1,)
    assert [token for output in came for token in output.tokens] == [7, 8]
    runner.commit([row], [VerifyOutput((0,), (1, 9))])
    assert (came[-1].tokens, drafter.begun) == ((1, 9), ["x"])
    assert runner.end(row) is not None
    unasked = row_of(1, "y")
    runner.start(unasked, unasked.request, 4, "off")
    assert runner.end(unasked) is None


def test_a_hidden_draft_that_failed_leaves_no_state():
    class Broken(Refusing):
        def propose(self, states, budgets):
            raise RuntimeError("boom")

    drafter = Broken("")
    runner = DraftRunner(drafter, "beside")
    row = row_of(0, "x")
    runner.start(row, row.request, 4, "beside")
    runner.end(row)
    assert drafter.ended == ["x"]
    assert runner.drafter is None
    assert row.drafter_error == "RuntimeError: boom"
    runner.close()


def test_a_bias_of_a_token_that_is_not_there_is_refused_before_anybody_drafts():
    target = as_target(*ZOO["video_llava"]())
    drafter = Refusing("")
    decoder = DecodeLoop(target, DraftRunner(drafter, "before"), adaptive=False)
    with pytest.raises(CrossdraftError, match="A bias names token 999999, but the vocabulary has"):
        decoder.generate([Request("x", max_new_tokens=4, sampling=Sampling(logit_bias=((999999, 1.0),)))])
    assert not drafter.begun


@pytest.mark.parametrize("where", ADVICE)
def test_no_error_of_the_cost_model_costs_an_answer(where, monkeypatch):
    target = as_target(*ZOO["video_llava"]())
    request = Request("x", max_new_tokens=12)
    alone = DecodeLoop(target).generate([request])[0].tokens
    tree = DraftTree.chain([*alone[:3]])
    monkeypatch.setattr(
        CostModel, where, failing(TypeError("float() argument must be a string or a real number, not 'complex'"))
    )
    cost = CostModel()
    (answer,) = DecodeLoop(target, DraftRunner(Scripted([tree] * 9), "before"), cost=cost).generate([request])
    assert answer.tokens == alone
    monkeypatch.undo()
    (after,) = DecodeLoop(target, DraftRunner(Scripted([tree] * 9), "before"), cost=cost).generate([request])
    assert (after.tokens, after.other_notes) == (alone, ())
    if where in ("plan", "hidden_nodes"):
        assert where == "hidden_nodes" or answer.stats.policy_errors > 0
