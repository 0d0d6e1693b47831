"""Video in and out: probe, sample, write; preprocessing and model inputs in modules of their own.

Each name is loaded when it is first used: preprocessing of existing frames needs no PyAV, and reading a video's header
no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crossdraft.video.clip_frames import ClipFrames
    from crossdraft.video.container import VideoInfo, probe
    from crossdraft.video.limits import VideoLimits
    from crossdraft.video.read import iter_frames, sample_frames
    from crossdraft.video.write import write_mp4

__all__ = ["ClipFrames", "VideoInfo", "VideoLimits", "iter_frames", "probe", "sample_frames", "write_mp4"]

_HOME = {
    "ClipFrames": "clip_frames", "VideoInfo": "container", "VideoLimits": "limits", "iter_frames": "read",
    "probe": "container", "sample_frames": "read", "write_mp4": "write",
}  # fmt: skip


def __getattr__(name: str) -> object:
    """Load a public name from its home (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'crossdraft.video' has no attribute {name!r}")
    return getattr(import_module(f"crossdraft.video.{_HOME[name]}"), name)
