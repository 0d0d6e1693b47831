"""Rows of the alignment bench: what was accepted of a drafter, and a file of the rows that are measured already."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from crossdraft.engine.tree import common_prefix
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path
from crossdraft_lab.bench.align_features import Json
from crossdraft_lab.bench.figure import Figure
from crossdraft_lab.bench.statistics import Interval

Text = tuple[int, ...]


Results = Mapping[str, Mapping[str, Json]]
"""Rows by the name of the drafter or control, then by wordings."""


def row_of(
    prefix: Sequence[int],
    clips: Sequence[int],
    tau: Interval | None = None,
    equal: int | None = None,
    features: Json | None = None,
) -> Json:
    """One drafter or control on one set of questions, as plain values.

    Args:
        prefix: accepted tokens of each hidden draft; none of what drafts nothing.
        clips: of each of these the number of its clip: questions about one clip are no independent evidence.
        tau: tokens a verify pass after that, bonus included; `None` of what only says one text.
        equal: answers that were the target's own.
        features: of an adapter, see `align_features.figures_of`.
    """
    mean = Figure.mean("accepted prefix", prefix, clips, of="clips").interval.to_json() if prefix else None
    own = None if tau is None else tau.to_json()
    found = {"accepted_prefix": mean, "tau": own, "equal": equal, "features": features}
    return {**found, "prefixes": list(prefix), "clips": list(clips)}


class KeptRows:
    """Rows measured so far, in a file that is written anew after each: an interrupted run goes on from there.

    Args:
        path: the file; `None` = nothing is kept.
        config: plain values that decide the figures: rows of another measurement are thrown away.

    Raises:
        CrossdraftError: the file is damaged.
    """

    def __init__(self, path: Path | None = None, config: Mapping[str, object] | None = None) -> None:
        self.path = path
        self._found: Json = {"config": json.loads(json.dumps(dict(config or {}))), "answers": {}, "rows": {}}
        if path is None or not path.is_file():
            return
        try:
            found: Any = json.loads(path.read_text(encoding="utf-8"))
            if found["config"] == self._found["config"]:
                self._found = {name: found[name] for name in self._found}
        except (ValueError, KeyError, TypeError) as error:
            raise CrossdraftError(f"{path}, which holds rows measured so far, is damaged; remove it.") from error

    def answers(self, wordings: str) -> list[Text] | None:
        """The target's own answers to a set of questions, if they are known."""
        known = self._found["answers"].get(wordings)
        return None if known is None else [tuple(answer) for answer in known]

    def add_answers(self, wordings: str, answers: Sequence[Sequence[int]]) -> None:
        """Keep them."""
        self._found["answers"][wordings] = [list(answer) for answer in answers]
        self._write()

    def row(self, name: str, wordings: str) -> Json | None:
        """A row on a set of questions, if it is known."""
        return self._found["rows"].get(name, {}).get(wordings)

    def add(self, name: str, wordings: str, row: Json) -> Json:
        """Keep a row; returns it."""
        self._found["rows"].setdefault(name, {})[wordings] = row
        self._write()
        return row

    def remove(self) -> None:
        """Take the file away, once its rows stand elsewhere."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self.path is not None:
            with atomic_path(self.path) as temporary:
                temporary.write_text(json.dumps(self._found) + "\n", encoding="utf-8")


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
