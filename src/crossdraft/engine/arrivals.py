"""The target's visual features on their way to a drafter: of single frames as they are encoded, then of all of them.

A vision encoder that reads each frame by itself may read those first which a drafter looks at. Then that drafter does
not wait for the others: it drafts with the frames that have come, and takes up later ones in its next pass.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor


def evenly(total: int, count: int) -> list[int]:
    """First and last included, as `read_frames` does it; a single one from the middle.

    >>> evenly(8, 2), evenly(8, 3), evenly(8, 1), evenly(2, 3)
    ([0, 7], [0, 3, 7], [3], [0, 0, 1])
    """
    if count == 1:
        return [(total - 1) // 2]
    return np.linspace(0, total - 1, count).astype(int).tolist()


@dataclass(frozen=True)
class FrameFeatures:
    """The features [n, E] of frame `number` of a clip of `total` frames."""

    number: int
    total: int
    rows: Tensor


class VisualFuture(Future[Tensor | None]):
    """[N, E] visual features of a request's clip, once all are made (`None`: they cannot be had), and of frames before.

    Args:
        counts: of so many frames each, evenly spread, features are wanted as they come; see `Needs.visual_frames`.
    """

    def __init__(self, counts: Sequence[int] = ()) -> None:
        super().__init__()
        self.counts = tuple(counts)
        self._guard = threading.Lock()
        self._frames: list[FrameFeatures] = []
        self._listeners: list[Callable[[FrameFeatures], None]] = []

    def wanted(self, total: int) -> list[int]:
        """Numbers of the frames that are wanted of a clip of `total` frames, in the order in which they are read.

        >>> VisualFuture((3, 2)).wanted(8), VisualFuture((3,)).wanted(2), VisualFuture().wanted(8)
        ([0, 3, 7], [0, 1], [])
        """
        return list(dict.fromkeys(number for count in self.counts for number in evenly(total, count)))

    def add_frame(self, frame: FrameFeatures) -> None:
        """One more frame has been encoded; in any thread."""
        with self._guard:
            self._frames.append(frame)
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener(frame)

    def on_frame(self, listener: Callable[[FrameFeatures], None]) -> None:
        """Call that with each frame that has been encoded or will be, in whatever thread."""
        with self._guard:
            self._listeners.append(listener)
            known = tuple(self._frames)
        for frame in known:
            listener(frame)

    @property
    def all_frames(self) -> bool:
        """True if every wanted frame was added by itself."""
        with self._guard:
            known = {frame.number for frame in self._frames}
            return bool(self._frames) and known.issuperset(self.wanted(self._frames[0].total))


@dataclass
class ArrivedFeatures:
    """Visual features that have arrived so far in the drafter's own process.

    Args:
        frames: by their numbers, those that came by themselves.
        total: frames of the clip, 0 = none came so.
        whole: [N, E] of all frames.
        ended: whether nothing more will come.
    """

    frames: dict[int, Tensor] = field(default_factory=dict)
    total: int = 0
    whole: Tensor | None = None
    ended: bool = False

    def add_frame(self, frame: FrameFeatures) -> None:
        """A frame came by itself."""
        self.frames[frame.number], self.total = frame.rows, frame.total

    def end(self, whole: Tensor | None) -> None:
        """All features came at once, or nothing more will."""
        self.whole, self.ended = whole, True

    def first(self, count: int, patches: int) -> list[Tensor]:
        """[n, E] each: of `count` frames, evenly spread, the first ones as far as they have come.

        Args:
            count: how many are read.
            patches: n, features of a frame; where all rows are no frames of that size, they are one "frame", which the
                network refuses.
        """
        frames, total = self.frames, self.total
        if self.whole is not None:
            if len(self.whole) % patches:
                return [self.whole]
            total = len(self.whole) // patches
            frames = dict(enumerate(self.whole.split(patches)))
        numbers = evenly(total, count) if total else []
        come = next((i for i, number in enumerate(numbers) if number not in frames), len(numbers))
        return [frames[number] for number in numbers[:come]]
