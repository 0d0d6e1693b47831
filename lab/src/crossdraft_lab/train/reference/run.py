"""A run of the reference recipe: paths of its artifacts, results of earlier stages, training of its VLMs."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedTokenizerFast, VideoLlavaForConditionalGeneration

from crossdraft.checkpoints.locate import shipped_at
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder
from crossdraft.models.eventgpt import EventGPTForConditionalGeneration
from crossdraft_lab import scenes
from crossdraft_lab.scenes.answers import ANSWERS, AnswerTable
from crossdraft_lab.train.core.checkpoint import read_checkpoint, restore_weights
from crossdraft_lab.train.core.log import say
from crossdraft_lab.train.core.provenance import sha256, write_provenance
from crossdraft_lab.train.core.trainer import Stage, Trainer, load_weights
from crossdraft_lab.train.reference.answers import (
    AnsweringModel,
    ClipAnswer,
    evaluation_questions,
    facts_right,
    read_answers,
)
from crossdraft_lab.train.reference.batches import BatchSpec, draw_questions
from crossdraft_lab.train.reference.clips import ClipCache, clip_seed
from crossdraft_lab.train.reference.losses import QASource, answer_loss, attribute_heads, vision_loss
from crossdraft_lab.train.reference.models import TrainableEventGPT, TrainableVideoLlava, TrainableVLM
from crossdraft_lab.train.reference.recipe import AnswerPhase, ReferenceRecipe, VisionPhase, VlmRecipe
from crossdraft_lab.train.reference.tokenizer import EVENT, VIDEO, PromptCodec, load_tokenizer

MODELS = ("target", "event", "blind")
WEIGHTS = "model.safetensors"
WORDINGS = {"train_wordings": False, "held_out_wordings": True}
"""Wordings of test questions -> true if they were held out of training."""


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """A run of the recipe in a folder."""

    recipe: ReferenceRecipe
    out: Path

    @property
    def cache(self) -> ClipCache:
        recipe = self.recipe
        return ClipCache(
            self.out / "cache", recipe.target.vision.image_size, recipe.target.frames, recipe.drafter.frames
        )

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Load the vocabulary that the stage `tokenizer` learned.

        Raises:
            CrossdraftError: the stage has not been run, or for a recipe of another size.
        """
        return load_tokenizer(self.out / "tokenizer", self.recipe.tokenizer.vocab_size)

    def texts(self, count: int, *templates: str, answers: AnswerTable = ANSWERS) -> list[str]:
        """Questions and answers about the first `count` training scenes, to learn a vocabulary from."""
        texts = []
        for clip in range(count):
            rng = np.random.default_rng([self.recipe.seed, clip, 1])
            for qa in draw_questions("train", clip, len(scenes.KINDS), rng, answers=answers):
                texts += [template.format(question=qa.question, answer=qa.answer) for template in templates]
        return texts

    @property
    def answers(self) -> Path:
        """File of answers, named after the target's weights so that no drafter learns an earlier target's answers."""
        return self.out / "answers" / f"target-{self.weights_sha256('target')[:12]}.jsonl"

    def target_answers(self) -> list[ClipAnswer]:
        """Read the target's answers about every clip that the drafters learn from.

        Raises:
            CrossdraftError: some answers are missing.
        """
        answers, clips = read_answers(self.answers), self.recipe.cache.event_clips
        counts = Counter(answer.clip for answer in answers)
        done = sum(counts[clip] >= self.recipe.answers.questions for clip in range(clips))
        if done < clips:
            raise CrossdraftError(
                f"{self.answers} holds the answers about {done} of {clips} clips; run the stage 'answers' to its end."
            )
        return answers

    def shape(self, name: str) -> VlmRecipe:
        """Section of the recipe for a model."""
        return self.recipe.target if name == "target" else self.recipe.drafter

    def phases(self, name: str) -> tuple[AnswerPhase, ...]:
        """Training phases of a model."""
        return self.recipe.foreign.train if name == "foreign" else self.shape(name).train

    def sight(self, name: str) -> Path:
        """Path of a model's pre-trained vision encoder; `foreign` takes that of `event`, or else the shipped one.

        Raises:
            CrossdraftError: the model's stage has not been run.
        """
        of = "event" if name == "foreign" else name
        path = self.out / of / "sight.ckpt"
        if path.exists():
            return path
        if name == "foreign":
            return shipped_at(of) / WEIGHTS
        raise CrossdraftError(f"No {path}; run the stage '{of}-sight' first.")

    def training_clips(self, name: str) -> int:
        """Number of training clips of a model."""
        if name == "foreign":
            return self.recipe.foreign.clips
        return self.recipe.cache.train_clips if name == "target" else self.recipe.cache.event_clips

    def training_data(self, **more: Any) -> dict[str, Any]:
        """Description of the training scenes for a provenance."""
        return {"split": "train", "first_seed": clip_seed("train", 0), **more}

    def weights_sha256(self, name: str) -> str:
        """Digest of a finished model's weights.

        Raises:
            CrossdraftError: the model's stage has not been run.
        """
        return sha256(self.model_folder(name) / WEIGHTS)

    def model_folder(self, name: str) -> Path:
        """Folder of a finished model.

        Raises:
            CrossdraftError: the model's stage has not been run.
        """
        folder = self.out / name / "model"
        if not (folder / WEIGHTS).is_file():
            raise CrossdraftError(f"No trained model in {folder}; run the stage '{name}' first.")
        return folder

    def answering(self, name: str, vlm: TrainableVLM) -> AnsweringModel:
        """Join a model with its prompts and its view of the cached clips."""
        placeholder, kind = (VIDEO, "rgb") if name == "target" else (EVENT, "events")
        return AnsweringModel(vlm, PromptCodec(self.tokenizer, placeholder), self.cache, kind, blank=name == "blind")

    def trained(self, name: str, folder: Path | None = None) -> AnsweringModel:
        """Load a finished model, ready to answer about cached clips; `folder` if it is not the run's own.

        Raises:
            CrossdraftError: the model's stage has not been run.
        """
        folder = folder or self.model_folder(name)
        if name == "target":
            return self.answering(name, TrainableVideoLlava(VideoLlavaForConditionalGeneration.from_pretrained(folder)))
        return self.answering(name, TrainableEventGPT(EventGPTForConditionalGeneration.from_pretrained(folder)))


CHECKED_CLIPS = 48
SAFETENSORS, TOWER = ".safetensors", "model.vision_tower."


def _batch_spec(run: ReferenceRun, name: str, phase: VisionPhase | AnswerPhase, seed: int, first: int = 0) -> BatchSpec:
    """Build the spec of a phase's batches of training clips."""
    kind = "rgb" if name == "target" else "events"
    return BatchSpec(run.cache, kind, run.training_clips(name), phase.jitter, seed, first, blank=name == "blind")


def train_vision_encoder(run: ReferenceRun, name: str, vlm: TrainableVLM) -> None:
    """Pre-train a vision encoder on the attributes of scenes."""
    phase = run.shape(name).sight
    head, _ = attribute_heads(vlm, run.shape(name).frames, 1)
    loss_fn = vision_loss(vlm, head, _batch_spec(run, name, phase, run.recipe.seed), phase.optim.clips)
    stage = Stage(run.out / name, "sight", phase.optim)
    figures = Trainer(stage, nn.ModuleDict({"tower": vlm.vision_encoder, "head": head}), loss_fn).run()
    write_provenance(run.out / name / "sight.json", run.recipe, figures, {"clips": run.training_clips(name)})


def load_vision_encoder(encoder: nn.Module, path: Path) -> None:
    """Load a vision encoder's weights from a sight stage, or from a shipped model, which kept them frozen.

    Raises:
        CrossdraftError: the file is damaged, or of another shape than the recipe's.
    """
    shipped = path.suffix == SAFETENSORS
    state, prefix = (load_file(path), TOWER) if shipped else (read_checkpoint(path)["modules"], "tower.")
    restore_weights(encoder, {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}, path)


def train_vlm(
    run: ReferenceRun, name: str, vlm: TrainableVLM, qa_of: Callable[[int, int], QASource]
) -> dict[str, float]:
    """Train a whole VLM from its pre-trained vision encoder (the blind twin has none), checking validation facts.

    `qa_of(questions, seed)` gives a phase its questions and answers; each phase continues with the clips after those of
    the last one.
    """
    model = run.answering(name, vlm)
    if not model.blank:
        load_vision_encoder(vlm.vision_encoder, run.sight(name))
    _, head = attribute_heads(vlm, 1, run.recipe.target.vision.tokens if name == "target" else 1)
    modules = nn.ModuleDict({"model": vlm.model, "head": head})
    figures: dict[str, float] = {}
    last, first = None, 0
    for number, phase in enumerate(run.phases(name)):
        stage = Stage(run.out / name, f"train-{number + 1}", phase.optim)
        if last is not None and not stage.checkpoint.exists():
            load_weights(last, modules)
        frozen = phase.freeze_vision_encoder and not model.blank
        if frozen:
            load_vision_encoder(vlm.vision_encoder, run.sight(name))
        vlm.vision_encoder.requires_grad_(not frozen)
        seed = run.recipe.seed + 1000 * number
        spec = _batch_spec(run, name, phase, seed, first)
        loss_fn = answer_loss(vlm, head, spec, model.codec, phase, qa_of(phase.questions, seed))
        done = Trainer(stage, modules, loss_fn, check=lambda step: _check_facts(run, name, model, step)).run()
        figures |= {f"phase_{number + 1}_{key}": value for key, value in done.items()}
        last, first = stage, first + phase.optim.steps * phase.optim.clips
    return figures


def _check_facts(run: ReferenceRun, name: str, model: AnsweringModel, step: int) -> None:
    """Measure and print the share of facts right on validation clips."""
    recipe = run.recipe
    clips = range(min(CHECKED_CLIPS, recipe.cache.validation_clips))
    by_clip = evaluation_questions("validation", clips, recipe.evaluate.questions, recipe.seed, held_out=False)
    limit = recipe.answers.max_new_tokens
    batches = model.answer_batches("validation", by_clip, recipe.evaluate.clips, limit, "answering")
    say(f"{name} {step}: facts right {facts_right(by_clip, [answer for some in batches for answer in some])}")


def save_model(run: ReferenceRun, name: str, vlm: TrainableVLM, figures: dict[str, float]) -> None:
    """Write full-precision weights, config and tokenizer to `<out>/<name>/model`, whole or not at all."""
    folder = run.out / name / "model"
    vlm.model.eval()
    with atomic_folder(folder) as new:
        vlm.model.save_pretrained(new)
        run.tokenizer.save_pretrained(new)
        data = run.training_data(clips=run.training_clips(name))
        write_provenance(new / "provenance.json", run.recipe, figures, data)
    say(f"{name}: saved {folder}")
