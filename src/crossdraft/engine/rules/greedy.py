"""`greedy`: lossless at temperature 0. Any tree."""

from torch import Tensor

from crossdraft.engine.accept import Acceptance, follow
from crossdraft.engine.noise import Noise
from crossdraft.engine.tree import DraftTree


def verify(tree: DraftTree, logits: Tensor, noise: Noise) -> Acceptance:
    """Keep the path whose every token is the argmax after the one before it; add the argmax after the last."""
    best = logits.argmax(-1).tolist()
    return follow(tree, lambda node, depth: best[node + 1])
