r"""Lists of conversations about event recordings, in LLaVA's form: EventGPT's instructions, their variants, EventBench.

    [{"id": …, "event_data": "interlaken_00_c/000069.npy",
      "conversations": [{"from": "human", "value": "<event>\n…"}, {"from": "gpt", "value": "…"}]}, …]

Variants have `split`, `video_data` or `mp4_data` as well, and may leave the conversations empty: then the plan's
questions are asked. EventBench's recordings are `.npz` (320x240 unless their kind says otherwise).
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from crossdraft.errors import CrossdraftError
from crossdraft.events.hdf5_write import write_dsec_h5
from crossdraft.events.read import iter_events
from crossdraft.events.stream import Sensor
from crossdraft_lab.datasets.dsec import drive_of
from crossdraft_lab.datasets.files import VIDEOS, inside, is_file, subfolders
from crossdraft_lab.datasets.recorded import ClipPlan
from crossdraft_lab.datasets.rows import json_rows
from crossdraft_lab.datasets.sample import DatasetReader, DatasetSample
from crossdraft_lab.datasets.video_qa import cut_from

PLACEHOLDERS = re.compile(r"\s*<(event|video|image|ev_start|ev_end)>\s*")
VIDEO_FIELDS = ("mp4_data", "video_data")
KIND_FIELDS = ("task", "task_type", "category", "question_type", "type")
MOST_TURNS = 200  # turns of one conversation
# EventBench's sensors by the kind of its recordings, where they differ from the simulator's.
SIMULATED = (320, 240)
HD = dict.fromkeys(("event_ocr", "emotion_cls"), (1280, 720))
VGA = dict.fromkeys(("dsec_n_imagenet", "gesture_recognition_EB_hand"), (640, 480))
DAVIS = dict.fromkeys(("action_recognition", "action_bullying", "casual_reasoning"), (346, 260))
SENSORS: Mapping[str, Sensor] = {**HD, **VGA, **DAVIS}
TYPE_FIELDS = ("event_data_type", "data_type")


class Instructions(DatasetReader):
    """Every file of conversations in a folder, or right below it.

    Raises:
        CrossdraftError: there is no such file.
    """

    def __init__(self, root: Path, plan: ClipPlan) -> None:
        self._folders, self._plan = subfolders(root, 1), plan
        found = (path for folder in self._folders for path in sorted(folder.glob("*.json*")))
        super().__init__(
            {path.relative_to(root).as_posix(): path for path in found if has_conversations(path)},
            f'{root} holds no list of conversations, a .json of {{"conversations": […]}}.',
        )

    def samples(self, part: str) -> Iterator[DatasetSample]:
        for number, row in enumerate(json_rows(self.paths[part])):
            name = str(row.get("event_data") or row.get("event") or "")
            turns = list(turns_of(row)) or [(question, None) for question in self._plan.questions]
            for turn, (question, answer) in enumerate(turns[:MOST_TURNS]):
                yield self._sample(f"{part}/{number}/{turn}", name, row, question, answer)

    def _sample(self, key: str, name: str, row: Mapping[str, Any], question: str, answer: str | None) -> DatasetSample:
        events = self._find(name, (".npy", ".npz", ".h5"))
        videos = (self._find(str(row[field]), VIDEOS) for field in VIDEO_FIELDS if row.get(field))
        if events is not None and events.suffix == ".npz" and self._plan.folder is not None:
            events = self._with_sensor(events, name, row)
        sequence, group, start, end = origin_of(name)
        kind = next((str(row[field]) for field in KIND_FIELDS if isinstance(row.get(field), str)), "")
        return DatasetSample(
            key,
            sequence,
            question,
            () if answer is None else (answer,),
            next((video for video in videos if video is not None), None),
            events,
            start,
            end,
            kind,
            group,
            "" if events is not None else name or "(no event_data)",
        )

    def _with_sensor(self, path: Path, name: str, row: Mapping[str, Any]) -> Path:
        """Convert a recording to HDF5, which states the sensor's size; an `.npz` does not."""
        kind = next((str(row[field]) for field in (*TYPE_FIELDS, *KIND_FIELDS) if row.get(field)), "")
        written = (self._plan.folder or path.parent) / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.h5"
        if not written.is_file():
            write_dsec_h5(written, iter_events(path, format="npz", sensor=SENSORS.get(kind, SIMULATED)))
        return written

    def _find(self, name: str, suffixes: tuple[str, ...]) -> Path | None:
        """Find the file of that name, or with another of the suffixes, below one of the folders."""
        if not inside(name):
            return None
        for folder in self._folders:
            path = folder / name
            if path.suffix and is_file(path):
                return path
            for suffix in suffixes:
                if is_file(other := path.with_suffix(suffix)):
                    return other
        return None


def turns_of(row: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Yield each question of a conversation with its answer, without placeholders; `None` for an empty conversation."""
    conversation = row.get("conversations")
    said = [entry for entry in conversation if isinstance(entry, dict)] if isinstance(conversation, list) else []
    for asked, answer in pairwise([*said, {}]):
        question = PLACEHOLDERS.sub(" ", str(asked.get("value", ""))).strip()
        if asked.get("from") == "human" and question:
            yield question, str(answer.get("value", "")).strip() or None if answer.get("from") == "gpt" else None


def origin_of(name: str) -> tuple[str, str, float | None, float | None]:
    """Return (sequence, group, from second, to second) by an event file's name: its folder, drive, or source video.

    >>> origin_of("interlaken_00_c/000069.npy")
    ('interlaken_00_c', 'interlaken_00', None, None)
    >>> origin_of("kinetics/5SjV5j8f6rw_000009_000019.npz")
    ('5SjV5j8f6rw_000009_000019', '5SjV5j8f6rw', 9.0, 19.0)
    """
    path = Path(name)
    source, start, end = cut_from(path.stem)
    if start is not None:
        return path.stem, source, start, end
    if path.stem.isdecimal() and path.parent.name:  # numbered clips of one recording, which overlap
        return path.parent.name, drive_of(path.parent.name), None, None
    return path.stem, path.stem, None, None


def has_conversations(path: Path) -> bool:
    """True if the first row of a file is a conversation."""
    try:
        return "conversations" in next(json_rows(path), {})
    except CrossdraftError:
        return False
