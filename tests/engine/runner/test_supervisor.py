"""A lost drafter is restarted, not too often; until then every answer says that it was written without it."""

import threading
import time

import pytest

from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.decode import Decoder
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.estimates import Exploration
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DrafterLost, DraftRunner
from crossdraft.engine.runner.supervisor import BACKOFF_S, RESTARTS, WINDOW_S, Supervisor
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from tests.engine.scripted import Refusing
from tests.engine.zoo import ZOO, as_target

ADVICE = (
    "plan", "node_gain", "worthwhile", "hidden_nodes", "reading_pays", "saw_draft", "saw_acceptance",
    "levels_asked", "began_request", "began_round",
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


class Fragile(DraftRunner):
    """Is lost whenever it is told to be; counts what was made of it."""

    made = 0

    def __init__(self, drafter):
        super().__init__(drafter, "before")
        self.broken = self.stopped = self.closed = False
        type(self).made += 1

    def ask(self, request_ids, budgets):
        if self.broken:
            raise DrafterLost("its process ended")
        return super().ask(request_ids, budgets)

    def stop(self):
        self.stopped = True
        super().stop()

    def close(self):
        self.closed = True
        super().close()

    def restarted(self):
        return type(self)(self.drafter)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def fragile():
    class Fresh(Fragile):
        pass

    return Fresh(Scripted([DraftTree.chain([1])] * 99))


def test_it_is_restarted_three_times_in_ten_minutes_and_again_when_they_are_over(fragile):
    clock = Clock()
    supervisor = Supervisor(fragile, RESTARTS, clock, backoff_s=0.001)
    for loss in range(RESTARTS):
        before = supervisor.runner
        clock.now += 1
        supervisor.lose("it is on fire")
        assert supervisor.runner is None
        assert supervisor.absence == "it was lost (it is on fire), and is being restarted"
        until(lambda: supervisor.take_up() is not None)
        assert before.stopped
        assert supervisor.runner is not before
        assert supervisor.absence is None
        assert type(fragile).made == loss + 2
    last = supervisor.runner
    supervisor.lose("again")
    time.sleep(0.1)
    assert supervisor.take_up() is None
    assert last.stopped  # it is not kept for those ten minutes
    assert "for the 4th time in 10 minutes, and is restarted 10 minutes later" in supervisor.absence
    supervisor.close()

    other = Supervisor(fragile, RESTARTS, clock, backoff_s=0.001)
    for _ in range(5):  # one a window is no matter
        clock.now += WINDOW_S
        other.lose("now and then")
        until(lambda: other.take_up() is not None)


def waiting(supervisor, monkeypatch):
    """The seconds that it waits for, one after another; it does not."""
    waits = []
    monkeypatch.setattr(supervisor._closed, "wait", lambda seconds: waits.append(seconds) or False)
    return waits


def test_each_restart_waits_longer_and_the_fourth_until_the_window_allows_it(fragile, monkeypatch):
    clock = Clock()
    supervisor = Supervisor(fragile, RESTARTS, clock)
    waits = waiting(supervisor, monkeypatch)
    for _ in range(RESTARTS + 2):
        clock.now += 1
        supervisor.lose("it is on fire")
        until(lambda: supervisor.take_up() is not None)
    # Lost at 1, 2, 3, 4 and 5 s: what was at 1 s is forgotten at 601 s, what was at 2 s a second later.
    assert waits == [BACKOFF_S, 4 * BACKOFF_S, 16 * BACKOFF_S, 597, 597]


def test_a_restart_that_fails_is_tried_again(fragile, monkeypatch):
    attempts = []

    def fail():
        attempts.append(None)
        if len(attempts) < 3:
            raise OSError("no memory")
        return fragile

    monkeypatch.setattr(fragile, "restarted", fail)
    supervisor = Supervisor(fragile, RESTARTS, Clock())
    waits = waiting(supervisor, monkeypatch)
    supervisor.lose("it is on fire")
    until(lambda: supervisor.take_up() is not None)
    assert waits == [BACKOFF_S, 4 * BACKOFF_S, 16 * BACKOFF_S]


def test_one_that_cannot_be_restarted_is_said_so(fragile):
    def fail():
        raise OSError("no memory")

    fragile.restarted = fail
    supervisor = Supervisor(fragile, RESTARTS, backoff_s=0.001)
    supervisor.lose("it is on fire")
    until(lambda: "could not be restarted (no memory), for the 4th time" in supervisor.absence)
    assert supervisor.take_up() is None
    supervisor.close()


def test_without_restarts_it_stays_lost(fragile):
    supervisor = Supervisor(fragile)
    supervisor.lose("it is on fire")
    assert supervisor.absence == "it was lost (it is on fire), and is not restarted"
    assert fragile.closed


def test_after_closing_nothing_is_restarted(fragile):
    supervisor = Supervisor(fragile, RESTARTS, backoff_s=0.05)
    supervisor.lose("it is on fire")
    supervisor.close()
    time.sleep(0.2)
    assert type(fragile).made == 1
    assert fragile.closed
    supervisor.close()


def test_answers_say_that_they_were_written_without_until_the_drafter_is_back(fragile):
    target = as_target(*ZOO["video_llava"]())
    request = Request("x", max_new_tokens=12)
    alone = Decoder(target).generate([request])[0].tokens
    supervisor = Supervisor(fragile, RESTARTS, backoff_s=0.3)
    decoder = Decoder(target, supervisor, adaptive=False)
    fragile.broken = True
    first, second = decoder.generate([request, request])
    (lost,), (without,) = first.other_notes, second.other_notes
    assert lost == "The drafter was lost (its process ended); the target went on alone."
    assert without == ("Written without the drafter: it was lost (its process ended), and is being restarted.")
    until(lambda: supervisor._fresh is not None)
    (third,) = decoder.generate([request])
    assert (third.other_notes, third.stats.drafted > 0) == ((), True)
    assert {first.tokens, second.tokens, third.tokens} == {alone}


def test_a_loss_and_a_restart_are_logged_and_alive_says_what_is_true_now(fragile, caplog):
    caplog.set_level("INFO", "crossdraft.engine.runner.supervisor")
    supervisor = Supervisor(fragile, RESTARTS, backoff_s=0.05)
    assert supervisor.alive
    supervisor.lose("it is on fire")
    assert not supervisor.alive
    until(lambda: supervisor.alive)  # nobody has taken it up
    assert supervisor.runner is None
    assert supervisor.take_up() is not None
    assert supervisor.alive
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "Answers are written without the drafter: it was lost (it is on fire), and is being restarted."),
        ("INFO", "The drafter was restarted."),
    ]
    supervisor.close()
    assert not supervisor.alive
    assert not Supervisor(None).alive


def test_closing_in_the_midst_of_a_restart_is_no_error(fragile, caplog):
    begun, ended = threading.Event(), threading.Event()

    def restarted():
        begun.set()
        assert ended.wait(20)
        raise CrossdraftError("The drafter could not be loaded: its process ended.")

    fragile.restarted = restarted
    fragile.close = ended.set  # as a process that is killed while it loads
    supervisor = Supervisor(fragile, RESTARTS, backoff_s=0.001)
    supervisor.lose("it is on fire")
    assert begun.wait(20)
    supervisor.close()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
    assert supervisor.absence == "it was lost (it is on fire), and is being restarted"


def test_two_loops_over_one_drafter_both_see_it_lost(fragile):
    target = as_target(*ZOO["video_llava"]())
    request = Request("x", max_new_tokens=12)
    supervisor = Supervisor(fragile, RESTARTS, backoff_s=0.001)
    loops = [Decoder(target, supervisor, adaptive=False) for _ in range(2)]
    request_ids = [loop.submit(request) for loop in loops]
    for loop in loops:
        loop.step()
    fragile.broken = True
    loops[0].step()
    until(lambda: supervisor.take_up() is not None)
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
    alone = Decoder(target).generate([request])[0].tokens

    class Failing(Scripted):
        pass

    def fail(*given):
        raise error("boom")

    setattr(Failing, method, fail)
    supervisor = Supervisor(DraftRunner(Failing([DraftTree.chain([1])] * 9), "before"), RESTARTS)
    (answer,) = Decoder(target, supervisor, adaptive=False).generate([request])
    assert answer.tokens == alone
    assert any("boom" in note for note in answer.other_notes) or method == "end"
    assert (supervisor.runner is None) == (method != "begin")
    supervisor.close()


@pytest.mark.parametrize("hidden", ["before", "beside", "off"])
@pytest.mark.parametrize("method", ["begin", "propose", "commit", "end"])
def test_what_a_drafter_refuses_is_that_requests_and_costs_nobody_the_drafter(method, hidden):
    target = as_target(*ZOO["video_llava"]())
    requests = [Request(question, max_new_tokens=8) for question in ("x", "no", "xx")]
    alone = [answer.tokens for answer in Decoder(target).generate(requests)]
    supervisor = Supervisor(DraftRunner(Refusing(method), hidden), RESTARTS)
    decoder = Decoder(target, supervisor, adaptive=False, max_batch=1 if method == "commit" else 3)
    found = decoder.generate(requests)
    assert [answer.tokens for answer in found] == alone
    assert supervisor.runner is not None
    assert supervisor.absence is None
    notes = [answer.other_notes for answer in found]
    gave_up = ("The drafter gave up (not this one); the target went on alone.",)
    assert notes == [(), () if method == "end" else gave_up, ()]
    assert found[0].stats.drafted > 0
    assert found[2].stats.drafted > 0
    supervisor.close()


def test_what_is_refused_of_several_at_once_is_refused_of_them_and_not_committed_twice():
    drafter = Refusing("commit")
    runner = DraftRunner(drafter, "off")
    for number, question in enumerate(("x", "no", "xx", "later")):
        runner.start(number, Request(question), 4, "off")
    runner.commit([0, 1, 2], [VerifyOutput((), (7,))] * 3)
    runner.commit([0, 3], [VerifyOutput((), (7,))] * 2)
    drafts = runner.ask([0, 1, 2, 3], [Budget(4)] * 4)()
    assert [draft.refusal for draft in drafts] == ["not this one"] * 3 + [None]
    assert drafter.committed == ["x", "later"]


def test_a_hidden_draft_that_failed_leaves_no_state():
    class Broken(Refusing):
        def propose(self, states, budgets):
            raise RuntimeError("boom")

    drafter = Broken("")
    runner = DraftRunner(drafter, "beside")
    runner.start(0, Request("x"), 4, "beside")
    with pytest.raises(RuntimeError):
        runner.end([0])
    assert drafter.ended == ["x"]
    runner.close()


def test_a_bias_of_a_token_that_is_not_there_is_refused_before_anybody_drafts():
    target = as_target(*ZOO["video_llava"]())
    drafter = Refusing("")
    decoder = Decoder(target, DraftRunner(drafter, "before"), adaptive=False)
    with pytest.raises(CrossdraftError, match="A bias names token 999999, but the vocabulary has"):
        decoder.generate([Request("x", max_new_tokens=4, sampling=Sampling(logit_bias=((999999, 1.0),)))])
    assert not drafter.begun


@pytest.mark.parametrize("where", ADVICE)
def test_no_error_of_the_cost_model_costs_an_answer(where, monkeypatch):
    target = as_target(*ZOO["video_llava"]())
    request = Request("x", max_new_tokens=12)
    alone = Decoder(target).generate([request])[0].tokens
    tree = DraftTree.chain([*alone[:3]])

    def fail(*given, **named):
        raise TypeError("float() argument must be a string or a real number, not 'complex'")

    monkeypatch.setattr(CostModel if hasattr(CostModel, where) else Exploration, where, fail)
    cost = CostModel()
    (answer,) = Decoder(target, DraftRunner(Scripted([tree] * 9), "before"), cost=cost).generate([request])
    assert answer.tokens == alone
    monkeypatch.undo()
    (after,) = Decoder(target, DraftRunner(Scripted([tree] * 9), "before"), cost=cost).generate([request])
    assert (after.tokens, after.other_notes) == (alone, ())
    if where in ("plan", "hidden_nodes"):
        assert where == "hidden_nodes" or answer.stats.policy_errors > 0
