"""Frames whose grey level tells their number."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
from av.audio.stream import AudioStream
from av.video.stream import VideoStream
from torch import Tensor

from crossdraft.video.inputs import clip_inputs, question_inputs
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
