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
from crossdraft.files import put_in_place, temporary_folder
from crossdraft.models.eventgpt import EventGPTProcessor, ProcessorOptions
from crossdraft.scenes import DURATION_S
from crossdraft.train.core.log import say
from crossdraft.train.core.provenance import sha256, write_json, write_provenance
from crossdraft.train.reference.answers import Answered, keep_answers, read_answers
from crossdraft.train.reference.cards import card
from crossdraft.train.reference.clips import clip_seed
from crossdraft.train.reference.evaluate import agreement, drawn_questions, facts_right, fed_rows
from crossdraft.train.reference.pixels import frame_spec
from crossdraft.train.reference.prompt import PromptCodec
from crossdraft.train.reference.stages import MODELS, WEIGHTS, Reference, learned_answers
from crossdraft.train.reference.tokenizer import EVENT

EVENT_PROMPT = "USER: {event}\n{question} ASSISTANT:"
SHIPPED = Path(__file__).resolve().parents[2] / "reference"
LIMIT_MB = 40.0


WORDINGS = {"train_wordings": False, "held_out_wordings": True}


def run_evaluate(run: Reference) -> None:
    """Facts right on test scenes, in training wordings and in held-out ones; agreement with the target."""
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


def evaluate_model(run: Reference, name: str, wordings: str) -> dict[str, Any]:
    """Figures of one model; its answers are kept under `evaluation/` and only asked for when not there."""
    size, limit = run.recipe.evaluate, run.recipe.answers.max_new_tokens
    asked = drawn_questions("test", range(size.scenes), size.questions, run.recipe.seed, held_out=WORDINGS[wordings])
    respondent = run.trained(name)
    respondent.seer.model.to(torch.bfloat16)
    path = _answers_path(run, name, wordings)
    answers = keep_answers(path, respondent, "test", asked, size.clips, limit, f"{name} answers")
    figures: dict[str, Any] = {"facts_right": facts_right(asked, answers)}
    if name != "target":
        target = read_answers(_answers_path(run, "target", wordings))
        figures |= agreement(respondent, "test", target, size.questions, size.clips)
    say(f"{name} {wordings}: {figures}")
    return figures


def _answers_path(run: Reference, name: str, wordings: str) -> Path:
    """Named after the weights, so that no later model is judged by an earlier one's words."""
    return run.out / "evaluation" / f"{name}-{run.weights_sha256(name)[:12]}-{wordings}.jsonl"


def run_ship(run: Reference, folder: Path = SHIPPED) -> None:
    """Write bf16 weights, config, tokenizer, frame spec, card and provenance of all three models.

    What was shipped before is replaced only once the new models are whole and within the limit.

    Raises:
        CrossdraftError: an earlier stage is missing or saw other weights, or the three together exceed the limit.
    """
    figures = _figures(run)
    with temporary_folder(folder) as new:
        for name in MODELS:
            _ship_one(run, name, new / name, figures)
        if run.model_folder("text").is_dir():
            shutil.copytree(run.model_folder("text"), new / "text")
        size = sum(path.stat().st_size for path in new.rglob("*") if path.is_file()) / 1e6
        if size > LIMIT_MB:
            raise CrossdraftError(
                f"The reference models take {size:.1f} MB, more than {LIMIT_MB:.0f}; make the shapes smaller."
            )
        folder.mkdir(exist_ok=True)
        for made in list(new.iterdir()):
            put_in_place(made, folder / made.name)
    say(f"shipped {size:.1f} MB to {folder}")


def _figures(run: Reference) -> dict[str, Any]:
    """What the stage `evaluate` measured, of the very weights that are to be shipped."""
    path = run.out / "evaluation.json"
    if not path.is_file():
        raise CrossdraftError(f"No {path}; run the stage 'evaluate' first.")
    figures = json.loads(path.read_text(encoding="utf-8"))
    measured = figures.get("weights_sha256", {})
    for name in MODELS:
        if measured.get(name) != run.weights_sha256(name):
            raise CrossdraftError(f"{path} was measured on other weights of '{name}'; run the stage 'evaluate' again.")
    return figures


def spoken_ids(codec: PromptCodec, answers: Sequence[Answered]) -> list[int]:
    """Every token id of the answers that the drafters learned, the end's among them if any ended by itself."""
    return sorted({token for _, ids in fed_rows(codec, answers) for token in ids})


def _ship_one(run: Reference, name: str, folder: Path, figures: Mapping[str, Any]) -> None:
    model = run.trained(name).seer.model.to(torch.bfloat16)
    model.save_pretrained(folder)
    run.tokenizer.save_pretrained(folder)
    spec = frame_spec(run.cache.size)
    CLIPImageProcessorPil(
        size={"shortest_edge": spec.size}, crop_size=dict(zip(("height", "width"), spec.crop or (), strict=True)),
        image_mean=list(spec.mean), image_std=list(spec.std),
    ).save_pretrained(folder)  # fmt: skip
    if name != "target":
        window_us = round(DURATION_S * 1e6)  # it was trained on whole clips
        options = ProcessorOptions(template=EVENT_PROMPT, blind=name == "blind", window_us=window_us)
        EventGPTProcessor(model.config, run.tokenizer, options).save_pretrained(folder)
        ids = spoken_ids(run.codec(EVENT), learned_answers(run))
        (folder / FILE).write_text(json.dumps(ids) + "\n", encoding="utf-8")
    own = {"evaluation": figures[name], "parameters": sum(p.numel() for p in model.parameters())}
    trained = json.loads((run.model_folder(name) / "provenance.json").read_text(encoding="utf-8"))
    data = trained["data"] | {"weights_sha256": sha256(folder / WEIGHTS)}
    write_provenance(folder / "provenance.json", run.recipe, trained["figures"] | own, data)
    (folder / WEIGHTS).chmod(0o644)  # written private, meant for a package
    (folder / "README.md").write_text(card(name, run.recipe, figures, own["parameters"]), encoding="utf-8")
