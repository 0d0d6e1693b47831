"""Video in and out: probe, sample, write. (Preprocessing and model inputs need torch: import them by module.)"""

from crossdraft.video.limits import VideoLimits
from crossdraft.video.probe import VideoInfo, probe
from crossdraft.video.read import iter_frames, read_frames
from crossdraft.video.write import write_mp4

__all__ = ["VideoInfo", "VideoLimits", "iter_frames", "probe", "read_frames", "write_mp4"]
