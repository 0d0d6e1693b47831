"""The index of a capture: whose answers it holds, what was asked, and which shards are whole. Written last."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from crossdraft.errors import CrossdraftError
from crossdraft.train.capture.record import Wanted
from crossdraft.train.core.provenance import write_json

FORMAT, VERSION = "crossdraft capture", 1
NAME = "index.json"


@dataclass(frozen=True)
class Owner:
    """The target whose answers these are; `source` as it was named, `depth` its number of layers."""

    source: str
    sha256: str
    depth: int
    hidden_size: int
    vocab_size: int
    dtype: str


@dataclass(frozen=True)
class Entry:
    """A shard that is whole; `tokens` counts those that have been told, prompts' last pieces included."""

    file: str
    clips: int
    answers: int
    tokens: int
    answer_tokens: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """All that is known of a capture without its shards.

    Args:
        asked: where clips and prompts come from, as `Source.asked` says it; with `wanted` and the owner it tells one
            capture from another (`asked_sha256`).
        clips: how many there will be in the end.
        provenance: of every run that wrote to it.
    """

    owner: Owner
    wanted: Wanted
    asked: Mapping[str, object]
    asked_sha256: str
    clips: int
    shards: tuple[Entry, ...] = ()
    provenance: tuple[Mapping[str, object], ...] = field(default=())

    @property
    def done(self) -> int:
        """Clips captured."""
        return sum(shard.clips for shard in self.shards)

    @property
    def answers(self) -> int:
        """Answers captured."""
        return sum(shard.answers for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Tokens captured, of the prompts' last pieces and of the answers."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Size of all shards."""
        return sum(shard.bytes for shard in self.shards)

    def with_shard(self, shard: Entry) -> "Index":
        """The index with one more shard."""
        return replace(self, shards=(*self.shards, shard))

    def write(self, folder: Path) -> None:
        """Put the index in place, whole."""
        write_json(folder / NAME, {"format": FORMAT, "version": VERSION, **asdict(self)})


def read_index(folder: Path) -> Index:
    """The index of a folder.

    Raises:
        CrossdraftError: there is none, or it is not ours, of another version, or damaged.
    """
    path = folder / NAME
    if not path.is_file():
        raise CrossdraftError(f"{folder} holds no capture ({NAME} is missing); make one with `crossdraft capture`.")
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
        kind, known = record.pop("format", None), record.pop("version", None)
    except (ValueError, TypeError, AttributeError) as error:
        raise CrossdraftError(f"The index {path} is damaged; remove the folder and capture anew.") from error
    if kind != FORMAT or known != VERSION:
        raise CrossdraftError(
            f"{path} is no index of a capture of version {VERSION} (it says {kind!r}, version {known!r}); capture anew."
        )
    try:
        wanted = record.pop("wanted")
        return Index(
            owner=Owner(**record.pop("owner")),
            wanted=Wanted(**wanted | {name: tuple(wanted[name]) for name in ("layers", "visual_layers")}),
            shards=tuple(Entry(**shard) for shard in record.pop("shards")),
            provenance=tuple(record.pop("provenance")),
            **record,
        )
    except (KeyError, TypeError) as error:
        raise CrossdraftError(f"The index {path} is damaged ({error}); remove the folder and capture anew.") from error
