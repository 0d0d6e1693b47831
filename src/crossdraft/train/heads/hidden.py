"""What a drafter is worth that writes while the target reads: its first draft, and those of the rounds after it."""

from collections.abc import Sequence
from typing import Any

from crossdraft.engine.cost import CostModel
from crossdraft.engine.decode import Decoder
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.placement import Inline
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.train.heads.measure import Accepted

POSITIONS = 8  # of the first draft that are told apart


def measure_hidden(
    target: Target, drafter: Drafter[Any], requests: Sequence[Request], nodes: int
) -> dict[str, Accepted]:
    """Answer the requests greedily, the drafter writing first to its heart's content, then `nodes` a round.

    Returns:
        `hidden`: tokens of the pass that the first draft rides along with, bonus included, and how many of those drafts
        held that far. `rounds`: tokens of every pass behind it.
    """
    placed = Inline(drafter, CostModel(), "before")
    answers = Decoder(target, placed, adaptive=False, nodes=nodes).generate(requests)
    firsts = [answer.stats.hidden_accepted for answer in answers]
    rounds = sum(answer.stats.rounds - 1 for answer in answers)
    later = sum(answer.stats.accepted - answer.stats.hidden_accepted for answer in answers)
    held = tuple(sum(first > place for first in firsts) / len(firsts) for place in range(POSITIONS))
    return {"hidden": Accepted(1 + sum(firsts) / len(firsts), held), "rounds": Accepted(1 + later / max(rounds, 1), ())}
