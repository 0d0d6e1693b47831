"""What a capture is to hold, how large it will be, and whether a folder already holds a part of it.

Layers are counted as Hugging Face's `hidden_states` are: layer k is what *enters* decoder layer k (0 = the embeddings);
L, the number of layers, is what leaves the final norm. EAGLE, vLLM and speculators count the same way; SpecForge and
ModelOpt count outputs, one less.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.load import target_fingerprint
from crossdraft.train.capture.clip import Source
from crossdraft.train.capture.recorder import read_prompts
from crossdraft.train.capture.shard import Wanted, answer_bytes, piece_bytes
from crossdraft.train.core.provenance import origin, write_json


def canonical(layers: Iterable[int], depth: int) -> tuple[int, ...]:
    """Indexes 0 … `depth`, ascending, each once; negative ones count from the end.

    >>> canonical([-1, 2, 0, 7], 7)
    (0, 2, 7)

    Raises:
        CrossdraftError: an index is outside the model.
    """
    found = set()
    for layer in layers:
        if not -depth - 1 <= layer <= depth:
            raise CrossdraftError(
                f"Layer {layer} is outside the target: its {depth} layers have hidden states 0 (the embeddings) to "
                f"{depth} (behind the final norm); choose among these."
            )
        found.add(layer % (depth + 1))
    return tuple(sorted(found))


def default_layers(depth: int) -> tuple[int, ...]:
    """All that our heads read: EAGLE-3's three levels, what enters the last layer, and what leaves it."""
    wanted = {2, depth // 2, depth - 3, depth - 1, depth}
    return tuple(sorted(layer for layer in wanted if 0 <= layer <= depth))


def default_visual_layers(depth: int) -> tuple[int, ...]:
    """Of the visual part: the embeddings, and what leaves the last layer."""
    return (0, depth)


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


@dataclass(frozen=True)
class Plan:
    """A capture.

    Args:
        batch: answers that are written side by side.
        workers: processes that read clips ahead of the target; 0 = none.
        shard_clips: clips in a shard: what an interruption costs at most.
    """

    target: Target
    owner: Owner
    source: Source
    wanted: Wanted
    batch: int = 8
    workers: int = 1
    shard_clips: int = 32

    def __post_init__(self) -> None:
        for name, value, least in (
            ("batch", self.batch, 1),
            ("workers", self.workers, 0),
            ("shard-clips", self.shard_clips, 1),
        ):
            if value < least:
                raise CrossdraftError(f"--{name} is {value}; it must be at least {least}.")
        if self.wanted.top_k > self.owner.vocab_size:
            raise CrossdraftError(
                f"--top-k asks for {self.wanted.top_k} of the target's {self.owner.vocab_size} tokens; ask for fewer."
            )

    def index(self) -> Index:
        """The index of this capture, before its first shard."""
        asked = dict(self.source.asked)
        told = {
            "target": self.owner.sha256,
            "dtype": self.owner.dtype,
            "layers": self.wanted.layers,
            "visual_layers": self.wanted.visual_layers,
            "top_k": self.wanted.top_k,
            "max_new_tokens": self.wanted.max_new_tokens,
            "asked": asked,
        }
        return Index(self.owner, self.wanted, asked, hash_of(told), len(self.source), (), (origin(),))


def owner_of(source: str, target: Target) -> Owner:
    """What an index says of a loaded target."""
    text = target.text_config
    dtype = str(target.model.dtype).removeprefix("torch.")
    return Owner(source, target_fingerprint(source), text.num_hidden_layers, text.hidden_size, target.vocab_size, dtype)


def wanted_of(
    owner: Owner,
    layers: Sequence[int] | None = None,
    visual_layers: Sequence[int] | None = None,
    top_k: int = 8,
    max_new_tokens: int = 96,
) -> Wanted:
    """What is kept, its layers checked; `None` = those that our heads read."""
    depth = owner.depth
    chosen = default_layers(depth) if layers is None else canonical(layers, depth)
    visual = default_visual_layers(depth) if visual_layers is None else canonical(visual_layers, depth)
    return Wanted(chosen, visual, top_k, max_new_tokens)


def begun(folder: Path, plan: Plan) -> Index:
    """What is there already of a capture: nothing, or the shards up to the first that is missing or cut off.

    Raises:
        CrossdraftError: the folder holds something else.
    """
    fresh = plan.index()
    if not (folder / NAME).exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise CrossdraftError(f"{folder} is there already and holds no capture; name a new folder.")
        return fresh
    found = read_index(folder)
    if found.asked_sha256 != fresh.asked_sha256:
        raise CrossdraftError(
            f"{folder} holds a capture with other settings ({_difference(found, fresh)}); name another folder, or "
            "repeat its settings to resume it."
        )
    whole: list[Entry] = []
    for entry in found.shards:
        path = folder / entry.file
        if not path.is_file() or path.stat().st_size != entry.bytes:
            break
        whole.append(entry)
    return replace(fresh, shards=tuple(whole), provenance=(*found.provenance, *fresh.provenance))


def hash_of(asked: Mapping[str, object]) -> str:
    """Hex digest of plain values, whatever their order."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def _difference(found: Index, fresh: Index) -> str:
    """The first setting that differs, for people."""
    if found.owner.sha256 != fresh.owner.sha256:
        return "another target"
    was: dict[str, object] = {**vars(found.wanted), **found.asked, "dtype": found.owner.dtype}
    now: dict[str, object] = {**vars(fresh.wanted), **fresh.asked, "dtype": fresh.owner.dtype}
    name = next(name for name in {**was, **now} if was.get(name) != now.get(name))
    return f"{name.replace('_', '-')} {was.get(name)} there, {now.get(name)} now"


@dataclass(frozen=True)
class Estimate:
    """What is still to be captured, and the room for it; answers are taken to be half as long as they may be.

    Args:
        done, clips: clips captured, and in all.
        needed, free: bytes.
    """

    folder: Path
    done: int
    clips: int
    needed: int
    free: int

    def sentence(self) -> str:
        """For people."""
        if self.done == self.clips:
            return f"{self.folder} holds all {self.clips} clips."
        before = f", {self.done} of {self.clips} clips are there" if self.done else ""
        return f"{self.folder} will take about {size(self.needed)} more{before}; {size(self.free)} are free."

    def refuse_unless_room(self) -> None:
        """Stop before anything is written.

        Raises:
            CrossdraftError: the disk is too small.
        """
        if self.needed > self.free:
            raise CrossdraftError(
                f"The capture needs about {size(self.needed)} in {self.folder}, where {size(self.free)} are free: "
                f"{size(self.needed - self.free)} lack; capture fewer clips, prompts or layers, or choose another disk."
            )


def estimate(folder: Path, plan: Plan, index: Index) -> Estimate:
    """From what is there already, if anything, else from the lengths of the first clip's prompts."""
    left = max(0, len(plan.source) - index.done)
    each = index.bytes / index.done if index.done else (_first_clip(plan) if left else 0)
    nearest = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    return Estimate(folder, index.done, len(plan.source), round(left * each), shutil.disk_usage(nearest).free)


def _first_clip(plan: Plan) -> float:
    """Bytes of the average clip, as far as the first one tells."""
    wanted, width = plan.wanted, plan.owner.hidden_size
    readings = read_prompts(plan.target, plan.source.read(0), wanted.max_new_tokens)
    questions = [question for reading in readings for question in reading.questions]
    answer = max(1, wanted.max_new_tokens // 2)
    told = sum(answer_bytes(len(question.last.tokens), answer, width, wanted) for question in questions)
    pieces = sum(piece_bytes(reading.shared, width, wanted) for reading in readings)
    return pieces + told / len(questions) * plan.source.answers / len(plan.source)


def size(count: float) -> str:
    """Bytes for people, in powers of ten.

    >>> size(1234567)
    '1.23 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
