"""Answers in a file, beside the questions of an index; joined on the question's id, never on its position."""

from dataclasses import dataclass
from pathlib import Path

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.quality import ScoredAnswer
from crossdraft_lab.datasets.index import PairIndex
from crossdraft_lab.datasets.rows import field, json_rows

MOST_ANSWERS = 2_000_000


@dataclass(frozen=True, slots=True)
class AnsweredIndex:
    """Answers to be scored.

    Args:
        answers: one for each question asked; empty text where there is none.
        unanswered: how many of them are empty for that.
    """

    answers: list[ScoredAnswer]
    unanswered: int


def read_answers(folder: Path, path: Path, split: str | None = None) -> AnsweredIndex:
    """Answers `{"id", "text"}` to an index's questions. Without a split, the questions are those that are answered.

    Raises:
        CrossdraftError: an answer to no question of the index or to one twice, a question that has no right answer, or
            nothing to score.
    """
    given: dict[str, str] = {}
    for row in json_rows(path):
        key = field(row, "id", path)
        if key in given:
            raise CrossdraftError(f"{path} answers the question {key} twice; leave one of the answers out.")
        given[key] = field(row, "text", path)
        if len(given) > MOST_ANSWERS:
            raise CrossdraftError(f"{path} has more than {MOST_ANSWERS:,} answers, the limit; score them in pieces.")
    found, unanswered = list[ScoredAnswer](), 0
    with PairIndex(folder) as index:
        asked = index.samples(split) if split is not None else (index.sample(key) or {"id": key} for key in given)
        for sample in asked:
            if not sample.get("answers"):
                known = "no right answer" if "question" in sample else "no such question"
                raise CrossdraftError(f"{sample['id']}: the index has {known}, so its answer cannot be scored.")
            text = given.pop(sample["id"], None) if split is not None else given[sample["id"]]
            unanswered += text is None
            found.append(ScoredAnswer(sample["kept_together"], text or "", tuple(sample["answers"]), sample["kind"]))
    if split is not None and given:
        raise CrossdraftError(f"{path} answers {next(iter(given))}, which is no question of the split {split}.")
    if not found:
        raise CrossdraftError(f"There is nothing to score: {path}, or the split, is empty.")
    return AnsweredIndex(found, unanswered)
