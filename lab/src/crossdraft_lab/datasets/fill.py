"""All parts of a data set into an index: one that is broken does not keep the others from being read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from crossdraft.errors import CrossdraftError
from crossdraft_lab.datasets.index import PairIndex
from crossdraft_lab.datasets.sample import DatasetReader, DatasetSample

Bar = Callable[[Iterator[DatasetSample], str], Iterator[DatasetSample]]


@dataclass(frozen=True, slots=True)
class FilledParts:
    """Parts that are broken, and parts without a sample.

    Args:
        broken: why each could not be read to its end; what was read before is kept.
        empty: those that gave no sample: recordings that are shorter than a clip, or have no events where frames are.
    """

    broken: Mapping[str, str]
    empty: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {"broken": dict(self.broken), "empty": list(self.empty)}


def fill(
    index: PairIndex,
    reader: DatasetReader,
    parts: Sequence[str],
    most: int | None = None,
    bar: Bar = lambda samples, what: samples,
) -> FilledParts:
    """Read these parts, one after another.

    Args:
        index: what they are kept in.
        reader: of the data set.
        parts: their names.
        most: samples of each.
        bar: passes a part's samples by, and is told what it is.
    """
    index.begin(parts)
    broken, empty = dict[str, str](), list[str]()
    for number, part in enumerate(parts, 1):
        what = f"indexing {part} ({number} of {len(parts)})"
        try:
            given = index.add(reader, part, most, lambda samples, what=what: bar(samples, what))
        except CrossdraftError as error:
            broken[part] = str(error)
        else:
            empty += [] if given else [part]
    return FilledParts(broken, tuple(empty))
