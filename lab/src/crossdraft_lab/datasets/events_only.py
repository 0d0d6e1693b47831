"""Recordings without frames: E2VID's zipped text and N-Caltech101. Their video is drawn, or made by a network.

E2VID (Rebecq et al., TPAMI 2019): `<sequence>.zip` or `.txt`, first line `width height`, then `t x y p`.
N-Caltech101 (Orchard et al. 2015): `Caltech101/<class>/image_0001.bin`, 0.3 s each, three saccades over a picture.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.excerpt import Excerpt
from crossdraft.events.frames import eventgpt_frames
from crossdraft.events.hdf5_write import write_dsec_h5
from crossdraft.events.read import iter_events
from crossdraft.events.stream import Events
from crossdraft_lab.datasets.files import is_file, subfolders
from crossdraft_lab.datasets.recorded import ClipPlan, FrameSequence, RecordedReader, cut
from crossdraft_lab.datasets.sample import DatasetSample, Problem

if TYPE_CHECKING:
    from crossdraft_lab.datasets.e2vid import Reconstructor

FPS = 20  # frames a second of the video that is made
OBJECT_QUESTION = "What object is this?"
Video = Callable[[Iterator[Events]], Iterator[NDArray[np.uint8]]]


def drawn_frames(windows: Iterator[Events]) -> Iterator[NDArray[np.uint8]]:
    """Draw each window as EventGPT sees it, [H, W, 3]; white where a window has no events."""
    for window in windows:
        if len(window):
            yield eventgpt_frames(window, 1)[0]
        else:
            yield np.full((window.height, window.width, 3), 255, np.uint8)


class EventSequence:
    """A recording of events alone, whose frames show the events since the frame before.

    Args:
        path: path of the recording.
        video: makes a frame of each window of events.
        fps: frames a second.
    """

    def __init__(self, path: Path, video: Video = drawn_frames, fps: float = FPS) -> None:
        self._path, self._video, self._frame_us = path, video, round(1e6 / fps)

    @property
    def group(self) -> str:
        """Name of the recording, which is a group of its own."""
        return self._path.stem

    @property
    def events(self) -> Excerpt:
        return Excerpt(self._path)

    @property
    def times_us(self) -> NDArray[np.int64]:
        return self._times

    @cached_property
    def _times(self) -> NDArray[np.int64]:
        """Times of the frames, each at the beginning of its events; the last interval is a whole one."""
        span = self.events.time_span()
        if span is None:
            raise CrossdraftError(f"{self._path} holds no events.")
        return np.arange(span[0], max(span[1] - self._frame_us, span[0]) + 1, self._frame_us)

    def frames(self, first: int, last: int) -> Iterator[NDArray[np.uint8]]:
        times = self.times_us[first:last]
        if not len(times):
            return
        events = Excerpt(self._path, int(times[0]), int(times[-1]) + self._frame_us).read()
        yield from self._video(events.slice(int(time), int(time) + self._frame_us) for time in times)


class EventsReader(RecordedReader):
    """Recordings of events alone; their video is drawn, or made by the network whose weights the plan names."""

    def video(self, windows: Iterator[Events]) -> Iterator[NDArray[np.uint8]]:
        """Make a frame of each window."""
        network = self._network
        return drawn_frames(windows) if network is None else network.frames(windows)

    @cached_property
    def _network(self) -> "Reconstructor | None":
        """The event-to-video network, loaded when the first clip is cut and used for all clips."""
        from crossdraft_lab.datasets.e2vid import Reconstructor

        return None if self.plan.weights is None else Reconstructor.load(self.plan.weights)


class E2vid(EventsReader):
    """Recordings in E2VID's text form. A text is read once, and converted to an HDF5 from which spans can be read.

    Raises:
        CrossdraftError: there are no recordings.
    """

    def __init__(self, root: Path, plan: ClipPlan) -> None:
        paths = {path.stem: path for path in text_recordings(root)}
        super().__init__(plan, paths, f"{root} holds no recording of E2VID, a .zip or .txt of lines t x y p.")

    def sequence(self, part: str) -> FrameSequence:
        path, folder = self.paths[part], self.plan.folder
        if folder is None:
            return EventSequence(path, self.video)
        indexed = folder / part / "events.h5"
        if not indexed.is_file():
            write_dsec_h5(indexed, iter_events(path, format="e2vid"))
        return EventSequence(indexed, self.video)

    def samples(self, part: str) -> Iterator[DatasetSample]:
        return (replace(sample, group="") for sample in super().samples(part))


class NCaltech101(EventsReader):
    """N-Caltech101: every recording is a clip; the question asks what it shows, the answer is the class's name.

    Raises:
        CrossdraftError: there is no folder of classes.
    """

    def __init__(self, root: Path, plan: ClipPlan) -> None:
        folders = {path.name: path for path in subfolders(root) if any(path.glob("image_*.bin"))}
        super().__init__(plan, folders, f"{root} holds no class of N-Caltech101, a folder with image_0001.bin.")

    def sequence(self, part: str) -> FrameSequence:
        return EventSequence(next(iter(self._recordings(part))), self.video)

    def samples(self, part: str) -> Iterator[DatasetSample]:
        if self.plan.folder is None:
            raise CrossdraftError("Clips of a recording need a folder to be written to; name one.")
        for path in self._recordings(part):
            sequence = EventSequence(path, self.video)
            start, end = int(sequence.times_us[0]), int(sequence.times_us[-1]) + round(1e6 / FPS)
            files = cut(sequence, start, end, self.plan.folder / part / path.stem)
            if files is not None:
                name = f"{part}/{path.stem}"
                yield DatasetSample(name, name, OBJECT_QUESTION, (class_name(part),), *files, kind=part)

    def problems(self, part: str) -> Iterator[Problem]:
        for path in self._recordings(part):
            try:
                if EventSequence(path).events.time_span() is None:
                    yield Problem(f"{part}/{path.name}", "the recording holds no events")
            except CrossdraftError as error:
                yield Problem(f"{part}/{path.name}", str(error))

    def _recordings(self, part: str) -> list[Path]:
        return sorted(self.paths[part].glob("image_*.bin"))


def class_name(folder: str) -> str:
    """Name of a class in words: `Faces_easy` is "faces", `BACKGROUND_Google` "background".

    >>> class_name("car_side")
    'car side'
    """
    return folder.removesuffix("_easy").removesuffix("_Google").replace("_", " ").casefold()


def text_recordings(root: Path) -> list[Path]:
    """Files in a folder that begin as E2VID's do: a zip, or a text whose first line is `width height`.

    Broken links and folders with such names are left out.
    """
    named = (path for path in sorted(root.iterdir()) if path.suffix.lower() in (".zip", ".txt"))
    return [path for path in named if is_file(path) and _is_text(path)]


def _is_text(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(64)
    if path.suffix.lower() == ".zip":
        return head.startswith(b"PK")
    fields = head.split(b"\n")[0].split()
    return len(fields) == 2 and all(field.isdigit() for field in fields)
