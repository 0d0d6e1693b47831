"""Heads that go on from their own output: EAGLE-1, -2 and -3."""

import pytest
import torch

from crossdraft.drafters.heads.autoregressive import AutoregressiveDrafter
from crossdraft.drafters.heads.registry import TREES
from crossdraft.engine.drafter import Budget
from crossdraft.engine.tree import ROOT
from tests.drafters.heads.rehearsal import check_rehearsal, some_head, some_lesson, told_up_to

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
    turn = head.rotary.forward
    monkeypatch.setattr(
        head.rotary, "forward", lambda heads, places: turn(heads, places.clamp(max=START_PLACE))
    )
    with pytest.raises(AssertionError):
        check_rehearsal_beside(drafter, some_lesson(head), turn)


START_PLACE = 5


def check_rehearsal_beside(drafter, lesson, turn):
    """Rehearse with the right positions, draft with the planted ones."""
    planted = drafter.head.rotary.forward
    drafter.head.rotary.forward = turn
    guesses = drafter.head(lesson)
    drafter.head.rotary.forward = planted
    drafter.head.forward = lambda lesson: guesses
    check_rehearsal(drafter, lesson)


@pytest.mark.parametrize("network", NETWORKS)
@torch.inference_mode()
def test_branches_do_not_see_each_other(network):
    """Every path of a tree is judged as if it were alone."""
    head = some_head(network)
    drafter = AutoregressiveDrafter(head, TREES["dynamic"])
    lesson = some_lesson(head)
    voice = drafter.voice(told_up_to(drafter, lesson, 6).mind)
    voice([ROOT], [], [])
    voice([0, 1], [5, 6], [ROOT, ROOT])
    both = voice([2, 3, 4], [7, 8, 9], [0, 1, 0])
    for row, path in enumerate(([5, 7], [6, 8], [5, 9])):
        alone = drafter.voice(told_up_to(drafter, lesson, 6).mind)
        alone([ROOT], [], [])
        alone([0], path[:1], [ROOT])
        assert torch.allclose(alone([1], path[1:], [0])[0], both[row], atol=1e-9)


@pytest.mark.parametrize("tree", ["dynamic", "chain", "cape"])
def test_a_draft_is_of_the_heads_words_and_within_the_budget(tree):
    head = some_head("eagle3")
    drafter = AutoregressiveDrafter(head, TREES[tree])
    state = told_up_to(drafter, some_lesson(head), 6)
    shown: list[int] = []
    draft = drafter.propose([state], [Budget(20, on_token=shown.append)])[0]
    assert 0 < len(draft.tree) <= 20
    assert set(draft.tree.tokens) <= set(head.config.draft_ids)
    assert len(draft.reach) == len(draft.tree)
    assert tuple(shown[: len(draft.tree.spine)]) == draft.tree.spine_tokens[: len(shown)]
    again = drafter.propose([state], [Budget(20)])[0]
    assert again.tree == draft.tree  # a draft leaves nothing behind


def test_a_fork_goes_its_own_way():
    head = some_head("eagle3")
    drafter = AutoregressiveDrafter(head, TREES["chain"])
    lesson = some_lesson(head)
    state = told_up_to(drafter, lesson, 6)
    before = drafter.propose([state], [Budget(6)])[0]
    fork = drafter.fork([state])[0]
    drafter.propose([fork], [Budget(12)])
    assert drafter.propose([state], [Budget(6)])[0].tree == before.tree
