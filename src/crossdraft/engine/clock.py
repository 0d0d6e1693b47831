"""Marks in a device's queue of work, and the times at which the device reached them.

A call that launches work on a GPU returns long before that work is done. So the loop does not take the time, or stop a
hidden draft, when a call returns: it marks a point in the device's queue and waits for that mark. On a CPU the work is
done when a call returns, and a mark is just the time.
"""

import time
from dataclasses import dataclass
from typing import Protocol

import torch

RENEW_S = 60.0  # CUDA tells times between events in float32 milliseconds: a minute apart still to 4 µs


class Mark(Protocol):
    """A point in a device's work."""

    def wait(self) -> float:
        """Wait until all work before the mark is done; returns that time, on `time.perf_counter`'s axis."""
        ...


class Clock(Protocol):
    """Marks points in the work of one device."""

    def mark(self) -> Mark:
        """The point after everything that this thread has launched on the device's current stream."""
        ...


@dataclass(frozen=True, slots=True)
class Reached:
    """A mark on a device whose work is done when a call returns."""

    time: float

    def wait(self) -> float:
        return self.time


class HostClock:
    """The clock of a device that works synchronously."""

    def mark(self) -> Reached:
        return Reached(time.perf_counter())


class EventClock:
    """The clock of a CUDA device: a mark is an event in the current stream.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._zero: tuple[torch.cuda.Event, float] | None = None  # an event, and the time when the device reached it

    def mark(self) -> "EventMark":
        zero, at = self._anchor()
        return EventMark(zero, at, self._record())

    def _anchor(self) -> "tuple[torch.cuda.Event, float]":
        """An event whose time is known; once a minute a new one is recorded and waited for."""
        known = self._zero
        if known is None or time.perf_counter() - known[1] > RENEW_S:
            event = self._record()
            event.synchronize()
            self._zero = known = event, time.perf_counter()
        return known

    def _record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event


@dataclass(frozen=True, slots=True)
class EventMark:
    """A mark that is a CUDA event, timed by an earlier event whose time is known."""

    zero: torch.cuda.Event
    zero_at: float
    event: torch.cuda.Event

    def wait(self) -> float:
        self.event.synchronize()  # waits for this event alone, and lets other threads run
        return self.zero_at + self.zero.elapsed_time(self.event) / 1e3


def clock_of(device: torch.device) -> Clock:
    """The clock of a device."""
    return EventClock(device) if device.type == "cuda" else HostClock()
