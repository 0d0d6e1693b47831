"""The test that any target adapter must pass, and that must fail when the adapter is wrong.

A tree is verified in one pass and every node is compared with a plain full forward over the prompt and that node's
path; then an accepted path is compacted and the next pass is compared again. Steps of one token are compared with
Hugging Face's own on its own cache, as a model may read otherwise there. Two planted faults, a causal mask and
sequential positions, must show in the differences, which proves that the test can fail.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from crossdraft.engine.cache import KVCache
from crossdraft.engine.passes import Chunk, PassBuilder, PassRow
from crossdraft.engine.prefill import prefill
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.reference import full_forward
from crossdraft.engine.target import Target, as_input
from crossdraft.engine.tree import DraftTree

PARENTS = (-1, 0, 0, 1, 1, 2, 3, -1)
PATH = (0, 2, 5)


@dataclass(frozen=True)
class Conformance:
    """Largest absolute differences of logits; the first four must vanish, the last two must not.

    Args:
        riding: nodes of a tree that rides along with the prefill, against full forwards.
        batched: the same tree in a shared pass with a row of another length.
        compacted: the pass after an accepted path was compacted.
        stepped: the prompt and two greedy tokens, one a pass, against Hugging Face's `generate`.
        wrong_mask: the riding tree under a causal mask.
        wrong_position: the riding tree at sequential positions, against itself; 0 where a model has no positions.
    """

    riding: float
    batched: float
    compacted: float
    stepped: float
    wrong_mask: float
    wrong_position: float

    def passes(self, tolerance: float) -> bool:
        """True if the adapter is right within `tolerance` and both planted faults show."""
        right = max(self.riding, self.batched, self.compacted, self.stepped) <= tolerance
        return right and self.wrong_mask > 10 * tolerance and not 0 < self.wrong_position <= 10 * tolerance


class CausalMask(PassBuilder):
    """Planted fault: later siblings see earlier ones."""

    def mask(self, cache: KVCache, rows: Sequence[PassRow], width: int, keys: int) -> Tensor | None:
        chains = [replace(row, tree=DraftTree.chain(row.tree.tokens)) for row in rows]
        return super().mask(cache, chains, width, keys)


class SequentialPositions(PassBuilder):
    """Planted fault: nodes are numbered as if they were a chain."""

    def depths(self, tree: DraftTree) -> Sequence[int]:
        return range(1, len(tree) + 1)


def planted(target: Target, fault: type[PassBuilder]) -> Target:
    """A target whose passes are built with a fault."""
    wrong = target.reading()
    wrong.passes = fault(target.model, target.device, target.traits)
    return wrong


@torch.inference_mode()
def check_conformance(target: Target, prompt: Prompt, tokens: Sequence[int]) -> Conformance:
    """Run the test; `tokens` are as many ordinary ids as `PARENTS` has nodes, all different."""
    tree = DraftTree(tuple(tokens), PARENTS)
    paths = [tree.path_tokens(node) for node in range(-1, len(tree))]
    reference = torch.stack([full_forward(target, prompt, path) for path in paths])

    cache = target.new_cache(max_rows=4)
    riding = _prefill(target, cache, prompt, tree)
    # A second row, one token longer than the first, makes the shared pass ragged.
    _prefill(target, cache, prompt, DraftTree.empty())
    longer = torch.cat([prompt.input_ids, torch.tensor(tokens[:1])])
    cache.keep(0, [])
    target.extend(cache, [PassRow(1, Chunk(longer[-1:]))])
    root = Chunk(torch.tensor([tokens[0]]))
    shared = target.extend(cache, [PassRow(0, root, tree), PassRow(1, root, tree.first(2))]).logits[0]
    inner = torch.stack([full_forward(target, prompt, [tokens[0], *path]) for path in paths])
    cache.keep(0, PATH)
    after = target.extend(cache, [PassRow(0, Chunk(torch.tensor([tokens[-1]])))]).logits[0][0]
    accepted = [tokens[0], *(tokens[node] for node in PATH), tokens[-1]]

    return Conformance(
        riding=_error(riding, reference),
        batched=_error(shared, inner),
        compacted=_error(after, full_forward(target, prompt, accepted)),
        stepped=stepped_error(target, prompt),
        wrong_mask=_error(_prefill(planted(target, CausalMask), target.new_cache(), prompt, tree), reference),
        wrong_position=_error(_prefill(planted(target, SequentialPositions), target.new_cache(), prompt, tree), riding),
    )


def _prefill(target: Target, cache: KVCache, prompt: Prompt, tree: DraftTree) -> Tensor:
    """Prefill a new row with `tree` riding along; returns [1 + n, V]."""
    capacity = len(prompt) + 4 * len(PARENTS)
    return prefill(target, cache, prompt, target.encode(prompt), capacity, tree).logits[0]


def stepped_error(target: Target, prompt: Prompt) -> float:
    """Largest difference from Hugging Face's logits, of the prompt and of two greedy tokens in passes of their own."""
    model: Any = target.model
    ids = prompt.input_ids[None].to(target.device)
    features = {name: as_input(model, target.device, value) for name, value in prompt.features.items()}
    settings = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None, "pad_token_id": 0, "use_cache": True}
    own: list[Tensor] = []  # as the model gives them: `generate` hands out float32
    hook = model.register_forward_hook(lambda _module, _given, out: own.append(out.logits[0, -1:]))
    try:
        answer = model.generate(ids, attention_mask=torch.ones_like(ids), **features, **settings)
    finally:
        hook.remove()
    cache = target.new_cache()
    found = [_prefill(target, cache, prompt, DraftTree.empty())]
    steps = [Chunk(token[None]) for token in answer[0, len(prompt) : -1].cpu()]
    found += [target.extend(cache, [PassRow(0, step)]).logits[0] for step in steps]
    return _error(torch.cat(found), torch.cat(own))


def _error(found: Tensor, expected: Tensor) -> float:
    return (found - expected).abs().max().item()
