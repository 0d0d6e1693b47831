"""Experiment 8: every quantitative claim of the documents that proposed this project, and what became of it."""

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from crossdraft.drawing.charts import BarPart, StackedBar, stacked_bars
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.experiments.derivations import derived
from crossdraft_lab.bench.experiments.kept import SUMMARY, read_summary
from crossdraft_lab.bench.experiments.record import FULL, Experiment, FigureTable, Findings, Setting, UnitResult
from crossdraft_lab.bench.statistics import Interval

CONFIRMED, REFUTED, UNTESTABLE = "confirmed", "refuted", "not testable here"
STYLES = {CONFIRMED: "hidden-draft", REFUTED: "other", UNTESTABLE: "encoder"}


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim.

    Args:
        document: the proposal document, by its subject.
        claim: what it says.
        status: `confirmed`, `refuted` or `not testable here`.
        why: sentences.
        command: what gives our figure, or the arithmetic with other numbers.
        claimed, unit: its number; a range's nearer end.
        derive: arithmetic that it is held against; see `derivations.derived`.
        measured: an experiment's name and the keys of a figure in its summary: an interval, or a count of how many.
        figure: what that figure is, for people.
        no_figure: where there is neither: why no figure of ours can stand beside it, a sentence.

    Raises:
        CrossdraftError: a status that is none, a claim that is held against nothing and does not say why, or a figure
            of ours that is not named.
    """

    document: str
    claim: str
    status: str
    why: str
    command: str
    claimed: float | None = None
    unit: str = ""
    derive: Mapping[str, object] | None = None
    measured: tuple[str, ...] = ()
    figure: str = ""
    no_figure: str = ""

    def __post_init__(self) -> None:
        if (self.derive is None and not self.measured) != bool(self.no_figure):
            raise CrossdraftError(f"Give the claim '{self.claim}' derive or measured, or else no_figure.")
        if bool(self.measured) != bool(self.figure):
            raise CrossdraftError(f"Give the claim '{self.claim}' both measured and figure, or neither.")
        if self.status not in STYLES:
            raise CrossdraftError(f"'{self.status}' is no status of a claim; write one of: {', '.join(STYLES)}.")

    @property
    def value(self) -> float | None:
        """Result of the claim's arithmetic."""
        return None if self.derive is None else derived(self.derive)


def claims() -> list[Claim]:
    """All of them, as the package holds them."""
    text = (files("crossdraft_lab.bench.experiments") / "claims.toml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = tomllib.loads(text)["claim"]
    return [Claim(**{**row, "measured": tuple(row.get("measured", ()))}) for row in rows]


@dataclass(frozen=True, slots=True)
class ClaimsConfig:
    """Nothing varies."""

    documents: int = 5


def measure(config: ClaimsConfig, keys: Sequence[str], setting: Setting) -> Iterator[UnitResult]:
    """The claims in one unit, with what the other experiments in the same folder found, where they ran."""
    results = setting.work.parent.parent
    found = [{"derived": one.value, **measured(results, one.measured)} for one in claims()]
    for key in keys:
        yield UnitResult(key, (), {"claims": found})


def measured(results: Path, path: Sequence[str]) -> dict[str, Any]:
    """The figure of another experiment and the size that it ran at; `None` if that has not run, or has no such figure.

    Raises:
        CrossdraftError: its summary cannot be read, or has no interval there.
    """
    nothing: dict[str, Any] = {"measured": None, "size": None}
    if not path:
        return nothing
    summary = results / path[0] / SUMMARY
    if not summary.exists():
        return nothing
    whole = read_summary(summary)
    found, size = whole["figures"], whole.get("size")
    for key in path[1:]:
        named = _by_name(found)
        if key not in named:
            return nothing
        found = named[key]
    if isinstance(found, Mapping) and not found.keys() >= {"value", "ci95", "n"}:
        raise CrossdraftError(f"{' → '.join(path[1:])} of {summary} has no interval; run {path[0]} again.")
    return {"measured": found, "size": size}


def _by_name(found: Any) -> Mapping[str, Any]:
    """Figures under their names; a list of those that carry their own, too."""
    if isinstance(found, list):
        return {one["name"]: one for one in found if isinstance(one, Mapping) and "name" in one}
    return found if isinstance(found, Mapping) else {}


def summarise(config: ClaimsConfig, found: Sequence[UnitResult]) -> Findings:
    """The table."""
    known = claims()
    values = found[0].found["claims"]
    if len(values) != len(known):
        raise CrossdraftError("The claims are another version's; run the experiment claims again.")
    counts = Counter(one.status for one in known)
    by_document = {document: Counter(one.status for one in known if one.document == document)
                   for document in dict.fromkeys(one.document for one in known)}  # fmt: skip
    rows = [
        (
            str(number), one.document, one.claim, one.status, shown(value["derived"], one.unit),
            _cell(one, value), f"{one.why} {one.no_figure}".strip(), one.command,
        )
        for number, (one, value) in enumerate(zip(known, values, strict=True), 1)
    ]  # fmt: skip
    return Findings(
        found=(
            f"Of {len(known)} quantitative claims of {config.documents} proposal documents {counts[REFUTED]} are "
            f"refuted, {counts[CONFIRMED]} confirmed, and {counts[UNTESTABLE]} not testable here."
        ),
        sure=(
            "Refuted are claims that contradict their own numbers, the field's formulas, or what the public project "
            "behind them recorded (github.com/xifan-zhang/EventGPT); confirmed are those that these bear out, which "
            "says nothing of how fast the pair is. The arithmetic is code, and tested. A number that is repeated "
            "stands once, and a table of many that say one thing is one claim. Figures of ours are of the shipped "
            "pair: they stand beside claims about 7B models, and refute none of them. Formulas take acceptances to be "
            "independent, and passes over a draft to cost what the claim says, or a step."
        ),
        tables=(
            FigureTable(
                "Claims",
                ("", "document", "claim", "status", "derived", "measured here", "why", "command"),
                tuple(rows),
                "Derived: what the arithmetic gives in the claim's unit. Measured here: our figure of the reference "
                "pair with its 95 % interval and n, from the experiments that ran into the same folder, with their "
                "size where it is not the full one; empty if they did not.",
            ),
        ),
        figure=stacked_bars(
            "Claims by document",
            [
                StackedBar(
                    document,
                    tuple(BarPart(status, style, each[status]) for status, style in STYLES.items()),
                    f"{sum(each.values())}",
                )
                for document, each in by_document.items()
            ],
            "claims",
        ),
        figures={
            "statuses": dict(counts),
            "claims": [
                {"claim": one.claim, "claimed": one.claimed, "unit": one.unit, "status": one.status,
                 "figure": one.figure, **value}
                for one, value in zip(known, values, strict=True)
            ],
        },
    )  # fmt: skip


def _cell(claim: Claim, value: Mapping[str, Any]) -> str:
    """Show what was measured, by its name, with the size of its experiment unless that is the full one."""
    text, size = shown(value["measured"], ""), value.get("size")
    if not text:
        return ""
    return f"{claim.figure}: {text}" + ("" if size == FULL else f" ({size})")


def shown(value: Any, unit: str) -> str:
    """A figure for people; two whole numbers are a count of how many, and a mapping is an interval's.

    >>> shown(1.0741, "×"), shown([8, 8], ""), shown(None, "×"), shown(2286.0, "ms")
    ('1.07 ×', '8/8', '', '2,286 ms')
    >>> shown({"value": 8.18, "ci95": [7.49, 9.0], "n": 16}, "")
    '8.18 [7.49, 9.00; n=16]'
    """
    if value is None:
        return ""
    if isinstance(value, list):
        return "/".join(map(str, value))
    if isinstance(value, Mapping):
        return f"{Interval.from_json(value)} {unit}".strip()
    return f"{value:,.0f} {unit}".strip() if abs(value) >= 1000 else f"{value:.3g} {unit}".strip()


CLAIMS = Experiment(
    "claims",
    8,
    "The claims of the project's proposal documents",
    "Which of the numbers that the project was proposed with hold?",
    ClaimsConfig(),
    ClaimsConfig(),
    lambda config: ["claims"],
    measure,
    summarise,
    derived=True,
)  # fmt: skip
