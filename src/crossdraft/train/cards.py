"""Model cards: every number in them comes from the evaluation's JSON."""

from collections.abc import Mapping
from typing import Any

from crossdraft.train.recipe import Recipe

_WHAT = {
    "target": (
        "crossdraft reference target",
        "A small Video-LLaVA (`VideoLlavaForConditionalGeneration`) that answers questions about one-second clips of "
        "crossdraft's synthetic road world: 8 frames, {visual} visual tokens. Its image tower is a copy of its video tower.",
    ),
    "event": (
        "crossdraft reference drafter",
        "A small EventGPT that answers the same questions from an event camera's view. It was trained on the "
        "*target's own answers*, and drafts for it. Colours and lights leave no events: there it must guess.",
    ),
    "blind": (
        "crossdraft blind twin",
        "The control: the event drafter's architecture, size, data, steps and seed, but in training and in use it is "
        "given blank (white) event frames. What it gets right, it gets from the question and the statistics of answers.",
    ),
}


def card(name: str, recipe: Recipe, figures: Mapping[str, Any], parameters: int) -> str:
    """The README of one shipped model."""
    title, what = _WHAT[name]
    shape = recipe.target if name == "target" else recipe.drafter
    visual = shape.frames * ((shape.vision.image_size // shape.vision.patch_size) ** 2 + 1)
    placeholder = "<video>" if name == "target" else "<event>"
    own = figures[name]
    lines = [
        "---", "license: apache-2.0", "library_name: transformers", "---",
        f"# {title}", "", what.format(visual=visual), "",
        f"- parameters: {parameters / 1e6:.1f} M, bf16",
        f'- prompt: `"USER: {placeholder}\\n{{question}} ASSISTANT:"`, answers end with `</s>`; greedy decoding',
        f"- trained by `crossdraft train reference` (recipe, versions, seeds: `provenance.json`)", "",
        "## Held-out figures", "",
        f"{figures['scenes']} scenes of the test split (seeds {figures['first_seed']} ...), {figures['questions']} "
        "questions each. A fact is right when its phrase is in the answer and no rival's is.", "",
        *_table(own), "",
        "Facts right by kind of question (training / held-out wordings):", "",
        *_kinds(own), "",
        "## Limits", "",
        "It knows the synthetic road world and nothing else: on real recordings its words mean little. It is here so "
        "that lossless drafting can be shown and measured end to end on any computer.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _table(own: Mapping[str, Any]) -> list[str]:
    names = {"train_wordings": "training wordings", "held_out_wordings": "held-out wordings"}
    if "tau_8" not in own["train_wordings"]:
        rows = [f"| {names[key]} | {row['facts_right']['all']:.1%} |" for key, row in own.items()]
        return ["| questions in | facts right |", "|---|---|", *rows]
    rows = [
        f"| {names[key]} | {row['facts_right']['all']:.1%} | {row['top1']:.1%} | {row['tau_8']:.2f} | {row['tau_16']:.2f} |"
        for key, row in own.items()
    ]
    note = "τ here is tokens a round, bonus included, of greedy chains of 8 and of 16 laid along the target's answers."
    head = "| questions in | facts right | next token as the target's | τ, chains of 8 | τ, chains of 16 |"
    return [head, "|---|---|---|---|---|", *rows, "", note]


def _kinds(own: Mapping[str, Any]) -> list[str]:
    seen, held = own["train_wordings"]["facts_right"], own["held_out_wordings"]["facts_right"]
    rows = [f"| {kind} | {seen[kind]:.1%} | {held.get(kind, float('nan')):.1%} |" for kind in seen if kind != "all"]
    return ["| kind | training | held-out |", "|---|---|---|", *rows]
