"""Recorded answers, a JSON object a line: what `crossdraft bench --record` writes and `crossdraft replay` reads."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path, parse_json

STAGES = ("load", "preprocess", "encode", "prefill", "decode")  # stages in `target_stage_ms`


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded answer.

    Args:
        scene: name of the clip.
        question: the prompt.
        target_tokens: the target's greedy answer, n ≥ 1 ids.
        draft_tokens: tokens that a drafter by itself generated for the same clip; may be empty.
        target_stage_ms: milliseconds of each of `STAGES`, if measured; encoding and prefill count as the prefill,
            decoding as one pass for each token after the first.
    """

    scene: str
    question: str
    target_tokens: tuple[int, ...]
    draft_tokens: tuple[int, ...] = ()
    target_stage_ms: tuple[float, ...] | None = None

    @property
    def measured(self) -> tuple[float, float] | None:
        """Milliseconds of the prefill, and of a later token; `None` where they were not measured."""
        if self.target_stage_ms is None or len(self.target_tokens) < 2:
            return None
        _, _, encode, prefill, decode = self.target_stage_ms
        return encode + prefill, decode / (len(self.target_tokens) - 1)

    def to_json(self) -> dict[str, object]:
        """Content of the answer's line."""
        line: dict[str, object] = {
            "scene": self.scene,
            "question": self.question,
            "draft_tokens": list(self.draft_tokens),
            "target_tokens": list(self.target_tokens),
        }
        if self.target_stage_ms is not None:
            line["target_stage_ms"] = [round(ms, 3) for ms in self.target_stage_ms]
        return line


def read_traces(path: Path) -> list[Trace]:
    """Read every line of a file.

    Raises:
        CrossdraftError: the file does not exist, or a line lacks something; the message names the line's number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise CrossdraftError(f"Cannot read the traces {path}: {error.strerror}; check the path.") from error
    except UnicodeDecodeError as error:
        raise CrossdraftError(f"{path} is no text; traces are JSON, an object a line.") from error
    traces = [_trace(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not traces:
        raise CrossdraftError(f"{path} holds no traces; record some with crossdraft bench --record.")
    return traces


def shuffled(traces: Sequence[Trace], seed: int) -> list[Trace]:
    """Return the traces in random order, so that neighbours resemble each other no more than any two answers."""
    return [traces[index] for index in np.random.default_rng(seed).permutation(len(traces))]


def write_traces(traces: Sequence[Trace], path: Path) -> None:
    """Write traces, one a line, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(
            "".join(json.dumps(trace.to_json(), ensure_ascii=False) + "\n" for trace in traces), encoding="utf-8"
        )


def _trace(line: str, where: str) -> Trace:
    try:
        found = parse_json(line)
    except ValueError as error:
        raise CrossdraftError(f"{where} is not JSON; traces are a JSON object a line.") from error
    if not isinstance(found, dict):
        raise CrossdraftError(f"{where} is no JSON object.")
    for name in ("scene", "question", "target_tokens"):
        if name not in found:
            raise CrossdraftError(f"{where} lacks '{name}'.")
    scene, question = found["scene"], found["question"]
    if isinstance(scene, bool) or not isinstance(scene, str | int) or not isinstance(question, str):
        raise CrossdraftError(f"{where}: 'scene' must be text or a whole number, and 'question' text.")
    target = _numbers(found, "target_tokens", where, int)
    if not target:
        raise CrossdraftError(f"{where} has an empty 'target_tokens'.")
    stages = None
    if found.get("target_stage_ms") is not None:
        stages = _numbers(found, "target_stage_ms", where, float)
        if len(stages) != len(STAGES):
            raise CrossdraftError(f"{where}: 'target_stage_ms' must hold {len(STAGES)} times ({', '.join(STAGES)}).")
    draft = _numbers(found, "draft_tokens", where, int) if found.get("draft_tokens") is not None else ()
    return Trace(str(scene), question, target, draft, stages)


def _numbers(found: Mapping[str, Any], name: str, where: str, kind: type) -> tuple[Any, ...]:
    values = found[name]
    known = (int,) if kind is int else (int, float)
    if not isinstance(values, list) or not all(type(value) in known and 0 <= value < 1 << 31 for value in values):
        raise CrossdraftError(f"{where}: '{name}' must be a list of numbers, none of them negative.")
    return tuple(kind(value) for value in values)
