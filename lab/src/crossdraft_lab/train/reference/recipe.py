"""The recipe of the reference pair: a section for every stage of `crossdraft train reference`."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from crossdraft_lab.train.core.recipe import RECIPES, Optim, Section, read_section

REFERENCE_RECIPE = RECIPES / "reference.yaml"


class TokenizerRecipe(Section):
    """One byte-level BPE for both models."""

    vocab_size: int = Field(default=4096, gt=300)
    scenes: int = Field(default=2000, gt=0, description="training scenes whose questions and answers are read")


class CacheRecipe(Section):
    """Clips rendered once: RGB for the target, event frames for the drafter (its first `event_clips`)."""

    train_clips: int = Field(gt=0)
    event_clips: int = Field(gt=0)
    validation_clips: int = Field(gt=0)
    workers: int = Field(default=2, gt=0)


class VisionShape(Section):
    """A CLIP vision encoder."""

    image_size: int = 112
    patch_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    layers: int = Field(gt=1)
    heads: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)

    @property
    def tokens(self) -> int:
        """Features of one frame: patches and CLS."""
        return (self.image_size // self.patch_size) ** 2 + 1


class TextShape(Section):
    """A Llama decoder."""

    hidden_size: int = Field(gt=0)
    layers: int = Field(gt=1)
    heads: int = Field(gt=0)
    head_dim: int = 64
    intermediate_size: int = Field(gt=0)
    max_positions: int = 1024
    tie_embeddings: bool = Field(default=False, description="one table for tokens in and out")


class Jitter(Section):
    """Augmentation of training pictures; event frames know only `drop` and `shift`."""

    noise: float = Field(default=0.0, ge=0, description="largest std of the pixel noise, 8-bit steps")
    brightness: float = Field(default=0.0, ge=0, description="largest relative change of brightness")
    drop: float = Field(default=0.0, ge=0, lt=1, description="largest share of pixels turned white")
    shift: int = Field(default=0, ge=0, description="largest translation, pixels")


class VisionPhase(Section):
    """Pre-training of a vision encoder on the scene's attributes."""

    optim: Optim
    jitter: Jitter = Jitter()


class AnswerPhase(Section):
    """Next-token training on answers, `questions` of them a clip in one pass."""

    earlier_names: ClassVar = {"question_wear": "word_dropout", "freeze_tower": "freeze_vision_encoder"}

    optim: Optim
    questions: int = Field(gt=0)
    attribute_weight: float = Field(default=0.3, ge=0)
    word_dropout: float = Field(
        default=0.0, ge=0, lt=1, description="largest share of a question's words dropped or replaced (prompt noise)"
    )
    freeze_vision_encoder: bool = Field(default=False, description="keep it as its sight stage left it")
    jitter: Jitter = Jitter()


class VlmRecipe(Section):
    """A VLM: shapes, pre-training of the vision encoder, training."""

    frames: int
    vision: VisionShape
    text: TextShape
    sight: VisionPhase
    train: tuple[AnswerPhase, ...] = Field(min_length=1, description="phases; each starts from the last one's weights")


class TargetRecipe(VlmRecipe):
    """The video VLM."""

    frames: int = 8


class DrafterRecipe(VlmRecipe):
    """The event VLM and its blind twin."""

    frames: int = 5


class AnswersRecipe(Section):
    """The target's own greedy answers, which the drafters learn."""

    questions: int = Field(gt=0, description="answers a clip")
    clips: int = Field(gt=0, description="clips decoded together")
    max_new_tokens: int = Field(default=112, gt=0)


class ForeignRecipe(Section):
    """An event model of the drafter's shape and vision encoder, trained on captions: never on answers."""

    clips: int = Field(gt=0, description="training clips, of those that are rendered for the drafter")
    train: tuple[AnswerPhase, ...] = Field(min_length=1)


class TextDrafterRecipe(Section):
    """A text-only model with a vocabulary of its own, trained on ground truth: no pictures, no target."""

    earlier_names: ClassVar = {"question_wear": "word_dropout"}

    vocab_size: int = Field(gt=128)
    scenes: int = Field(gt=0, description="training scenes whose texts the vocabulary is learned from")
    text: TextShape
    questions: int = Field(gt=0, description="questions a scene and step")
    word_dropout: float = Field(default=0.0, ge=0, lt=1)
    optim: Optim = Field(description="`clips` counts scenes")


class EvaluateRecipe(Section):
    """Held-out figures: scenes of the test split."""

    scenes: int = Field(gt=0)
    questions: int = Field(gt=0, description="questions a scene")
    clips: int = Field(default=8, gt=0, description="clips decoded together")


class ReferenceRecipe(Section):
    """All settings of `crossdraft train reference`."""

    seed: int = 0
    threads: int = Field(default=2, gt=0)
    tokenizer: TokenizerRecipe
    cache: CacheRecipe
    target: TargetRecipe
    answers: AnswersRecipe
    drafter: DrafterRecipe
    foreign: ForeignRecipe
    text_drafter: TextDrafterRecipe
    evaluate: EvaluateRecipe


def load_recipe(path: str | Path = REFERENCE_RECIPE, overrides: Sequence[str] = ()) -> ReferenceRecipe:
    """Load the recipe of the reference pair; see `read_section`."""
    return read_section(ReferenceRecipe, path, overrides)
