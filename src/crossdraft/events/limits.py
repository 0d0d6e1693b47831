"""Limits on the reading of event recordings."""

from dataclasses import dataclass

from crossdraft.errors import CrossdraftError

SMALL_BYTES = 1 << 24  # up to this unpacked size, any compression ratio is accepted
MAX_PAINTED = 1 << 27  # pixels of all frames that are painted at once: 400 MB of RGB


@dataclass(frozen=True, slots=True)
class EventLimits:
    """Limits that every reader observes; a caller who needs more passes larger ones.

    Args:
        events: number of events in memory at once, 13 bytes each.
        scanned: number of events decoded from one file in all, whether they are wanted or not.
        lines: number of lines read from one text; a line takes some fifty times the work of an event in other formats.
        held_bytes: bytes of a file that can only be read whole (a pickle).
        block_bytes: unpacked bytes of one packed block of an HDF5 file, AEDAT 4 or bag.
        ratio: largest ratio of a compressed file's unpacked size to its stored size.
        pixels: pixels of the sensor.
        seconds: time from the first event read to the last.
    """

    events: int = 32_000_000
    scanned: int = 4_000_000_000
    lines: int = 250_000_000
    held_bytes: int = 1 << 29
    block_bytes: int = 1 << 26
    ratio: float = 1000.0
    pixels: int = 4096 * 2304
    seconds: float = 86_400.0

    def check_held(self, source: object, events: int) -> None:
        """Raise CrossdraftError if `events` events are too many to hold at once."""
        self._check("events", events, f"{source} has more than {self.events:,} events in the wanted span")

    def check_scanned(self, source: object, events: int) -> None:
        """Raise CrossdraftError if `events` events are too many to decode."""
        self._check("scanned", events, f"{source} has more than {self.scanned:,} events to read through")

    def check_lines(self, source: object, lines: int) -> None:
        """Raise CrossdraftError if a text has too many lines."""
        self._check("lines", lines, f"{source} has more than {self.lines:,} lines")

    def check_whole(self, source: object, size: int) -> None:
        """Raise CrossdraftError if a file of `size` bytes is too large to be read whole."""
        if size > self.held_bytes:
            raise CrossdraftError(
                f"{source} has {size:,} bytes and can be read only whole, above the limit of {self.held_bytes:,}; "
                "convert it to .h5, or raise EventLimits.held_bytes."
            )

    def check_block(self, source: object, size: int) -> None:
        """Raise CrossdraftError if a packed block unpacks to too many bytes."""
        if size > self.block_bytes:
            raise CrossdraftError(
                f"{source} is stored in blocks of {size:,} bytes, above the limit of {self.block_bytes:,}; write it "
                "again in smaller blocks, or raise EventLimits.block_bytes."
            )

    def check_packing(self, source: object, stored: int, unpacked: int) -> None:
        """Raise CrossdraftError if a compressed file unpacks to more than any recording does."""
        if unpacked > max(SMALL_BYTES, self.ratio * stored):
            raise CrossdraftError(
                f"{source} unpacks from {stored:,} to {unpacked:,} bytes, more than {self.ratio:g} times as many, "
                "which no recording does: it is damaged or made to exhaust memory; or raise EventLimits.ratio."
            )

    def check_sensor(self, source: object, width: int, height: int) -> None:
        """Raise CrossdraftError if a sensor has too many pixels."""
        said = f"{source}: a sensor of {width}x{height} has more than {self.pixels:,} pixels"
        self._check("pixels", width * height, said, "give the true size")

    def check_span(self, source: object, seconds: float) -> None:
        """Raise CrossdraftError if the events span too long a time."""
        said = f"{source} spans more than {self.seconds:g} seconds"
        advice = "say in which unit its times are (time_unit=…), take a part (start_us=…, end_us=…)"
        self._check("seconds", seconds, said, advice)

    def _check(self, name: str, found: float, said: str, advice: str = "take a shorter span") -> None:
        if found > getattr(self, name):
            raise CrossdraftError(f"{said}, the limit; {advice}, or raise EventLimits.{name}.")


DEFAULT_LIMITS = EventLimits()
