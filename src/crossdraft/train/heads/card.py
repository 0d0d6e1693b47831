"""A head's model card: every number in it was measured when it was saved."""

from collections.abc import Mapping
from typing import Any

from crossdraft.train.heads.recipe import HeadRecipe

CARD = """\
---
license: apache-2.0
---
# {network}: a head for crossdraft

{parameters} parameters of its own, bf16. Trained by `crossdraft train {network}` on its target's answers
(target: `config.json`; recipe, versions, data: `provenance.json`) in {minutes:.0f} minutes.

{table}
"""


def card(recipe: HeadRecipe, figures: Mapping[str, Any], about: str) -> str:
    """The card's text; `about` says how it was measured."""
    return CARD.format(
        network=recipe.network,
        parameters=f"{figures['parameters']:,}",
        minutes=figures["wall_s"] / 60,
        table=_table(figures.get("engine", {}), about),
    )


def _table(engine: Mapping[str, Any], about: str) -> str:
    if not engine:
        return "Its drafts were not measured."
    lines = [about, "", "| drafts | τ | accepted up to each position |", "|---|---|---|"]
    lines += [
        f"| {name} | {found['tau']:.2f} | {' '.join(f'{share:.2f}' for share in found['per_position'])} |"
        for name, found in engine.items()
    ]
    return "\n".join(lines)
