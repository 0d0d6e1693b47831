"""Heads that go on from their own output: EAGLE-1, -2 and -3."""

import pytest

from crossdraft.engine.drafter import Budget
from crossdraft.heads.drafting.autoregressive import AutoregressiveDrafter
from crossdraft.heads.drafting.head_drafter import TREES
from tests.heads.rehearsal import check_branches, check_rehearsal, some_head, some_lesson, told_up_to

NETWORKS = ("eagle", "eagle3")


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("network", NETWORKS)
def test_what_is_rehearsed_is_what_is_drafted(network, pieces):
    head = some_head(network)
    assert check_rehearsal(AutoregressiveDrafter(head, TREES["dynamic"]), some_lesson(head), pieces) > 20


@pytest.mark.parametrize("network", NETWORKS)
def test_a_rehearsal_that_saw_another_place_would_be_noticed(network, monkeypatch):
    """The planted bug: positions of drafted places that do not count on."""
    head = some_head(network)
    drafter = AutoregressiveDrafter(head, TREES["dynamic"])
    rows = head.rotary.cos_sin
    monkeypatch.setattr(head.rotary, "cos_sin", lambda places: rows(places.clamp(max=START_PLACE)))
    with pytest.raises(AssertionError):
        check_rehearsal_beside(drafter, some_lesson(head), rows)


START_PLACE = 5


def check_rehearsal_beside(drafter, batch, rows):
    """Rehearse with the right positions, draft with the planted ones."""
    planted = drafter.head.rotary.cos_sin
    drafter.head.rotary.cos_sin = rows
    predictions = drafter.head(batch)
    drafter.head.rotary.cos_sin = planted
    drafter.head.forward = lambda batch: predictions
    check_rehearsal(drafter, batch)


@pytest.mark.parametrize("network", NETWORKS)
def test_branches_do_not_see_each_other(network):
    check_branches(AutoregressiveDrafter(some_head(network), TREES["dynamic"]))


@pytest.mark.parametrize("tree", ["dynamic", "chain", "cape"])
def test_a_draft_is_of_the_heads_words_and_within_the_budget(tree):
    head = some_head("eagle3")
    drafter = AutoregressiveDrafter(head, TREES[tree])
    state = told_up_to(drafter, some_lesson(head), 6)
    summarize: list[int] = []
    draft = drafter.propose([state], [Budget(20, on_token=summarize.append)])[0]
    assert 0 < len(draft.tree) <= 20
    assert set(draft.tree.tokens) <= set(head.config.draft_ids)
    assert len(draft.path_probs) == len(draft.tree)
    assert tuple(summarize[: len(draft.tree.main_path)]) == draft.tree.main_path_tokens[: len(summarize)]
    again = drafter.propose([state], [Budget(20)])[0]
    assert again.tree == draft.tree  # a draft leaves nothing behind


def test_a_fork_goes_its_own_way():
    head = some_head("eagle3")
    drafter = AutoregressiveDrafter(head, TREES["chain"])
    batch = some_lesson(head)
    state = told_up_to(drafter, batch, 6)
    before = drafter.propose([state], [Budget(6)])[0]
    fork = drafter.fork([state])[0]
    drafter.propose([fork], [Budget(12)])
    assert drafter.propose([state], [Budget(6)])[0].tree == before.tree
