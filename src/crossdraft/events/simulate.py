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

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.events.pixels import MIN_THRESHOLD, Luma, PixelArray
from crossdraft.events.stream import Events, concatenate


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """The pixel's physics. `IDEAL`, `CLEAN`, `DEFAULT` and `NOISY` below are v2e's presets.

    Attributes:
        threshold_on: mean rise of ln brightness per ON event.
        threshold_off: mean fall per OFF event.
        threshold_sigma: spread of both from pixel to pixel.
        cutoff_hz: low-pass corner at full white; 0 switches the filter off.
        leak_hz: mean rate of spurious ON events.
        shot_noise_hz: rate of noise events in a black pixel, ON and OFF together.
        refractory_us: dead time of a pixel after an event.
        max_rate_hz_px: events a second per pixel, averaged over the sensor and 10 ms (or a longer frame
            interval), that the readout passes; beyond it events are dropped at random, with one warning, as in
            a saturated camera. None: no limit.
        stamps: "crossing" interpolates each event's moment; "stepped" spreads a frame's events over as many
            equal steps as the busiest pixel has events.
    """

    threshold_on: float = 0.2
    threshold_off: float = 0.2
    threshold_sigma: float = 0.03
    cutoff_hz: float = 0.0
    leak_hz: float = 0.0
    shot_noise_hz: float = 0.0
    refractory_us: float = 0.0
    max_rate_hz_px: float | None = 200.0
    stamps: Literal["crossing", "stepped"] = "crossing"

    def __post_init__(self) -> None:
        if min(self.threshold_on, self.threshold_off) < MIN_THRESHOLD:
            raise CrossdraftError(f"Simulator thresholds must be at least {MIN_THRESHOLD} in ln brightness.")
        numbers = ("threshold_sigma", "cutoff_hz", "leak_hz", "shot_noise_hz", "refractory_us")
        for name in numbers:
            if not 0 <= getattr(self, name) < math.inf:
                raise CrossdraftError(f"Simulator setting {name} must be zero or positive, not {getattr(self, name)}.")
        if self.max_rate_hz_px is not None and not self.max_rate_hz_px > 0:
            raise CrossdraftError("Simulator setting max_rate_hz_px must be positive, or None for no limit.")
        if self.stamps not in ("crossing", "stepped"):
            raise CrossdraftError(f'Simulator setting stamps must be "crossing" or "stepped", not {self.stamps!r}.')


IDEAL = SimulatorConfig(threshold_sigma=0.0)
CLEAN = SimulatorConfig(threshold_sigma=0.02)
DEFAULT = SimulatorConfig(threshold_sigma=0.03, cutoff_hz=300, leak_hz=0.01, shot_noise_hz=0.001, refractory_us=500)
NOISY = SimulatorConfig(threshold_sigma=0.05, cutoff_hz=30, leak_hz=0.1, shot_noise_hz=5)
PRESETS = {"ideal": IDEAL, "clean": CLEAN, "default": DEFAULT, "noisy": NOISY}


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
