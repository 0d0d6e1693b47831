"""What an event camera in the same place would have seen."""

from typing import TYPE_CHECKING

import numpy as np

from crossdraft.scenes.render import EVENT_HZ, SENSOR_SIZE, render
from crossdraft.scenes.scene import DURATION_S, Scene

if TYPE_CHECKING:
    from crossdraft.events import Events

_THRESHOLD = 0.12
_SIGMA = 0.02
_SHOT_NOISE_HZ = 0.4
_LEAK_HZ = 0.05
_CUTOFF_HZ = 200.0
_REFRACTORY_US = 500.0


def simulate_events(scene: Scene, seed: int | None = None) -> "Events":
    """Simulate the scene's events: SENSOR_SIZE square, from luma at EVENT_HZ, over the whole clip.

    Args:
        scene: what the camera looks at.
        seed: for the sensor's noise and thresholds; the scene's own seed by default.
    """
    from crossdraft.events import SimulatorConfig, simulate

    config = SimulatorConfig(
        threshold_on=_THRESHOLD,
        threshold_off=_THRESHOLD,
        threshold_sigma=_SIGMA,
        cutoff_hz=_CUTOFF_HZ,
        leak_hz=_LEAK_HZ,
        shot_noise_hz=_SHOT_NOISE_HZ,
        refractory_us=_REFRACTORY_US,
    )
    times_us = np.arange(int(DURATION_S * EVENT_HZ)) * (1_000_000 // EVENT_HZ)
    frames = render(scene, times_us * 1e-6, SENSOR_SIZE, luma=True)
    return simulate(zip(times_us.tolist(), frames, strict=True), config, scene.seed if seed is None else seed)
