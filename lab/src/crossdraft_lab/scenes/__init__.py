"""The road world: seeded scenes, their video, their events, and questions with answers that follow from them."""

from crossdraft_lab.scenes.clip import ClipFiles, clip_files, write_clip
from crossdraft_lab.scenes.questions import KINDS, QA, ask, wordings
from crossdraft_lab.scenes.render import EVENT_HZ, SENSOR_SIZE, VIDEO_FPS, VIDEO_SIZE, Pace, render, simulate_events
from crossdraft_lab.scenes.scene import ATTRIBUTES, DURATION_S, Scene, attributes, make_scene, split_seeds
from crossdraft_lab.scenes.score import score, stated

__all__ = [
    "ATTRIBUTES", "DURATION_S", "EVENT_HZ", "KINDS", "QA", "SENSOR_SIZE", "VIDEO_FPS", "VIDEO_SIZE", "ClipFiles",
    "Pace", "Scene", "ask", "attributes", "clip_files", "make_scene", "render", "score", "simulate_events",
    "split_seeds", "stated", "wordings", "write_clip",
]  # fmt: skip
