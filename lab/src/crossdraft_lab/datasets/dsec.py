"""DSEC (Gehrig et al., RA-L 2021): a stereo event camera and colour images on a car, 53 sequences.

    <sequence>/events/left/{events,rectify_map}.h5      or <sequence>_events_left/…
    <sequence>/images/left/rectified/000000.png         or <sequence>_images_rectified_left/…
    <sequence>/images/timestamps.txt                    or <sequence>_image_timestamps.txt
    <sequence>/calibration/cam_to_cam.yaml              or <sequence>_calibration/…

The second names are those of the downloaded archives. Times of images are µs on the clock of `t + t_offset`.
"""

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.excerpt import Excerpt
from crossdraft_lab.datasets.dsec_rgb import RgbAligner, read_rectify_map
from crossdraft_lab.datasets.files import subfolders
from crossdraft_lab.datasets.recorded import ClipPlan, FrameSequence, RecordedReader, read_times
from crossdraft_lab.datasets.sample import Problem

PNG, PNG_END = b"\x89PNG\r\n\x1a\n", b"\x00\x00\x00\x00IEND\xaeB`\x82"


class DsecSequence:
    """One sequence of DSEC, seen by the left event camera and the left colour camera.

    Args:
        folder: folder of the sequence, named after it.
        aligned: bring the images onto the raw pixels of the event camera.
    """

    def __init__(self, folder: Path, aligned: bool = True) -> None:
        self.name, self._folder, self._aligned = folder.name, folder, aligned

    @property
    def group(self) -> str:
        return drive_of(self.name)

    @property
    def events(self) -> Excerpt:
        return Excerpt(self._file("events/left", "events_left", "events.h5"), format="dsec")

    @property
    def times_us(self) -> NDArray[np.int64]:
        return self._times

    @cached_property
    def _times(self) -> NDArray[np.int64]:
        times = read_times(self._file("images", "", "timestamps.txt"))
        if len(times) != len(self._images):
            raise CrossdraftError(
                f"{self._folder} has {len(self._images)} images and {len(times)} times of images; copy it again."
            )
        return times

    def frames(self, first: int, last: int) -> Iterator[NDArray[np.uint8]]:
        from crossdraft.video.image import read_pixels

        aligner = self._aligner if self._aligned else None
        for path in self._images[first:last]:
            (image,), _ = read_pixels(str(path))
            yield image if aligner is None else aligner(image)

    def damaged_images(self) -> Iterator[Path]:
        """Yield images that do not begin and end as a PNG does; none is decoded."""
        for path in self._images[1:]:  # the first is decoded
            try:
                with path.open("rb") as file:
                    begin = file.read(len(PNG))
                    file.seek(max(0, path.stat().st_size - len(PNG_END)))
                    whole = begin == PNG and file.read() == PNG_END
            except OSError:  # a folder of that name, or a disk that fails
                whole = False
            if not whole:
                yield path

    @property
    def rectify_map(self) -> Path:
        """Rectification map of the left event camera."""
        return self._file("events/left", "events_left", "rectify_map.h5")

    @cached_property
    def _aligner(self) -> RgbAligner:
        return RgbAligner.load(self._file("calibration", "calibration", "cam_to_cam.yaml"), self.rectify_map)

    @cached_property
    def _images(self) -> list[Path]:
        folders = (self._folder / "images/left/rectified", self._folder / f"{self.name}_images_rectified_left")
        return next((found for folder in folders if (found := sorted(folder.glob("*.png")))), [])

    def _file(self, below: str, archive: str, name: str) -> Path:
        """Path of a file below its folder, or by its archive's name; the first of these paths if neither exists."""
        named = f"{self.name}_image_{name}" if not archive else f"{self.name}_{archive}/{name}"
        usual = self._folder / below / name
        return next((path for path in (usual, self._folder / named) if path.is_file()), usual)


class Dsec(RecordedReader):
    """All sequences in a folder, or in its folders `train` and `test`.

    Raises:
        CrossdraftError: there are no sequences.
    """

    def __init__(self, root: Path, plan: ClipPlan) -> None:
        folders = {folder.name: folder for folder in subfolders(root) if is_sequence(folder)}
        super().__init__(plan, folders, f"{root} holds no sequence of DSEC, a folder with events/left/events.h5.")

    def sequence(self, part: str) -> FrameSequence:
        return self._sequence(part)

    def problems(self, part: str) -> Iterator[Problem]:
        yield from super().problems(part)
        for path in self._sequence(part).damaged_images():
            yield Problem(f"{part}/{path.name}", "the image is cut off, or no PNG")
        try:
            read_rectify_map(self._sequence(part).rectify_map)
        except CrossdraftError as error:
            if not self.plan.aligned:  # else the first frame has said so
                yield Problem(part, str(error))

    def _sequence(self, part: str) -> DsecSequence:
        return DsecSequence(self.paths[part], self.plan.aligned)


def drive_of(sequence: str) -> str:
    """Drive that a sequence is a piece of: `zurich_city_09_a` to `_e` are consecutive pieces of one drive.

    >>> drive_of("zurich_city_09_a")
    'zurich_city_09'
    """
    return re.sub(r"^(\w+_\d\d)_[a-z]$", r"\1", sequence)


def is_sequence(folder: Path) -> bool:
    """True if a folder has DSEC's events of the left camera."""
    return any((folder / name / "events.h5").is_file() for name in ("events/left", f"{folder.name}_events_left"))
