"""The contract with vLLM's scheduler, on a fake of it: the same tokens whatever the drafter does, and exact passes."""

import time
from functools import partial
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.engine.drafter import Draft
from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.engine.runner.restarts import Restarts
from crossdraft.engine.tree import DraftTree
from crossdraft_vllm.hosting import DraftLimits, HostedDrafts
from tests.engine.scripted import Scripted
from tests.integrations.vllm.fake_vllm import EOS, FakeRequest, FakeScheduler
from tests.integrations.vllm.helpers import Hosting, ScriptedDrafter, ask, hosting

ANSWER = [*range(1, 12), EOS]  # twelve tokens


def answered(scheduler, *requests):
    for request in requests:
        scheduler.add_request(request)
    return scheduler.run()


@pytest.mark.parametrize(
    ("budget", "passes"),
    [
        (64, 1 + 3),  # the prompt and a token, then 4 drafts and 1, twice, and the last
        (8, 1 + 3),  # 8 of the prompt; 2 and a draft, which gives 5; 5; 2
    ],
)
def test_passes_with_a_drafter_that_is_right(budget, passes):
    drafter = ScriptedDrafter({"a": ANSWER})
    scheduler = hosting({"a": ANSWER}, drafter, budget=budget)
    assert answered(scheduler, ask("a")) == {"a": ANSWER}
    assert scheduler.passes == passes
    assert drafter.records[0].ended


def test_the_first_draft_rides_along_with_the_prompts_last_chunk():
    scheduler = hosting({"a": ANSWER}, ScriptedDrafter({"a": ANSWER}), budget=8)
    answered(scheduler, ask("a"))
    first, second, *_ = scheduler.scheduled
    assert (first.num_scheduled_tokens, first.scheduled_spec_decode_tokens) == ({"a": 8}, {})
    assert (second.num_scheduled_tokens, second.scheduled_spec_decode_tokens) == ({"a": 2 + 4}, {"a": [1, 2, 3, 4]})


def test_a_draft_that_was_cut_for_room_goes_on_in_the_next_pass():
    """Of 4 drafts only 2 fit behind the prompt's last 6 tokens; the other two are not drafted again."""
    drafter = ScriptedDrafter({"a": ANSWER})
    scheduler = hosting({"a": ANSWER}, drafter, budget=8)
    answered(scheduler, ask("a", prompt=14))
    drafts = [output.scheduled_spec_decode_tokens.get("a") for output in scheduler.scheduled]
    assert drafts[:3] == [None, [1, 2], [4]]
    assert drafter.records[0].tokens[:5] == [1, 2, 3, 4, 5]  # record once, of all of it


def test_with_a_head_in_the_worker_only_the_first_draft_is_ours_and_may_be_longer():
    own = {"a": [9, 9, 9]}
    drafter = ScriptedDrafter({"a": ANSWER})
    scheduler = hosting({"a": ANSWER}, drafter, hidden=6, later=0, k=3)
    scheduler.add_request(ask("a"))
    for _ in range(3):
        scheduler.step(own)
    drafts = [output.scheduled_spec_decode_tokens.get("a") for output in scheduler.scheduled]
    assert drafts == [None, [2, 3, 4, 5, 6], [9, 9, 9]]
    assert drafter.records[0].ended  # nothing more is asked of it
    assert scheduler.run() == {"a": ANSWER}


@pytest.mark.parametrize("budget", [8, 64])
def test_a_draft_longer_than_was_announced_is_cut(budget):
    scheduler = hosting({"a": ANSWER}, ScriptedDrafter({"a": ANSWER}, greedy_for_more=True), budget=budget)
    assert answered(scheduler, ask("a")) == {"a": ANSWER}
    assert scheduler.accepted > 0


def test_planted_without_the_cut_the_engine_ends():
    scheduler = hosting({"a": ANSWER}, ScriptedDrafter({"a": ANSWER}, greedy_for_more=True))
    scheduler._longest = 100
    scheduler._widened = lambda work, *arguments: work(*arguments)
    with pytest.raises(AssertionError):
        answered(scheduler, ask("a"))


@pytest.mark.parametrize("bad", [100, -1, 99])
def test_a_draft_with_ids_off_the_vocabulary_is_dropped(bad):
    wrong_answer = [1, 2, bad, *ANSWER[3:]]
    scheduler = hosting({"a": ANSWER}, ScriptedDrafter({"a": wrong_answer}))
    assert answered(scheduler, ask("a")) == {"a": ANSWER}
    assert all(bad not in row for output in scheduler.scheduled for row in output.scheduled_spec_decode_tokens.values())


def test_planted_unchecked_ids_end_the_engine(monkeypatch):
    monkeypatch.setattr("crossdraft_vllm.hosting.checked", lambda draft, *_, **__: draft)
    scheduler = hosting({"a": ANSWER}, ScriptedDrafter({"a": [1, 2, 100, *ANSWER[3:]]}))
    with pytest.raises(IndexError):
        answered(scheduler, ask("a"))


def test_requests_that_nothing_is_drafted_for_are_vllms_own():
    drafter = ScriptedDrafter({"a": ANSWER})
    scheduler = hosting({"a": ANSWER, "b": ANSWER}, drafter)
    assert answered(scheduler, FakeRequest("b", [7] * 10, 100), ask("a")) == {"a": ANSWER, "b": ANSWER}
    assert len(drafter.records) == 1
    drafted = {name for output in scheduler.scheduled for name in output.scheduled_spec_decode_tokens}
    assert drafted == {"a"}


def test_what_cannot_be_asked_is_answered_without_drafts(caplog):
    drafter = ScriptedDrafter({})
    scheduler = hosting({"a": ANSWER}, drafter)
    request = FakeRequest("a", [7] * 10, 100, {"crossdraft_events": "no such file"})
    assert answered(scheduler, request) == {"a": ANSWER}
    assert not drafter.records
    assert "answered without drafts" in caplog.text


def test_an_error_of_ours_does_not_end_the_engine(monkeypatch, caplog):
    scheduler = hosting({"a": ANSWER}, ScriptedDrafter({"a": ANSWER}))
    monkeypatch.setattr("crossdraft_vllm.requests.Request", None)
    assert answered(scheduler, ask("a")) == {"a": ANSWER}
    assert "answered without drafts" in caplog.text


@pytest.mark.parametrize("late", [1, 3, 50])
def test_a_hidden_draft_that_comes_late_goes_on_where_the_answer_is(late):
    """With `late` further passes of one token each: what it holds of them already is not lost."""
    drafter = ScriptedDrafter({"a": ANSWER}, late=late, slow=True)
    scheduler = hosting({"a": ANSWER}, drafter, hidden=12, k=12)
    assert answered(scheduler, ask("a")) == {"a": ANSWER}
    assert scheduler.passes == min(1 + late + 1, len(ANSWER))


def test_a_drafter_that_is_never_in_time_costs_no_pass():
    scheduler = hosting({"a": ANSWER}, ScriptedDrafter({"a": ANSWER}, late=10**6))
    assert answered(scheduler, ask("a")) == {"a": ANSWER}
    assert scheduler.passes == len(ANSWER)


@pytest.mark.parametrize("call", range(1, 12))
def test_a_drafter_that_is_lost_costs_no_answer(call):
    drafter = ScriptedDrafter({"a": ANSWER, "b": ANSWER}, lost_at=call)
    scheduler = hosting({"a": ANSWER, "b": ANSWER}, drafter)
    assert answered(scheduler, ask("a"), ask("b")) == {"a": ANSWER, "b": ANSWER}
    assert scheduler.drafts.absence is None or "restarted" in scheduler.drafts.absence
    scheduler.shutdown()


def test_a_drafter_that_was_restarted_drafts_for_requests_that_come(monkeypatch):
    monkeypatch.setattr("crossdraft_vllm.hosting.Restarts", lambda most: Restarts(most, backoff_s=0.0))
    drafter = ScriptedDrafter({"a": ANSWER, "b": ANSWER}, lost_at=4)
    scheduler = hosting({"a": ANSWER, "b": ANSWER}, drafter)
    answered(scheduler, ask("a"))
    until = time.monotonic() + 30
    while not drafter.restarts and time.monotonic() < until:
        time.sleep(0.01)
    while scheduler.drafts._runner.drafter is None and time.monotonic() < until:
        scheduler.drafts.refresh()
    before = scheduler.passes
    assert answered(scheduler, ask("b"))["b"] == ANSWER
    assert scheduler.passes - before < len(ANSWER)


@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize("budget", [8, 64])
def test_a_request_that_is_preempted_goes_on(at, budget):
    drafter = ScriptedDrafter({"a": ANSWER})
    scheduler = hosting({"a": ANSWER}, drafter, budget=budget)
    scheduler.add_request(ask("a"))
    for number in count(1):
        if not scheduler.requests:
            break
        scheduler.step()
        if number == at and scheduler.requests:
            scheduler.preempt("a")
    assert scheduler.done == {"a": ANSWER}


@pytest.mark.parametrize("at", range(4))
def test_a_request_that_is_aborted_leaves_nothing(at):
    drafter = ScriptedDrafter({"a": ANSWER})
    scheduler = hosting({"a": ANSWER}, drafter)
    scheduler.add_request(ask("a"))
    for _ in range(at):
        scheduler.step()
    scheduler.abort("a")
    assert drafter.records[0].ended
    assert not scheduler._seen
    assert "a" not in scheduler.drafts


def test_nothing_rides_where_it_would_escape_a_grammar_or_stand_among_log_probabilities():
    for more in ({"use_structured_output": True}, {"prompt_logprobs": 1}):
        scheduler = hosting({"a": ANSWER}, ScriptedDrafter({"a": ANSWER}), budget=8)
        assert answered(scheduler, ask("a", **more)) == {"a": ANSWER}
        assert not scheduler.scheduled[1].scheduled_spec_decode_tokens


def test_what_is_learnt_from_drawn_answers_is_not_used_where_they_are_drawn_alike():
    drafter = ScriptedDrafter({})
    scheduler = hosting(dict.fromkeys("abcd", ANSWER), drafter)
    for request in (
        ask("a", temperature=1.0, seed=3),
        ask("b", temperature=1.0),
        ask("c", seed=3),
        ask("d", cache_salt="x"),
    ):
        scheduler.add_request(request)
    assert [record.request.namespace for record in drafter.records.values()] == [None, "", "", "x"]
    assert all(record.request.sampling.greedy for record in drafter.records.values())


def test_nothing_is_drafted_for_drawn_answers_where_they_are_not_verified_exactly():
    drafter = ScriptedDrafter({})
    scheduler = hosting({"a": ANSWER, "b": ANSWER}, drafter)
    scheduler.host(scheduler.drafts, scheduler._reader, draws=False)
    for request in (ask("a", temperature=0.5), ask("b")):
        scheduler.add_request(request)
    assert [record.request.prompt for record in drafter.records.values()] == ["b"]


def test_only_so_many_are_drafted_for_at_a_time():
    drafter = ScriptedDrafter({})
    limits = DraftLimits(4, 4, 0.0, 2, 100)
    drafts = HostedDrafts(drafter, limits)
    scheduler = hosting(dict.fromkeys("abc", ANSWER), drafter)
    scheduler.drafts = drafts
    for name in "abc":
        scheduler.add_request(ask(name))
    assert [record.request.prompt for record in drafter.records.values()] == ["a", "b"]
    scheduler.abort("a")
    scheduler.drafts.refresh()
    assert [record.request.prompt for record in drafter.records.values()] == ["a", "b", "c"]
    assert scheduler.run() == dict.fromkeys("bc", ANSWER) | {"a": []}


def test_a_request_whose_answer_has_begun_is_not_drafted_for_any_more():
    drafter = ScriptedDrafter({"b": ANSWER})
    scheduler = hosting(dict.fromkeys("ab", ANSWER), drafter)
    scheduler.drafts = HostedDrafts(drafter, DraftLimits(4, 4, 0.0, 1, 100))
    for name in "ab":
        scheduler.add_request(ask(name))
    scheduler.step()
    scheduler.abort("a")
    assert scheduler.run()["b"] == ANSWER
    assert [record.request.prompt for record in drafter.records.values()] == ["a"]


answer = st.lists(st.integers(1, 5), max_size=20).map(lambda tokens: [*tokens, EOS])


@given(
    answers=st.lists(answer, min_size=1, max_size=4),
    believed=st.lists(answer, min_size=4, max_size=4),
    right=st.lists(st.booleans(), min_size=4, max_size=4),
    prompts=st.lists(st.integers(1, 30), min_size=4, max_size=4),
    k=st.integers(1, 6),
    hidden=st.integers(1, 9),
    budget=st.integers(5, 40),
    late=st.integers(0, 4),
    slow=st.booleans(),
    lost_at=st.none() | st.integers(1, 30),
    preempted=st.lists(st.integers(0, 3), max_size=6),
)
def test_what_is_emitted_is_the_targets_whatever_the_drafter_does(
    answers, believed, right, prompts, k, hidden, budget, late, slow, lost_at, preempted
):
    names = "abcd"[: len(answers)]
    truth = dict(zip(names, answers, strict=True))
    known = {name: truth[name] if right[i] else believed[i] for i, name in enumerate(names)}
    drafter = ScriptedDrafter(known, late=late, slow=slow, lost_at=lost_at, greedy_for_more=True)
    scheduler = hosting(truth, drafter, hidden=hidden, k=k, budget=budget)
    for i, name in enumerate(names):
        scheduler.add_request(ask(name, prompt=prompts[i]))
    for victim in preempted:
        scheduler.step()
        name = names[victim % len(names)]
        if name in scheduler.requests:
            scheduler.preempt(name)
    assert scheduler.run() == truth
    for record in drafter.records.values():  # what the drafter was record is what was said
        assert truth[record.request.prompt][: len(record.tokens)] == record.tokens
    scheduler.shutdown()


class Sleeper(Scripted):
    """Needs minutes for a draft."""

    def propose(self, states, budgets):
        time.sleep(600)
        return [Draft(DraftTree.chain([1]))] * len(states)


def test_a_drafter_in_another_process_that_sleeps_is_not_waited_for():
    drafter = ProcessDrafter(partial(Sleeper, []), drain_timeout_s=60, drafter_timeout_s=60)
    scheduler = hosting({"a": ANSWER}, drafter)
    try:
        start = time.monotonic()
        assert answered(scheduler, ask("a")) == {"a": ANSWER}
        assert time.monotonic() - start < 30
        assert scheduler.passes == len(ANSWER)
    finally:
        drafter._child.kill()
        scheduler.shutdown()


def test_the_fake_has_all_that_is_leaned_on():
    """What of vLLM's scheduler the integration calls is its own or the fake's."""
    for name in ("add_request", "schedule", "update_draft_token_ids", "make_spec_decoding_stats", "_free_request"):
        assert getattr(Hosting, name) is not getattr(FakeScheduler, name)
