"""A clip of a request, a file or frames, read as the frames for a model."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from crossdraft.checks import positive, whole
from crossdraft.errors import CrossdraftError
from crossdraft.messages import portable

if TYPE_CHECKING:
    from crossdraft.video.clip_frames import ClipFrames
    from crossdraft.video.container import VideoInfo

DEFAULT_FRAMES = 8
MAX_FRAMES = 768  # largest number by a rate: the most that Qwen's video processors take


@dataclass(frozen=True, slots=True)
class FrameSampling:
    """The number of frames of a clip that a model reads, at evenly spaced times, first and last included.

    Args:
        num_frames: number of frames. Overrides `fps`.
        fps: frames for each second of the clip, at least `min_frames`, at most `max_frames` and the clip's own number.
        min_frames, max_frames: see `fps`.

    Raises:
        CrossdraftError: a value is no number, or too small.
    """

    num_frames: int | None = None
    fps: float | None = None
    min_frames: int = 1
    max_frames: int = MAX_FRAMES

    def __post_init__(self) -> None:
        for name in ("num_frames", "min_frames", "max_frames"):
            if (value := getattr(self, name)) is not None:
                whole(name, value)
        if self.fps is not None:
            positive("fps", self.fps)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "FrameSampling":
        """Read a Hugging Face video processor's settings; 8 frames if they state no number.

        Raises:
            CrossdraftError: as the class.
        """
        own = {**settings, **(settings.get("video_sampling") or {})}  # SmolVLM's stands apart
        given = {name: own[name] for name in cls.__slots__ if own.get(name) is not None}
        if settings.get("max_duration") and "fps" in given:  # GLM: a rate, for at most `max_duration` seconds
            given["max_frames"] = max(1, int(settings["max_duration"] * given["fps"]))
            given.pop("num_frames", None)
        elif "max_image_size" in settings and {"num_frames", "fps"} <= given.keys():
            # SmolVLM: a rate, with `num_frames` as the largest number.
            given["max_frames"] = given.pop("num_frames")
        return cls(**given) if {"num_frames", "fps"} & given.keys() else cls(DEFAULT_FRAMES)

    def instead(self, num_frames: int | None, fps: float | None) -> "FrameSampling":
        """Return this sampling, or a new one if `num_frames` or `fps` is given."""
        return self if num_frames is None and fps is None else FrameSampling(num_frames, fps)

    def count(self, path: object, header: "VideoInfo") -> int:
        """Number of frames to read from a clip with that header.

        Raises:
            CrossdraftError: a rate is given, and the header does not state the clip's length.
        """
        if self.num_frames is not None or self.fps is None:
            return self.num_frames or DEFAULT_FRAMES
        if header.seconds <= 0:
            raise CrossdraftError(
                f"{path} does not say how long it is, so that {self.fps:g} frames a second cannot be counted; give "
                "num_frames=… in place of fps=…."
            )
        most = min(self.max_frames, header.frames or self.max_frames)
        return max(1, min(max(round(header.seconds * self.fps), self.min_frames), most))


@dataclass(frozen=True, slots=True)
class DecodedClip:
    """A clip or an image that was decoded beforehand, as in another process; accepted wherever a path is.

    Args:
        digest: digest of the file's bytes; with `sampling` it identifies the frames, so they need not be hashed.
        sampling: sampling by which its frames were taken; `None` for an image.
        frames: frames as `sample_frames` returns them; for an image, one.
    """

    digest: bytes
    sampling: FrameSampling | None
    frames: "ClipFrames" = field(compare=False, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the clip's frames."""
        return int(self.frames.pixels.nbytes)


def read_clip(video: Any, sampling: FrameSampling) -> "ClipFrames":
    """Read the frames of a clip, with their times and with notes on damage.

    Args:
        video: the path of a video file; a `DecodedClip`; or `ClipFrames`, uint8 RGB frames [F, H, W, 3], or PIL images
            in a list, all of which are used unchanged.
        sampling: sampling of a file.

    Returns:
        See `ClipFrames`; the times of frames given without times are their numbers.

    Raises:
        CrossdraftError: `video` is of another kind, or as `sample_frames`.
    """
    if video is None:
        raise CrossdraftError("The request has no video; give the path of a clip.")
    if isinstance(video, DecodedClip):
        return video.frames
    from crossdraft.video.clip_frames import ClipFrames, given_pixels

    if isinstance(video, ClipFrames):
        return video
    video = portable(video)
    if isinstance(video, str | os.PathLike):
        return _read_file(os.fspath(video), sampling)
    if isinstance(video, bytes | bytearray | memoryview) or hasattr(video, "read"):
        raise CrossdraftError(
            f"The request's video is a {type(video).__name__}; write it to a file and give the path, or give decoded "
            "frames (uint8 [F, H, W, 3])."
        )
    frames = given_pixels(
        video, 4, "The request's video", "the path of a clip, or decoded frames (uint8 RGB [F, H, W, 3])"
    )
    return ClipFrames(frames, np.arange(len(frames), dtype=np.float64), timed=False)


def count_frames(video: Any, sampling: FrameSampling) -> int:
    """Number of frames that `read_clip` would return, without decoding a file.

    Raises:
        CrossdraftError: as `read_clip`.
    """
    if isinstance(video, str | os.PathLike):
        return _frames_of(_file_name(os.fspath(video)), sampling)
    return len(read_clip(video, sampling))


def _read_file(path: "str | bytes", sampling: FrameSampling) -> "ClipFrames":
    from crossdraft.video.read import sample_frames

    name = _file_name(path)
    return sample_frames(name, _frames_of(name, sampling))


def _file_name(path: "str | bytes") -> str:
    name = os.fsdecode(path)
    if "://" in name:
        raise CrossdraftError(f"Videos are not fetched from addresses; download {name} and give the file's path.")
    return name


def _frames_of(name: str, sampling: FrameSampling) -> int:
    """Number of frames taken from a file, whose header is read only if the number depends on it."""
    from crossdraft.video.container import probe

    return sampling.num_frames if sampling.num_frames is not None else sampling.count(name, probe(name))
