"""Limits on the decoding of videos."""

from dataclasses import dataclass

from crossdraft.errors import CrossdraftError


@dataclass(frozen=True, slots=True)
class VideoLimits:
    """Limits that every reader observes.

    Args:
        pixels: pixels of a clip's frame.
        frames, seconds: frames and seconds of a clip.
        decoded: pixels of all its frames together.
        held: pixels of all frames that are sampled from a clip, 3 bytes each, at their full size.
        image: pixels of a still image; a phone's photo has 12 to 50 million. Each takes 3 bytes in memory; while it
            is decoded it takes 7 to 10, in a WebP 16.
    """

    pixels: int = 4096 * 2304
    frames: int = 100_000
    seconds: float = 3600.0
    decoded: int = 100_000_000_000  # an hour of 640x480 at 90 frames a second, ten minutes of 4K at 19
    held: int = 1 << 28  # 800 MB: 129 frames of 1080p, 291 of 720p, 873 of 640x480
    image: int = 1 << 26

    def check(self, name: object, *, width: int, height: int, frames: int, seconds: float, decoded: int = 0) -> None:
        """Raise CrossdraftError if a measure of the video `name`, stated or counted, is too large."""
        if width * height > self.pixels:
            raise CrossdraftError(
                f"{name} has frames of {width}x{height}, above the limit of {self.pixels:,} pixels; scale it down."
            )
        if frames > self.frames:
            raise CrossdraftError(f"{name} has more than {self.frames} frames, the limit; cut it shorter.")
        if seconds > self.seconds:
            raise CrossdraftError(f"{name} is longer than {self.seconds:g} seconds, the limit; cut it shorter.")
        if decoded > self.decoded:
            raise CrossdraftError(
                f"{name} has more than {self.decoded:,} pixels in all its frames, the limit; cut it shorter or scale "
                "it down."
            )

    def check_image(self, name: object, width: int, height: int) -> None:
        """Raise CrossdraftError if an image is too large."""
        if width * height > self.image:
            raise CrossdraftError(
                f"{name} is {width}x{height}, above the limit of {self.image:,} pixels of an image; scale it down."
            )

    def check_held(self, name: object, frames: int, width: int, height: int) -> None:
        """Raise CrossdraftError if `frames` frames of that size cannot be held at once."""
        if frames * width * height > self.held:
            most = self.held // (width * height)
            raise CrossdraftError(
                f"{name}: {frames} frames of {width}x{height} are more than {self.held:,} pixels, the limit of what is "
                f"held at once; take at most {most} (num_frames=…), scale the clip down, or raise VideoLimits.held."
            )


DEFAULT_LIMITS = VideoLimits()
