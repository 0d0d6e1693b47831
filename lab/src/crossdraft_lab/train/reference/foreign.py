"""The stage `foreign`: an event model whose wordings differ from the target's, like an EventGPT that is not aligned.

It has the event drafter's shape and pre-trained vision encoder. Everything else starts from other random weights, and
learns captions (`scenes.captions`), never an answer of the target's.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossdraft.checkpoints.locate import REFERENCE
from crossdraft.engine.tree import common_prefix
from crossdraft.files import atomic_folder
from crossdraft_lab.scenes.captions import CAPTIONS
from crossdraft_lab.train.core.log import say
from crossdraft_lab.train.core.provenance import sha256
from crossdraft_lab.train.reference.answers import (
    AnsweringModel,
    ClipAnswer,
    ClipQuestion,
    agreement,
    answer_rows,
    evaluation_questions,
    facts_right,
    record_answers,
)
from crossdraft_lab.train.reference.clips import clip_seed
from crossdraft_lab.train.reference.losses import ground_truth_qa
from crossdraft_lab.train.reference.models import TrainableEventGPT, build_drafter, to_bf16
from crossdraft_lab.train.reference.run import WEIGHTS, WORDINGS, ReferenceRun, train_vlm
from crossdraft_lab.train.reference.ship import answers_path, write_model
from crossdraft_lab.train.reference.tokenizer import PromptCodec

NAME = "foreign"


def run_foreign(run: ReferenceRun) -> None:
    """Train the model, measure it against the target, and save it for shipping in `<out>/foreign/model`.

    The target is the run's own, or the shipped one where the run has trained none.
    """
    target, sight = _target_folder(run), run.sight(NAME)
    vlm, training_figures = train_foreign(run)
    to_bf16(vlm.model.eval())
    model, size = run.answering(NAME, vlm), run.recipe.evaluate
    measured = {key: measure(run, key, model, target_answers(run, key, target)) for key in WORDINGS}
    figures = {"scenes": size.scenes, "questions": size.questions, "first_seed": clip_seed("test", 0), NAME: measured}
    data = run.training_data(
        clips=run.training_clips(NAME),
        answers="captions",
        vision_encoder="the shipped event drafter's" if sight.is_relative_to(REFERENCE) else "the stage event-sight's",
        vision_encoder_sha256=sha256(sight),
        measured_against_target=sha256(target / WEIGHTS),
    )
    folder = run.out / NAME / "model"
    with atomic_folder(folder) as new:
        write_model(run, NAME, model, caption_vocabulary(run, model.codec), new, figures, training_figures, data)
    say(f"{NAME}: saved {folder}, {measured}")


def train_foreign(run: ReferenceRun) -> tuple[TrainableEventGPT, dict[str, float]]:
    """Train the model on the captions of training scenes; return it and the trainer's closing figures."""
    other = run.recipe.model_copy(update={"seed": run.recipe.seed + 1})  # not the weights that `event` began with
    vlm = TrainableEventGPT(build_drafter(other, run.tokenizer))
    figures = train_vlm(run, NAME, vlm, lambda questions, seed: ground_truth_qa(questions, seed, CAPTIONS))
    return vlm, figures


def _target_folder(run: ReferenceRun) -> Path:
    """Folder of the target for the comparison: the run's own, or the shipped one if it has this run's tokenizer.

    Raises:
        CrossdraftError: there is neither target.
    """
    own, shipped, file = run.out / "target" / "model" / WEIGHTS, REFERENCE / "target", "tokenizer.json"
    ours = run.out / "tokenizer" / file
    if not own.is_file() and ours.is_file() and ours.read_bytes() == (shipped / file).read_bytes():
        return shipped
    return run.model_folder("target")


def caption_vocabulary(run: ReferenceRun, codec: PromptCodec) -> list[int]:
    """All token ids of captions of the training scenes, including the end token's."""
    texts = dict.fromkeys(run.texts(run.training_clips(NAME), "{answer}", answers=CAPTIONS))
    return sorted({token for text in texts for token in codec.answer_ids(text)})


def measure(run: ReferenceRun, wordings: str, model: AnsweringModel, answers: Sequence[ClipAnswer]) -> dict[str, Any]:
    """Measure the facts right on test scenes, and the drafts that the target, which gave `answers`, would accept.

    `top1`, `tau_8` and `tau_16` as `answers.agreement`; `first_token` and `hidden_prefix` as `hidden_draft`.
    """
    size, by_clip = run.recipe.evaluate, _questions(run, wordings)
    batches = model.answer_batches("test", by_clip, size.clips, run.recipe.answers.max_new_tokens, f"{NAME} answers")
    own = [answer for some in batches for answer in some]
    figures: dict[str, Any] = {"facts_right": facts_right(by_clip, own)}
    figures |= agreement(model, "test", answers, size.questions, size.clips)
    return figures | hidden_draft(model.codec, own, answers)


def target_answers(run: ReferenceRun, wordings: str, folder: Path) -> list[ClipAnswer]:
    """Answer the test questions with a target; the answers are kept, and shared with the stage `evaluate`."""
    target, limit = run.trained("target", folder), run.recipe.answers.max_new_tokens
    to_bf16(target.vlm.model)
    path = answers_path(run, "target", sha256(folder / WEIGHTS), wordings)
    by_clip = _questions(run, wordings)
    return record_answers(path, target, "test", by_clip, run.recipe.evaluate.clips, limit, "target answers")


def _questions(run: ReferenceRun, wordings: str) -> list[list[ClipQuestion]]:
    size, seed = run.recipe.evaluate, run.recipe.seed
    return evaluation_questions("test", range(size.scenes), size.questions, seed, held_out=WORDINGS[wordings])


def hidden_draft(codec: PromptCodec, drafted: Sequence[ClipAnswer], answers: Sequence[ClipAnswer]) -> dict[str, float]:
    """Measure how many tokens a target accepts of drafts that were generated before its first token.

    `first_token` is the share of drafts with its first token, `hidden_prefix` the mean number of tokens accepted.
    """
    pairs = zip(answer_rows(codec, drafted), answer_rows(codec, answers), strict=True)
    lengths = [common_prefix(own, theirs) for (_, own), (_, theirs) in pairs]
    first = float(np.mean([length > 0 for length in lengths]))
    return {"first_token": round(first, 4), "hidden_prefix": round(float(np.mean(lengths)), 4)}
