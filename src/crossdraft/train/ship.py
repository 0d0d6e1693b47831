"""The last two stages: held-out figures, and the models as they ship."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPImageProcessorPil

from crossdraft.drafters.short_head import FILE
from crossdraft.errors import CrossdraftError
from crossdraft.models.eventgpt import EventGPTProcessor, ProcessorOptions
from crossdraft.train.answers import Answered, Asked, Respondent, answer_all, append_answers, read_answers
from crossdraft.train.cards import card
from crossdraft.train.clips import clip_seed
from crossdraft.train.console import say
from crossdraft.train.evaluate import agreement, facts_right, held_out_questions
from crossdraft.train.pixels import frame_spec
from crossdraft.train.provenance import sha256, write_json, write_provenance
from crossdraft.train.reference import MODELS, Reference
from crossdraft.train.tokenizer import EVENT

EVENT_PROMPT = "USER: {event}\n{question} ASSISTANT:"
SHIPPED = Path(__file__).resolve().parents[1] / "reference"
LIMIT_MB = 40.0


WORDINGS = {"train_wordings": False, "held_out_wordings": True}


def run_evaluate(run: Reference) -> None:
    """Facts right on test scenes, in training wordings and in held-out ones; agreement with the target."""
    size = run.recipe.evaluate
    figures: dict[str, Any] = {
        "scenes": size.scenes,
        "questions": size.questions,
        "first_seed": clip_seed("test", 0),
    }
    for name in MODELS:
        figures[name] = {key: evaluate_model(run, name, key) for key in WORDINGS}
    write_json(run.out / "evaluation.json", figures)


def evaluate_model(run: Reference, name: str, wordings: str) -> dict[str, Any]:
    """Figures of one model; its answers are kept under `evaluation/` and only asked for when not there."""
    size = run.recipe.evaluate
    asked = held_out_questions(
        "test", range(size.scenes), size.questions, run.recipe.seed, held_out=WORDINGS[wordings]
    )
    respondent = run.trained(name)
    respondent.seer.model.to(torch.bfloat16)
    answers = _kept_answers(run, respondent, name, wordings, asked)
    figures: dict[str, Any] = {"facts_right": facts_right(asked, answers)}
    if name != "target":
        target = read_answers(_answers_path(run, "target", wordings))
        figures |= agreement(respondent, "test", target, size.questions)
    say(f"{name} {wordings}: {figures}")
    return figures


def _answers_path(run: Reference, name: str, wordings: str) -> Path:
    """Named after the weights, so that no later model is judged by an earlier one's words."""
    weights = sha256(run.out / name / "model" / "model.safetensors")
    return run.out / "evaluation" / f"{name}-{weights[:12]}-{wordings}.jsonl"


def _kept_answers(
    run: Reference, respondent: Respondent, name: str, wordings: str, asked: Sequence[Sequence[Asked]]
) -> list[Answered]:
    path = _answers_path(run, name, wordings)
    path.parent.mkdir(parents=True, exist_ok=True)
    done = len(read_answers(path)) // run.recipe.evaluate.questions
    limit = run.recipe.answers.max_new_tokens
    for some in answer_all(respondent, "test", asked[done:], 8, limit, f"{name} answers"):
        append_answers(path, some)
    return read_answers(path)


def run_ship(run: Reference, folder: Path = SHIPPED) -> None:
    """Write bf16 weights, config, tokenizer, frame spec, card and provenance of all three models.

    Raises:
        CrossdraftError: an earlier stage is missing, or the three together exceed the limit.
    """
    evaluation = run.out / "evaluation.json"
    if not evaluation.is_file():
        raise CrossdraftError(f"No {evaluation}; run the stage 'evaluate' first.")
    figures = json.loads(evaluation.read_text(encoding="utf-8"))
    for name in MODELS:
        _ship_one(run, name, folder / name, figures)
    size = sum(path.stat().st_size for name in MODELS for path in (folder / name).rglob("*")) / 1e6
    say(f"shipped {size:.1f} MB to {folder}")
    if size > LIMIT_MB:
        raise CrossdraftError(
            f"The reference models take {size:.1f} MB, more than {LIMIT_MB:.0f}; make the shapes smaller."
        )


def spoken_ids(run: Reference) -> list[int]:
    """Every token id of the answers that the drafters learned, the end's among them."""
    codec = run.codec(EVENT)
    said = (codec.answer_ids(answer.answer) for answer in read_answers(run.answers))
    return sorted({token for ids in said for token in ids})


def _ship_one(run: Reference, name: str, folder: Path, figures: Mapping[str, Any]) -> None:
    model = run.trained(name).seer.model.to(torch.bfloat16)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    run.tokenizer.save_pretrained(folder)
    spec = frame_spec(run.cache.size)
    CLIPImageProcessorPil(
        size={"shortest_edge": spec.size}, crop_size=dict(zip(("height", "width"), spec.crop or (), strict=True)),
        image_mean=list(spec.mean), image_std=list(spec.std),
    ).save_pretrained(folder)  # fmt: skip
    if name != "target":
        options = ProcessorOptions(template=EVENT_PROMPT, blind=name == "blind")
        EventGPTProcessor(model.config, run.tokenizer, options).save_pretrained(folder)
        (folder / FILE).write_text(json.dumps(spoken_ids(run)) + "\n", encoding="utf-8")
    own = {"evaluation": figures[name], "parameters": sum(p.numel() for p in model.parameters())}
    trained = json.loads((run.out / name / "model" / "provenance.json").read_text(encoding="utf-8"))
    data = trained["data"] | {"weights_sha256": sha256(folder / "model.safetensors")}
    write_provenance(folder / "provenance.json", run.recipe, trained["figures"] | own, data)
    (folder / "model.safetensors").chmod(0o644)  # written private, meant for a package
    (folder / "README.md").write_text(card(name, run.recipe, figures, own["parameters"]), encoding="utf-8")
