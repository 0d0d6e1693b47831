"""`greedy`: lossless at temperature 0. Any tree."""

import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance
from crossdraft.engine.tree import ROOT, DraftTree


def verify(tree: DraftTree, logits: Tensor, generator: torch.Generator) -> Acceptance:
    """Keep the path whose every token is the argmax after the one before it; add the argmax after the last."""
    best = logits.argmax(-1).tolist()
    path: list[int] = []
    node = ROOT
    while True:
        wanted = best[node + 1]
        node = next((child for child in tree.children(node) if tree.tokens[child] == wanted), ROOT)
        if node == ROOT:
            return Acceptance(tuple(path), wanted)
        path.append(node)
