"""Evaluation of drafters under the real engine without adaptation: how much of a draft the target accepts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from crossdraft.engine.drafter import Drafter
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Answer, Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.stats import Stats
from crossdraft.engine.target import Target

TAU = "τ = tokens per verify pass, bonus included; the prompt's own pass, with which nothing is drafted, is not counted"


@dataclass(frozen=True, slots=True)
class AcceptanceStats:
    """One answer, or several added up; see `TAU`.

    Args:
        passes: verify passes after the prompt's own.
        emitted: tokens that these passes gave.
        offered_at, kept_at: [d] number of drafts at least d + 1 deep, and of those accepted to that depth.
    """

    passes: int
    emitted: int
    offered_at: tuple[int, ...] = ()
    kept_at: tuple[int, ...] = ()

    @classmethod
    def of(cls, stats: Stats) -> "AcceptanceStats":
        """Take the statistics of an answer without a hidden draft: the prompt's pass gave one token."""
        return cls(stats.rounds - 1, stats.new_tokens - 1, tuple(stats.drafted_at), tuple(stats.accepted_at))

    @property
    def tau(self) -> float:
        """Tokens per verify pass; 1 without a pass.

        >>> AcceptanceStats(2, 7).tau
        3.5
        """
        return self.emitted / self.passes if self.passes else 1.0


def total(tallies: Iterable[AcceptanceStats]) -> AcceptanceStats:
    """Add up the statistics of several answers, whose depths may differ.

    >>> total([AcceptanceStats(1, 3, (1, 1), (1, 1)), AcceptanceStats(2, 3, (2,), (1,))])
    AcceptanceStats(passes=3, emitted=6, offered_at=(3, 1), kept_at=(2, 1))
    """
    parts = list(tallies)
    offered, kept = (
        tuple(sum(level) for level in zip_longest(*(getattr(part, name) for part in parts), fillvalue=0))
        for name in ("offered_at", "kept_at")
    )
    return AcceptanceStats(sum(part.passes for part in parts), sum(part.emitted for part in parts), offered, kept)


def decode_all(
    target: Target, drafter: Drafter[Any], requests: Sequence[Request], nodes: int, batch: int = 4
) -> list[Answer]:
    """Answer the requests, up to `batch` in a pass, with drafts of at most `nodes` nodes in every round but the first.

    Nothing is drafted for the prompt's own pass, whether or not the drafter could.
    """
    placement = DraftRunner(drafter, "off")
    decoder = DecodeLoop(
        target, placement, adaptive=False, nodes=nodes, hidden_nodes=1, max_batch=max(1, min(batch, len(requests)))
    )
    return decoder.generate(requests)
