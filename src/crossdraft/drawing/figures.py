"""The figures of an answer, as short lines for people."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crossdraft.engine.request import Answer
    from crossdraft.engine.timeline import Timeline

READING = ("prepare", "encode", "prefill")  # the target's spans beside which a hidden draft is made
LATE_S = 0.05  # seconds; a drafter that has a core for itself begins sooner


@dataclass(frozen=True)
class Baseline:
    """Answer of the target alone to the same question.

    Args:
        answer: the target's answer.
        runs: number of runs of the target alone and of the pair; if more than one, both answers are of median time.
        cores: number of CPU cores that the target ran on; `None` = no limit, or no CPU.
    """

    answer: "Answer"
    runs: int = 1
    cores: int | None = None

    @property
    def where(self) -> str:
        """The number of cores the target alone ran on, for people; empty if that is not known."""
        return "" if self.cores is None else f"on {counted(self.cores, 'core', 'cores')}"

    @property
    def how_often(self) -> str:
        """The runs behind the times, for people."""
        return "one run each" if self.runs == 1 else f"median of {self.runs} runs each"


def figures(answer: "Answer", baseline: Baseline | None = None) -> list[tuple[str, str]]:
    """Make the lines (name, value) below an answer; the baseline's times stand beside the answer's."""
    stats = answer.stats
    drafting = stats.drafted > 0
    first = [("first provisional text", ms(stats.first_provisional_s))] if stats.hidden_drafted else []
    alone = None if baseline is None else baseline.answer.stats
    ttft = ms(stats.ttft_s) + ("" if alone is None else f" (target alone {ms(alone.ttft_s)})")
    total = ms(stats.total_s) + ("" if alone is None else f" (target alone {ms(alone.total_s)})")
    found = [
        *first,
        ("time to first token (TTFT)", ttft),
        ("total time (E2E)", f"{total}, {stats.new_tokens} tokens, {stats.tokens_per_s:.0f} tokens/s"),
    ]
    if drafting:
        found += [
            ("mean acceptance length τ", f"{stats.tau:.2f}, {counted(stats.rounds, 'verify pass', 'verify passes')}"),
            ("hidden draft", hidden_draft(answer) + ("" if stats.hidden_drafted else why_none(answer.timeline))),
            ("tokens by origin", ", ".join(f"{count} {origin}" for origin, count in origins(answer))),
        ]  # fmt: skip
    return [*found, *((kind, f"lossy: {name}") for kind, name in stats.lossy)]


def hidden_draft(answer: "Answer") -> str:
    """Summarise the hidden draft: its tokens, those accepted, its share while the target read."""
    stats = answer.stats
    if not stats.hidden_drafted:
        return "none"
    share = "" if stats.hidden_share is None else f", {stats.hidden_share:.0%} of its time while the target read"
    return f"{stats.hidden_drafted} tokens, {stats.hidden_accepted} accepted{share}"


def why_none(timeline: "Timeline") -> str:
    """The reason why no hidden draft was verified, as far as the timeline shows it; else empty.

    >>> from crossdraft.engine.timeline import Span, Timeline
    >>> why_none(Timeline([Span("target", "prefill", 0.0, 0.5), Span("drafter", "read", 0.44, 0.6)]))
    ': the drafter began 440 ms late (its core was busy) and was still reading when the prefill ended'
    """
    drafter = sorted((span.start, span.end, span.name) for span in timeline.spans if span.lane == "drafter")
    reading = [span for span in timeline.spans if span.lane == "target" and span.name in READING]
    if not drafter or not reading:
        return ""
    began, until = timeline.start, max(span.end for span in reading)
    start, end, name = drafter[0]
    if start >= until:
        return ": the drafter began after the prefill"
    made = next((span for span in drafter if span[2] == "hidden draft"), None)
    if made is not None and made[1] > until:
        return f": it was complete {ms(made[1] - until)} after the prefill, too late to be verified with it"
    late = f"began {ms(start - began)} late (its core was busy) and " if start - began > LATE_S else ""
    return f": the drafter {late}was still reading when the prefill ended" if name == "read" and end > until else ""


def origins(answer: "Answer") -> list[tuple[str, int]]:
    """Number of tokens of each origin."""
    return [
        (origin, sum(len(piece.tokens) for piece in answer.pieces if piece.origin.value == origin))
        for origin in ("hidden", "drafted", "target")
    ]


def counted(number: int, one: str, more: str) -> str:
    """Format a number with its noun, in the singular or plural."""
    return f"{number} {one if number == 1 else more}"


def ms(seconds: float | None) -> str:
    """Format a time for people, in ms or s."""
    if seconds is None:
        return "none"
    return f"{seconds:.2f} s" if seconds >= 10 else f"{seconds * 1e3:.0f} ms"


def one_line(answer: "Answer") -> str:
    """Join the figures that matter most to one line below an answer."""
    stats = answer.stats
    found = [f"{ms(stats.total_s)}, TTFT {ms(stats.ttft_s)}", counted(stats.new_tokens, "token", "tokens")]
    if stats.drafted:
        found += [f"τ {stats.tau:.2f}", ", ".join(f"{count} {origin}" for origin, count in origins(answer))]
    return " · ".join(found)
