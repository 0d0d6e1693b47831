"""From brightness frames to the events that a camera would have reported.

The pixel model is v2e's (Hu, Liu & Delbruck, CVPRW 2021): log brightness, a low-pass whose speed grows with
light, a threshold of its own for every pixel, a leak that makes ON events in the dark, a dead time after each
event, and shot noise. What differs, on purpose:

- An event is stamped with the moment its level is crossed, interpolated between the two frames, as ESIM does
  (`stamps="stepped"` gives v2e's coarse stamps).
- A pixel that crosses within its dead time fires when the dead time is over, rather than at the next frame.
- Shot noise is drawn as the Poisson process itself, so that it costs per noise event and not per pixel.
- The leak rate varies from pixel to pixel, but v2e's extra 10 % jitter from frame to frame is left out.
"""

from collections.abc import Iterable

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.events.pixels import Luma, PixelArray
from crossdraft.events.sensor import SimulatorConfig
from crossdraft.events.stream import Events, concatenate


class Simulator:
    """Turns frames into events one at a time; memory depends on the frame size only.

    Args:
        config: the pixel's physics.
        seed: of everything random: thresholds, leak rates, noise, drops.
    """

    def __init__(self, config: SimulatorConfig, seed: int) -> None:
        self._config = config
        self._rng = np.random.default_rng(seed)
        self._pixels: PixelArray | None = None

    @property
    def dropped(self) -> int:
        """Events lost to the rate limit so far."""
        return self._pixels.dropped if self._pixels else 0

    def feed(self, luma: Luma, t_us: int) -> Events:
        """Advance to the frame taken at `t_us` and return what happened since the one before.

        Args:
            luma: brightness, uint8 or float in 0..255, [H, W]; every frame of one size.
            t_us: time of the frame, later than the one before.

        Returns:
            Events in [previous t_us, t_us]; none for the first frame, which only sets the pixels' memory.

        Raises:
            CrossdraftError: wrong shape, or time that does not advance.
        """
        if luma.ndim != 2 or not luma.size:
            raise CrossdraftError(f"The simulator takes brightness frames [H, W], not shape {luma.shape}.")
        if self._pixels is None:
            self._pixels = PixelArray(self._config, luma, t_us, self._rng)
            return Events.empty(luma.shape[1], luma.shape[0])
        if luma.shape != self._pixels.shape:
            raise CrossdraftError(
                f"A frame of shape {luma.shape} follows frames of shape {self._pixels.shape}; resize it."
            )
        if t_us <= self._pixels.t_us:
            raise CrossdraftError(f"Frame times must rise, but {t_us} µs follows {self._pixels.t_us} µs.")
        return self._pixels.advance(luma, t_us)


def simulate(frames: Iterable[tuple[int, Luma]], config: SimulatorConfig, seed: int) -> Events:
    """Events of a whole sequence of (time in µs, brightness frame); see `Simulator.feed`.

    Raises:
        CrossdraftError: no frame, or what `Simulator.feed` raises.
    """
    simulator = Simulator(config, seed)
    chunks = [simulator.feed(frame, t_us) for t_us, frame in frames]
    if not chunks:
        raise CrossdraftError("There are no frames to simulate events from.")
    return concatenate(chunks)
