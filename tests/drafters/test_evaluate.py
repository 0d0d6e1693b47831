"""What the target takes of a drafter, counted by hand and under the engine."""

import pytest

from crossdraft.drafters.event.load import load_drafter
from crossdraft.engine.request import Request
from crossdraft.engine.stats import Stats
from crossdraft.load import load_target
from crossdraft_lab.drafters.evaluate import AcceptanceStats, decode_all, total


def test_the_prompts_own_pass_is_not_counted():
    stats = Stats()
    stats.count_round(0, 0, 0, 1, hidden=True)  # the prompt: one token, nothing drafted
    stats.count_round(3, 6, 3, 4, hidden=False)  # four tokens
    stats.count_round(2, 4, 2, 3, hidden=False)  # three
    found = AcceptanceStats.of(stats)
    assert found == AcceptanceStats(2, 7, (2, 2, 1), (2, 2, 1))
    assert found.tau == 3.5


def test_an_answer_of_the_prompts_pass_alone_has_no_tau_of_its_own():
    assert AcceptanceStats.of(Stats(new_tokens=1, rounds=1)).tau == 1


def test_pooled_is_not_the_mean_of_means():
    assert total([AcceptanceStats(1, 4), AcceptanceStats(3, 3)]).tau == pytest.approx(7 / 4)
    assert total([]) == AcceptanceStats(0, 0)


def test_depths_add_up_where_answers_went_differently_deep():
    whole = total([AcceptanceStats(2, 5, (2, 1), (2, 1)), AcceptanceStats(1, 1, (1,), (0,)), AcceptanceStats(0, 0)])
    assert whole == AcceptanceStats(3, 6, (3, 1), (2, 1))


@pytest.mark.parametrize("batch", [1, 3])
def test_an_independent_drafter_drafts_nothing_for_the_prompts_pass(pair, clip, batch):
    """It could, and then its first pass would count for it and not for a head."""
    target = load_target(str(pair.target), "cpu", "float32")
    drafter = load_drafter(str(pair.event), "cpu", "float32")
    questions = ("what is ahead?", "is the light red?", "who turns left?")
    requests = [Request(text, str(clip.video), str(clip.events), max_new_tokens=12) for text in questions]
    answers = decode_all(target, drafter, requests, 4, batch)
    assert all(answer.stats.hidden_drafted == 0 for answer in answers)
    whole = total(AcceptanceStats.of(answer.stats) for answer in answers)
    assert whole.emitted == sum(len(answer.tokens) - 1 for answer in answers)
    assert whole.emitted == whole.passes + sum(whole.kept_at)  # a bonus for each pass
    assert whole.tau > 1
