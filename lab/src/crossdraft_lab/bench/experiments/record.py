"""One record per experiment: its question, its two sizes, its units of work, and the summary of their results."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    from crossdraft.cli.cores import Cores
    from crossdraft.drawing.shapes import Drawing

FULL, QUICK = "full size", "quick size"  # in words; see `ExperimentOutcome.size`
C = TypeVar("C")
Tick = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class UnitResult:
    """Result of one unit of work.

    Args:
        key: name of the unit, unique within a file.
        seeds: seeds that decided the unit's data, of scenes for example.
        found: results as plain values, times by stage among them.
    """

    key: str
    seeds: tuple[int, ...]
    found: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """Place where an experiment runs: its cores and its folder.

    Args:
        cores: cores of the pair; `None` leaves the affinity as it is (GPUs).
        work: a folder for clips and weights that later units read again.
        tick: called with a name after each step.
    """

    cores: "Cores | None"
    work: "Path"
    tick: Tick = lambda name: None


@dataclass(frozen=True, slots=True)
class FigureTable:
    """A table of figures as they are shown; the first column names its rows."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {"title": self.title, "heads": self.heads, "rows": self.rows, "note": self.note}


@dataclass(frozen=True, slots=True)
class RowFaults:
    """Faults of the rows of tables, and the engine's notes on their answers.

    Args:
        unequal: our rows that should be lossless, but whose greedy answers differed from the target's own.
        lost: rows whose drafter was lost or gave up: part of their figures are those of the target alone.
        notes: the engine's notes, by row.
    """

    unequal: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """True if a row does not measure what its name says."""
        return bool(self.unequal or self.lost)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences that stand under the tables."""
        unequal = f"NOT EQUAL to the target's own answers, and should be: {'; '.join(self.unequal)}."
        lost = f"The drafter was lost or gave up, and the target went on alone: {'; '.join(self.lost)}."
        return (*([unequal] if self.unequal else []), *([lost] if self.lost else []), *self.notes)


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of an experiment's runs.

    Args:
        found: sentences that answer the question.
        sure: sentences about certainty: number of pairs, intervals, what the figures do not cover.
        tables: tables of figures, at least one.
        figure: the picture; `None` where there is nothing to draw.
        figures: the numbers of the tables as plain values, for other programs.
        negative: sentences about what did not help, or made something worse.
        faults: faults of rows.
    """

    found: str
    sure: str
    tables: tuple[FigureTable, ...]
    figure: "Drawing | None"
    figures: Mapping[str, Any]
    negative: tuple[str, ...] = ()
    faults: RowFaults = field(default_factory=RowFaults)


@dataclass(frozen=True)
class Experiment(Generic[C]):
    """An experiment: its question, configurations, units of work and summary.

    Args:
        name: name on the command line and of the folder.
        number: number in the report.
        title: title of its section.
        asked: the question, as a sentence.
        full, quick: configurations of full size, and of a size for a first look.
        units: keys of a configuration's units, in the order in which they run.
        measure: runs the units of these keys, one after another; methods that are compared run interleaved within a
            unit.
        summarise: makes the findings from all units' results, in the order of their keys.
    """

    name: str
    number: int
    title: str
    asked: str
    full: C
    quick: C
    units: Callable[[C], Sequence[str]]
    measure: Callable[[C, Sequence[str], Setting], Iterator[UnitResult]]
    summarise: Callable[[C, Sequence[UnitResult]], Findings]

    def config(self, *, quick: bool) -> C:
        """Configuration of the quick size or of the full one."""
        return self.quick if quick else self.full


@dataclass(frozen=True, slots=True)
class ExperimentOutcome:
    """An experiment's summary, with the experiment, its configuration and its machines.

    Args:
        experiment: the experiment's record.
        config: configuration as it ran; plain values if it is kept.
        summary: findings of its units.
        environment: environment of its first unit; `machines` counts how many different ones there were.
        units, seconds: number of units, and their total duration.
        machines: processors and versions of the libraries, each set once.
        kept: the size, in words, if only the summary is kept and the raw runs are gone; else empty.
        picture: picture of an outcome that is kept, as a data: address.
    """

    experiment: Experiment[Any]
    config: object
    summary: Findings
    environment: Mapping[str, Any]
    units: int
    seconds: float
    machines: tuple[str, ...] = field(default=())
    kept: str = ""
    picture: str = ""

    @property
    def command(self) -> str:
        """Command that repeats the experiment."""
        return f"crossdraft experiment {self.experiment.name}{' --quick' if self.quick else ''} --out results"

    @property
    def took(self) -> str:
        """Size, duration and number of units of the experiment, for people."""
        kept = "; from its summary, for the raw runs are not in this folder" if self.kept else ""
        return f"{self.size}, {self.seconds:.0f} s, {self.units} units{kept}"

    @property
    def quick(self) -> bool:
        """True if the experiment ran at the quick size; an experiment with one size only counts as full."""
        if self.kept:
            return self.kept == QUICK
        return self.config == self.experiment.quick != self.experiment.full

    @property
    def size(self) -> str:
        """Name of the experiment's size, for people."""
        if self.kept:
            return self.kept
        if self.quick:
            return QUICK
        return FULL if self.config == self.experiment.full else "a size of its own"

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        from dataclasses import asdict

        return {
            "experiment": self.experiment.name,
            "number": self.experiment.number,
            "title": self.experiment.title,
            "asked": self.experiment.asked,
            "found": self.summary.found,
            "sure": self.summary.sure,
            "negative": list(self.summary.negative),
            "faults": asdict(self.summary.faults),
            "size": self.size,
            "command": self.command,
            "config": asdict(self.config),  # pyright: ignore[reportArgumentType]
            "environment": dict(self.environment),
            "machines": list(self.machines),
            "units": self.units,
            "seconds": round(self.seconds, 1),
            "tables": [table.to_json() for table in self.summary.tables],
            "figures": self.summary.figures,
        }
