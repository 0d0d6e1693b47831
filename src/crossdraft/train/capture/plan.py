"""What a capture is to be: a target, a source, what is wanted. And whether a folder already holds a part of it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.load import target_fingerprint
from crossdraft.train.capture.index import NAME, Entry, Index, Owner, read_index
from crossdraft.train.capture.layers import canonical, default_layers, default_visual_layers
from crossdraft.train.capture.record import Wanted
from crossdraft.train.capture.sources import Source
from crossdraft.train.core.provenance import origin


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
