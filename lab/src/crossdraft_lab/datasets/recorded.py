"""Clips from long recordings: frames and events of the same span, cut into ordinary video and event files."""

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.excerpt import Excerpt
from crossdraft_lab.datasets.sample import DatasetReader, DatasetSample, Problem

# Questions about driving; none of them can be answered without looking.
QUESTIONS = (
    "What is ahead of us?",
    "What is moving in this scene, and where to?",
    "Describe the road and what is beside it.",
    "What should the driver pay attention to?",
)
LEAST_FRAMES = 2  # frames of a clip
MOST_FRAMES = 2_000_000  # frames of a sequence


@dataclass(frozen=True, slots=True)
class ClipPlan:
    """Settings for cutting clips, and the questions about them.

    Args:
        folder: folder for the clips, `<sequence>/<number>.mp4` and `.h5`; `None` cuts none.
        seconds: length of a clip in seconds.
        stride_s: seconds from one clip's start to the next; clips overlap if it is below `seconds`, which `None` means.
        questions: questions about every clip of a data set that has none of its own.
        aligned: map images onto the pixels of the event camera, where there is a calibration.
        weights: event-to-video network (safetensors) for recordings without frames; `None` draws the events.

    Raises:
        CrossdraftError: no question, or an invalid length.
    """

    folder: Path | None = None
    seconds: float = 1.0
    stride_s: float | None = None
    questions: tuple[str, ...] = QUESTIONS
    aligned: bool = True
    weights: Path | None = None

    def __post_init__(self) -> None:
        for name, value in (("--seconds", self.seconds), ("--stride", self.stride_s)):
            if value is not None and not 0.001 <= value <= 3600:
                raise CrossdraftError(f"{name} is {value:g} s; clips last, and follow one another by, 0.001 to 3600 s.")
        if not self.questions or not all(question.strip() for question in self.questions):
            raise CrossdraftError("There is no question, or an empty one; give a file with a question a line.")

    def settings(self) -> dict[str, object]:
        """Settings that a clip depends on, in plain values."""
        return {
            "seconds": self.seconds,
            "stride_s": self.stride_s or self.seconds,
            "questions": list(self.questions),
            "aligned": self.aligned,
            "weights": None if self.weights is None else self.weights.name,
        }


class FrameSequence(Protocol):
    """A recording of frames and events on one clock in µs."""

    @property
    def group(self) -> str:
        """Drive that the recording is a piece of."""
        ...

    @property
    def events(self) -> Excerpt:
        """All events of the recording."""
        ...

    @property
    def times_us(self) -> NDArray[np.int64]:
        """Rising times of the frames [F], in microseconds."""
        ...

    def frames(self, first: int, last: int) -> Iterator[NDArray[np.uint8]]:
        """Frames `first` to `last` - 1, RGB [H, W, 3], all of one size."""
        ...


class RecordedReader(DatasetReader):
    """Samples of a data set of recordings: its sequences are cut into clips, each with the plan's questions."""

    def __init__(self, plan: ClipPlan, paths: Mapping[str, Path], lacking: str) -> None:
        super().__init__(paths, lacking)
        self.plan = plan

    @abstractmethod
    def sequence(self, part: str) -> FrameSequence:
        """A sequence by its name."""

    def samples(self, part: str) -> Iterator[DatasetSample]:
        """Cut each clip unless it exists, and yield the questions about it; clips without events are left out."""
        sequence, plan = self.sequence(part), self.plan
        if plan.folder is None:
            raise CrossdraftError("Clips of a recording need a folder to be written to; name one.")
        for number, (start, end) in enumerate(spans(sequence.times_us, plan.seconds, plan.stride_s)):
            files = cut(sequence, start, end, plan.folder / part / f"{number:06d}")
            if files is None:
                continue
            for index, question in enumerate(plan.questions):
                yield DatasetSample(
                    f"{part}/{number:06d}/{index}",
                    part,
                    question,
                    (),
                    *files,
                    start / 1e6,
                    end / 1e6,
                    group=sequence.group,
                )

    def problems(self, part: str) -> Iterator[Problem]:
        """Yield files that cannot be read; of the events, only the beginning and the end are read."""
        try:
            sequence = self.sequence(part)
            times, span = sequence.times_us, sequence.events.time_span()
            if span is None:
                yield Problem(part, "the recording holds no events")
            elif not len(times) or times[-1] < span[0] or times[0] > span[1]:
                yield Problem(part, "frames and events do not overlap in time")
            next(sequence.frames(0, 1), None)
        except CrossdraftError as error:
            yield Problem(part, str(error))


def spans(times_us: NDArray[np.int64], seconds: float, stride_s: float | None = None) -> Iterator[tuple[int, int]]:
    """Yield half-open spans [start, end) in µs from the first frame on, up to the last frame.

    >>> list(spans(np.array([0, 500_000, 1_000_000, 1_500_000]), 1.0, 0.5))
    [(0, 1000000), (500000, 1500000), (1000000, 2000000)]
    """
    if len(times_us) < LEAST_FRAMES:
        return
    length, stride = round(seconds * 1e6), round((stride_s or seconds) * 1e6)
    frame_us = int(np.median(np.diff(times_us)))
    start, end = int(times_us[0]), int(times_us[-1]) + frame_us  # the last frame covers its own interval, too
    while start + length <= end:
        yield start, start + length
        start += stride


def cut(sequence: FrameSequence, start_us: int, end_us: int, stem: Path) -> tuple[Path, Path] | None:
    """Write the clip's video (mp4) and events (DSEC h5) unless both are there; `None` if it has too little of either.

    Args:
        sequence: the recording.
        start_us, end_us: the half-open span of video and events.
        stem: path of the two files without suffix; each is whole or absent.
    """
    from crossdraft.events.hdf5_write import write_dsec_h5
    from crossdraft.video.write import write_mp4

    video, events = stem.with_name(f"{stem.name}.mp4"), stem.with_name(f"{stem.name}.h5")
    if video.is_file() and events.is_file():
        return video, events
    times = sequence.times_us
    first, last = (int(np.searchsorted(times, time)) for time in (start_us, end_us))
    if last - first < LEAST_FRAMES:
        return None
    part = replace(sequence.events, start_us=start_us, end_us=end_us)
    if part.first_time() is None:
        return None
    write_dsec_h5(events, part.chunks())
    fps = 1e6 / float(np.median(np.diff(times[first:last])))
    write_mp4(video, (even(frame) for frame in sequence.frames(first, last)), fps)
    return video, events


def even(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """RGB [H, W, 3] without the last row or column of an odd side, which H.264 does not support."""
    rgb = np.repeat(frame[..., None], 3, axis=2) if frame.ndim == 2 else frame
    return rgb[: len(rgb) // 2 * 2, : rgb.shape[1] // 2 * 2]


def read_times(path: Path, scale: float = 1) -> NDArray[np.int64]:
    """Read a file with one time a line; `scale` converts the times to µs.

    Raises:
        CrossdraftError: the file is missing, a line is no number, or times do not rise.
    """
    try:
        with path.open(encoding="ascii") as file:
            lines = list(islice((line for line in file if not line.startswith("#")), MOST_FRAMES))
        times = np.rint(np.array([float(line) * scale for line in lines if line.strip()])).astype(np.int64)
    except (OSError, ValueError) as error:
        raise CrossdraftError(f"The times of the frames in {path} cannot be read ({error}).") from error
    return rising(times, path)


def rising(times: NDArray[np.int64], source: object) -> NDArray[np.int64]:
    """Return the times if there are any and they rise; raise CrossdraftError otherwise."""
    if not len(times) or (np.diff(times) <= 0).any():
        raise CrossdraftError(f"{source}: the frames' times do not rise, or there are none; the file is damaged.")
    return times


def relative(path: Path, folder: Path) -> str:
    """Path relative to a folder, even if it is not below the folder."""
    return Path(os.path.relpath(path, folder)).as_posix()
