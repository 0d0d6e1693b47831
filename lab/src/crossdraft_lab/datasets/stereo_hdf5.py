"""MVSEC (Zhu et al., RA-L 2018) and M3ED (Chaney et al., CVPRW 2023): frames and events of a sequence in one HDF5.

MVSEC, `<sequence>_data.hdf5`: grey frames of the event camera itself, times in epoch seconds.
M3ED, `<sequence>_data.h5`: colour frames (BGR) or grey ones of a camera beside it, times in µs. Its images are not
not mapped onto the events' pixels: that would need both lenses' distortion, and the cameras are some centimetres apart.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.excerpt import Excerpt
from crossdraft.events.hdf5 import dataset, member, opened
from crossdraft_lab.datasets.files import subfolders
from crossdraft_lab.datasets.recorded import MOST_FRAMES, ClipPlan, FrameSequence, RecordedReader, rising


@dataclass(frozen=True, slots=True)
class Hdf5Layout:
    """Location of the frames in a file.

    Args:
        frames: names of data sets [F, H, W], [F, H, W, 1] or [F, H, W, 3]; the first that exists is used.
        times: name of the data set with the frames' times.
        to_us: factor that converts times to µs.
        bgr: true if three channels are blue, green, red.
    """

    frames: tuple[str, ...]
    times: str
    to_us: float
    bgr: bool = False


MVSEC = Hdf5Layout(("davis/left/image_raw",), "davis/left/image_raw_ts", 1e6)
M3ED = Hdf5Layout(("ovc/rgb/data", "ovc/left/data"), "ovc/ts", 1, bgr=True)
LAYOUTS: Mapping[str, Hdf5Layout] = {"mvsec": MVSEC, "m3ed": M3ED}


class Hdf5Sequence:
    """One sequence in a file.

    Args:
        path: the file.
        layout: "mvsec" or "m3ed".
    """

    def __init__(self, path: Path, layout: str) -> None:
        self._path, self._layout, self._kind = path, LAYOUTS[layout], layout

    @property
    def group(self) -> str:
        """Name of the vehicle and its route, without the run's number: `indoor_flying1` to `4` show one room."""
        return re.sub(r"(_\d+|\d+)$", "", sequence_name(self._path))

    @property
    def events(self) -> Excerpt:
        return Excerpt(self._path, format=self._kind)

    @property
    def times_us(self) -> NDArray[np.int64]:
        return self._times

    @cached_property
    def _times(self) -> NDArray[np.int64]:
        with opened(self._path) as file:
            times = dataset(file, self._layout.times)
            if times.ndim != 1 or len(times) > MOST_FRAMES:
                raise CrossdraftError(f"{self._path}: {self._layout.times} is no row of times; the file is damaged.")
            # Epoch seconds need float64: in float32 a step is two minutes.
            return rising(np.rint(times[()] * self._layout.to_us).astype(np.int64), self._path)

    def frames(self, first: int, last: int) -> Iterator[NDArray[np.uint8]]:
        with opened(self._path) as file:
            there = (name for name in self._layout.frames if member(file, name) is not None)
            name = next(there, self._layout.frames[0])
            images = dataset(file, name)
            if images.dtype != np.uint8 or images.ndim not in (3, 4) or len(images) != len(self.times_us):
                raise CrossdraftError(f"{self._path}: {name} holds no frame for each time; the file is damaged.")
            for index in range(first, min(last, len(images))):
                image = images[index]
                if image.ndim == 3 and image.shape[2] == 1:
                    image = image[..., 0]
                colour = image.ndim == 3
                yield image[..., ::-1] if colour and self._layout.bgr else image


class StereoHdf5(RecordedReader):
    """All sequences of MVSEC, or of M3ED, in a folder.

    Raises:
        CrossdraftError: there are no sequences.
    """

    def __init__(self, root: Path, plan: ClipPlan, layout: str) -> None:
        paths = {sequence_name(path): path for path in data_files(root, layout)}
        super().__init__(plan, paths, f"{root} holds no sequence of {layout.upper()}, a file …{SUFFIX[layout]}.")
        self._layout = layout

    def sequence(self, part: str) -> FrameSequence:
        return Hdf5Sequence(self.paths[part], self._layout)


SUFFIX: Mapping[str, str] = {"mvsec": "_data.hdf5", "m3ed": "_data.h5"}


def sequence_name(path: Path) -> str:
    """Name of a file's sequence, such as `indoor_flying1` for `indoor_flying1_data.hdf5`."""
    return re.sub(r"_data$", "", path.stem)


def data_files(root: Path, layout: str) -> list[Path]:
    """Files in a folder whose names end as the layout's do."""
    return [path for folder in subfolders(root) for path in sorted(folder.glob(f"*{SUFFIX[layout]}"))]
