"""What one training step sees: clips in order, questions drawn from (seed, step)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from crossdraft import scenes
from crossdraft.scenes import QA
from crossdraft.train.reference.attributes import label_row
from crossdraft.train.reference.clips import ClipCache, Kind, clip_seed
from crossdraft.train.reference.packing import Branches, pack
from crossdraft.train.reference.pixels import shake, to_pixels
from crossdraft.train.reference.prompt import PromptCodec
from crossdraft.train.reference.recipe import Jitter


@dataclass(frozen=True, slots=True)
class Look:
    """How a stage looks at clips: which frames, how shaken, from how many clips, and with which seed."""

    cache: ClipCache
    kind: Kind
    pool: int
    jitter: Jitter
    seed: int
    first: int = 0
    """The clip that step 0 starts at: a later phase goes on where the last one stopped."""
    blank: bool = False
    """A blind model's view: white frames, whatever happened."""

    def clips(self, step: int, count: int) -> list[int]:
        """The clips of a step: in order, round and round the pool."""
        return [(self.first + step * count + i) % self.pool for i in range(count)]

    def pixels(self, step: int, clips: Sequence[int]) -> Tensor:
        """Jittered, normalised frames [n, F, 3, h, w] of training clips."""
        if self.blank:
            return blank_pixels(self.cache)
        frames = self.cache.read(self.kind, "train", clips)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        return to_pixels(shake(frames, self.jitter, generator))


def blank_pixels(cache: ClipCache) -> Tensor:
    """What a blind drafter sees of any clip, and so of all at once: event frames without events, [1, n, 3, h, w]."""
    return to_pixels(
        torch.full((1, cache.event_frames, scenes.SENSOR_SIZE, scenes.SENSOR_SIZE, 3), 255, dtype=torch.uint8)
    )


def labels(clips: Sequence[int], split: str = "train") -> Tensor:
    """Attribute classes [n, attributes] of clips."""
    rows = [label_row(scenes.attributes(scenes.make_scene(clip_seed(split, i))), scenes.ATTRIBUTES) for i in clips]
    return torch.tensor(rows)


def draw_questions(split: str, clip: int, count: int, rng: np.random.Generator, *, held_out: bool = False) -> list[QA]:
    """`count` questions about a clip, kinds without repetition while there are enough, any wording."""
    scene = scenes.make_scene(clip_seed(split, clip))
    kinds = rng.permutation(np.resize(rng.permutation(scenes.KINDS), max(count, 1)))[:count]
    asked = []
    for kind in kinds.tolist():
        wording = int(rng.integers(len(scenes.wordings(kind, held_out=held_out))))
        asked.append(scenes.ask(scene, kind, wording, held_out=held_out))
    return asked


@dataclass(frozen=True, slots=True)
class Spoken:
    """A question and what is to be said to it; `whole` if the answer ends there."""

    question: str
    answer: str
    whole: bool = True


def wear(question: str, most: float, words: Sequence[str], rng: np.random.Generator) -> str:
    """Drop some words of a question, and put other questions' words in place of some.

    A hundred fixed wordings can be learned by heart; worn ones must be understood by what is left of them. Each
    question draws its own strength up to `most`; three worn words in four are dropped, the fourth is replaced.
    """
    strength = most * rng.random()
    kept = []
    for word in question.split():
        if rng.random() >= strength:
            kept.append(word)
        elif rng.random() < 0.25:
            kept.append(words[int(rng.integers(len(words)))])
    return " ".join(kept) or question


def question_words() -> tuple[str, ...]:
    """Every word of the training wordings."""
    asked = (wording for kind in scenes.KINDS for wording in scenes.wordings(kind))
    return tuple(sorted({word for question in asked for word in question.split()}))


def question_rows(codec: PromptCodec, spoken: Sequence[Spoken]) -> Branches:
    """Questions and answers as packed rows."""
    rows = [(codec.question_ids(s.question), codec.answer_ids(s.answer, whole=s.whole)) for s in spoken]
    return pack(rows, int(codec.tokenizer.pad_token_id))
