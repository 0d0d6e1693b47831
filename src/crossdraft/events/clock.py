"""The unit of a recording's times, where its format does not state it: checked against what cameras do.

Readers of arrays, HDF5 and text assume the usual unit of their format. Some files of the same layout are in seconds, ms
or ns, which shows in three ways: cameras count whole µs, so that times lie on a grid of 1 µs; a pixel sends 0.001 to
100 events a second on average; and no clock since 1970 is beyond the year 2286. A unit that contradicts them gives way
if only one other remains, else the recording is refused; one that is merely unusual stays, with a note.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError

EXPONENTS = {"s": 6, "ms": 3, "us": 0, "ns": -3}  # a unit is 10**exponent µs
SPELLED = {"s": "seconds", "ms": "ms", "us": "µs", "ns": "ns"}
SAMPLE = 4096  # first and last events whose times are looked at
LEAST_EVENTS = 100  # fewer events have no rate
LAST_EPOCH_US = 10**16  # the year 2286, counted from 1970
COARSE_US, SHORT_US, SECOND_US, LONG_US, HOUR_US = 100, 1000, 10**6, 10**9, 3_600_000_000
LEAST_PIXELS = 128 * 128  # of a camera; a made-up recording may have fewer
LEAST_HZ_PX, MOST_HZ_PX = 0.001, 100.0  # events a second per pixel, averaged over a recording
MOST_PER_US = 10_000  # events: ten times what any camera's wires bear
QUIET_HZ_PX = 1e-5  # a few events a second of a whole sensor
LEAST_CHANCE = 1e-6  # of an accident; what is less likely is none


@dataclass(frozen=True, slots=True)
class StoredTimes:
    """Times as a file stores them: a sample [n], n >= 1, first and last included; their count; the sensor's pixels."""

    sample: NDArray[Any]
    count: int
    pixels: int

    @property
    def first(self) -> float:
        """The first time."""
        return self.sample[0].item()

    def us(self, unit: str) -> float:
        """Length of the recording in µs, if the times are in `unit`."""
        return float(self.sample[-1].item() - self.first) * 10.0 ** EXPONENTS[unit]

    def hz_px(self, unit: str) -> float:
        """Events a second per pixel, of a camera's that has few; the length must not be 0."""
        return self.count * 1e6 / self.us(unit) / max(self.pixels, LEAST_PIXELS)

    def grid(self) -> tuple[int, bool]:
        """Exponent of the widest power of 1000 that divides all times, from the first on; false if it is unknown."""
        floats, sample = self.sample.dtype.kind == "f", np.unique(self.sample)
        exactly = sample.astype(np.float64) if floats else sample  # as float32 a difference is rounded again
        after = (exactly - exactly[0]).astype(np.float64)[1:]
        if not len(after):
            return -9 if floats else 0, False
        spacing = np.abs(np.spacing(sample)).astype(np.float64) if floats else np.zeros(len(sample))
        errors = (spacing[1:] + spacing[0]) / 2
        for exponent in (3, 0, -3, -6):
            power = 10.0**exponent
            exact = errors <= power / 4
            # The chance that they all lie on the grid by accident, as float32 holds the first seconds exactly alone.
            if (2 * errors[exact] / power).clip(1e-9).prod() > LEAST_CHANCE:
                return exponent, False
            off = np.abs(after - power * np.rint(after / power))
            if (off <= errors + 1e-15 * np.abs(after))[exact].all():
                return exponent, True
        return -9, False


def time_unit(
    stored: Callable[[int, int], NDArray[Any]], count: int, sensor: tuple[int, int], usual: str, source: object
) -> tuple[str, tuple[str, ...]]:
    """Find the unit of `count` times, the `usual` one of their format or another, and what is to be noted of it.

    Args:
        stored: returns the times of rows [i, j) as the file has them.

    Raises:
        CrossdraftError: the usual unit is impossible, and several others, or none, are possible.
    """
    sample = np.concatenate([stored(0, min(count, SAMPLE)), stored(max(count - SAMPLE, 0), count)])
    times = StoredTimes(sample, count, sensor[0] * sensor[1])
    if not count or not np.isfinite(sample).all() or not 0 < times.us(usual) < float("inf"):
        return usual, ()  # nothing to measure, or disorder, which is refused elsewhere
    grid, known = times.grid()
    units = [unit for unit in EXPONENTS if _possible(times, unit, grid, known)]
    fine = next((unit for unit in units if EXPONENTS[unit] == -grid and known), None)
    said, found = f"{times.count:,} events from {times.first} to {sample[-1].item()}", usual
    if usual in units:
        other = _doubtful(times, usual, units, fine)
        notes = [f"{said}; if they are in {SPELLED[other]}, say so (time_unit={other})."] if other else []
    else:
        found = _replaced(times, units, fine, grid)
        if found is None:
            ask = "give their unit (time_unit=…): s, ms, us or ns."
            raise CrossdraftError(f"{source}: its times ({said}) cannot be in {SPELLED[usual]}; {ask}")
        notes = [f"{said} cannot be in {SPELLED[usual]}; if they can be, say so (time_unit=…)."]
    step = float(np.spacing(sample[-1])) * 10.0 ** EXPONENTS[found] if sample.dtype.kind == "f" else 0
    coarse = [f"Times are stored as {sample.dtype.name}, in steps of {step:g} µs."] if step > COARSE_US else []
    return found, (*(f"Times are read as {SPELLED[found]}: {note}" for note in notes), *coarse)


def _possible(times: StoredTimes, unit: str, grid: int, known: bool) -> bool:
    """True if times in `unit` may come from a camera or a simulator."""
    tick = grid + EXPONENTS[unit]  # of the grid, as a power of ten in µs
    if abs(times.first) * 10.0 ** EXPONENTS[unit] > LAST_EPOCH_US:
        return False
    if times.count < LEAST_EVENTS:
        return True
    if times.count > MOST_PER_US * times.us(unit):
        return False
    fractions = times.us(unit) < SHORT_US and tick < 0
    whole_seconds = tick >= 6 and times.us(unit) >= LONG_US and times.hz_px(unit) < 10 * LEAST_HZ_PX
    return not (fractions or (known and (tick <= -6 or whole_seconds)))


def _replaced(times: StoredTimes, units: list[str], fine: str | None, grid: int) -> str | None:
    """The unit that remains where the usual one is impossible, of the possible `units`; `None` if there are several."""
    if len(units) == 1:
        return units[0]
    if fine is None:
        found = [unit for unit in units if _is_usual(times, unit, 100)]
        whole = [unit for unit in units if grid + EXPONENTS[unit] >= 0]  # in which they may be whole µs
        return found[0] if len(found) == 1 and (found[0] in whole or not whole) else None
    # The grid tells, but whole µs may be ns that a simulator counts, and steps of 10 µs seconds of a video's frames.
    hundredths = (times.sample - times.sample[0]).astype(np.float64) * 100
    other = {"us": "ns", "ms": "s" if (np.abs(hundredths - np.rint(hundredths)) < 0.01).all() else None}.get(fine)
    doubtful = other in units and _is_usual(times, other, 100 if other == "s" else 1)
    return fine if _is_usual(times, fine, 10) and not doubtful else None


def _is_usual(times: StoredTimes, unit: str, margin: float = 1) -> bool:
    """True if the rate is, or `margin` times that."""
    return times.us(unit) >= SHORT_US and LEAST_HZ_PX / margin <= times.hz_px(unit) <= MOST_HZ_PX * margin


def _doubtful(times: StoredTimes, usual: str, units: list[str], fine: str | None) -> str | None:
    """Another possible unit that may be meant in place of the usual one, or `None`."""
    other, many, length = None if fine == usual else fine, times.count >= LEAST_EVENTS, times.us(usual)
    if usual == "us" and length < SHORT_US and (many or times.sample.dtype.kind == "f"):
        return other if other in ("s", "ms") else "s" if length <= 2 else "ms"
    if not many:
        return other if usual == "s" and length > LONG_US else None
    quiet = fine != usual and times.hz_px(usual) < QUIET_HZ_PX
    return next((unit for unit in (other, *(units if quiet else ())) if unit and _is_usual(times, unit)), None)


def zero_of(first_us: int, offset_us: int, indexed_us: int) -> tuple[int, tuple[str, ...]]:
    """Find what is to be added to times beside which a file states an offset, and what is to be noted.

    Times that begin beyond an offset of hours contain it already, unless the file's index of ms, which ends at
    `indexed_us`, reaches the first of them.
    """
    if not SECOND_US <= offset_us < 2 * first_us or first_us < indexed_us:
        return offset_us, ()
    if offset_us >= HOUR_US and first_us >= offset_us:
        return 0, (f"Times begin beyond t_offset, {offset_us} µs, so it is not added: they contain it.",)
    return offset_us, (f"Times begin at {first_us} µs, beyond half of t_offset; if they contain it, set it to 0.",)
