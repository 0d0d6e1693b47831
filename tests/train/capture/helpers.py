"""Sources and answers made by hand, and tiny models to answer for them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from crossdraft.engine.target import Target
from crossdraft_lab.train.capture.plan import CapturedTarget, CapturePlan
from crossdraft_lab.train.capture.shard import CapturedAnswer, CaptureSpec
from crossdraft_lab.train.capture.sources import PromptedClip
from tests.engine.zoo import ZOO, as_target

WIDTH, VOCABULARY = 4, 99
SPEC = CaptureSpec((1, 3), (0,), max_new_tokens=12)


@dataclass(frozen=True)
class FixedSource:
    """Clips that are simply there; the zoo's models bring their own pixels."""

    clips: tuple[PromptedClip, ...]
    name: str = "given"

    @property
    def settings(self) -> Mapping[str, object]:
        return {"kind": self.name}

    @property
    def heavy(self) -> bool:
        return False

    def __len__(self) -> int:
        return len(self.clips)

    @property
    def answers(self) -> int:
        return sum(len(clip.prompts) for clip in self.clips)

    def locate(self, answer: int) -> tuple[int, int]:
        positions = [(c, p) for c, clip in enumerate(self.clips) for p in range(len(clip.prompts))]
        return positions[answer]

    def questions(self, index: int) -> tuple[str, ...]:
        return self.clips[index].prompts

    def kinds(self, index: int) -> tuple[str, ...]:
        return self.clips[index].prompts

    def read(self, index: int) -> PromptedClip:
        return self.clips[index]


def some_clips(count: int, prompts: int = 3) -> tuple[PromptedClip, ...]:
    """Clips with questions of different lengths, which is all that a zoo model's `prepare` reads of them."""
    return tuple(
        PromptedClip(f"clip {c}", None, tuple("?" * (1 + 7 * c + p) for p in range(prompts))) for c in range(count)
    )


def zoo_target(name: str = "video_llava") -> Target:
    return as_target(*ZOO[name]())


def zoo_plan(
    source: FixedSource, target: Target | None = None, spec: CaptureSpec = SPEC, **settings: int
) -> CapturePlan:
    target = target or zoo_target()
    info = CapturedTarget("zoo", "0" * 64, 3, 64, VOCABULARY, "float64")
    return CapturePlan(target, info, source, spec, **{"batch": 4, "workers": 0, "shard_clips": 2, **settings})


def answers(visual: int, *lengths: tuple[int, int], base: int = 0) -> list[CapturedAnswer]:
    """Answers of (length of the last piece, length of the answer) after a first piece of `visual` tokens.

    Every token and feature is a number of its own: tokens count on from `base`, the feature of layer k at the position
    of token t is t + k / 8 in each of its columns.
    """
    made, at = [], base + visual
    visual_ids = torch.arange(base, base + visual)
    for text, answered in lengths:
        tokens = torch.arange(at, at + text + answered)
        fed = tokens[:-1, None].expand(-1, WIDTH)
        hidden = {layer: (fed + layer / 8).bfloat16() for layer in SPEC.layers}
        features = {0: visual_ids[:, None].expand(-1, WIDTH).bfloat16()}
        made.append(CapturedAnswer(tokens, text, hidden, visual_ids, features))
        at += text + answered
    return made
