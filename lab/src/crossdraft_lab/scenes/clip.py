"""A scene as files (video, events, attributes with questions and answers) and as one picture, a contact sheet."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from crossdraft.events import eventgpt_frames
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


_FRAMES, _EVENT_FRAMES = 8, 5
_GAP, _LINE, _MARGIN = 6, 22, 16
_INK = (40, 40, 40)
_KIND = "describe"

Picture = NDArray[np.uint8]


def contact_sheet(scene: Scene) -> Picture:
    """Eight video frames above five event frames, with the facts of the scene: uint8 RGB [H, W, 3]."""
    count = int(DURATION_S * VIDEO_FPS)
    shown = np.linspace(0, count - 1, _FRAMES, dtype=int) / VIDEO_FPS
    events = simulate_events(scene)
    video = _row(list(render(scene, shown, VIDEO_SIZE)), [f"{t:.2f} s" for t in shown])
    side = (video.shape[1] - (_EVENT_FRAMES - 1) * _GAP) // _EVENT_FRAMES
    frames = [
        cv2.resize(frame, (side, side), interpolation=cv2.INTER_NEAREST)
        for frame in eventgpt_frames(events, _EVENT_FRAMES)
    ]
    rate = len(events.t) / (events.width * events.height * DURATION_S)
    names = [f"events, part {part + 1} of {_EVENT_FRAMES}" for part in range(_EVENT_FRAMES)]
    facts = [f"{slot}: {value}" for slot, value in attributes(scene).items() if value != "none"]
    half = (len(facts) + 1) // 2
    qa = ask(scene, _KIND, 0)
    lines = [
        f"scene {scene.seed}   ({len(events.t):,} events, {rate:.1f} a second per pixel)",
        "   ".join(facts[:half]),
        "   ".join(facts[half:]),
        f"Q: {qa.question}   A: {qa.answer}",
    ]
    rows = [_text(lines, video.shape[1]), video, _row(frames, names)]
    width = video.shape[1]
    page = np.concatenate([_widened(row, width) for row in rows])
    return np.pad(page, ((_MARGIN, _MARGIN), (_MARGIN, _MARGIN), (0, 0)), constant_values=255)


def _row(pictures: list[Picture], names: list[str]) -> Picture:
    """Pictures side by side, each above its name."""
    gap = np.full((pictures[0].shape[0] + _LINE + _GAP, _GAP, 3), 255, dtype=np.uint8)
    parts: list[Picture] = []
    for picture, name in zip(pictures, names, strict=True):
        below = np.full((_LINE + _GAP, picture.shape[1], 3), 255, dtype=np.uint8)
        cv2.putText(below, name, (2, 16), cv2.FONT_HERSHEY_SIMPLEX, 0.45, _INK, 1, cv2.LINE_AA)
        parts += [np.concatenate([picture, below]), gap]
    return np.concatenate(parts[:-1], axis=1)


def _text(lines: list[str], width: int) -> Picture:
    block = np.full((len(lines) * _LINE + 2 * _GAP, width, 3), 255, dtype=np.uint8)
    for number, line in enumerate(lines):
        at = (2, 16 + number * _LINE)
        cv2.putText(block, line, at, cv2.FONT_HERSHEY_SIMPLEX, 0.5, _INK, 1, cv2.LINE_AA)
    return block


def _widened(picture: Picture, width: int) -> Picture:
    return np.pad(picture, ((0, 0), (0, width - picture.shape[1]), (0, 0)), constant_values=255)
