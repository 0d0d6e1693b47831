"""Simulated event camera: events from brightness frames.

The pixel model is v2e's (Hu, Liu & Delbruck, CVPRW 2021): log brightness, a low-pass whose speed grows with
light, a threshold of its own for every pixel, a leak that makes ON events in the dark, a dead time after each
event, and shot noise. It differs on purpose in these points:

- An event is stamped with the moment its level is crossed, interpolated between the two frames, as ESIM does
  (`stamps="stepped"` gives v2e's coarse stamps).
- A pixel that crosses within its dead time fires when the dead time is over, rather than at the next frame.
- Shot noise is drawn as the Poisson process itself, so that it costs per noise event and not per pixel.
- The leak rate varies from pixel to pixel, but v2e's extra 10 % jitter from frame to frame is left out.
"""

import logging
import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.stream import Events, concatenate
from crossdraft_lab.scenes.sensor import MIN_THRESHOLD, SimulatorConfig

log = logging.getLogger(__name__)
Luma = NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.float64]
Found = tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.bool_]]  # pixel, time in µs, ON?
LINEAR_BELOW = 20  # grey levels up to here are mapped linearly: the log of a dark 8-bit pixel is mostly noise
LEAK_SPREAD_DECADES = 0.1
SHOT_NOISE_AT_WHITE = 0.25
BURST_S = 0.01  # seconds of its rate that the readout passes in one burst
# A level that returns to its start must undo its events, though float32 sums miss it by a few 1e-7.
GUARD = np.float32(1e-5)


class Simulator:
    """Turns frames into events one at a time; memory depends on the frame size only.

    Args:
        config: physics of the pixel.
        seed: seed of thresholds, leak rates, noise and drops.
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
        """Advance to the frame taken at `t_us` and return the events since the previous frame.

        Args:
            luma: brightness, uint8 or float in 0..255, [H, W]; every frame of one size.
            t_us: time of the frame, later than the previous one.

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
    """Simulate the events of a sequence of (time in µs, brightness frame); see `Simulator.feed`.

    Raises:
        CrossdraftError: no frame, or an error of `Simulator.feed`.
    """
    simulator = Simulator(config, seed)
    chunks = [simulator.feed(frame, t_us) for t_us, frame in frames]
    if not chunks:
        raise CrossdraftError("There are no frames to simulate events from.")
    return concatenate(chunks)


class PixelArray:
    """Every pixel's level, memory and thresholds, flat [H*W], in ln brightness.

    A pixel compares its filtered log brightness (level) with the value it last reported (memory).

    Args:
        config: physics of the pixels.
        luma: the first frame, [H, W]; sets level and memory.
        t_us: time of the first frame.
        rng: source of all random numbers, now and later.
    """

    def __init__(self, config: SimulatorConfig, luma: Luma, t_us: int, rng: np.random.Generator) -> None:
        size = luma.size
        self.config = config
        self.shape = (luma.shape[0], luma.shape[1])
        self.t_us = t_us
        self.dropped = 0
        self._credit = math.inf  # events that the readout can pass now; the first `_refill` limits it
        self._rng = rng
        self._on = _thresholds(config.threshold_on, config.threshold_sigma, size, rng)
        self._off = _thresholds(config.threshold_off, config.threshold_sigma, size, rng)
        spread = np.exp(LEAK_SPREAD_DECADES * math.log(10) * rng.standard_normal(size)) if config.leak_hz else 0.0
        self._leak = (config.leak_hz * spread * self._on).astype(np.float32)  # ln units a second
        # A pixel of lower threshold is noisier in proportion; the ON half and the OFF half share one table.
        weight = np.concatenate([config.threshold_on / self._on, config.threshold_off / self._off])
        self._noise_table = np.cumsum(weight, dtype=np.float64)
        self._level = log_brightness(luma.reshape(-1))
        self._memory = self._level.copy()
        self._last = np.full(size, -np.inf)  # time of each pixel's last event, µs

    def advance(self, luma: Luma, t_us: int) -> Events:
        """Expose the pixels to the frame [H, W] taken at `t_us`; return their events since the previous frame."""
        luma = luma.reshape(-1)
        dt = (t_us - self.t_us) * 1e-6
        before, self._level = self._level, self._low_pass(luma, dt)
        self._refill(dt)
        if self.config.leak_hz:
            self._memory -= self._leak * np.float32(dt)
        change = self._level - self._memory
        at = np.flatnonzero((change >= self._on - GUARD) | (change <= GUARD - self._off))
        found = self._crossings(at, change[at], before[at], t_us) if len(at) else []
        if self.config.shot_noise_hz:
            found.append(self._noise(luma, t_us))
        since, self.t_us = self.t_us, t_us
        return _to_events(found, self.shape, since, t_us)

    def _refill(self, dt: float) -> None:
        limit = self.config.max_rate_hz_px
        if limit is not None:
            full = limit * len(self._on)
            self._credit = min(self._credit + full * dt, full * max(dt, BURST_S))

    def _low_pass(self, luma: Luma, dt: float) -> NDArray[np.float32]:
        level = log_brightness(luma)
        if not self.config.cutoff_hz:
            return level
        weight = relative_light(luma) * np.float32(dt * 2 * math.pi * self.config.cutoff_hz)
        np.minimum(weight, 1, out=weight)
        level -= self._level
        level *= weight
        level += self._level
        return level

    def _crossings(
        self, at: NDArray[np.intp], change: NDArray[np.float32], before: NDArray[np.float32], t_us: int
    ) -> list[Found]:
        """Find the events of the pixels `at`, whose level now differs from their memory by at least a threshold.

        Seen in the direction of the change, a pixel stood at `start` thresholds at the last frame and stands at
        `end` >= 1 now; its r-th event falls where the straight line between the two passes r.
        """
        config, span = self.config, t_us - self.t_us
        on = change > 0
        sign = np.where(on, np.float32(1), np.float32(-1))
        theta = np.where(on, self._on[at], self._off[at])
        change = change * sign
        count = ((change + GUARD) // theta).astype(np.int64)
        memory = self._memory[at] + self._leak[at] * np.float32(span * 1e-6) if config.leak_hz else self._memory[at]
        start, end = (before - memory) * sign / theta, change / theta
        slope = np.maximum(end - start, np.float32(1e-9))
        keep = self._within_limit(count)
        moved = count - keep  # the readout lost these events, but the pixel's memory moves with them, too
        rows = np.arange(len(at))
        found: list[Found] = []
        for rank in range(1, int(keep.max()) + 1):
            rows = rows[keep[rows] >= rank]
            if config.stamps == "stepped":
                part = np.full(len(rows), rank / keep.max())
            else:
                part = np.clip((rank - start[rows]) / slope[rows], 0, 1).astype(np.float64)
            moment = self.t_us + part * span
            if config.refractory_us:
                moment = np.maximum(moment, self._last[at[rows]] + config.refractory_us)
                ready = moment <= t_us
                rows, moment = rows[ready], moment[ready]
                self._last[at[rows]] = moment
            moved[rows] += 1
            found.append((at[rows], moment, on[rows]))
        self._memory[at] += sign * moved * theta
        return found

    def _within_limit(self, count: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of each pixel's `count` events that the readout passes."""
        total = int(count.sum())
        if total <= self._credit:
            self._credit -= total
            return count
        if not self.dropped:
            log.warning("The scene changes faster than the readout's rate (a cut?); some events are dropped.")
        keep = self._rng.binomial(count, self._credit / total)
        self.dropped += total - int(keep.sum())
        self._credit = 0.0
        return keep

    def _noise(self, luma: Luma, t_us: int) -> Found:
        """Draw shot noise: a Poisson process for each pixel, weaker in light; an event resets the pixel's memory."""
        config, rng, span = self.config, self._rng, t_us - self.t_us
        number = rng.poisson(config.shot_noise_hz / 2 * span * 1e-6 * self._noise_table[-1])
        pick = np.searchsorted(self._noise_table, rng.random(number) * self._noise_table[-1], side="right")
        pixel = pick % len(self._on)
        stays = rng.random(number) < 1 - (1 - SHOT_NOISE_AT_WHITE) * relative_light(luma[pixel])
        moment = self.t_us + rng.random(number) * span
        if config.refractory_us:
            stays &= moment >= self._last[pixel] + config.refractory_us
            first = np.zeros(number, np.bool_)  # a second event of a pixel would mostly fall into its dead time
            first[np.unique(pixel, return_index=True)[1]] = True
            stays &= first
        pixel, moment, on = pixel[stays], moment[stays], pick[stays] < len(self._on)
        self._last[pixel] = moment
        self._memory[pixel] = self._level[pixel]
        return pixel, moment, on


def lin_log(luma: NDArray[np.float64]) -> NDArray[np.float32]:
    """v2e's lin-log map: straight from 0 to ln 20 at grey level 20, natural log above, rounded to 1e-8."""
    straight = luma * (math.log(LINEAR_BELOW) / LINEAR_BELOW)
    curved = np.log(np.maximum(luma, LINEAR_BELOW))
    return np.round(np.where(luma <= LINEAR_BELOW, straight, curved), 8).astype(np.float32)


_GREYS = np.arange(256, dtype=np.float64)
_LIN_LOG = lin_log(_GREYS)
_LIGHT = ((_GREYS + 20) / 275).astype(np.float32)


def log_brightness(luma: Luma) -> NDArray[np.float32]:
    """Compute `lin_log`, by table for uint8."""
    return _LIN_LOG[luma.astype(np.uint8, copy=False)] if luma.dtype == np.uint8 else lin_log(luma.astype(np.float64))


def relative_light(luma: Luma) -> NDArray[np.float32]:
    """Relative light, 0.07 for black to 1 for white, to which a pixel's speed is proportional. By table for uint8."""
    return (
        _LIGHT[luma.astype(np.uint8, copy=False)]
        if luma.dtype == np.uint8
        else ((luma.astype(np.float32) + 20) / 275).astype(np.float32)
    )


def _thresholds(mean: float, sigma: float, size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    return np.maximum(mean + sigma * rng.standard_normal(size), MIN_THRESHOLD).astype(np.float32)


def _to_events(found: list[Found], shape: tuple[int, int], since: int, until: int) -> Events:
    height, width = shape
    if not found:
        return Events.empty(width, height)
    pixel, moment, on = (np.concatenate(column) for column in zip(*found, strict=True))
    t = np.rint(moment).astype(np.int64)
    # Offsets that fit 16 bits let numpy sort by radix.
    order = np.argsort((t - since).astype(np.uint16) if until - since < 1 << 16 else t, kind="stable")
    pixel = pixel[order]
    y = pixel // width
    return Events(
        (pixel - y * width).astype(np.uint16), y.astype(np.uint16), t[order], on[order].astype(np.uint8), width, height
    )
