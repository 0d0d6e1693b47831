"""Which answers a step learns from: a pure function of the step, wherever they come from."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch

from crossdraft.models.heads.lesson import Lesson
from crossdraft.train.capture.online import Online
from crossdraft.train.capture.store import Store
from crossdraft.train.share import Share

POOL = 16  # batches whose answers are sorted by length together, so that little is padding


class Lessons(Protocol):
    """Answers of a target, step by step."""

    def lesson(self, step: int, count: int, share: Share) -> Lesson:
        """The share's part of the step's `count` answers."""
        ...

    def describe(self, step: int, count: int) -> str:
        """What the step learns from, for people."""
        ...


class Stored:
    """Lessons from a capture, in an order that each epoch draws anew from the seed.

    Args:
        store: the capture.
        layers, visual_layers: features that are wanted.
        seed: of the order.
    """

    def __init__(
        self, store: Store, layers: Sequence[int], visual_layers: Sequence[int] = (), seed: int = 0
    ) -> None:
        self.store, self.seed = store, seed
        self.layers, self.visual_layers = tuple(layers), tuple(visual_layers)
        self._lengths = tuple(len(tokens) for tokens in store.tokens())

    def lesson(self, step: int, count: int, share: Share) -> Lesson:
        return self.store.lesson(share.take(self.indices(step, count)), self.layers, self.visual_layers)

    def describe(self, step: int, count: int) -> str:
        return f"answers {', '.join(map(str, self.indices(step, count)))} of {self.store.folder}"

    def indices(self, step: int, count: int) -> list[int]:
        """Numbers of a step's answers."""
        batches = max(1, len(self._lengths) // count)
        epoch, place = divmod(step, batches)
        return _order(self.seed, epoch, count, self._lengths)[place]


class Asked:
    """Lessons from a target that is asked as the head learns.

    Args:
        online: the target and what it is asked; it knows the layers.
    """

    def __init__(self, online: Online) -> None:
        self.online = online

    def lesson(self, step: int, count: int, share: Share) -> Lesson:
        part = len(share.take(range(count)))
        return self.online.lesson(step * share.of + share.index, part)

    def describe(self, step: int, count: int) -> str:
        return f"answers {step * count} to {step * count + count - 1} of the walk round its clips"


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int, lengths: tuple[int, ...]) -> list[list[int]]:
    """The batches of an epoch: answers of like length side by side, otherwise drawn."""
    rng = np.random.default_rng([seed, epoch])
    drawn = rng.permutation(len(lengths))
    batches: list[list[int]] = []
    for start in range(0, len(drawn), count * POOL):
        pool = sorted(drawn[start : start + count * POOL].tolist(), key=lengths.__getitem__)
        batches += [pool[i : i + count] for i in range(0, len(pool), count)]
    whole = [batch for batch in batches if len(batch) == count] or batches
    return [whole[i] for i in rng.permutation(len(whole))]


def noisy(lesson: Lesson, noise: float, step: int, seed: int) -> Lesson:
    """The lesson with uniform noise on its features, in units of each layer's standard deviation (EAGLE-1)."""
    if not noise:
        return lesson
    generator = torch.Generator().manual_seed(hash((seed, step)) % 2**62)
    hidden = {}
    for layer, features in lesson.hidden.items():
        drawn = torch.rand(features.shape, generator=generator).to(features.device) * 2 - 1
        hidden[layer] = features + drawn * noise * features.std()
    return replace(lesson, hidden=hidden)
