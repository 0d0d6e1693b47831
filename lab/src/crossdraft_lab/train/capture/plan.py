"""Plan of a capture: its contents, its estimated size, and its index, which lists what a folder already holds.

Layers are counted as Hugging Face's `hidden_states` are: layer k is what *enters* decoder layer k (0 = the embeddings);
L, the number of layers, is the output of the final norm. EAGLE, vLLM and speculators count the same way; SpecForge and
ModelOpt count outputs, which are one less.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from crossdraft.drafters.memory.seed import vocabulary_fingerprint
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.files import parse_json
from crossdraft.load import target_fingerprint, vocabulary_of
from crossdraft_lab.sizes import default_layers
from crossdraft_lab.train.capture.shard import CaptureSpec
from crossdraft_lab.train.capture.sources import ClipSource
from crossdraft_lab.train.core.provenance import origin, write_json

FORMAT, VERSION = "crossdraft capture", 1
INDEX_FILE = "index.json"


# -- layers ------------------------------------------------------------------------------------------------------------


def canonical(layers: Iterable[int], depth: int) -> tuple[int, ...]:
    """Indices 0 … `depth`, ascending, each once; negative ones count from the end.

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
                f"{depth} (after the final norm); choose among these."
            )
        found.add(layer % (depth + 1))
    return tuple(sorted(found))


def default_visual_layers(depth: int) -> tuple[int, ...]:
    """Default layers of the visual part: the embeddings, and the output of the last layer."""
    return (0, depth)


def capture_spec(
    depth: int,
    layers: Sequence[int] | None = None,
    visual_layers: Sequence[int] | None = None,
    max_new_tokens: int = 96,
) -> CaptureSpec:
    """Build the spec for a target with `depth` layers; `None` means the layers that our heads read."""
    chosen = default_layers(depth) if layers is None else canonical(layers, depth)
    visual = default_visual_layers(depth) if visual_layers is None else canonical(visual_layers, depth)
    return CaptureSpec(chosen, visual, max_new_tokens)


# -- the index ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CapturedTarget:
    """The target of a capture.

    Args:
        source: name of the target as the user gave it.
        depth: its number of layers.
        quantize: quantisation of its weights, `int8` or `int4`, which changes its answers. Empty: none.
        vocabulary: fingerprint of its tokenizer; empty in captures of earlier versions.
    """

    source: str
    sha256: str
    depth: int
    hidden_size: int
    vocab_size: int
    dtype: str
    quantize: str = ""
    vocabulary: str = ""

    @classmethod
    def of(cls, source: str, target: Target, quantize: str | None = None) -> "CapturedTarget":
        """Describe a loaded target."""
        text = target.text_config
        dtype = str(target.model.dtype).removeprefix("torch.")
        sizes = (text.num_hidden_layers, text.hidden_size, target.vocab_size)
        vocabulary = vocabulary_fingerprint(vocabulary_of(source))
        return cls(source, target_fingerprint(source), *sizes, dtype, quantize or "", vocabulary)


@dataclass(frozen=True)
class ShardInfo:
    """A complete shard; `tokens` counts the prompts' last pieces and the answers, `answer_tokens` the answers alone."""

    file: str
    clips: int
    answers: int
    tokens: int
    answer_tokens: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class CaptureIndex:
    """Index of a capture: everything except its shards' contents. The field names are the keys of the file.

    Args:
        owner: target of the capture.
        wanted: features that are kept of each answer.
        asked: source of clips and prompts (`ClipSource.settings`).
        asked_sha256: hash of the first three when the capture was begun; trainings name the capture by it.
        clips: number of clips of the complete capture.
        provenance: provenance of every run that added to the capture.
    """

    owner: CapturedTarget
    wanted: CaptureSpec
    asked: Mapping[str, object]
    asked_sha256: str
    clips: int
    shards: tuple[ShardInfo, ...] = ()
    provenance: tuple[Mapping[str, object], ...] = field(default=())

    @property
    def done(self) -> int:
        """Number of clips captured."""
        return sum(shard.clips for shard in self.shards)

    @property
    def answers(self) -> int:
        """Number of answers captured."""
        return sum(shard.answers for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Size of all shards."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def identity(self) -> dict[str, object]:
        """Values that distinguish one capture from another, by the names that users know."""
        spec, owner = self.wanted, self.owner
        identity: dict[str, object] = {"target": owner.sha256, "dtype": owner.dtype, "layers": spec.layers}
        identity |= {"quantize": owner.quantize} if owner.quantize else {}
        identity |= {"visual-layers": spec.visual_layers, "max-new-tokens": spec.max_new_tokens}
        return identity | {name.replace("_", "-"): value for name, value in self.asked.items()}

    def write(self, folder: Path) -> None:
        """Write the index into the folder, whole or not at all."""
        write_json(folder / INDEX_FILE, {"format": FORMAT, "version": VERSION, **asdict(self)})


def read_index(folder: Path) -> CaptureIndex:
    """Read the index of a folder.

    Raises:
        CrossdraftError: there is no index, or it is not ours, of another version, or damaged.
    """
    path = folder / INDEX_FILE
    if not path.is_file():
        raise CrossdraftError(
            f"{folder} holds no capture ({INDEX_FILE} is missing); make one with `crossdraft capture`."
        )
    try:
        record: Any = parse_json(path.read_text(encoding="utf-8"))
        kind, known = record.pop("format", None), record.pop("version", None)
    except (ValueError, TypeError, AttributeError) as error:
        raise CrossdraftError(f"The index {path} is damaged; remove the folder and capture anew.") from error
    if kind != FORMAT or known != VERSION:
        raise CrossdraftError(
            f"{path} is no index of a capture of version {VERSION} (it says {kind!r}, version {known!r}); capture anew."
        )
    try:
        wanted = record.pop("wanted")
        wanted.pop("top_k", None)  # written by earlier versions, whose shards hold top-k tokens too
        return CaptureIndex(
            owner=CapturedTarget(**record.pop("owner")),
            wanted=CaptureSpec(**wanted | {name: tuple(wanted[name]) for name in ("layers", "visual_layers")}),
            shards=tuple(ShardInfo(**shard) for shard in record.pop("shards")),
            provenance=tuple(record.pop("provenance")),
            **record,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CrossdraftError(f"The index {path} is damaged ({error}); remove the folder and capture anew.") from error


# -- the plan ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CapturePlan:
    """A capture: its target, its clips, and the features to keep.

    Args:
        batch: number of answers decoded in one batch.
        workers: number of processes that read clips in advance; 0 = none.
        shard_clips: number of clips in a shard, the most that an interruption costs.
    """

    target: Target
    info: CapturedTarget
    source: ClipSource
    spec: CaptureSpec
    batch: int = 8
    workers: int = 1
    shard_clips: int = 32

    def __post_init__(self) -> None:
        least = (("batch", self.batch, 1), ("workers", self.workers, 0), ("shard-clips", self.shard_clips, 1))
        for name, value, smallest in least:
            if value < smallest:
                raise CrossdraftError(f"--{name} is {value}; it must be at least {smallest}.")

    def index(self) -> CaptureIndex:
        """Index of this capture before its first shard."""
        settings = dict(self.source.settings)
        index = CaptureIndex(self.info, self.spec, settings, "", len(self.source), (), (origin(),))
        identity = json.dumps(index.identity, sort_keys=True)
        return replace(index, asked_sha256=hashlib.sha256(identity.encode()).hexdigest())

    def resume(self, folder: Path) -> CaptureIndex:
        """Return the index to resume from, with the shards up to the first that is missing or cut off.

        Raises:
            CrossdraftError: the folder holds another capture or other files.
        """
        fresh = self.index()
        if not (folder / INDEX_FILE).exists():
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise CrossdraftError(f"{folder} is there already and holds no capture; name a new folder.")
            return fresh
        found = read_index(folder)
        was, now = found.identity, fresh.identity
        differing = [name for name in {**was, **now} if was.get(name) != now.get(name)]
        if differing:
            name = differing[0]
            known = "another target" if name == "target" else f"{name} {was.get(name)} there, {now.get(name)} now"
            raise CrossdraftError(
                f"{folder} holds a capture with other settings ({known}); name another folder, or repeat its settings "
                "to resume it."
            )
        complete: list[ShardInfo] = []
        for shard in found.shards:
            path = folder / shard.file
            if not path.is_file() or path.stat().st_size != shard.bytes:
                break
            complete.append(shard)
        provenance = (*found.provenance, *fresh.provenance)
        return replace(fresh, asked_sha256=found.asked_sha256, shards=tuple(complete), provenance=provenance)


# -- its size ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DiskEstimate:
    """Disk space that the rest of a capture needs; answers are assumed to have half the largest length.

    Args:
        done, clips: number of clips captured so far, and of all clips.
        needed, free: bytes needed and bytes free.
    """

    folder: Path
    done: int
    clips: int
    needed: int
    free: int

    def sentence(self) -> str:
        """Needed and free space in a sentence, for people."""
        if self.done == self.clips:
            return f"{self.folder} holds all {self.clips} clips."
        before = f", {self.done} of {self.clips} clips are there" if self.done else ""
        return (
            f"{self.folder} will take about {format_size(self.needed)} more{before}; {format_size(self.free)} are free."
        )

    def check(self) -> None:
        """Stop before anything is written if there is too little space.

        Raises:
            CrossdraftError: the disk is too small.
        """
        if self.needed > self.free:
            raise CrossdraftError(
                f"The capture needs about {format_size(self.needed)} in {self.folder}, where {format_size(self.free)} "
                f"are free: {format_size(self.needed - self.free)} lack; capture fewer clips, prompts or layers, or "
                "choose another disk."
            )


def estimate_disk(folder: Path, plan: CapturePlan, index: CaptureIndex) -> DiskEstimate:
    """Estimate the disk space from existing shards, else from the lengths of the first clip's prompts."""
    left = max(0, len(plan.source) - index.done)
    each = index.bytes / index.done if index.done else (_first_clip(plan) if left else 0)
    nearest = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    return DiskEstimate(folder, index.done, len(plan.source), round(left * each), shutil.disk_usage(nearest).free)


def _first_clip(plan: CapturePlan) -> float:
    """Bytes of the average clip, estimated from the first one."""
    spec, width = plan.spec, plan.info.hidden_size
    clip = plan.source.read(0)
    prompts = [plan.target.prepare(request) for request in clip.requests(spec.max_new_tokens)]
    for prompt in prompts:
        check_length(prompt, plan.target, clip.name, spec)
    chunks = [plan.target.chunks(prompt, None)[0] for prompt in prompts]
    pieces = {tuple(chunk.tokens.tolist()) for front in chunks for chunk in front[:-1]}
    answer = max(1, spec.max_new_tokens // 2)
    answers = sum(spec.answer_bytes(len(texts[-1].tokens), answer, width) for texts in chunks) / len(chunks)
    return sum(spec.piece_bytes(len(piece), width) for piece in pieces) + answers * plan.source.answers / len(
        plan.source
    )


def check_length(prompt: Prompt, target: Target, clip: str, spec: CaptureSpec) -> None:
    """Check that an answer fits after a prompt about that clip.

    Raises:
        CrossdraftError: prompt and answer together exceed the model's context.
    """
    if len(prompt) + spec.max_new_tokens > target.context:
        raise CrossdraftError(
            f"A prompt about {clip} has {len(prompt)} tokens, and after it the model's context has room for "
            f"{max(0, target.context - len(prompt))}, not for {spec.max_new_tokens}; lower --max-new-tokens."
        )


def format_size(count: float) -> str:
    """Number of bytes for people, in powers of ten.

    >>> format_size(1234567)
    '1.23 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
