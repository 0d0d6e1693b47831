"""A scene as files: video, events, and what is true of them."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from crossdraft.files import atomic_path
from crossdraft_lab.scenes.questions import KINDS, ask, wordings
from crossdraft_lab.scenes.render import VIDEO_FPS, VIDEO_SIZE, render, simulate_events
from crossdraft_lab.scenes.scene import DURATION_S, Scene, attributes

_CRF = 16


@dataclass(frozen=True, slots=True)
class ClipFiles:
    """The files of one clip. Video frame i and the events share a clock: the frame was taken at i / VIDEO_FPS s."""

    video: Path
    events: Path
    meta: Path


def clip_files(seed: int, folder: str | os.PathLike[str]) -> ClipFiles:
    """The files of a scene's clip in a folder, whether or not they are there."""
    base = Path(folder) / f"scene-{seed:07d}"
    return ClipFiles(base.with_suffix(".mp4"), base.with_suffix(".h5"), base.with_suffix(".json"))


def write_clip(scene: Scene, folder: str | os.PathLike[str]) -> ClipFiles:
    """Write the scene's video (mp4), events (DSEC h5) and meta (JSON: seed, attributes, every question).

    Files are named after the seed, so that many clips fit into a folder, which is made if need be; each file is
    whole or absent.

    Raises:
        CrossdraftError: the folder cannot be written to, or the disk is full.
    """
    from crossdraft.events import write_dsec_h5
    from crossdraft.video import write_mp4

    clip = clip_files(scene.seed, folder)
    times = np.arange(int(DURATION_S * VIDEO_FPS)) / VIDEO_FPS
    write_mp4(clip.video, render(scene, times, VIDEO_SIZE), VIDEO_FPS, crf=_CRF)
    write_dsec_h5(clip.events, simulate_events(scene))
    with atomic_path(clip.meta) as path:
        path.write_text(json.dumps(_meta(scene), indent=1) + "\n", encoding="utf-8")
    return clip


def _meta(scene: Scene) -> dict[str, object]:
    questions = [
        {**asdict(ask(scene, kind, index, held_out)), "held_out": held_out, "wording": index}
        for kind in KINDS
        for held_out in (False, True)
        for index in range(len(wordings(kind, held_out)))
    ]
    return {"seed": scene.seed, "fps": VIDEO_FPS, "attributes": attributes(scene), "questions": questions}
