"""Rows of `crossdraft bench align`, a drafter or control each: what was accepted, tables, and which expectations hold.

A file keeps the rows that are measured already.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from crossdraft.engine.tree import common_prefix
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path
from crossdraft_lab.bench.align_features import THRESHOLDS, Json
from crossdraft_lab.bench.experiments.record import FigureTable
from crossdraft_lab.bench.statistics import Interval, ratio_by
from crossdraft_lab.bench.study import FigureColumn, figure_table, name_column, shown

HELD_OUT, TRAINED = "held-out wordings", "training wordings"
CONTROLS = ("constant", "template", "memory", "blind")
UNTRAINED, IDENTITY = "no adapter", "the target's own feature"
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
    """Row of one drafter or control on one set of questions, as plain values.

    Args:
        prefix: accepted tokens of each hidden draft; empty for a control that drafts nothing.
        clips: number of the clip of each draft: questions about one clip are no independent evidence.
        tau: tokens per verify pass after the hidden draft, bonus included; `None` for a control that offers one text.
        equal: number of answers that were the target's own.
        features: figures of an adapter, see `align_features.figures_of`.
    """
    mean = ratio_by(clips, prefix, [1] * len(prefix)).to_json() if prefix else None
    own = None if tau is None else tau.to_json()
    found = {"accepted_prefix": mean, "tau": own, "equal": equal, "features": features}
    return {**found, "prefixes": list(prefix), "clips": list(clips)}


class KeptRows:
    """Rows measured so far, in a file that is written anew after each: an interrupted run goes on from there.

    Args:
        path: the file; `None` keeps nothing.
        config: plain values that decide the figures: rows under another `config` are thrown away.

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
        """Keep the target's answers to a set of questions."""
        self._found["answers"][wordings] = [list(answer) for answer in answers]
        self._write()

    def row(self, name: str, wordings: str) -> Json | None:
        """A row on a set of questions, if it is known."""
        return self._found["rows"].get(name, {}).get(wordings)

    def add(self, name: str, wordings: str, row: Json) -> Json:
        """Keep a row, and return it."""
        self._found["rows"].setdefault(name, {})[wordings] = row
        self._write()
        return row

    def remove(self) -> None:
        """Remove the file once its rows are kept elsewhere."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self.path is not None:
            with atomic_path(self.path) as temporary:
                temporary.write_text(json.dumps(self._found) + "\n", encoding="utf-8")


def best_text(answers: Iterable[Sequence[int]]) -> Text:
    """The text with the longest mean accepted prefix over these answers; `()` without any.

    This is the heaviest path through their trie, where each node weighs as many answers as pass through it. It is also
    a whole answer, for a prefix of an answer is never accepted further than the answer.

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
    """Number of a draft's tokens that a greedy target accepts, if the draft was made before the answer began."""
    return common_prefix(list(draft), list(answer))


def _interval(found: Any, digits: int = 2) -> str:
    return shown(found and Interval.from_json(found).shown(digits=digits))


def _column(head: str, of: str, *wordings: str) -> FigureColumn:
    """Column of a figure in given wordings; without given wordings, in held-out ones where there are any."""

    def figure(by_wordings: Mapping[str, Json], name: str) -> Any:
        row = _first(by_wordings) if not wordings else by_wordings.get(wordings[0])
        return row and row[of]

    return FigureColumn("", head, figure, _interval)


def _feature(head: str, key: str) -> FigureColumn:
    def figure(by_wordings: Mapping[str, Json], name: str) -> Any:
        return (_first(by_wordings)["features"] or {}).get(key)

    return FigureColumn("", head, figure, lambda found: _interval(found, 3))


COLUMNS = (
    name_column("drafter"),
    _column("accepted prefix", "accepted_prefix", HELD_OUT),
    _column("in training wordings", "accepted_prefix", TRAINED),
    _column("τ after it", "tau"),
    _feature("cos", "cosine"),
    *(_feature(f"> {one:.2f}", f"acceptance@{one:.2f}") for one in THRESHOLDS),
    _feature("in a row", "consecutive@0.90"),
    _feature("same token", "same_position"),
    _feature("shifted", "shifted"),
)


def results_table(results: Results) -> FigureTable:
    """Table of all figures; τ and figures of features use held-out wordings, where there are any."""
    held_out = any(HELD_OUT in by_wordings for by_wordings in results.values())
    wordings = "held-out wordings" if held_out else "the wordings of the training: no question was held out"
    title = f"tokens of the hidden draft that the target accepts, on test clips in {wordings}; and its features"
    return figure_table(title, COLUMNS, [(by_wordings, name) for name, by_wordings in results.items()])


def lines(drafters: Sequence[str], results: Results) -> Iterator[str]:
    """Yield sentences: the best drafter against the controls, in held-out wordings where there are any."""
    found = {name: row for name, by_wordings in results.items() if (row := _first(by_wordings))["prefixes"]}
    means = {name: Interval.from_json(row["accepted_prefix"]) for name, row in found.items()}
    best = max(drafters, key=lambda name: means[name].value)
    yield f"Best drafter: {best}, {means[best].shown('clips')} tokens."
    for control in CONTROLS:
        yield f"  {_tokens_more(compare(best, control, found))} than the control '{control}' ({means[control]})."
    if UNTRAINED not in results:
        yield f"The control '{UNTRAINED}' is lacking: no drafter is an event model of the target's vocabulary."
    for name, than, more in ladder(drafters, results, None):
        yield f"  {name} accepts {_tokens_more(more)} than {than}."
    lossy = [name for name, found in results.items() if any(map(_differs, found.values()))]
    yield f"Answers differed from the target's: {', '.join(lossy)}." if lossy else "Every answer was the target's own."


def _tokens_more(more: Interval) -> str:
    """Describe a difference as tokens more or fewer.

    >>> _tokens_more(Interval(-0.5, -0.75, 0.25, 4))
    '0.50 [-0.25, 0.75; n=4 clips] tokens fewer'
    """
    if more.value >= 0:
        return f"{more.shown('clips')} tokens more"
    return f"{Interval(-more.value, -more.high, -more.low, more.n).shown('clips')} tokens fewer"


def compare(name: str, than: str, rows: Mapping[str, Json]) -> Interval:
    """Mean number of accepted tokens by which row `name` exceeds row `than`, question by question; drawn over clips."""
    own, other = rows[name], rows[than]
    more = [one - two for one, two in zip(own["prefixes"], other["prefixes"], strict=True)]
    return ratio_by(own["clips"], more, [1] * len(more))


def ladder(drafters: Sequence[str], results: Results, wordings: str | None) -> list[tuple[str, str, Interval]]:
    """Compare each drafter with the one named before it, in `wordings`; `None` means held-out ones if there are any."""
    rows = {name: _first(results[name]) if wordings is None else results[name][wordings] for name in drafters}
    return [(name, before, compare(name, before, rows)) for before, name in pairwise(drafters)]


def _first(by_wordings: Mapping[str, Json]) -> Json:
    """A row in held-out wordings, where there are any."""
    return by_wordings[HELD_OUT if HELD_OUT in by_wordings else TRAINED]


def _differs(row: Json) -> bool:
    """True if an answer differed from the target's."""
    return row["equal"] is not None and row["equal"] < len(row["prefixes"])
