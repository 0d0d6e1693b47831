"""An index as a list of JSON lines, one a clip with its questions: what `crossdraft capture --list` takes."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from crossdraft.files import atomic_path
from crossdraft_lab.datasets.files import VIDEOS
from crossdraft_lab.datasets.index import PairIndex

MOST_QUESTIONS = 512  # in a line


def export(index: PairIndex, path: Path, split: str | None = None) -> tuple[int, int]:
    """Write the clips of a split, or all, as JSON lines; the file is whole or absent.

    A line holds `video`, `events` where there are any, `prompt` (the questions), and for whoever scores the answers
    `answers`, `kinds`, `ids`, `sequence`, `dataset` and `licence`. Paths are relative to the index's folder. Questions
    about a clip that stand apart, or that are very many, make several lines.

    Returns:
        How many lines were written, and how many clips were left out because they have no video file.
    """
    meta = index.meta
    known = {"dataset": meta.get("dataset"), "licence": meta.get("licence")}
    written = left_out = 0
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for video, rows in groupby(index.samples(split), key=lambda row: (row["video"], row["events"])):
            if video[0] is None or not video[0].lower().endswith(VIDEOS):
                left_out += any(True for _ in rows)
                continue
            while some := list(islice(rows, MOST_QUESTIONS)):
                file.write(json.dumps({**_line(some), **known}, ensure_ascii=False) + "\n")
                written += 1
    return written, left_out


def _line(rows: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Some questions about one clip."""
    about = {name: rows[0][name] for name in ("video", "events", "sequence", "start_s", "end_s")}
    return {
        **{name: value for name, value in about.items() if value is not None},
        "prompt": [row["question"] for row in rows],
        "answers": [row["answers"] for row in rows],
        "kinds": [row["kind"] for row in rows],
        "ids": [row["id"] for row in rows],
    }
