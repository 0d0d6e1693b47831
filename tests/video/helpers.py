"""Frames whose grey level tells their number."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
from av.audio.stream import AudioStream
from av.video.stream import VideoStream
from PIL import Image
from torch import Tensor

from crossdraft.video import VideoLimits, sample_frames, write_mp4
from crossdraft.video.inputs import clip_inputs, question_inputs
from crossdraft.video.limits import DEFAULT_LIMITS
from crossdraft.video.spec import FrameSpec

FRAMES, HEIGHT, WIDTH, FPS = 24, 64, 96, 24


def picture(index: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """A frame whose left half has the grey level 10 * index; the right half moves."""
    frame = np.full((height, width, 3), 10 * index, np.uint8)
    frame[:, width // 2 :] = (np.arange(width - width // 2) * 5 + index * 8).astype(np.uint8)[None, :, None]
    return frame


def numbers(frames: np.ndarray | Tensor) -> list[int]:
    """The numbers that frames [F, H, W, 3] tell."""
    return [round(float(frame[:, : WIDTH // 4].mean()) / 10) for frame in np.asarray(frames)]


def read_frames(path: Path, num_frames: int = 8, limits: VideoLimits = DEFAULT_LIMITS) -> tuple[Tensor, np.ndarray]:
    """Frames [F, H, W, 3] and times [F] that are sampled."""
    sample = sample_frames(path, num_frames, limits)
    return sample.frames, sample.times_s


def moving_square(path: Path) -> Path:
    """Write a clip of 1 s, in which a bright square moves over grey."""
    frames = np.full((25, 48, 64, 3), 60, np.uint8)
    for i, frame in enumerate(frames):
        frame[10:30, i : i + 20] = 200
    write_mp4(path, frames, 25)
    return path


def encode(path: Path, container: str, codec: str, frames: Iterable[np.ndarray], pixels: str | None = None) -> Path:
    """Write with PyAV directly, for the containers and codecs that `write_mp4` does not make."""
    with path.open("w+b") as file, av.open(file, "w", format=container) as out:
        stream = cast("VideoStream", out.add_stream(codec, rate=FPS))
        stream.options = {"deadline": "realtime"} if codec.startswith("libvpx") else {}
        stream.pix_fmt = pixels or ("yuvj420p" if codec == "mjpeg" else "yuv420p")
        for index, frame in enumerate(frames):
            if index == 0:
                stream.height, stream.width = frame.shape[:2]
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        out.mux(stream.encode(None))
    return path


def timed(path: Path, times_ms: Iterable[int], container: str = "mp4", codec: str = "h264") -> Path:
    """A clip whose frame i begins at the i-th of these milliseconds."""
    with path.open("w+b") as file, av.open(file, "w", format=container) as out:
        stream = cast("VideoStream", out.add_stream(codec, rate=1000))
        stream.height, stream.width = HEIGHT, WIDTH
        stream.pix_fmt, stream.time_base = "yuv420p", Fraction(1, 1000)
        stream.codec_context.time_base = Fraction(1, 1000)
        for index, time_ms in enumerate(times_ms):
            frame = av.VideoFrame.from_ndarray(picture(index), format="rgb24")
            frame.pts, frame.time_base = time_ms, Fraction(1, 1000)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


def animation(path: Path, durations_ms: list[int], kind: str, height: int = HEIGHT, width: int = WIDTH) -> Path:
    """An animated WebP (lossless) or GIF of pictures that are shown for so many milliseconds each."""
    first, *rest = (Image.fromarray(picture(index, height, width)) for index in range(len(durations_ms)))
    first.save(path, kind, save_all=True, append_images=rest, duration=durations_ms, lossless=True)
    return path


def tone(path: Path) -> Path:
    """An mp4 with sound and no picture."""
    with path.open("w+b") as file, av.open(file, "w", format="mp4") as out:
        stream = cast("AudioStream", out.add_stream("aac", rate=8000))
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), format="fltp", layout="mono")
        sound.rate = 8000
        out.mux(stream.encode(sound))
        out.mux(stream.encode(None))
    return path


def model_inputs(config: Any, tokenizer: Any, spec: FrameSpec | None, frames: Tensor, times: Any, question: str) -> Any:
    """Inputs of a model's forward: those of a clip, and of one question about it."""
    clip, features = clip_inputs(config, spec, frames, times)
    return {**question_inputs(config, tokenizer, clip, question), **features}
