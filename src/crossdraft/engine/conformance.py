"""The test that any target adapter must pass, and that must fail when the adapter is wrong.

A tree is verified in one pass and every node is compared with a plain full forward over the prompt and that node's
path; then an accepted path is compacted and the next pass is compared again. Two planted faults, a causal mask and
sequential positions, must show: a check that cannot fail checks nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crossdraft.engine.cache import KVCache
from crossdraft.engine.passes import Chunk
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.reference import full_forward
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree

PARENTS = (-1, 0, 0, 1, 1, 2, 3, -1)
PATH = (0, 2, 5)


@dataclass(frozen=True)
class Conformance:
    """Largest absolute differences of logits; the first three must vanish, the last two must not.

    Args:
        riding: nodes of a tree that rides along with the prefill, against full forwards.
        batched: the same tree in a shared pass with a row of another length.
        compacted: the pass after an accepted path was compacted.
        wrong_mask: the riding tree under a causal mask.
        wrong_position: the riding tree at sequential positions.
    """

    riding: float
    batched: float
    compacted: float
    wrong_mask: float
    wrong_position: float

    def passes(self, tolerance: float) -> bool:
        """True if the adapter is right within `tolerance` and both planted faults show."""
        right = max(self.riding, self.batched, self.compacted) <= tolerance
        return right and min(self.wrong_mask, self.wrong_position) > 10 * tolerance


class _CausalMask(Target):
    """Planted fault: later siblings see earlier ones."""

    def _mask(
        self, cache: KVCache, rows: slice, chunks: Sequence[Chunk], trees: Sequence[DraftTree], width: int, keys: int
    ) -> Tensor | None:
        return super()._mask(cache, rows, chunks, [DraftTree.chain(tree.tokens) for tree in trees], width, keys)


class _SequentialPositions(Target):
    """Planted fault: nodes are numbered as if they were a chain."""

    def _depths(self, tree: DraftTree) -> Sequence[int]:
        return range(1, len(tree) + 1)


@torch.inference_mode()
def check_conformance(target: Target, prompt: Prompt, tokens: Sequence[int]) -> Conformance:
    """Run the test; `tokens` are as many ordinary ids as `PARENTS` has nodes, all different."""
    tree = DraftTree(tuple(tokens), PARENTS)
    paths = [tree.path_tokens(node) for node in range(-1, len(tree))]
    reference = torch.stack([full_forward(target, prompt, path) for path in paths])

    cache = target.new_cache(max_rows=2)
    riding = _prefill(target, cache, prompt, tree)
    # A second row, one token longer than the first, makes the shared pass ragged.
    _prefill(target, cache, prompt, DraftTree.empty())
    longer = torch.cat([prompt.input_ids, torch.tensor(tokens[:1])])
    cache.keep(0, [])
    target.extend(cache, slice(1, 2), [Chunk(longer[-1:])], [DraftTree.empty()])
    root = Chunk(torch.tensor([tokens[0]]))
    shared = target.extend(cache, slice(0, 2), [root, root], [tree, tree.first(2)]).logits[0]
    inner = torch.stack([full_forward(target, prompt, [tokens[0], *path]) for path in paths])
    cache.keep(0, PATH)
    after = target.extend(cache, slice(0, 1), [Chunk(torch.tensor([tokens[-1]]))], [DraftTree.empty()]).logits[0][0]
    accepted = [tokens[0], *(tokens[node] for node in PATH), tokens[-1]]

    return Conformance(
        riding=_error(riding, reference),
        batched=_error(shared, inner),
        compacted=_error(after, full_forward(target, prompt, accepted)),
        wrong_mask=_error(_planted(_CausalMask, target, prompt, tree), reference),
        wrong_position=_error(_planted(_SequentialPositions, target, prompt, tree), reference),
    )


def _prefill(target: Target, cache: KVCache, prompt: Prompt, tree: DraftTree) -> Tensor:
    """Prefill a new row with `tree` riding along; returns [1 + n, V]."""
    capacity = len(prompt) + 4 * len(PARENTS)
    return target.prefill(cache, prompt, target.encode(prompt), capacity, lambda: (tree, None)).out.logits[0]


def _planted(fault: type[Target], target: Target, prompt: Prompt, tree: DraftTree) -> Tensor:
    wrong = fault(target.model, target.prepare, target.decode, tuple(target.eos), tuple(target.reserved))
    return _prefill(wrong, wrong.new_cache(), prompt, tree)


def _error(found: Tensor, expected: Tensor) -> float:
    return (found - expected).abs().max().item()
