"""How much video we are willing to decode."""

from dataclasses import dataclass

from crossdraft.errors import CrossdraftError


@dataclass(frozen=True, slots=True)
class VideoLimits:
    """The most we take on: pixels of a frame, frames of a clip, seconds of a clip."""

    pixels: int = 4096 * 2304
    frames: int = 100_000
    seconds: float = 3600.0

    def check(self, name: object, *, width: int, height: int, frames: int, seconds: float) -> None:
        """Raise CrossdraftError if a measure of the video `name`, claimed or counted, is too large."""
        if width * height > self.pixels:
            raise CrossdraftError(
                f"{name} has frames of {width}x{height}, above the limit of {self.pixels} pixels; "
                "scale it down."
            )
        if frames > self.frames:
            raise CrossdraftError(f"{name} has more than {self.frames} frames, the limit; cut it shorter.")
        if seconds > self.seconds:
            raise CrossdraftError(
                f"{name} is longer than {self.seconds:g} seconds, the limit; cut it shorter."
            )


DEFAULT_LIMITS = VideoLimits()
