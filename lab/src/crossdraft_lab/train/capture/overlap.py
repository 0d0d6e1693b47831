"""Refusal of splits that share a clip: training clips must not be used for validation or measurement.

Two clips are the same if they are the same scene, name files of the same content, or are parts of one sequence that
overlap in time (a list's `sequence`, `start_s`, `end_s`, as `crossdraft data pairs` writes them). Without clips, two
lines are the same if they share a prompt, but for case and spaces.
"""

import filecmp
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from crossdraft.errors import CrossdraftError
from crossdraft_lab.datasets.sample import wording
from crossdraft_lab.train.capture.sources import ClipSource, ListSource, PromptedClip, SceneSource

BLOCK = 1 << 16  # bytes at either end of a file that are compared before whole files are
MEND = "leave it in one only, and with it all clips of its sequence"


def refuse_overlap(splits: Mapping[str, ClipSource]) -> None:
    """Refuse splits that share a clip; no frame and no event is decoded.

    Args:
        splits: sets of clips by their name for people: the path of a list, or of a capture.

    Raises:
        CrossdraftError: two of them share a clip; the message names the lines or the scenes.
    """
    _refuse_scenes({name: source for name, source in splits.items() if isinstance(source, SceneSource)})
    lines = [
        _Line(name, source.read(number))
        for name, source in splits.items()
        if isinstance(source, ListSource)
        for number in range(len(source))
    ]
    _refuse_files(lines)
    _refuse_prompts(lines)
    _refuse_times(lines)


@dataclass(frozen=True)
class _Line:
    """A clip of a list, with the name of its split."""

    split: str
    clip: PromptedClip

    def __str__(self) -> str:
        return f"{self.clip.name.capitalize()} of {self.split}"

    @property
    def files(self) -> Iterator[tuple[str, Path]]:
        """Yield (kind of file, path) for each file of the clip."""
        if self.clip.events is not None:
            yield "recording", Path(self.clip.events)
        if self.clip.video is not None:
            yield "video", Path(str(self.clip.video))


def _refuse_scenes(sources: Mapping[str, SceneSource]) -> None:
    """Refuse two sets that hold the same scenes of a split."""
    for split in {source.split for source in sources.values()}:
        held = sorted((one.first, one.first + len(one), name) for name, one in sources.items() if one.split == split)
        for (_, end, one), (first, _, other) in pairwise(held):
            if first < end:
                raise CrossdraftError(
                    f"The splits overlap: {other} and {one} both hold scene {first} of the {split} split; capture "
                    "others for one of them, such as those of --split validation."
                )


def _refuse_files(lines: list[_Line]) -> None:
    """Refuse files of the same content in two splits."""
    known: dict[tuple[str, str], list[tuple[Path, _Line]]] = {}  # the first line that named each file
    for line in lines:
        for kind, path in line.files:
            alike = known.setdefault((kind, _ends(path)), [])
            same = (one for file, one in alike if file == path or filecmp.cmp(file, path, shallow=False))
            other = next(same, None)
            if other is None:
                alike.append((path, line))
            elif other.split != line.split:
                raise CrossdraftError(f"The splits overlap: {line} and {other} name the same {kind}, {path}; {MEND}.")


def _refuse_prompts(lines: list[_Line]) -> None:
    """Refuse prompts in words alone that are in two splits."""
    known: dict[str, _Line] = {}
    for line in lines:
        for prompt in line.clip.prompts if line.clip.video is None else ():
            other = known.setdefault(wording(prompt), line)
            if other.split != line.split:
                raise CrossdraftError(f"The splits overlap: {line} and {other} ask the same; leave it in one only.")


def _ends(path: Path) -> str:
    """Size, beginning and end of a file, which distinguish most files whatever their names are.

    Raises:
        CrossdraftError: the file cannot be read.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            digest = hashlib.blake2b(file.read(BLOCK), digest_size=16)
            file.seek(max(0, size - BLOCK))
            digest.update(file.read(BLOCK))
    except OSError as error:
        raise CrossdraftError(f"{path} cannot be read: {error.strerror}; mend the list that names it.") from error
    return f"{size} {digest.hexdigest()}"


def _refuse_times(lines: list[_Line]) -> None:
    """Refuse parts of a sequence that overlap in time and are in two splits."""
    by_sequence: dict[str, list[tuple[float, float, _Line]]] = {}
    for line in lines:
        if line.clip.part is not None:
            part = line.clip.part
            by_sequence.setdefault(part.sequence, []).append((part.start_s, part.end_s, line))
    for sequence, parts in by_sequence.items():
        latest: dict[str, tuple[float, _Line]] = {}  # for each split, the part that ends last so far
        for start, end, line in sorted(parts, key=lambda part: part[:2]):
            for split, (until, other) in latest.items():
                if split != line.split and start < until:
                    raise CrossdraftError(
                        f"The splits overlap: {line} and {other} are parts of the sequence {sequence} that overlap in "
                        f"time; {MEND}."
                    )
            if line.split not in latest or end > latest[line.split][0]:
                latest[line.split] = end, line
