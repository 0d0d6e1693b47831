"""A watch in numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from crossdraft.engine.stats import Stats


@dataclass
class WatchSummary:
    """Counts of the windows, and the times of their answers.

    A time counts from a window's last frame: it includes the wait for its turn and for the questions asked before.

    Args:
        due, answered, dropped: windows; dropped ones gave way to a newer one before their turn.
        seconds: that passed.
        changes: answers that were not those of the answered window before.
        first_s, whole_s: seconds of each answer to its first final token, and to its end.
        tokens, rounds: numbers of tokens and rounds of all answers.
        hidden_drafting_s, hidden_inside_s: as `Stats`.
        late_s: by how much the source of frames was late at most.
        signal_losses: times that a live source had no signal.
    """

    due: int = 0
    answered: int = 0
    dropped: int = 0
    seconds: float = 0.0
    changes: int = 0
    first_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    tokens: int = 0
    rounds: int = 0
    hidden_drafting_s: float = 0.0
    hidden_inside_s: float = 0.0
    late_s: float = 0.0
    signal_losses: int = 0

    def count(self, stats: Stats, first_s: float, whole_s: float, *, changed: bool) -> None:
        """Count an answer."""
        self.first_s.append(first_s)
        self.whole_s.append(whole_s)
        self.tokens += stats.new_tokens
        self.rounds += stats.rounds
        self.hidden_drafting_s += stats.hidden_drafting_s
        self.hidden_inside_s += stats.hidden_inside_s
        self.changes += changed

    @property
    def unfinished(self) -> int:
        """Windows that were due when the watch was ended."""
        return self.due - self.answered - self.dropped

    @property
    def rate(self) -> float:
        """Answered windows a second."""
        return self.answered / self.seconds if self.seconds else 0.0

    @property
    def tau(self) -> float | None:
        """Mean acceptance length of all answers together; `None` if there is none."""
        return self.tokens / self.rounds if self.rounds else None

    @property
    def hidden_share(self) -> float | None:
        """Part of the hidden drafting that ran while the target read; `None` if there was none."""
        return self.hidden_inside_s / self.hidden_drafting_s if self.hidden_drafting_s else None

    def to_json(self) -> dict[str, object]:
        """Plain values; times in milliseconds."""
        tau, share = self.tau, self.hidden_share
        return {
            "windows_due": self.due,
            "windows_answered": self.answered,
            "windows_dropped": self.dropped,
            "windows_unfinished": self.unfinished,
            "seconds": round(self.seconds, 3),
            "windows_per_s": round(self.rate, 3),
            "answers": len(self.whole_s),
            "changes": self.changes,
            "last_frame_to_first_token_ms": percentiles_ms(self.first_s),
            "last_frame_to_whole_answer_ms": percentiles_ms(self.whole_s),
            "hidden_share": None if share is None else round(share, 3),
            "tau": None if tau is None else round(tau, 3),
            "late_ms": round(self.late_s * 1e3, 1),
            "signal_losses": self.signal_losses,
        }

    def sentences(self) -> list[str]:
        """Sentences for people on the summary."""
        return sentences(self.to_json())


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Sentences for people on the values that `WatchSummary.to_json` returns."""
    first, whole = found["last_frame_to_first_token_ms"], found["last_frame_to_whole_answer_ms"]
    unfinished, tau, share = found["windows_unfinished"], found["tau"], found["hidden_share"]
    left = f", {unfinished} unfinished" if unfinished else ""
    answered, dropped = found["windows_answered"], found["windows_dropped"]
    counted = f"{answered} answered ({found['windows_per_s']:.2f} a second), {dropped} dropped{left}"
    windows = "1 window" if found["windows_due"] == 1 else f"{found['windows_due']} windows"
    lines = [f"{windows} in {found['seconds']:.1f} s: {counted}; {found['changes']} changed answers."]
    if first is not None and whole is not None:
        lines.append(
            f"From a window's last frame to the first token {first['p50']:.0f} ms (p99 {first['p99']:.0f}), to the "
            f"whole answer {whole['p50']:.0f} ms (p99 {whole['p99']:.0f}), over {found['answers']} answers."
        )
    figures = [] if tau is None else [f"tau {tau:.2f}"]
    figures += [] if share is None else [f"hidden share {100 * share:.0f} %"]
    lines += [f"No signal {found['signal_losses']} times."] if found.get("signal_losses") else []
    return lines + ([", ".join(figures).capitalize() + "."] if figures else [])


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float] | None:
    """Median and 99th percentile in milliseconds, linearly interpolated; `None` for no values.

    >>> percentiles_ms([0.1, 0.2, 0.3])
    {'p50': 200.0, 'p99': 298.0}
    """
    if not seconds:
        return None
    p50, p99 = np.percentile(np.asarray(seconds) * 1e3, [50, 99])
    return {"p50": round(float(p50), 2), "p99": round(float(p99), 2)}
