"""One record per experiment: what is asked, its two sizes, its units of work, and what is made of their results."""

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
        key: of the unit; never again in the same file.
        seeds: that decided what it met, of scenes for example.
        found: plain values, times by stage among them.
    """

    key: str
    seeds: tuple[int, ...]
    found: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """Place where an experiment runs: its cores and its folder.

    Args:
        cores: of the pair; `None` leaves the affinity as it is (GPUs).
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
        unequal: rows of ours that are lossless by what they are, whose greedy answers were not the target's own.
        lost: rows whose drafter was lost or gave up: part of what they measured is the target alone.
        notes: sentences of the engine's, by row.
    """

    unequal: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """True if a row is not what it says."""
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
        found: sentences: the answer.
        sure: sentences: number of pairs, intervals, what the figures do not cover.
        tables: at least one.
        figure: the picture; `None` where there is nothing to draw.
        figures: the numbers of the tables as plain values, for other programs.
        negative: sentences: what did not help, or made something worse.
        faults: of rows.
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
    """An experiment.

    Args:
        name: on the command line, and of its folder.
        number: in the report.
        title: of its section.
        asked: the question, as a sentence.
        full, quick: its configuration at full size, and for a first look.
        units: keys of a configuration's units, in the order in which they run.
        measure: runs the units of these keys, one after another; whatever they compare they compare interleaved, within
            a unit.
        summarise: of all units' results, in the order of their keys.
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
        """The configuration of that size."""
        return self.quick if quick else self.full


@dataclass(frozen=True, slots=True)
class ExperimentOutcome:
    """An experiment's summary, with the experiment, its configuration and its machines.

    Args:
        experiment: the record.
        config: as it ran; plain values if it is kept.
        summary: of its units.
        environment: of its first unit; `machines` says how many different ones there were.
        units, seconds: how many there are, and how long they took together.
        machines: processors and versions of the libraries, each set once.
        kept: the size, in words, of one whose raw runs are gone.
        picture: of such a one, as a data: address.
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
        """True if it ran at the small size; where there is one size alone it is the full one."""
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
