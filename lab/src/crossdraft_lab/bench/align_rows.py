"""Rows of the alignment bench: what was accepted of a drafter, and a file of the rows that are measured already."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossdraft.engine.tree import common_prefix
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path
from crossdraft_lab.bench.align_features import FeatureFigures
from crossdraft_lab.bench.figure import Figure
from crossdraft_lab.bench.statistics import Interval

Text = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftResult:
    """One drafter or control on one set of questions.

    Args:
        prefix: accepted tokens of each hidden draft.
        clips: of each of these the number of its clip: questions about one clip are no independent evidence.
        tau: tokens a verify pass after that, bonus included; `None` of what only says one text.
        equal: answers that were the target's own.
        features: of an adapter.
    """

    prefix: tuple[int, ...]
    clips: tuple[int, ...]
    tau: Interval | None = None
    equal: int | None = None
    features: FeatureFigures | None = None

    @property
    def mean(self) -> Interval | None:
        """Mean accepted prefix, its interval drawn over clips; `None` of what drafts nothing."""
        return Figure.mean("accepted prefix", self.prefix, self.clips, of="clips").interval if self.prefix else None

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "accepted_prefix": None if self.mean is None else self.mean.to_json(),
            "tau": None if self.tau is None else self.tau.to_json(),
            "equal": self.equal,
            "features": None if self.features is None else self.features.to_json(),
            "prefixes": list(self.prefix),
            "clips": list(self.clips),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "DraftResult":
        """As `to_json` wrote it."""
        tau, features = found["tau"], found["features"]
        return cls(
            tuple(found["prefixes"]),
            tuple(found["clips"]),
            None if tau is None else Interval.from_json(tau),
            found["equal"],
            None if features is None else FeatureFigures.from_json(features),
        )


Results = Mapping[str, Mapping[str, DraftResult]]
"""By the name of the drafter or control, then by wordings."""


class KeptRows:
    """Rows measured so far, in a file that is written anew after each: an interrupted run goes on from there.

    Args:
        path: the file; `None` = nothing is kept.
        config: plain values that decide the figures: rows of another measurement are thrown away.

    Raises:
        CrossdraftError: the file is damaged.
    """

    def __init__(self, path: Path | None = None, config: Mapping[str, object] | None = None) -> None:
        self.path, self._config = path, json.loads(json.dumps(dict(config or {})))
        self._answers: dict[str, list[list[int]]] = {}
        self._rows: dict[str, dict[str, Any]] = {}
        if path is None or not path.is_file():
            return
        try:
            found: Any = json.loads(path.read_text(encoding="utf-8"))
            if found["config"] == self._config:
                self._answers, self._rows = found["answers"], found["rows"]
        except (ValueError, KeyError, TypeError) as error:
            raise CrossdraftError(f"{path}, which holds rows measured so far, is damaged; remove it.") from error

    def answers(self, wordings: str) -> list[tuple[int, ...]] | None:
        """The target's own answers to a set of questions, if they are known."""
        known = self._answers.get(wordings)
        return None if known is None else [tuple(answer) for answer in known]

    def add_answers(self, wordings: str, answers: Sequence[Sequence[int]]) -> None:
        """Keep them."""
        self._answers[wordings] = [list(answer) for answer in answers]
        self._write()

    def result(self, name: str, wordings: str) -> DraftResult | None:
        """A row on a set of questions, if it is known."""
        known = self._rows.get(name, {}).get(wordings)
        return None if known is None else DraftResult.from_json(known)

    def add(self, name: str, wordings: str, result: DraftResult) -> None:
        """Keep it."""
        self._rows.setdefault(name, {})[wordings] = result.to_json()
        self._write()

    def remove(self) -> None:
        """Take the file away, once its rows stand elsewhere."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self.path is not None:
            record = {"config": self._config, "answers": self._answers, "rows": self._rows}
            with atomic_path(self.path) as temporary:
                temporary.write_text(json.dumps(record) + "\n", encoding="utf-8")


def best_text(answers: Iterable[Sequence[int]]) -> Text:
    """The text with the longest mean accepted prefix over these answers; `()` without any.

    That is the heaviest path through their trie, where each node weighs as many answers as pass through it. It is an
    answer as it stands, for a prefix of one is never accepted further.

    >>> best_text([(1, 2, 3), (1, 2, 3), (1, 5)])
    (1, 2, 3)
    """
    counts = Counter(tuple(answer) for answer in answers)
    passing: Counter[Text] = Counter()
    for answer, count in counts.items():
        for end in range(1, len(answer) + 1):
            passing[answer[:end]] += count
    weights = {answer: sum(passing[answer[:end]] for end in range(1, len(answer) + 1)) for answer in counts}
    return max(weights, key=lambda answer: (weights[answer], answer), default=())


def templates(answers: Iterable[tuple[str, Sequence[int]]]) -> Mapping[str, Text]:
    """`best_text` of each kind of question, from pairs of a kind and an answer."""
    by_kind: dict[str, list[Sequence[int]]] = {}
    for kind, answer in answers:
        by_kind.setdefault(kind, []).append(answer)
    return {kind: best_text(found) for kind, found in by_kind.items()}


def accepted(draft: Sequence[int], answer: Sequence[int]) -> int:
    """Tokens of a draft that a greedy target accepts before it has said anything."""
    return common_prefix(list(draft), list(answer))
