"""Video frames for the simulator: grey, in the sensor's size, interpolated along the optical flow.

A video of 25 frames a second shows an edge jumping by several pixels, which no event camera ever sees. With
`steps` > 1, frames are interpolated along the optical flow (DIS), so that edges travel instead of fading over.
"""

from collections.abc import Iterable, Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.stream import Sensor

Grey = NDArray[np.uint8]


def simulator_frames(
    frames: Iterable[tuple[float, NDArray[np.uint8]]],
    sensor: Sensor | None = None,
    steps: int = 1,
    limits: EventLimits = DEFAULT_LIMITS,
) -> Iterator[tuple[int, Grey]]:
    """Turn (seconds, RGB [H, W, 3]) into the simulator's (µs, grey [h, w]), one frame at a time.

    Args:
        frames: frames as `crossdraft.video.iter_frames` yields them.
        sensor: (width, height) to scale to, with the aspect kept and black bars; None keeps the video's size.
        steps: number of output frames for each input frame after the first.

    Raises:
        CrossdraftError: steps below 1, an impossible sensor, or one beyond `limits.pixels`.
    """
    if steps < 1 or (sensor is not None and min(sensor) < 1):
        raise CrossdraftError(f"Steps ({steps}) and sensor ({sensor}) must be positive.")
    if sensor is not None:
        limits.check_sensor("The simulator", *sensor)
    before: tuple[float, Grey] | None = None
    for time_s, rgb in frames:
        grey = fit(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY).astype(np.uint8, copy=False), sensor)
        if before is not None and steps > 1:
            shares = [step / steps for step in range(1, steps)]
            for share, middle in zip(shares, between(before[1], grey, shares), strict=True):
                yield round((before[0] + (time_s - before[0]) * share) * 1e6), middle
        yield round(time_s * 1e6), grey
        before = time_s, grey


def fit(grey: Grey, sensor: Sensor | None) -> Grey:
    """Scale to fit inside the sensor, aspect kept, centred on black."""
    height, width = grey.shape
    if sensor is None or sensor == (width, height):
        return grey
    scale = min(sensor[0] / width, sensor[1] / height)
    inner = max(round(width * scale), 1), max(round(height * scale), 1)
    small = cv2.resize(grey, inner, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    canvas = np.zeros((sensor[1], sensor[0]), np.uint8)
    left, top = (sensor[0] - inner[0]) // 2, (sensor[1] - inner[1]) // 2
    canvas[top : top + inner[1], left : left + inner[0]] = small
    return canvas


def between(first: Grey, last: Grey, shares: Iterable[float]) -> Iterator[Grey]:
    """Yield frames at the given shares (0..1) of the way from `first` to `last`, along the flow both ways.

    The flow seen from a moment in between is approximated from the two known flows as in Super SloMo (Jiang et
    al., CVPR 2018, eq. 4); both frames are warped along it and mixed by their nearness in time.
    """
    if min(first.shape) < 16:  # smaller than DIS's coarsest pyramid allows
        yield from (cv2.addWeighted(first, 1 - s, last, s, 0).astype(np.uint8) for s in shares)
        return
    flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    forward = flow.calc(first, last, np.empty(0, np.float32)).astype(np.float32)
    backward = flow.calc(last, first, np.empty(0, np.float32)).astype(np.float32)
    height, width = first.shape
    columns, rows = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    grid = np.stack([columns, rows], axis=-1)
    for share in shares:
        s = np.float32(share)
        to_first, to_last = (s * (s * backward - (1 - s) * forward), (1 - s) * ((1 - s) * forward - s * backward))
        mixed = cv2.addWeighted(_sample(first, grid + to_first), 1 - share, _sample(last, grid + to_last), share, 0)
        yield mixed.astype(np.uint8, copy=False)


def _sample(frame: Grey, at: NDArray[np.floating]) -> cv2.typing.MatLike:
    return cv2.remap(frame, at[..., 0], at[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
