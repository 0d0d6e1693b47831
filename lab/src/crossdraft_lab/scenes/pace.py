"""Timing of a scene's one second within a longer recording."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft_lab.scenes.scene import DURATION_S

LONGEST_S = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Mapping from the times of a recording to those of its scene.

    >>> Pace(4.0).at(np.array([0.0, 2.0, 4.0])).tolist()
    [0.0, 0.5, 1.0]
    >>> Pace(4.0, begins_s=2.5).at(np.array([0.0, 2.75, 4.0])).tolist()
    [0.0, 0.25, 1.0]

    Args:
        seconds: of the recording.
        begins_s: where the scene begins, at its own speed; before and after it all stands still. `None` = it is spread
            over the whole recording, slowed down.

    Raises:
        CrossdraftError: a recording shorter than the scene, too long to render, or one that ends before the scene does.
    """

    seconds: float = DURATION_S
    begins_s: float | None = None

    def __post_init__(self) -> None:
        if not DURATION_S <= self.seconds <= LONGEST_S:
            raise CrossdraftError(
                f"A recording lasts from {DURATION_S:g} to {LONGEST_S:g} s, not {self.seconds:g}; give such a length."
            )
        if self.begins_s is not None and not 0 <= self.begins_s <= self.seconds - DURATION_S:
            raise CrossdraftError(
                f"A scene that begins at {self.begins_s:g} s does not fit into {self.seconds:g} s; let it begin from 0 "
                f"to {self.seconds - DURATION_S:g} s."
            )

    def at(self, times_s: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """The scene's times, in 0..DURATION_S, at times of the recording."""
        times = times_s.astype(np.float64)
        if self.begins_s is None:
            return np.clip(times * (DURATION_S / self.seconds), 0, DURATION_S)
        return np.clip(times - self.begins_s, 0, DURATION_S)


ONE_SECOND = Pace()
