"""Worth of a part: a row that has it against one that has not, scene by scene, of interleaved rows."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from crossdraft_lab.bench.experiments.blocks import Pooled
from crossdraft_lab.bench.experiments.record import FigureTable
from crossdraft_lab.bench.report import FEW_PAIRS
from crossdraft_lab.bench.significance import (
    ALPHA,
    COMPARISON_HEADS,
    COMPARISON_NOTE,
    PairedComparison,
    PairedCosts,
    compare_together,
    comparison_cells,
    least_scenes,
)
from crossdraft_lab.bench.statistics import Interval

FASTER, SLOWER, NOT_SEEN, UNTESTED = "faster", "slower", "no difference seen", "too few scenes"


@dataclass(frozen=True, slots=True)
class AblatedPart:
    """Two rows of one group, which differ in the part alone.

    Args:
        on: the row that has it.
        off: the row that has not.
    """

    on: str
    off: str

    def __str__(self) -> str:
        return f"{self.on} / {self.off}"


@dataclass(frozen=True, slots=True)
class PartEffect:
    """Effect of a part on the time of answers.

    Args:
        group: what varies.
        part: the rows.
        ratio: Σ time without it / Σ time with it, drawn over scenes; above 1, it helps.
        tested: the test over scenes, corrected over all parts; `None` where there are too few scenes for it.
    """

    group: str
    part: AblatedPart
    ratio: Interval
    tested: PairedComparison | None

    @property
    def direction(self) -> str:
        """Direction of the effect, as far as the test supports it."""
        if self.tested is None:
            return UNTESTED
        if not self.tested.differs:
            return NOT_SEEN
        return FASTER if self.ratio.value > 1 else SLOWER

    @property
    def row(self) -> tuple[str, ...]:
        """Under the heads of `parts_table`."""
        return self.group, self.part.on, self.part.off, str(self.ratio), *comparison_cells(self.tested), self.direction

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        one = self.tested
        return {
            **self.ratio.to_json(),
            "p_wilcoxon": None if one is None else one.p,
            "p_holm": None if one is None else one.adjusted_p,
            "cohens_dz": None if one is None else one.effect,
            "rank_biserial": None if one is None else one.rank_biserial,
            "minimum_detectable": None if one is None else one.detectable,
            "direction": self.direction,
        }


def compare_parts(groups: Mapping[str, tuple[Sequence[AblatedPart], Pooled]]) -> list[PartEffect]:
    """The parts of all groups, with Holm's correction over all that can be tested."""
    pairs = {
        (name, part): PairedCosts(
            found.results.seconds(part.off), found.results.seconds(part.on), [pair["scene"] for pair in found.pairs]
        )
        for name, (parts, found) in groups.items()
        for part in parts
    }
    tested = compare_together({f"{name}: {part}": costs for (name, part), costs in pairs.items()})
    return [
        PartEffect(name, part, groups[name][1].speedup(part.on, part.off), tested.get(f"{name}: {part}"))
        for name, part in pairs
    ]


def parts_table(effects: Sequence[PartEffect]) -> FigureTable:
    """A row for each part."""
    few = any(one.ratio.n < FEW_PAIRS for one in effects)
    narrow = f" Intervals of fewer than {FEW_PAIRS} scenes are narrower than the truth." if few else ""
    return FigureTable(
        "Each part: with it against without it, scene by scene",
        ("what varies", "with", "without", "× without", *COMPARISON_HEADS, "with it"),
        tuple(one.row for one in effects),
        "× without: Σ time of the row without the part over Σ time of the row with it; above 1, the part helps. "
        f"{COMPARISON_NOTE} Faster and slower are what both the interval and p < {ALPHA:g} say."
        f"{untested(effects)}{narrow}",
    )


def untested(effects: Sequence[PartEffect]) -> str:
    """Name the groups with too few scenes for any test, and how many could show a difference."""
    few = {one.group: one.ratio.n for one in effects if one.tested is None}
    if not few:
        return ""
    counts = "; ".join(f"{name}: {n}" for name, n in few.items())
    least = least_scenes(len(effects))
    return f" Too few scenes to show any difference of {len(effects)} parts ({counts}); {least} can."


def parts_sentence(effects: Sequence[PartEffect]) -> str:
    """Say how many parts help, how many harm, and of how many nothing is seen; empty where there are no parts."""
    if not effects:
        return ""
    if not any(one.tested for one in effects):
        return f"The scenes are too few to test any of {len(effects)} parts. "
    faster, slower, not_seen = (_counts(effects, direction) for direction in (FASTER, SLOWER, NOT_SEEN))
    return (
        f"Of {sum(one.tested is not None for one in effects)} parts that were tested scene by scene, answers are "
        f"significantly faster with {faster}, significantly slower with {slower}, and of {not_seen} no difference is "
        "seen. "
    )


def _counts(effects: Sequence[PartEffect], direction: str) -> str:
    """Count the effects of that direction, by group: 2 (placement 1 of 3, trees 1 of 3)."""
    all_of = Counter(one.group for one in effects)
    found = Counter(one.group for one in effects if one.direction == direction)
    groups = ", ".join(f"{name} {n} of {all_of[name]}" for name, n in found.items())
    return f"{found.total()} ({groups})" if groups else "0"


def no_help(effects: Sequence[PartEffect], titles: Mapping[str, str]) -> Iterator[str]:
    """Sentences about parts that harm, and about those of which no difference was seen."""
    for one in effects:
        if one.tested is None or one.direction == FASTER:
            continue
        shown = f"({one.ratio} times as fast, p = {one.tested.adjusted_p:.2g})"
        if one.direction == SLOWER:
            yield f"{titles[one.group]}: {one.part.on} is slower than {one.part.off} {shown}."
        else:
            yield (
                f"{titles[one.group]}: {one.part.on} is not seen to be faster than {one.part.off} {shown}; "
                f"{one.tested.detectable:.1%} would be seen."
            )


def parts_json(effects: Sequence[PartEffect]) -> dict[str, dict[str, object]]:
    """By what varies, plain values of each part."""
    found: dict[str, dict[str, object]] = {one.group: {} for one in effects}
    for one in effects:
        found[one.group][str(one.part)] = one.to_json()
    return found
