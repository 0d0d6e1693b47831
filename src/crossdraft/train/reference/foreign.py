"""The stage `foreign`: an event model that words things otherwise than the target, as an EventGPT that nobody aligned.

It has the event drafter's shape and pre-trained vision encoder. Everything else of it starts anew, from weights of its
own, and learns captions (`scenes.captions`): no answer of the target's, nor any sentence that an answer uses.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossdraft.engine.tree import common_prefix
from crossdraft.files import atomic_folder
from crossdraft.scenes.captions import CAPTIONS
from crossdraft.train.core.log import say
from crossdraft.train.core.provenance import sha256
from crossdraft.train.reference.answers import (
    AnsweringModel,
    ClipAnswer,
    ClipQuestion,
    agreement,
    answer_rows,
    evaluation_questions,
    facts_right,
)
from crossdraft.train.reference.clips import clip_seed
from crossdraft.train.reference.losses import ground_truth_qa
from crossdraft.train.reference.models import TrainableEventGPT, build_drafter, to_bf16
from crossdraft.train.reference.phases import train_vlm
from crossdraft.train.reference.run import SHIPPED, WEIGHTS, WORDINGS, ReferenceRun
from crossdraft.train.reference.ship import write_model
from crossdraft.train.reference.tokenizer import PromptCodec

NAME = "foreign"


def run_foreign(run: ReferenceRun) -> None:
    """Train the model, measure it beside the target, and leave it as it ships in `<out>/foreign/model`.

    The target is the run's own, or the shipped one where the run has trained none.
    """
    answering, sight = _target_folder(run), run.sight(NAME)
    vlm, training_figures = train_foreign(run)
    to_bf16(vlm.model.eval())
    model, target, size = run.answering(NAME, vlm), run.trained("target", answering), run.recipe.evaluate
    to_bf16(target.vlm.model)
    measured = {key: measure(run, model, target, held_out=held_out) for key, held_out in WORDINGS.items()}
    figures = {"scenes": size.scenes, "questions": size.questions, "first_seed": clip_seed("test", 0), NAME: measured}
    data = run.training_data(
        clips=run.training_clips(NAME),
        answers="captions",
        vision_encoder="the shipped event drafter's" if sight.is_relative_to(SHIPPED) else "the stage event-sight's",
        vision_encoder_sha256=sha256(sight),
        measured_beside_target=sha256(answering / WEIGHTS),
    )
    folder = run.out / NAME / "model"
    with atomic_folder(folder) as new:
        write_model(run, NAME, model, caption_vocabulary(run, model.codec), new, figures, training_figures, data)
    say(f"{NAME}: saved {folder}, {measured}")


def train_foreign(run: ReferenceRun) -> tuple[TrainableEventGPT, dict[str, float]]:
    """The model, trained on the captions of training scenes, and the trainer's closing figures."""
    other = run.recipe.model_copy(update={"seed": run.recipe.seed + 1})  # not the weights that `event` began with
    vlm = TrainableEventGPT(build_drafter(other, run.tokenizer))
    figures = train_vlm(run, NAME, vlm, lambda questions, seed: ground_truth_qa(questions, seed, CAPTIONS))
    return vlm, figures


def _target_folder(run: ReferenceRun) -> Path:
    """The target to be measured beside: the run's own, or the shipped one if it has this run's tokenizer.

    Raises:
        CrossdraftError: there is neither.
    """
    own, shipped, file = run.out / "target" / "model" / WEIGHTS, SHIPPED / "target", "tokenizer.json"
    ours = run.out / "tokenizer" / file
    if not own.is_file() and ours.is_file() and ours.read_bytes() == (shipped / file).read_bytes():
        return shipped
    return run.model_folder("target")


def caption_vocabulary(run: ReferenceRun, codec: PromptCodec) -> list[int]:
    """Every token id of captions of the training scenes, the end's among them."""
    texts = dict.fromkeys(run.texts(run.training_clips(NAME), "{answer}", answers=CAPTIONS))
    return sorted({token for text in texts for token in codec.answer_ids(text)})


def measure(run: ReferenceRun, model: AnsweringModel, target: AnsweringModel, *, held_out: bool) -> dict[str, Any]:
    """Facts right on test scenes, and what the target would accept.

    `top1`, `tau_8` and `tau_16` as `answers.agreement`; `first_token` and `hidden_prefix` as `hidden_draft`.
    """
    size = run.recipe.evaluate
    by_clip = evaluation_questions("test", range(size.scenes), size.questions, run.recipe.seed, held_out=held_out)
    own, theirs = _answers(run, model, by_clip), _answers(run, target, by_clip)
    figures: dict[str, Any] = {"facts_right": facts_right(by_clip, own)}
    figures |= agreement(model, "test", theirs, size.questions, size.clips)
    return figures | hidden_draft(model.codec, own, theirs)


def _answers(run: ReferenceRun, model: AnsweringModel, by_clip: Sequence[Sequence[ClipQuestion]]) -> list[ClipAnswer]:
    limit, note = run.recipe.answers.max_new_tokens, f"answers from {model.kind}"
    batches = model.answer_batches("test", by_clip, run.recipe.evaluate.clips, limit, note)
    return [answer for some in batches for answer in some]


def hidden_draft(codec: PromptCodec, drafted: Sequence[ClipAnswer], answers: Sequence[ClipAnswer]) -> dict[str, float]:
    """What a target accepts of drafts that were written before it said anything.

    `first_token` is the share of drafts with its first token, `hidden_prefix` the mean number of tokens accepted.
    """
    pairs = zip(answer_rows(codec, drafted), answer_rows(codec, answers), strict=True)
    lengths = [common_prefix(own, theirs) for (_, own), (_, theirs) in pairs]
    first = float(np.mean([length > 0 for length in lengths]))
    return {"first_token": round(first, 4), "hidden_prefix": round(float(np.mean(lengths)), 4)}
