"""What a glance (`models.heads.glance`) learns from: answers behind events, and captured frames to look at."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from crossdraft.drafters.frames import PIXELS, evenly
from crossdraft.engine.target import Prompt
from crossdraft.errors import CrossdraftError
from crossdraft.models.heads.glance import GlanceConfig
from crossdraft.models.heads.lesson import Lesson
from crossdraft.train.capture.store import Store
from crossdraft.train.heads.events import EventAnswers


@dataclass(frozen=True)
class GlanceAnswers:
    """Answers step by step; a pure function of the step.

    Args:
        answers: behind events.
        store: the capture, with layer 0 of the visual part: what the target's tower made of the frames.
        firsts: by clip, the number of one of its answers.
        visual_ids: ids that stand for something visual in the target's prompts.
        config: which frames are looked at.
    """

    answers: EventAnswers
    store: Store
    firsts: Mapping[int, int]
    visual_ids: Collection[int]
    config: GlanceConfig

    def lesson(self, step: int) -> Lesson:
        """As `EventAnswers.lesson`, with what there is to see in front of each answer."""
        lesson = self.answers.lesson(step)
        clips = self.answers.look.clips(step, self.answers.clips)
        seen = torch.stack([self.seen(clip) for clip in clips])
        return replace(lesson, visual={0: seen.repeat_interleave(len(lesson) // len(clips), 0)})

    def seen(self, clip: int) -> Tensor:
        """[frames · n, E] of the frames that the glance falls on.

        Raises:
            CrossdraftError: the capture lacks layer 0 of the visual part, or a frame has another number of features.
        """
        piece = self.store.lesson([self.firsts[clip]], (), (0,))
        ids = piece.visual_ids
        places = [] if ids is None else [i for i, token in enumerate(ids[0].tolist()) if token in self.visual_ids]
        rows, patches = piece.visual[0][0][places], self.config.patches
        if len(rows) == 0:
            raise CrossdraftError(
                f"The capture {self.store.folder} has no visual features; a glance learns from clips that are seen."
            )
        if len(rows) % patches:
            raise CrossdraftError(
                f"A clip of the capture has {len(rows)} visual features, not a multiple of the glance's "
                f"patches={patches}; give the recipe as many as the target has for a frame."
            )
        frames = rows.view(-1, patches, rows.shape[-1])
        return frames[evenly(len(frames), self.config.frames)].flatten(0, 1)


def firsts_of(store: Store, locate: Callable[[int], tuple[int, int]]) -> dict[int, int]:
    """By clip, the number of its first answer; `locate` gives an answer's (clip, prompt)."""
    firsts: dict[int, int] = {}
    for number in range(len(store)):
        firsts.setdefault(locate(number)[0], number)
    return firsts


def patches_of(prompt: Prompt, visual_ids: Collection[int]) -> int:
    """How many visual features the target has for a frame, by a prompt with a clip in it.

    Raises:
        CrossdraftError: the target does not see a clip frame by frame.
    """
    pixels = prompt.features.get(PIXELS)
    count = sum(token in visual_ids for token in prompt.input_ids.tolist())
    frames = pixels.shape[1] if isinstance(pixels, Tensor) and pixels.ndim == 5 else 0
    if not frames or not count or count % frames:
        raise CrossdraftError(
            "A glance needs a target that encodes a clip frame by frame, as Video-LLaVA and LLaVA-NeXT-Video do; "
            f"this one has {count} visual features for a clip. Train another head, for example event_medusa."
        )
    return count // frames
