"""What learning together has changed: the target's words, and what drafts are worth to it; and the card of both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossdraft.drafters.trees import RankCounts
from crossdraft.engine.decode import Decoder
from crossdraft.engine.request import Request
from crossdraft.load import load_target, target_fingerprint
from crossdraft.models.heads.base import TargetTables
from crossdraft.models.heads.files import load_head, read_config
from crossdraft.train.heads.measure import Accepted, figures_of
from crossdraft.train.heads.recipe import Measure
from crossdraft.train.heads.worth import worth

BATCH = 4  # answers written side by side
CARD = """\
# {network}: a head, and the target that learned with it

**The target's words have changed.** Target and head were trained together (Medusa-2: Cai et al. 2024, §2.2.2) by
`crossdraft train medusa2` on what the target said before (recipe, versions, data: `provenance.json`), in {minutes:.0f}
minutes. This head belongs to the target that came of it, fingerprint {new}…, which lies beside it in `target`; drafting
with it is lossless with respect to that one, and says nothing of the target it began from, {old}….

{measured}
"""
MEASURED = """\
Of {answers} answers to questions about validation scenes, **{kept} are still the old target's word for word** (greedy,
each target alone).

Tokens a verify pass under the engine, bonus included, on the same questions; trees of {nodes} nodes, chains of {chain}.
Before: the old target and its head. After: the new target and its own.

| drafts | τ before | τ after |
|---|---|---|
{rows}"""


@dataclass(frozen=True)
class Side:
    """A target and its head, before or after.

    Args:
        answers: the target's own, greedy.
        found, counts: what its head is worth to it; see `worth.worth`.
    """

    answers: list[tuple[int, ...]]
    found: dict[str, Accepted]
    counts: RankCounts


def look_at(source: str, folder: Path, requests: Sequence[Request], settings: Measure, device: str) -> Side:
    """Load a target and its head as who drafts with them would, and ask them."""
    target = load_target(source, device)
    network = read_config(folder).network
    head = load_head(folder, TargetTables.of(target.model), target_fingerprint(source), network)
    answers = Decoder(target, max_batch=BATCH).generate(requests)
    found, counts = worth(target, head.to(target.device, target.model.dtype), network, requests, settings)
    return Side([tuple(answer.tokens) for answer in answers], found, counts)


def change(before: Side, after: Side) -> dict[str, object]:
    """Figures of both sides, and how many answers are the same word for word."""
    kept = sum(old == new for old, new in zip(before.answers, after.answers, strict=True))
    return {
        "kept": kept,
        "answers": len(before.answers),
        "before": figures_of(before.found),
        "engine": figures_of(after.found),
    }


def card(network: str, old: str, new: str, figures: Mapping[str, Any], settings: Measure) -> str:
    """The card's text; `old` and `new` are the targets' fingerprints."""
    return CARD.format(
        network=network,
        minutes=figures["wall_s"] / 60,
        new=new[:12],
        old=old[:12],
        measured=_measured(figures, settings),
    )


def _measured(figures: Mapping[str, Any], settings: Measure) -> str:
    if "engine" not in figures:
        return "How far its words have changed was not measured: do so before it takes the other's place."
    rows = [
        f"| {name} | {figures['before'][name]['tau']:.2f} | {found['tau']:.2f} |"
        for name, found in figures["engine"].items()
    ]
    return MEASURED.format(
        answers=figures["answers"],
        kept=figures["kept"],
        nodes=settings.nodes,
        chain=settings.chain,
        rows="\n".join(rows),
    )
