"""The last two stages: held-out figures, and the shipped models, each with a card that states these figures."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import CLIPImageProcessorPil

from crossdraft.checkpoints.locate import REFERENCE, shipped_at
from crossdraft.drafters.short_head import FILE
from crossdraft.errors import CrossdraftError
from crossdraft.files import put_in_place, temporary_folder
from crossdraft.models.eventgpt import EventGPTForConditionalGeneration, EventGPTProcessor, ProcessorOptions
from crossdraft.video.spec import FrameSpec
from crossdraft_lab.scenes import DURATION_S
from crossdraft_lab.train.core.log import say
from crossdraft_lab.train.core.provenance import sha256, write_json, write_provenance
from crossdraft_lab.train.reference.answers import (
    AnsweringModel,
    ClipAnswer,
    agreement,
    answer_rows,
    evaluation_questions,
    facts_right,
    read_answers,
    record_answers,
)
from crossdraft_lab.train.reference.clips import clip_seed
from crossdraft_lab.train.reference.models import to_bf16
from crossdraft_lab.train.reference.recipe import ReferenceRecipe
from crossdraft_lab.train.reference.run import MODELS, WEIGHTS, WORDINGS, ReferenceRun
from crossdraft_lab.train.reference.tokenizer import PromptCodec

EVENT_PROMPT = "USER: {event}\n{question} ASSISTANT:"
LIMIT_MB = 48.0  # for four models; with the heads the package stays below PyPI's limit of 100 MB
MADE_BY_THEIR_STAGE = ("text", "foreign")
"""Models that their own stage measures and saves for shipping."""
_TITLES = {
    "target": "crossdraft reference target",
    "event": "crossdraft reference drafter",
    "blind": "crossdraft blind twin",
    "foreign": "crossdraft foreign drafter",
}
_ABOUT = {
    "target": """\
A small Video-LLaVA (`VideoLlavaForConditionalGeneration`) that answers questions about one-second clips of
crossdraft's synthetic road world: 8 frames, {visual} visual tokens. Its `image_tower` is a copy of its
`video_tower`.""",
    "event": """\
A small EventGPT that answers the same questions from an event camera's view. It was trained on the *target's own
answers*, and drafts for it. Colours and lights leave no events: there it must guess.""",
    "blind": """\
The control: the event drafter's architecture, size, data, steps and seed, but in training and in use it is given
blank (white) event frames. As they show nothing, it went without what teaches seeing: it had no sight stage and no loss
on attributes, and its vision encoder, never frozen, was trained with the rest. What it gets right, it gets from the
question and the statistics of the answers.""",
    "foreign": """\
The stand-in for an event model that nobody trained for this target: the event drafter's architecture, size and vision
encoder, the rest trained on *captions*, which state the same facts in other wordings and in another order ("In the
scene, there is ..."), and never on an answer of the target's. Its answers begin otherwise, so the target refuses
what it drafts before the target has spoken at the first token. It is what adapters are measured against.""",
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
_HIDDEN = """\
Its hidden draft is its own greedy answer, written before the target has said anything. The target accepts the tokens
that its own answer begins with, too."""


def run_evaluate(run: ReferenceRun) -> None:
    """Measure facts right on test scenes, in training wordings and in held-out ones, and agreement with the target."""
    size = run.recipe.evaluate
    figures: dict[str, Any] = {
        "scenes": size.scenes,
        "questions": size.questions,
        "first_seed": clip_seed("test", 0),
        "weights_sha256": {name: run.weights_sha256(name) for name in MODELS},
    }
    for name in MODELS:
        figures[name] = {key: evaluate_model(run, name, key) for key in WORDINGS}
    write_json(run.out / "evaluation.json", figures)


def evaluate_model(run: ReferenceRun, name: str, wordings: str) -> dict[str, Any]:
    """Measure one model; its answers are kept under `evaluation/` and generated only if they are missing."""
    size, limit = run.recipe.evaluate, run.recipe.answers.max_new_tokens
    by_clip = evaluation_questions(
        "test", range(size.scenes), size.questions, run.recipe.seed, held_out=WORDINGS[wordings]
    )
    model = run.trained(name)
    to_bf16(model.vlm.model)
    path = answers_path(run, name, run.weights_sha256(name), wordings)
    answers = record_answers(path, model, "test", by_clip, size.clips, limit, f"{name} answers")
    figures: dict[str, Any] = {"facts_right": facts_right(by_clip, answers)}
    if name != "target":
        target = read_answers(answers_path(run, "target", run.weights_sha256("target"), wordings))
        figures |= agreement(model, "test", target, size.questions, size.clips)
    say(f"{name} {wordings}: {figures}")
    return figures


def answers_path(run: ReferenceRun, name: str, weights: str, wordings: str) -> Path:
    """File of answers, named after the weights' digest so that no model is measured by another model's answers."""
    return run.out / "evaluation" / f"{name}-{weights[:12]}-{wordings}.jsonl"


def run_ship(run: ReferenceRun, folder: Path | None = None) -> None:
    """Write bf16 weights, config, tokenizer, frame spec, card and provenance of all models.

    Models shipped before are replaced only once the new models are whole and within the limit.

    Args:
        run: run whose earlier stages are complete.
        folder: folder for all models; default each model's shipped place.

    Raises:
        CrossdraftError: an earlier stage is missing or used other weights, or the models together exceed the limit.
    """
    figures = _figures(run)
    with temporary_folder(folder or REFERENCE) as new:
        for name in MODELS:
            _ship_one(run, name, new / name, figures)
        for name in MADE_BY_THEIR_STAGE:
            shutil.copytree(run.model_folder(name), new / name)
        size = sum(path.stat().st_size for path in new.rglob("*") if path.is_file()) / 1e6
        if size > LIMIT_MB:
            raise CrossdraftError(
                f"The reference models take {size:.1f} MB, more than {LIMIT_MB:.0f}; make the shapes smaller."
            )
        if folder is not None:
            folder.mkdir(exist_ok=True)
        for made in list(new.iterdir()):
            put_in_place(made, shipped_at(made.name) if folder is None else folder / made.name)
    say(f"shipped {size:.1f} MB to {'the installed packages' if folder is None else folder}")


def _figures(run: ReferenceRun) -> dict[str, Any]:
    """Load the figures of the stage `evaluate`, which must belong to the weights that are shipped."""
    path = run.out / "evaluation.json"
    if not path.is_file():
        raise CrossdraftError(f"No {path}; run the stage 'evaluate' first.")
    figures = json.loads(path.read_text(encoding="utf-8"))
    measured = figures.get("weights_sha256", {})
    for name in MODELS:
        if measured.get(name) != run.weights_sha256(name):
            raise CrossdraftError(f"{path} was measured on other weights of '{name}'; run the stage 'evaluate' again.")
    foreign = json.loads((run.model_folder("foreign") / "provenance.json").read_text(encoding="utf-8"))
    if foreign["data"]["measured_against_target"] != run.weights_sha256("target"):
        raise CrossdraftError("'foreign' was measured against another 'target'; run the stage 'foreign' again.")
    return figures


def answer_vocabulary(codec: PromptCodec, answers: Sequence[ClipAnswer]) -> list[int]:
    """All token ids in the answers that the drafters learned; the end token's too if an answer ended by itself."""
    return sorted({token for _, ids in answer_rows(codec, answers) for token in ids})


def _ship_one(run: ReferenceRun, name: str, folder: Path, figures: Mapping[str, Any]) -> None:
    trained = run.trained(name)
    to_bf16(trained.vlm.model)
    ids = None if name == "target" else answer_vocabulary(trained.codec, run.target_answers())
    provenance = json.loads((run.model_folder(name) / "provenance.json").read_text(encoding="utf-8"))
    write_model(run, name, trained, ids, folder, figures, provenance["figures"], provenance["data"])


def write_model(
    run: ReferenceRun,
    name: str,
    trained: AnsweringModel,
    ids: Sequence[int] | None,
    folder: Path,
    figures: Mapping[str, Any],
    training_figures: Mapping[str, Any],
    data: Mapping[str, Any],
) -> None:
    """Write a model for shipping: weights, config, tokenizer, frame spec, card and provenance.

    Args:
        trained: the model, in bf16.
        ids: ids that an event model may draft; `None` = all of its vocabulary.
        figures: `scenes`, `questions`, `first_seed`, and the model's own under its name.
        training_figures, data: figures and data of its training, for the provenance.
    """
    model = trained.vlm.model
    model.save_pretrained(folder)
    run.tokenizer.save_pretrained(folder)
    side, spec = run.cache.size, FrameSpec()
    CLIPImageProcessorPil(
        size={"shortest_edge": side}, crop_size={"height": side, "width": side},
        image_mean=list(spec.mean), image_std=list(spec.std),
    ).save_pretrained(folder)  # fmt: skip
    if isinstance(model, EventGPTForConditionalGeneration):
        window_us = round(DURATION_S * 1e6)  # the model was trained on whole clips
        options = ProcessorOptions(template=EVENT_PROMPT, blind=trained.blank, window_us=window_us)
        EventGPTProcessor(model.config, run.tokenizer, options).save_pretrained(folder)
    if ids is not None:
        (folder / FILE).write_text(json.dumps(list(ids)) + "\n", encoding="utf-8")
    own = {"evaluation": figures[name], "parameters": sum(p.numel() for p in model.parameters())}
    weights = {"weights_sha256": sha256(folder / WEIGHTS)}
    write_provenance(folder / "provenance.json", run.recipe, {**training_figures, **own}, {**data, **weights})
    (folder / WEIGHTS).chmod(0o644)  # written private, meant for a package
    (folder / "README.md").write_text(card(name, run.recipe, figures, own["parameters"]), encoding="utf-8")


def card(name: str, recipe: ReferenceRecipe, figures: Mapping[str, Any], parameters: int) -> str:
    """The README of one shipped model."""
    shape = recipe.target if name == "target" else recipe.drafter
    visual = shape.frames * shape.vision.tokens
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
    drafts, foreign = "tau_8" in own["train_wordings"], "hidden_prefix" in own["train_wordings"]
    titles = ["facts right"]
    if drafts:
        titles += ["next token as the target's", "τ, chains of 8", "τ, chains of 16"]
    if foreign:
        titles += ["first token as the target's", "accepted of its hidden draft"]
    lines = [f"| questions in | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for key, label in (("train_wordings", "training wordings"), ("held_out_wordings", "held-out wordings")):
        row = own[key]
        cells = [f"{row['facts_right']['all']:.1%}"]
        if drafts:
            cells += [f"{row['top1']:.1%}", f"{row['tau_8']:.2f}", f"{row['tau_16']:.2f}"]
        if foreign:
            cells += [f"{row['first_token']:.1%}", f"{row['hidden_prefix']:.2f} tokens"]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return [*lines, *(["", _TAU] if drafts else []), *(["", _HIDDEN] if foreign else [])]


def _kinds(own: Mapping[str, Any]) -> list[str]:
    train, held = own["train_wordings"]["facts_right"], own["held_out_wordings"]["facts_right"]

    def cell(share: float | None) -> str:
        return "—" if share is None else f"{share:.1%}"

    rows = [f"| {kind} | {train[kind]:.1%} | {cell(held.get(kind))} |" for kind in train if kind != "all"]
    return ["| kind | training wordings | held-out wordings |", "|---|---|---|", *rows]
