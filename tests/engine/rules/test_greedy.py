"""Greedy: the target's own tokens, as far as the draft has them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance
from crossdraft.engine.rules.greedy import verify as greedy
from crossdraft.engine.tree import ROOT, DraftTree
from tests.engine.drafting import Language, probs_of


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def logits_for(best: list[int], vocabulary: int = 10) -> Tensor:
    """[1 + n, V] with the given argmax in each row."""
    return torch.eye(vocabulary)[best]


def test_greedy_by_hand():
    """Root: 5 is wanted and there; after it 7, the second child; after that 3, which nobody drafted."""
    tree = DraftTree(tokens=(4, 5, 6, 7, 9), parents=(-1, -1, 1, 1, 3))
    assert greedy(tree, logits_for([5, 0, 7, 0, 3, 0]), generator()) == Acceptance((1, 3), 3)


def test_greedy_accepts_a_whole_chain_and_adds_its_own():
    assert greedy(DraftTree.chain([1, 2]), logits_for([1, 2, 3]), generator()) == Acceptance((0, 1), 3)


def test_greedy_refuses_what_stands_behind_another_parent():
    assert greedy(DraftTree.chain([2, 1]), logits_for([1, 2, 3]), generator()) == Acceptance((), 1)


def test_greedy_without_a_draft_is_plain_decoding():
    assert greedy(DraftTree.empty(), logits_for([8]), generator()) == Acceptance((), 8)


def greedy_faults(rule: Callable[[DraftTree, Tensor, torch.Generator], Acceptance]) -> int:
    """In how many of 200 random rounds the emitted tokens are not the target's own, or a longer path was right."""
    faults = 0
    for seed in range(200):
        target, source = Language(3, seed), torch.Generator().manual_seed(seed)
        paths = torch.randint(0, 3, (3, 4), generator=source).tolist()
        tree = DraftTree.from_paths(paths)
        output = rule(tree, probs_of(target, tree), generator())
        emitted = [*(tree.tokens[node] for node in output.path), output.bonus]
        alone = [int(target(tuple(emitted[:i])).argmax()) for i in range(len(emitted))]
        faults += emitted != alone or emitted in [path[: len(emitted)] for path in paths]
    return faults


def first_child(tree: DraftTree, logits: Tensor, chances: torch.Generator) -> Acceptance:
    """Bug: takes the first child on trust."""
    node = tree.children(ROOT)[0]
    return Acceptance((node,), int(logits[node + 1].argmax()))


def one_too_short(tree: DraftTree, logits: Tensor, chances: torch.Generator) -> Acceptance:
    """Bug: stops although the next node was right; lossless, but not the longest path."""
    path = greedy(tree, logits, chances).path[:-1]
    return Acceptance(path, int(logits[path[-1] + 1 if path else 0].argmax()))


def test_greedy_emits_what_the_target_alone_would_write():
    assert greedy_faults(greedy) == 0


@pytest.mark.parametrize(
    "bug", [first_child, one_too_short, lambda tree, logits, chances: greedy(tree, logits.roll(1, 0), chances)]
)
def test_a_planted_bug_in_greedy_shows(bug):
    assert greedy_faults(bug) > 20
