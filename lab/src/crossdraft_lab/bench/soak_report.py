"""Results of `crossdraft bench soak`, and whether all is well."""

from collections.abc import Mapping
from dataclasses import dataclass

from crossdraft_lab.bench.resources import MOST_GROWTH, PARTS, SETTLED, Leftovers, MemorySample, flatness, part_medians

LEAST_REQUESTS = 1000  # requests; in fewer, caches are still filling


@dataclass(frozen=True, slots=True)
class SoakReport:
    """Results of a soak test.

    Args:
        outcomes: how many requests ended how.
        failures: what was wrong, in words; the first of them.
        failed: how many.
        samples: of memory, in the order of time.
        kills: processes that were killed.
        rows: of the engine's cache that were in use when nothing was asked any more.
        left: see `Leftovers`.
    """

    requests: int
    seconds: float
    environment: Mapping[str, object]
    outcomes: Mapping[str, int]
    failures: tuple[str, ...]
    failed: int
    samples: tuple[MemorySample, ...]
    kills: int
    rows: int
    left: Leftovers

    @property
    def settled(self) -> list[MemorySample]:
        """Samples after the first fifth of the requests, with the drafter's process running."""
        return [one for one in self.samples if one.done >= SETTLED * self.requests and one.whole]

    @property
    def growth(self) -> float:
        """(max - min) / median of the medians of `PARTS` equal parts of the settled samples: what stays."""
        return flatness(part_medians([one.total_mib for one in self.settled]))

    @property
    def swing(self) -> float:
        """(max - min) / median of the settled samples themselves: with what requests hold for a moment."""
        return flatness([one.total_mib for one in self.settled])

    @property
    def range_mib(self) -> tuple[float, float] | None:
        """The least and the most of the settled samples; `None` without any."""
        settled = [one.total_mib for one in self.settled]
        return (min(settled), max(settled)) if settled else None

    @property
    def flat(self) -> bool:
        """True if memory is flat, or too few requests were asked to say."""
        return self.requests < LEAST_REQUESTS or self.growth <= MOST_GROWTH

    @property
    def passed(self) -> bool:
        """True if all is well."""
        return not self.failed and self.flat and not self.rows and not self.left.any

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "environment": dict(self.environment),
            "requests": self.requests,
            "seconds": round(self.seconds, 1),
            "passed": self.passed,
            "outcomes": dict(self.outcomes),
            "failed": self.failed,
            "failures": list(self.failures),
            "kills": self.kills,
            "memory": {
                "growth": round(self.growth, 4),
                "growth_of_parent": round(flatness(part_medians([one.parent_mib for one in self.settled])), 4),
                "swing": round(self.swing, 4),
                "range_mib": None if self.range_mib is None else [round(one, 2) for one in self.range_mib],
                "most": MOST_GROWTH,
                "judged": self.requests >= LEAST_REQUESTS,
                "samples": [one.to_json() for one in self.samples],
            },
            "rows": self.rows,
            "left": self.left.to_json(),
        }


def lines(report: SoakReport) -> list[str]:
    """Sentences for people."""
    memory = "Memory: too few samples."
    if report.range_mib is not None:
        low, high = report.range_mib
        memory = (
            f"Memory, all processes: {low:.0f} to {high:.0f} MiB in {len(report.settled)} readings after the first "
            f"fifth, (max - min) / median {report.swing:.1%}; of the medians of {PARTS} parts {report.growth:.1%}, "
            f"asked at most {MOST_GROWTH:.0%}"
            + (f"; judged from {LEAST_REQUESTS} requests on." if report.requests < LEAST_REQUESTS else ".")
        )
    return [
        f"{report.requests} requests in {report.seconds:.0f} s; the drafter was killed {report.kills} times.",
        *(f"  {count:5d} {outcome.removeprefix('!')}" for outcome, count in report.outcomes.items()),
        memory,
        f"Rows in use: {report.rows}. Left over: {report.left}.",
        *(f"FAILED {failure}" for failure in report.failures),
        "All is well." if report.passed else "Something is wrong.",
    ]
