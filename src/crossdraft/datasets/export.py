"""An index as a list of JSON lines, one a clip with its questions: what `crossdraft capture --list` takes."""

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from crossdraft.datasets.files import VIDEOS
from crossdraft.datasets.index import PairIndex
from crossdraft.files import atomic_path


def export(index: PairIndex, path: Path, split: str | None = None) -> tuple[int, int]:
    """Write the clips of a split, or all, as JSON lines; the file is whole or absent.

    A line holds `video`, `events` where there are any, `prompt` (the questions), and for whoever scores the answers
    `answers`, `kinds`, `ids`, `sequence`, `dataset` and `licence`. Paths are relative to the index's folder.

    Returns:
        How many lines were written, and how many clips were left out because they have no video file.
    """
    meta = index.meta
    known = {"dataset": meta.get("dataset"), "licence": meta.get("licence")}
    written = left_out = 0
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for rows in _clips(index, split):
            first = rows[0]
            if first["video"] is None or not first["video"].lower().endswith(VIDEOS):
                left_out += 1
                continue
            line = {name: first[name] for name in ("video", "events", "sequence", "start_s", "end_s")}
            questions = {
                "prompt": [row["question"] for row in rows],
                "answers": [row["answers"] for row in rows],
                "kinds": [row["kind"] for row in rows],
                "ids": [row["id"] for row in rows],
            }
            line = {name: value for name, value in line.items() if value is not None}
            file.write(json.dumps({**line, **questions, **known}, ensure_ascii=False) + "\n")
            written += 1
    return written, left_out


def _clips(index: PairIndex, split: str | None) -> Iterator[list[Mapping[str, Any]]]:
    """Neighbouring rows about one clip; a clip whose questions stand apart comes more than once."""
    for _, rows in groupby(index.samples(split), key=lambda row: (row["video"], row["events"])):
        yield list(rows)
