"""Model cards: every number in them comes from the evaluation's JSON."""

from collections.abc import Mapping
from typing import Any

from crossdraft.train.reference.recipe import ReferenceRecipe

_TITLES = {
    "target": "crossdraft reference target",
    "event": "crossdraft reference drafter",
    "blind": "crossdraft blind twin",
}
_ABOUT = {
    "target": """\
A small Video-LLaVA (`VideoLlavaForConditionalGeneration`) that answers questions about one-second clips of
crossdraft's synthetic road world: 8 frames, {visual} visual tokens. Its image tower is a copy of its video tower.""",
    "event": """\
A small EventGPT that answers the same questions from an event camera's view. It was trained on the *target's own
answers*, and drafts for it. Colours and lights leave no events: there it must guess.""",
    "blind": """\
The control: the event drafter's architecture, size, data, steps and seed, but in training and in use it is given
blank (white) event frames. As they show nothing, it went without what teaches seeing: it had no sight stage and no loss
on attributes, and its tower, never frozen, was trained with the rest. What it gets right, it gets from the question and
the statistics of the answers.""",
}
_CARD = """\
---
license: apache-2.0
library_name: transformers
---
# {title}

{about}

- parameters: {millions:.1f} M, bf16
- prompt: `"USER: {placeholder}\\n{{question}} ASSISTANT:"`; answers end with `</s>`; greedy decoding
- trained by `crossdraft train reference` (recipe, versions, seeds: `provenance.json`)

## Held-out figures

{scenes} scenes of the test split (seeds {first_seed} ...), {questions} questions each. A fact is right when its
phrase is in the answer and no rival's is. Clips were seen as they are rendered, in training and here; a user's video
comes through H.264, for which the figures may differ.

{table}

Facts right by kind of question:

{kinds}

## Limits

It knows the synthetic road world and nothing else: on real recordings its words mean little. It is here so that
lossless drafting can be shown and measured, end to end, on any computer.
"""
_TAU = "τ here is tokens a round, bonus included, of greedy chains of 8 and of 16 laid along the target's answers."


def card(name: str, recipe: ReferenceRecipe, figures: Mapping[str, Any], parameters: int) -> str:
    """The README of one shipped model."""
    shape = recipe.target if name == "target" else recipe.drafter
    visual = shape.frames * ((shape.vision.image_size // shape.vision.patch_size) ** 2 + 1)
    return _CARD.format(
        title=_TITLES[name],
        about=_ABOUT[name].format(visual=visual),
        millions=parameters / 1e6,
        placeholder="<video>" if name == "target" else "<event>",
        scenes=figures["scenes"],
        first_seed=figures["first_seed"],
        questions=figures["questions"],
        table="\n".join(_table(figures[name])),
        kinds="\n".join(_kinds(figures[name])),
    )


def _table(own: Mapping[str, Any]) -> list[str]:
    drafts = "tau_8" in own["train_wordings"]
    titles = ["facts right"]
    if drafts:
        titles += ["next token as the target's", "τ, chains of 8", "τ, chains of 16"]
    lines = [f"| questions in | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for key, label in (("train_wordings", "training wordings"), ("held_out_wordings", "held-out wordings")):
        row = own[key]
        cells = [f"{row['facts_right']['all']:.1%}"]
        if drafts:
            cells += [f"{row['top1']:.1%}", f"{row['tau_8']:.2f}", f"{row['tau_16']:.2f}"]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return [*lines, "", _TAU] if drafts else lines


def _kinds(own: Mapping[str, Any]) -> list[str]:
    seen, held = own["train_wordings"]["facts_right"], own["held_out_wordings"]["facts_right"]

    def cell(share: float | None) -> str:
        return "—" if share is None else f"{share:.1%}"

    rows = [f"| {kind} | {seen[kind]:.1%} | {cell(held.get(kind))} |" for kind in seen if kind != "all"]
    return ["| kind | training wordings | held-out wordings |", "|---|---|---|", *rows]
