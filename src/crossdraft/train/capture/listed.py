"""A list of clips and prompts as a source: one JSON object a line.

    {"video": "clips/a.mp4", "prompt": "What is ahead?"}
    {"video": "clips/b.mp4", "prompt": ["What is ahead?", "Is it dark?"], "events": "clips/b.h5"}

Paths are relative to the list's folder.
"""

import json
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from crossdraft.errors import CrossdraftError
from crossdraft.train.capture.sources import Clip
from crossdraft.train.core.provenance import sha256

KEYS = {"video", "prompt", "events"}


class ListSource:
    """The first `clips` lines of a list; all by default.

    Raises:
        CrossdraftError: the list is missing or empty, or a line is wrong or names a file that cannot be read.
    """

    def __init__(self, path: Path, clips: int | None = None) -> None:
        self.path = path.resolve()
        self._sha256 = ""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            self._sha256 = sha256(path)
        except (OSError, UnicodeDecodeError) as error:
            raise CrossdraftError(f"The list {path} cannot be read: {error}; give a file of JSON lines.") from error
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        self._clips = [_clip(path, number, line) for number, line in numbered[:clips]]
        if not self._clips:
            raise CrossdraftError(f'The list {path} is empty; write a line such as {{"video": …, "prompt": …}}.')
        if clips is not None and clips > len(self._clips):
            raise CrossdraftError(f"The list {path} has {len(self._clips)} clips, not {clips}; ask for fewer.")

    @property
    def asked(self) -> dict[str, object]:
        return {"kind": "list", "path": str(self.path), "sha256": self._sha256}

    @property
    def heavy(self) -> bool:
        return False  # the target's own `prepare` reads the files

    def __len__(self) -> int:
        return len(self._clips)

    @property
    def answers(self) -> int:
        return self._ends[-1]

    def locate(self, answer: int) -> tuple[int, int]:
        clip = bisect_right(self._ends, answer)
        return clip, answer - self._ends[clip] + len(self._clips[clip].prompts)

    def read(self, index: int) -> Clip:
        return self._clips[index]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(len(clip.prompts) for clip in self._clips))


def _clip(path: Path, number: int, line: str) -> Clip:
    """One line, its video looked at."""
    from crossdraft.video import probe

    where = f"Line {number} of {path}"
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise CrossdraftError(f"{where} is no JSON: {error}.") from error
    if not isinstance(entry, dict) or not {"video", "prompt"} <= entry.keys() or not entry.keys() <= KEYS:
        raise CrossdraftError(f'{where} must be an object with "video" and "prompt", and "events" where there are any.')
    prompts = [entry["prompt"]] if isinstance(entry["prompt"], str) else entry["prompt"]
    if not isinstance(prompts, list) or not prompts or not all(isinstance(p, str) and p.strip() for p in prompts):
        raise CrossdraftError(f'{where}: "prompt" must be a question, or a list of questions, none of them empty.')
    files = {name: _file(where, path.parent, name, entry[name]) for name in ("video", "events") if name in entry}
    try:
        probe(files["video"])
    except CrossdraftError as error:
        raise CrossdraftError(f"{where}: {error}") from error
    return Clip(f"line {number}", files["video"], tuple(prompts), files.get("events"))


def _file(where: str, folder: Path, name: str, value: object) -> str:
    if not isinstance(value, str) or not (folder / value).is_file():
        raise CrossdraftError(f"{where}: the {name} {value!r} is no file; paths are relative to the list's folder.")
    return str((folder / value).resolve())
