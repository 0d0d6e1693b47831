"""What is measured of hidden drafts: the first draft and those of the rounds separately."""

from dataclasses import replace

import pytest

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.heads.drafting.head_drafter import TREES
from crossdraft.heads.registry import HEADS, NETWORKS
from crossdraft.methods import METHODS, register
from crossdraft_lab.train.heads.measure import measure_hidden, methods_of, with_tree
from tests.engine.zoo import ZOO, as_target, noisy
from tests.heads.consistency import some_head

REQUESTS = [Request("x" * i, max_new_tokens=6 + 5 * i) for i in range(1, 4)]


@pytest.fixture(scope="module")
def target():
    return as_target(*ZOO["video_llava"]())


def test_a_hidden_draft_of_the_whole_answer_leaves_no_rounds(target):
    """The target drafts for itself; where it may say all that it says, its first draft is the whole answer."""
    answers = DecodeLoop(target).generate(REQUESTS)
    able = [
        (request, answer)
        for request, answer in zip(REQUESTS, answers, strict=True)
        if not target.reserved & {*answer.tokens}
    ]
    assert able
    found = measure_hidden(target, IndependentDrafter(target), [request for request, _ in able], nodes=4)
    mean = sum(len(answer.tokens) for _, answer in able) / len(able)
    assert found["hidden"].tau == pytest.approx(1 + mean, abs=1)
    assert found["hidden"].per_position[:3] == (1.0, 1.0, 1.0)
    assert found["rounds"].tau == 1.0


def test_rounds_are_counted_without_the_first_pass(target):
    model, prompt = ZOO["video_llava"]()
    kin = as_target(noisy(model, 1e-3), prompt)
    found = measure_hidden(target, IndependentDrafter(kin), REQUESTS, nodes=2)
    assert 1 < found["rounds"].tau <= 3  # of two drafted tokens
    assert list(found["hidden"].per_position) == sorted(found["hidden"].per_position, reverse=True)


def test_a_head_that_grows_other_trees_drafts_no_more_than_before():
    """It is measured as it serves: what the target must not see as text stays masked."""
    head = some_head("eagle3")
    banned = [int(token) for token in head.config.draft_ids[:3]]
    drafter = HEADS["eagle3"].drafter_class(head, TREES["chain"], [1], banned)
    other = with_tree(drafter, TREES["dynamic"])
    assert (other.grow, drafter.grow) == (TREES["dynamic"], TREES["chain"])
    assert other.banned_indices.tolist() == [0, 1, 2]
    assert other.ends == {1}


@pytest.mark.usefixtures("no_drafters_registered")
def test_a_network_of_another_package_is_drafted_with_as_its_record_says(monkeypatch):
    record = replace(HEADS["eagle3"], network="theirs")
    monkeypatch.setitem(NETWORKS, "theirs", record)
    register(replace(METHODS["eagle3"], name="mine", network="theirs"))
    assert methods_of("theirs") == {"mine": record}
