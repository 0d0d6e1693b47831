"""A run of the reference recipe: where its artifacts lie, and what earlier stages left there."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast, VideoLlavaForConditionalGeneration

from crossdraft.checkpoints.locate import shipped_at
from crossdraft.errors import CrossdraftError
from crossdraft.models.eventgpt import EventGPTForConditionalGeneration
from crossdraft_lab import scenes
from crossdraft_lab.scenes.answers import ANSWERS, AnswerTable
from crossdraft_lab.train.core.provenance import sha256
from crossdraft_lab.train.reference.answers import AnsweringModel, ClipAnswer, read_answers
from crossdraft_lab.train.reference.batches import draw_questions
from crossdraft_lab.train.reference.clips import ClipCache, clip_seed
from crossdraft_lab.train.reference.models import TrainableEventGPT, TrainableVideoLlava, TrainableVLM
from crossdraft_lab.train.reference.recipe import AnswerPhase, ReferenceRecipe, VlmRecipe
from crossdraft_lab.train.reference.tokenizer import EVENT, VIDEO, PromptCodec, load_tokenizer

MODELS = ("target", "event", "blind")
WEIGHTS = "model.safetensors"
WORDINGS = {"train_wordings": False, "held_out_wordings": True}
"""What test questions are asked in, and whether those wordings were held out of training."""


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
        """The vocabulary that the stage `tokenizer` learned.

        Raises:
            CrossdraftError: it has not been run, or for a recipe of another size.
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
        """Named after the target's weights, so that no drafter learns an earlier target's answers."""
        return self.out / "answers" / f"target-{self.weights_sha256('target')[:12]}.jsonl"

    def target_answers(self) -> list[ClipAnswer]:
        """The target's answers about every clip that the drafters learn from.

        Raises:
            CrossdraftError: some are missing.
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
        """The recipe's section of a model."""
        return self.recipe.target if name == "target" else self.recipe.drafter

    def phases(self, name: str) -> tuple[AnswerPhase, ...]:
        """Training phases of a model."""
        return self.recipe.foreign.train if name == "foreign" else self.shape(name).train

    def sight(self, name: str) -> Path:
        """Path of a model's pre-trained vision encoder; `foreign` takes that of `event`, if need be the shipped one.

        Raises:
            CrossdraftError: its stage has not been run.
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
        """A provenance's account of the training scenes."""
        return {"split": "train", "first_seed": clip_seed("train", 0), **more}

    def weights_sha256(self, name: str) -> str:
        """Digest of a finished model's weights.

        Raises:
            CrossdraftError: its stage has not been run.
        """
        return sha256(self.model_folder(name) / WEIGHTS)

    def model_folder(self, name: str) -> Path:
        """Folder of a finished model.

        Raises:
            CrossdraftError: its stage has not been run.
        """
        folder = self.out / name / "model"
        if not (folder / WEIGHTS).is_file():
            raise CrossdraftError(f"No trained model in {folder}; run the stage '{name}' first.")
        return folder

    def answering(self, name: str, vlm: TrainableVLM) -> AnsweringModel:
        """A model with its prompts and its view of the cached clips."""
        placeholder, kind = (VIDEO, "rgb") if name == "target" else (EVENT, "events")
        return AnsweringModel(vlm, PromptCodec(self.tokenizer, placeholder), self.cache, kind, blank=name == "blind")

    def trained(self, name: str, folder: Path | None = None) -> AnsweringModel:
        """A finished model, ready to answer about cached clips; `folder` where it is not the run's own.

        Raises:
            CrossdraftError: its stage has not been run.
        """
        folder = folder or self.model_folder(name)
        if name == "target":
            return self.answering(name, TrainableVideoLlava(VideoLlavaForConditionalGeneration.from_pretrained(folder)))
        return self.answering(name, TrainableEventGPT(EventGPTForConditionalGeneration.from_pretrained(folder)))
