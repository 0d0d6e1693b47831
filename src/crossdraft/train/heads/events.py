"""What heads on an event model learn from: clips as it sees them, questions, and what the video model answered.

The answers are the target's; the features are the event model's, read behind its own view of the same scene. So a
lesson is as in `models.heads.lesson`, with the event model in the target's place and the target's words as the text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from crossdraft.models.heads.lesson import Lesson
from crossdraft.train.capture.store import Store
from crossdraft.train.reference.batches import Spoken, question_rows
from crossdraft.train.reference.losses import TextsOf
from crossdraft.train.reference.models import EventSeer, prefix_embeds
from crossdraft.train.reference.packed import read_prefix, run_branches
from crossdraft.train.reference.packing import IGNORE, Branches
from crossdraft.train.reference.prompt import PromptCodec

BEFORE, AFTER = "\n", " ASSISTANT:"  # what stands round a question; see `prompt.PromptCodec`


class Sight(Protocol):
    """Clips, step by step, as the event model sees them."""

    def clips(self, step: int, count: int) -> list[int]:
        """Numbers of a step's clips, at most `count`; a pure function of the step."""
        ...

    def visual(self, step: int, clips: Sequence[int]) -> Tensor:
        """[clips, n, H] event features that replace the placeholders; of one clip if nothing is seen."""
        ...


@dataclass(frozen=True)
class Heard:
    """A step's answers.

    Args:
        visual: of `Sight.visual`.
        rows: questions and answers, clip-major.
    """

    visual: Tensor
    rows: Branches

    @property
    def starts(self) -> Tensor:
        """[rows] place of each answer's first token."""
        return self.rows.answer_start + 1

    @property
    def lengths(self) -> Tensor:
        """[rows] tokens of each row."""
        return self.starts + (self.rows.targets != IGNORE).sum(1)


@dataclass(frozen=True)
class EventAnswers:
    """Answers step by step; a pure function of the step.

    Args:
        seer: the event model; it is not trained.
        look: clips in their order, and what is seen of them.
        codec: prompts with the event model's placeholder.
        texts_of: what was asked about a step's clips, and what the target said; see `fit.answered_texts`.
        clips: how many a step.
    """

    seer: EventSeer
    look: Sight
    codec: PromptCodec
    texts_of: TextsOf
    clips: int

    @torch.no_grad()
    def heard(self, step: int) -> Heard:
        """What the step learns from."""
        clips = self.look.clips(step, self.clips)
        return Heard(self.look.visual(step, clips), question_rows(self.codec, self.texts_of(step, clips)))

    @torch.no_grad()
    def lesson(self, step: int) -> Lesson:
        """The event model's last features all along the step's answers."""
        heard, llama = self.heard(step), self.seer.llama
        prefix_ids = torch.tensor([self.codec.prefix_ids()])
        prefix = read_prefix(llama, prefix_embeds(self.seer, prefix_ids, heard.visual))
        hidden = run_branches(llama, prefix, llama.embed_tokens(heard.rows.tokens))
        return Lesson(heard.rows.tokens, {len(llama.layers): hidden}, heard.starts, heard.lengths)


def spoken_of(store: Store, codec: PromptCodec, locate: Callable[[int], tuple[int, int]]) -> dict[int, list[Spoken]]:
    """The captured answers by clip, for `fit.answered_texts`.

    Questions are read from the captured prompts, whose tokens both models share.

    Args:
        store: a capture.
        codec: either model's.
        locate: (clip, prompt) of an answer; see `Source`.
    """
    end = int(codec.tokenizer.eos_token_id)
    known: dict[int, list[Spoken]] = {}
    for number in range(len(store)):
        lesson = store.lesson([number], ())
        ids, start = lesson.tokens[0].tolist(), int(lesson.starts[0])
        question = codec.tokenizer.decode(ids[:start]).removeprefix(BEFORE).removesuffix(AFTER)
        spoken = Spoken(question, codec.text(ids[start:]), whole=ids[-1] == end)
        known.setdefault(locate(number)[0], []).append(spoken)
    return known
