"""The drafter `pass`: the target reads learned look-ahead embeddings, and says behind them what comes places on.

PaSS (Monea et al. 2023) takes two passes a draft, one that drafts and one that verifies. Here one pass does both, as in
P-EAGLE (2026): the embeddings stand behind the root and behind every node of the last draft, so wherever the target
leaves it, the next draft has been read already; see `ahead`. That costs L·(L + 1) rows a pass, which a GPU hardly
notices, and a CPU does.

The target's own weights stay as they are: the rows are trained (`train.heads.pass_`). They are no ids, so the drafter
runs where the target does.
"""

from collections.abc import Sequence
from dataclasses import replace

from crossdraft.engine.probes import Probes
from crossdraft.heads.pass_.ahead import AheadDrafter
from crossdraft.heads.pass_.network import LookaheadEmbeddings

PLACEHOLDER = 0  # the id that keeps an embedding's place; nothing reads it


class PassDrafter(AheadDrafter):
    """Drafts what the target said behind learned embeddings.

    Args:
        head: the embeddings, on the target's device; as many tokens are drafted.
        banned: ids that must not be drafted.
    """

    def __init__(self, head: LookaheadEmbeddings, banned: Sequence[int] = ()) -> None:
        self.rows = head.ahead.detach()
        super().__init__((PLACEHOLDER,) * len(self.rows), banned)

    def probes(self, nodes: int) -> Probes:
        return replace(super().probes(nodes), embeddings=self.rows.repeat(nodes + 1, 1))
