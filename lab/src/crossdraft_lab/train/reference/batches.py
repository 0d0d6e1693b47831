r"""Batches of one training step: clips in order, questions drawn from (seed, step), packed rows.

Several questions about one clip are answered in one pass: the prefix is read once, and each branch sees it and itself
only. Example, two questions about a clip whose prefix has P tokens:

    positions   0 … P-1 | P  P+1  P+2  P+3      <- branch 0: \n  q  a  </s>
                        | P  P+1  P+2           <- branch 1: \n  q  </s>    (padded on the right)
    targets             | -  a  </s>  -         the token after each position, answers only
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from crossdraft_lab import scenes
from crossdraft_lab.scenes import QA
from crossdraft_lab.scenes.answers import ANSWERS, AnswerTable
from crossdraft_lab.train.reference.clips import ClipCache, Kind, augment_frames, clip_seed, to_pixels
from crossdraft_lab.train.reference.recipe import Jitter
from crossdraft_lab.train.reference.tokenizer import PromptCodec

IGNORE = -100


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Clips that a stage's steps see: frames, augmentation, number of clips, and seed."""

    cache: ClipCache
    kind: Kind
    pool: int
    jitter: Jitter
    seed: int
    first: int = 0
    """Clip at which step 0 starts: a later phase continues where the last one stopped."""
    blank: bool = False
    """True for a blind model, whose frames are always white."""

    def clips(self, step: int, count: int) -> list[int]:
        """Clips of a step: in order, cyclically through the pool."""
        return [(self.first + step * count + i) % self.pool for i in range(count)]

    def pixels(self, step: int, clips: Sequence[int]) -> Tensor:
        """Augmented, normalised frames [n, F, 3, h, w] of training clips."""
        if self.blank:
            return blank_pixels(self.cache)
        frames = self.cache.read(self.kind, "train", clips)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        return to_pixels(augment_frames(frames, self.jitter, generator))


def blank_pixels(cache: ClipCache) -> Tensor:
    """Pixels that a blind drafter sees, the same for all clips: event frames without events, [1, n, 3, h, w]."""
    return to_pixels(
        torch.full((1, cache.event_frames, scenes.SENSOR_SIZE, scenes.SENSOR_SIZE, 3), 255, dtype=torch.uint8)
    )


def attribute_labels(clips: Sequence[int]) -> Tensor:
    """Class indices [n, attributes] of training clips' scene attributes."""
    rows = []
    for clip in clips:
        values = scenes.attributes(scenes.make_scene(clip_seed("train", clip)))
        rows.append([list(choices).index(values[name]) for name, choices in scenes.ATTRIBUTES.items()])
    return torch.tensor(rows)


def draw_questions(
    split: str,
    clip: int,
    count: int,
    rng: np.random.Generator,
    *,
    held_out: bool = False,
    answers: AnswerTable = ANSWERS,
) -> list[QA]:
    """Draw `count` questions about a clip, in any wording, kinds without repetition while there are enough.

    `answers`: as in `scenes.ask`.
    """
    scene = scenes.make_scene(clip_seed(split, clip))
    kinds = rng.permutation(np.resize(rng.permutation(scenes.KINDS), max(count, 1)))[:count]
    drawn = []
    for kind in kinds.tolist():
        wording = int(rng.integers(len(scenes.wordings(kind, held_out=held_out))))
        drawn.append(scenes.ask(scene, kind, wording, held_out, answers))
    return drawn


@dataclass(frozen=True, slots=True)
class QAPair:
    """A question and the answer to learn; `whole` if the answer is complete there."""

    question: str
    answer: str
    whole: bool = True


def augment_question(question: str, most: float, words: Sequence[str], rng: np.random.Generator) -> str:
    """Word dropout: drop some words of a question, and replace some by other questions' words.

    A hundred fixed wordings can be memorised; noisy ones must be understood from the words that are left. Each
    question draws its own strength up to `most`; three changed words in four are dropped, the fourth is replaced.
    """
    strength = most * rng.random()
    kept = []
    for word in question.split():
        if rng.random() >= strength:
            kept.append(word)
        elif rng.random() < 0.25:
            kept.append(words[int(rng.integers(len(words)))])
    return " ".join(kept) or question


def augment_questions(pairs: Sequence[QAPair], most: float, seed: int, step: int) -> list[QAPair]:
    """Augment the questions of the pairs, as drawn from (seed, step)."""
    words, rng = question_words(), np.random.default_rng([seed, step, 3])
    return [replace(pair, question=augment_question(pair.question, most, words, rng)) for pair in pairs]


@cache
def question_words() -> tuple[str, ...]:
    """All words of the training wordings."""
    wordings = (wording for kind in scenes.KINDS for wording in scenes.wordings(kind))
    return tuple(sorted({word for question in wordings for word in question.split()}))


@dataclass(frozen=True, slots=True)
class Branches:
    """Question–answer rows, clip-major: row `r` belongs to clip `r // questions`."""

    tokens: Tensor
    """int64 [rows, length], padded on the right."""
    targets: Tensor
    """int64 [rows, length], the next token where it belongs to the answer, else `IGNORE`."""
    answer_start: Tensor
    """int64 [rows], column of the last question token: its logits give the first answer token."""

    def to(self, device: torch.device) -> "Branches":
        """Copy the rows to another device."""
        return Branches(self.tokens.to(device), self.targets.to(device), self.answer_start.to(device))


def pack(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], pad_id: int, multiple: int = 8) -> Branches:
    """Lay (question ids, answer ids) pairs out as rows; the length is rounded up to `multiple`.

    Padding needs no mask: it stands after every real token of its row, where causality hides it.
    """
    longest = max(len(question) + len(answer) for question, answer in pairs)
    length = -(-longest // multiple) * multiple
    tokens = torch.full((len(pairs), length), pad_id)
    targets = torch.full((len(pairs), length), IGNORE)
    for row, (question, answer) in enumerate(pairs):
        ids = torch.tensor([*question, *answer])
        tokens[row, : len(ids)] = ids
        targets[row, len(question) - 1 : len(ids) - 1] = ids[len(question) :]
    starts = torch.tensor([len(question) - 1 for question, _ in pairs])
    return Branches(tokens, targets, starts)


def pack_pairs(codec: PromptCodec, pairs: Sequence[QAPair]) -> Branches:
    """Pack questions and answers as rows."""
    rows = [(codec.question_ids(pair.question), codec.answer_ids(pair.answer, whole=pair.whole)) for pair in pairs]
    return pack(rows, codec.pad_id)
