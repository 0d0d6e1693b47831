"""MMSpec (Shen et al. 2026, arXiv 2603.14989): questions about images, for benches of speculative decoding.

    dataset/MMSpec/<split>/mmspec.jsonl   {"id", "image": "mmspec_001.jpg", "turns": ["…"], "category", "topic"} a line
    dataset/MMSpec/<split>/images/…       `test` has 600 of them, `testmini` 60 of six topics

There are no answers: what is measured is the speed of a model's own. Each turn is a question here; in the benchmark one
that is not the first follows the answers to those before it, so ask them as one conversation. A sample is one image, so
no list for `crossdraft capture` is made of it. The layout was read in the authors' repository and README in November
2026; images were not at hand.
"""

from collections.abc import Iterator
from pathlib import Path

from crossdraft.errors import CrossdraftError
from crossdraft_lab.datasets.files import inside, is_file, subfolders
from crossdraft_lab.datasets.rows import field, json_rows
from crossdraft_lab.datasets.sample import DatasetReader, DatasetSample

FILE = "mmspec.jsonl"


class MmSpec(DatasetReader):
    """All turns of all splits.

    Raises:
        CrossdraftError: there is no split.
    """

    def __init__(self, root: Path) -> None:
        files = {path.parent.resolve().name: path for path in split_files(root)}
        super().__init__(files, f"{root} holds no <split>/{FILE} of MMSpec.", "image")

    def samples(self, part: str) -> Iterator[DatasetSample]:
        path = self.paths[part]
        for row in json_rows(path):
            key, name, turns = field(row, "id", path), field(row, "image", path, numbers=False), row.get("turns")
            if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
                raise CrossdraftError(f"{path}: {key!a} has no list of turns; copy it again.")
            image = path.parent / "images" / name
            there = inside(name) and is_file(image)
            for number, turn in enumerate(turns):
                yield DatasetSample(
                    f"{part}/{key}/{number}",
                    name,
                    turn,
                    video=image if there else None,
                    kind=str(row.get("topic", "")),
                    missing="" if there else name,
                )


def split_files(root: Path) -> list[Path]:
    """Annotations of the splits below a folder."""
    return [path for folder in subfolders(root) if is_file(path := folder / FILE)]
