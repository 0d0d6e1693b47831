"""The physics of a simulated event camera's pixels, and v2e's presets of it (Hu, Liu & Delbruck, CVPRW 2021)."""

import math
from dataclasses import dataclass
from typing import Literal

from crossdraft.errors import CrossdraftError

MIN_THRESHOLD = 0.01  # least threshold, in ln brightness


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """Physics of a simulated pixel. `IDEAL`, `CLEAN`, `DEFAULT` and `NOISY` below are v2e's presets.

    Attributes:
        threshold_on: mean rise of ln brightness per ON event.
        threshold_off: mean fall of ln brightness per OFF event.
        threshold_sigma: spread of both thresholds from pixel to pixel.
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
