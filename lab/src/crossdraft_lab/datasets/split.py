"""Splits without leaks: overlapping clips stay together, and test questions are in no training split.

A group (a drive, a source video) goes whole into one split. With held-out questions a test sample is new in both ways,
its group and its wording; a sample that is new in only one way is left out (`unused`), as it would measure neither.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from crossdraft.errors import CrossdraftError
from crossdraft_lab.datasets.index import PairIndex

TRAIN, VALIDATION, TEST, UNUSED = "train", "validation", "test", "unused"
SPLITS = (TRAIN, VALIDATION, TEST)
OFFICIAL = {"val": VALIDATION, "validate": VALIDATION, "valid": VALIDATION}  # other names of the validation part


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Settings for dividing an index.

    Args:
        validation, test: shares of the samples, 0 to 1; 0 = no such split.
        questions: share of the wordings that only the test asks; 0 = the test asks the training's wordings.
        seed: seed of the choice of groups and of wordings.
        by_part: divide by the names of the data set's own parts (train, val, test), instead of by shares.

    Raises:
        CrossdraftError: the shares leave nothing to train on.
    """

    validation: float = 0.1
    test: float = 0.1
    questions: float = 0.0
    seed: int = 0
    by_part: bool = False

    def __post_init__(self) -> None:
        for name, share in (("--validation", self.validation), ("--test", self.test), ("--questions", self.questions)):
            if not 0 <= share < 1:
                raise CrossdraftError(f"{name} is {share:g}; give a share, 0 to less than 1.")
        if self.validation + self.test >= 1:
            raise CrossdraftError("--validation and --test together leave nothing to train on; make them smaller.")


@dataclass(frozen=True, slots=True)
class Leak:
    """Data that several splits share but must not.

    Args:
        what: kind of data: "group", "clip", "overlap" or "question".
        name: name of the shared thing.
        splits: the splits that share it.
    """

    what: str
    name: str
    splits: tuple[str, ...]

    def __str__(self) -> str:
        return f"the {self.what} '{self.name}' is in {' and '.join(self.splits)}"


@dataclass(frozen=True, slots=True)
class SplitCounts:
    """Number of samples and of groups in each split, and of held-out wordings."""

    samples: dict[str, int]
    groups: dict[str, int]
    held_questions: int = 0
    leaks: tuple[Leak, ...] = field(default=())


def divide(index: PairIndex, plan: SplitPlan) -> SplitCounts:
    """Assign every sample to a split, and look for leaks.

    Raises:
        CrossdraftError: too few groups or wordings for the shares, parts with unknown names, or a leak.
    """
    with index.writing() as db:
        db.execute("CREATE INDEX IF NOT EXISTS by_group ON samples (kept_together)")
        db.execute("CREATE INDEX IF NOT EXISTS by_wording ON samples (wording)")
        db.execute("CREATE TEMP TABLE IF NOT EXISTS chosen (name TEXT PRIMARY KEY, split TEXT NOT NULL)")
        db.create_function("rank_of", 2, lambda name, seed: _rank(str(name), int(seed)), deterministic=True)
        if plan.by_part:
            _by_part(index, db)
        else:
            _by_group(index, db, plan)
        held = _hold_questions(index, db, plan) if plan.questions else 0
        settings = json.dumps({name: getattr(plan, name) for name in plan.__slots__}, sort_keys=True)
        db.execute("INSERT OR REPLACE INTO meta VALUES ('split', ?)", (settings,))  # `leaks` reads what was held out
        found = tuple(leaks(index))
        if found:  # within the transaction, so that an earlier split stays
            raise CrossdraftError(
                f"The split leaks: {found[0]}{f', and {len(found) - 1} more' if len(found) > 1 else ''}; "
                + ("its parts are the data set's own: divide it by shares." if plan.by_part else "mend the index.")
            )
    return count_splits(index, held)


def count_splits(index: PairIndex, held_questions: int = 0) -> SplitCounts:
    """Count the samples and groups of each split."""
    statement = "SELECT split, COUNT(*), COUNT(DISTINCT kept_together) FROM samples GROUP BY split"
    rows = list(index.rows(statement))
    return SplitCounts(
        {split: samples for split, samples, _ in rows}, {split: groups for split, _, groups in rows}, held_questions
    )


def leaks(index: PairIndex, most: int = 20) -> Iterator[Leak]:
    """Yield leaks: groups, clips, and overlapping spans of a sequence in several splits; and held-out questions.

    Args:
        index: an index; it may have been edited by others, or divided by the data set's own parts.
        most: largest number of leaks of each kind.
    """
    used = "split NOT IN ('', 'unused')"
    for what, column in (("group", "kept_together"), ("clip", "COALESCE(video, events)")):
        statement = (
            f"SELECT {column}, GROUP_CONCAT(DISTINCT split) FROM samples WHERE {used} AND {column} IS NOT NULL "  # noqa: S608
            f"GROUP BY {column} HAVING COUNT(DISTINCT split) > 1 LIMIT ?"
        )
        for name, splits in index.rows(statement, most):
            yield Leak(what, name, tuple(sorted(splits.split(","))))
    yield from _overlaps(index, used, most)
    if index.meta.get("split", {}).get("questions") or _holds_questions(index):
        statement = (
            "SELECT DISTINCT question FROM samples WHERE split = 'test' AND wording IN "
            "(SELECT wording FROM samples WHERE split IN ('train', 'validation')) LIMIT ?"
        )
        for (question,) in index.rows(statement, most):
            yield Leak("question", question, (TEST, TRAIN))


def _overlaps(index: PairIndex, used: str, most: int) -> Iterator[Leak]:
    """Yield overlapping spans of one sequence in several splits, by a sweep over their starts."""
    statement = (
        f"SELECT sequence, start_s, end_s, split FROM samples WHERE {used} "  # noqa: S608 (our own words)
        "AND start_s IS NOT NULL AND end_s IS NOT NULL ORDER BY sequence, start_s"
    )
    current, reach, found = None, dict[str, float](), 0
    for sequence, start, end, split in index.rows(statement):
        if sequence != current:
            current, reach = sequence, {}
        other = next((name for name, until in reach.items() if name != split and until > start), None)
        if other is not None:
            yield Leak("overlap", f"{sequence} at {start:g} s", tuple(sorted((split, other))))
            found += 1
            if found == most:
                return
        reach[split] = max(end, reach.get(split, end))


def _holds_questions(index: PairIndex) -> bool:
    """True if samples were left out, which is so only if questions are held out."""
    return next(index.rows("SELECT EXISTS (SELECT 1 FROM samples WHERE split = 'unused')"))[0] == 1


def _by_part(index: PairIndex, db: Any) -> None:
    for (part,) in list(index.rows("SELECT DISTINCT part FROM samples")):
        name = part.partition("/")[0]
        split = OFFICIAL.get(name, name)
        if split not in SPLITS:
            raise CrossdraftError(
                f"The part '{part}' is not called train, val or test, so it names no split; leave --by-part out."
            )
        db.execute("UPDATE samples SET split = ? WHERE part = ?", (split, part))


def _by_group(index: PairIndex, db: Any, plan: SplitPlan) -> None:
    """Divide groups in an order drawn from the seed: the first go to the test, the next to the validation."""
    total = index.counts().samples
    wanted = [(TEST, plan.test * total), (VALIDATION, plan.validation * total)]
    wanted = [(name, size) for name, size in wanted if size > 0]
    statement = "SELECT kept_together, COUNT(*) FROM samples GROUP BY kept_together ORDER BY rank_of(kept_together, ?)"
    db.execute("DELETE FROM chosen")
    filled, groups = 0, 0
    for group, size in index.rows(statement, plan.seed):
        groups += 1
        if wanted and filled >= wanted[0][1]:
            wanted, filled = wanted[1:], 0
        db.execute("INSERT INTO chosen VALUES (?, ?)", (group, wanted[0][0] if wanted else TRAIN))
        filled += size
    if wanted:
        raise CrossdraftError(
            f"The index has {groups} {'group' if groups == 1 else 'groups'} of clips that must stay together, too few "
            "to leave one for the training; give smaller shares, or index more sequences."
        )
    db.execute("UPDATE samples SET split = (SELECT split FROM chosen WHERE name = samples.kept_together)")


def _hold_questions(index: PairIndex, db: Any, plan: SplitPlan) -> int:
    """Hold out wordings for the test; return their number."""
    if not plan.test:
        raise CrossdraftError("Questions are held out for the test, and there is none; give --test, or no --questions.")
    (wordings,) = next(index.rows("SELECT COUNT(DISTINCT wording) FROM samples"))
    held = round(plan.questions * wordings)
    if not 0 < held < wordings:
        raise CrossdraftError(
            f"Of {wordings} different questions {plan.questions:.0%} are {held}; hold out some of them, but not all."
        )
    db.execute("DELETE FROM chosen")
    db.execute(
        "INSERT INTO chosen SELECT wording, 'held' FROM samples GROUP BY wording ORDER BY rank_of(wording, ?) LIMIT ?",
        (plan.seed, held),
    )
    is_held = "(wording IN (SELECT name FROM chosen))"
    db.execute(f"UPDATE samples SET split = 'unused' WHERE (split = 'test') != {is_held}")  # noqa: S608
    for split in SPLITS:
        if not next(index.rows("SELECT EXISTS (SELECT 1 FROM samples WHERE split = ?)", split))[0] and (
            split == TRAIN or getattr(plan, split)
        ):
            raise CrossdraftError(
                f"With {held} held-out questions nothing is left of the {split} split; choose another seed or share."
            )
    return held


def _rank(name: str, seed: int) -> str:
    return hashlib.sha256(f"{seed} {name}".encode()).hexdigest()
