"""How much video we are willing to decode."""

from dataclasses import dataclass

from crossdraft.errors import CrossdraftError


@dataclass(frozen=True, slots=True)
class VideoLimits:
    """The most we take on: pixels of a frame, frames and seconds of a clip, pixels of all its frames together."""

    pixels: int = 4096 * 2304
    frames: int = 100_000
    seconds: float = 3600.0
    decoded: int = 100_000_000_000  # an hour of 640x480 at 90 frames a second, ten minutes of 4K at 19

    def check(
        self, name: object, *, width: int, height: int, frames: int, seconds: float, decoded: int = 0
    ) -> None:
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
        if decoded > self.decoded:
            raise CrossdraftError(
                f"{name} has more than {self.decoded:,} pixels in all its frames, the limit; cut it shorter or scale "
                "it down."
            )


DEFAULT_LIMITS = VideoLimits()
