"""Talk2Event (Kong et al., NeurIPS 2025): expressions that refer to objects in scenes of DSEC.

    meta_data_v10/<split>/<sequence>.json   [{"id", "image_path", "event_path", "bbox": {"x", "y", "w", "h"}, "class",
                                              "captions": [three of them], "attributes": [a dict for each]}, …]

The answer is a box in pixels of the event camera. The data set's event files hold voxel grids, not events: to draft
from events, take the moment from DSEC itself. A sample is one image, so no list for `crossdraft capture` is made of it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from crossdraft.errors import CrossdraftError
from crossdraft_lab.datasets.dsec import drive_of
from crossdraft_lab.datasets.files import inside, is_file, subfolders
from crossdraft_lab.datasets.rows import field, json_rows
from crossdraft_lab.datasets.sample import DatasetReader, DatasetSample

QUESTION = "Where is this: {}"


class Talk2Event(DatasetReader):
    """All expressions of all splits.

    Raises:
        CrossdraftError: there is no folder `meta_data…` of JSON files.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        files = {
            f"{path.parent.name}/{path.stem}": path
            for folder in sorted(root.glob("meta_data*"))
            for below in subfolders(folder, 1)
            for path in sorted(below.glob("*.json"))
        }
        super().__init__(files, f"{root} holds no meta_data_v10/<split>/<sequence>.json of Talk2Event.", "image")

    def samples(self, part: str) -> Iterator[DatasetSample]:
        path = self.paths[part]
        for number, row in enumerate(json_rows(path)):
            captions = row.get("captions")
            if not isinstance(captions, list) or not all(isinstance(caption, str) for caption in captions):
                raise CrossdraftError(f"{path}: object {number} has no list of captions; copy it again.")
            name = field(row, "image_path", path).replace(".jpg", ".png")  # as the release's own loader does
            image = self._root / name
            there = inside(name) and is_file(image)
            for index, caption in enumerate(captions):
                yield DatasetSample(
                    f"{part}/{number}/{index}",
                    path.stem,
                    QUESTION.format(caption),
                    (box_of(row, path),),
                    image if there else None,
                    kind=str(row.get("class", "")),
                    group=drive_of(path.stem),
                    missing="" if there else name,
                )


def box_of(row: Mapping[str, Any], path: Path) -> str:
    """`[left, top, right, bottom]` of an object, in pixels.

    Raises:
        CrossdraftError: the row has no box.
    """
    box = row.get("bbox")
    try:
        x, y, width, height = (float(box[name]) for name in "xywh")  # pyright: ignore[reportOptionalSubscript]
    except (TypeError, KeyError, ValueError) as error:
        raise CrossdraftError(f"{path}: an object has no box x, y, w, h: {box!r}.") from error
    return f"[{x:g}, {y:g}, {x + width:g}, {y + height:g}]"
