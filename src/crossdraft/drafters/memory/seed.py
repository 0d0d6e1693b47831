"""Answers that a memory knows from the beginning: those of a capture, or recorded ones.

    memory:seed=runs/train             a folder of `crossdraft capture`
    memory:seed=answers.jsonl          as `crossdraft bench --record` writes them and `replay` reads them

Only the index of a capture is read, and the ids and offsets of its shards (`train.capture.shard`). Clips are left out:
later questions are about other clips.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from crossdraft.drafters.memory.append_log import Record
from crossdraft.drafters.memory.datastore import Scope
from crossdraft.errors import CrossdraftError
from crossdraft.files import parse_json

INDEX, FORMAT = "index.json", "crossdraft capture"
AROUND = ("\n", " ASSISTANT:")  # texts around a captured question in prompts of the reference target and Video-LLaVA
_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError)
Number = Callable[[str], int]
"""A function from a question's text to its number."""


@dataclass(frozen=True)
class SeedTarget:
    """The target that a memory is seeded for; without a vocabulary (recorded answers are replayed) nothing is compared.

    Args:
        vocabulary: fingerprint of its tokenizer (`vocabulary_fingerprint`); empty = there is no target.
        weights: fingerprint of its weights; empty = it has no folder.
        decode: the text of ids; `None` = there is no tokenizer.
        size: ids of its vocabulary; 0 = not known.
    """

    vocabulary: str = ""
    weights: str = ""
    decode: Callable[[Sequence[int]], str] | None = None
    size: int = 0


def vocabulary_fingerprint(vocabulary: Mapping[str, int]) -> str:
    """A digest of a tokenizer's tokens and ids."""
    return hashlib.blake2b(json.dumps(sorted(vocabulary.items())).encode(), digest_size=16).hexdigest()


def read_seed(path: Path, target: SeedTarget, number: Number) -> list[Record]:
    """The answers of a capture or a file of recorded ones, with the question of each.

    Raises:
        CrossdraftError: the file is neither of the two, damaged, of another vocabulary, or without answers.
    """
    try:
        found = list(_captured(path, target, number) if path.is_dir() else _recorded(path, number))
    except _DAMAGED as error:
        raise CrossdraftError(
            f"The seed {path} of the memory cannot be read ({type(error).__name__}: {error}); name a folder of "
            "crossdraft capture, or a file of crossdraft bench --record."
        ) from error
    most = max((token for _, tokens in found for token in tokens), default=0)
    if target.size and most >= target.size:
        raise CrossdraftError(
            f"The seed {path} has the token {most}, and the target's vocabulary {target.size} in all: it is of another "
            "vocabulary; name answers of this target."
        )
    if not found:
        raise CrossdraftError(f"The seed {path} holds no answers; capture some first, or leave seed out.")
    return found


def _captured(folder: Path, target: SeedTarget, number: Number) -> Iterator[Record]:
    index: Any = parse_json((folder / INDEX).read_text(encoding="utf-8"))
    if index.get("format") != FORMAT:
        raise ValueError(f"{INDEX} is of no capture")
    _check_vocabulary(folder, index["owner"], target)
    for shard in index["shards"]:
        with safe_open(folder / Path(shard["file"]).name, "pt") as kept:
            tokens, ends, starts = (kept.get_tensor(name).tolist() for name in ("tokens", "tokens.at", "starts"))
        for begin, end, start in zip(ends[:-1], ends[1:], starts, strict=True):
            question = "" if target.decode is None else target.decode(tokens[begin : begin + start])
            words = question.removeprefix(AROUND[0]).removesuffix(AROUND[1])
            yield Scope(0, number(words)), tokens[begin + start : end]


def _check_vocabulary(folder: Path, owner: Mapping[str, Any], target: SeedTarget) -> None:
    """Raise CrossdraftError unless a capture is of the target itself, or of one with the same tokenizer."""
    same = owner["sha256"] == target.weights or owner.get("vocabulary", "") == target.vocabulary
    if target.vocabulary and not same:
        raise CrossdraftError(
            f"The seed {folder} is a capture of another target, '{owner['source']}', and of another vocabulary or one "
            "that it does not name; capture anew with this target."
        )


def _recorded(path: Path, number: Number) -> Iterator[Record]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            answer: Any = parse_json(line)
            yield Scope(0, number(answer["question"])), [int(token) for token in answer["target_tokens"]]
