"""Probe rows: further inputs of a target pass, which are not verified; only the target's next tokens are wanted.

    root ─┬─ 0:"a" ─┬─ 1:"car"        the draft tree
          │         └─ 3:"?"          a probe after node 0,
          └─ 2:"is" ─ 4:"red"         and two in a row after the root

Probes are numbered on after the tree, as if they were further nodes of it, and fed that way: a probe stands at the
position after its parent and sees the committed text, its ancestors and itself; no node sees a probe, for a node's
ancestors are nodes. They are never accepted and never stay in the cache. Lookahead's window is made of such rows.
"""

from dataclasses import dataclass, replace

from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError


@dataclass(frozen=True)
class Probes:
    """Tokens to feed after a draft tree of n nodes.

    Args:
        tokens: [m] ids of the target.
        parents: [m] parent of each probe: -1 the root, 0 … n-1 a node, n + j the earlier probe j.
        top: number of likeliest ids that are wanted after each probe.

    Raises:
        CrossdraftError: lengths differ, a parent is below -1, or `top` below 1.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    top: int = 1

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents) or min(self.parents, default=ROOT) < ROOT or self.top < 1:
            raise CrossdraftError(
                f"Probes need one parent of -1 or more per token, and a top of 1 or more; got {len(self.tokens)} "
                f"tokens, parents {self.parents}, top {self.top}."
            )

    def __len__(self) -> int:
        return len(self.tokens)

    def behind(self, tree: DraftTree) -> DraftTree:
        """Append the probes to the nodes of `tree`: the input of the target's pass.

        Raises:
            CrossdraftError: a probe stands after one that comes later.
        """
        return DraftTree(tree.tokens + self.tokens, tree.parents + self.parents)

    def moved(self, old: DraftTree, new: DraftTree) -> "Probes | None":
        """The probes after the same texts of another tree; `None` if one of these texts is not in it."""
        if new is old:
            return self
        texts = {tuple(new.path_tokens(node)): node for node in range(ROOT, len(new))}
        parents: list[int] = []
        for parent in self.parents:
            if parent >= len(old):
                parents.append(parent - len(old) + len(new))
            elif (text := tuple(old.path_tokens(parent))) in texts:
                parents.append(texts[text])
            else:
                return None
        return replace(self, parents=tuple(parents))
