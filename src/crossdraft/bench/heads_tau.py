"""From tallies to figures: τ by drafter and by kind of question, and whether the order of the papers holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossdraft.bench.statistics import Indices, Interval, bootstrap, per_position
from crossdraft.drafters.evaluate import AcceptanceStats


@dataclass(frozen=True, slots=True)
class DraftSetting:
    """One way of drafting that everybody is measured at.

    Args:
        shape: `tree`, or `chain`: of a head that grows trees otherwise, its best guess alone.
        nodes: most nodes of a draft.
        temperature: of the answers.
    """

    shape: str
    nodes: int
    temperature: float

    @property
    def name(self) -> str:
        """As in a table's head."""
        return f"{self.shape} of {self.nodes}, T={self.temperature:g}"


@dataclass(frozen=True, slots=True)
class PartAcceptance:
    """What the target took of one drafter's drafts of one part."""

    tau: Interval
    per_position: tuple[float, ...]
    by_kind: Mapping[str, float]

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            **self.tau.to_json("tau"),
            "accepted_per_position": [round(share, 3) for share in self.per_position],
            "by_kind": {kind: round(tau, 3) for kind, tau in self.by_kind.items()},
        }


@dataclass(frozen=True, slots=True)
class Expectation:
    """An order that papers report: the best of `better` accepts more than `worse`, or (not `strict`) no less."""

    text: str
    better: tuple[str, ...]
    worse: str
    strict: bool = False


EXPECTATIONS = (
    Expectation("EAGLE-3 ≥ EAGLE-2", ("eagle3",), "eagle2"),
    Expectation("EAGLE-2 ≥ EAGLE-1", ("eagle2",), "eagle1"),
    Expectation("EAGLE-1 > Medusa", ("eagle1",), "medusa", strict=True),
    Expectation("Hydra > Medusa", ("hydra",), "medusa", strict=True),
    Expectation("HiViS or ViSpec ≥ EagleVLM", ("hivis", "vispec"), "eaglevlm"),
)


@dataclass(frozen=True, slots=True)
class ExpectationResult:
    """τ of one drafter over τ of another, as a claim orders them.

    It holds if the measured ratio says so; the interval says how surely another draw of pairs would say the same.
    """

    claim: Expectation
    better: str
    worse: str
    ratio: Interval

    @property
    def holds(self) -> bool:
        """Whether the measured order is the claimed one."""
        return self.ratio.value > 1 or (not self.claim.strict and self.ratio.value == 1)

    def told(self, labels: Mapping[str, str]) -> str:
        """In a sentence, the drafters by their labels."""
        output = "holds" if self.holds else "does not hold"
        return f"{self.claim.text}: {output}, τ of {labels[self.better]} / {labels[self.worse]} = {self.ratio}"

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "claim": self.claim.text,
            "holds": self.holds,
            "better": self.better,
            "worse": self.worse,
            "ratio": self.ratio.to_json(),
        }


def accepted(tallies: Sequence[AcceptanceStats], kinds: Sequence[str]) -> PartAcceptance:
    """The figures of one drafter's answers, one for each pair, and the kind of question each was about."""
    groups = {kind: np.flatnonzero(np.asarray(kinds) == kind) for kind in dict.fromkeys(kinds)}
    return PartAcceptance(
        bootstrap(lambda chosen: _tau(tallies, chosen), len(tallies)),
        tuple(per_position([tally.kept_at for tally in tallies], [tally.offered_at for tally in tallies])),
        {kind: float(_tau(tallies, chosen)) for kind, chosen in groups.items()},
    )


def check_expectations(
    found: Mapping[str, Sequence[AcceptanceStats]], methods: Mapping[str, str]
) -> list[ExpectationResult]:
    """Every claim whose drafters were measured.

    Args:
        found: for each drafter its answers to the same pairs.
        methods: of some of them, which method each is; the first of a method stands for it.
    """
    first: dict[str, str] = {}
    for name in found:
        first.setdefault(methods.get(name, name), name)
    every = np.arange(len(next(iter(found.values()), ())))
    expectations = []
    for claim in EXPECTATIONS:
        able = [first[method] for method in claim.better if method in first]
        if not able or claim.worse not in first:
            continue
        better = max(able, key=lambda name: float(_tau(found[name], every)))
        worse = first[claim.worse]
        ratio = bootstrap(
            lambda chosen, top=found[better], bottom=found[worse]: _tau(top, chosen) / _tau(bottom, chosen), len(every)
        )
        expectations.append(ExpectationResult(claim, better, worse, ratio))
    return expectations


def _tau(tallies: Sequence[AcceptanceStats], chosen: Indices) -> NDArray[np.float64]:
    """[...] pooled over pairs chosen [..., n]; 1 where there was no pass."""
    counts = np.array([(tally.emitted, tally.passes) for tally in tallies], dtype=np.float64)
    emitted, passes = np.moveaxis(counts[chosen].sum(-2), -1, 0)
    return np.where(passes > 0, emitted / np.maximum(passes, 1), 1.0)
