"""The figures of an answer, as lines for people and as plain values for `--json`."""

from collections.abc import Sequence

from crossdraft.engine.request import Answer, Origin
from crossdraft.engine.timeline import Timeline


def figures(answer: Answer) -> list[tuple[str, str]]:
    """(what, value) lines below an answer."""
    stats = answer.stats
    hidden, later, own = (
        sum(len(piece.tokens) for piece in answer.pieces if piece.origin is origin)
        for origin in (Origin.HIDDEN, Origin.DRAFTED, Origin.TARGET)
    )
    share = stats.hidden_share
    lossy = [] if stats.lossless else [("rule", f"lossy: {stats.rule}")]
    return [
        ("first provisional text", _ms(stats.first_provisional_s if stats.hidden_drafted else None)),
        ("first final text (TTFT)", _ms(stats.ttft_s)),
        ("total", f"{_ms(stats.total_s)}, {stats.new_tokens} tokens, {stats.tokens_per_s:.0f} tokens/s"),
        (
            "τ",
            f"{stats.tau:.2f} per pass (accepted and one more), {stats.rounds} passes",
        ),
        ("hidden share", "nothing was hidden" if share is None else f"{share:.0%} of the hidden drafting"),
        ("whose tokens", f"{hidden} hidden, {later} drafted later, {own} the target's own"),
        *lossy,
    ]


def record(answer: Answer, words: Sequence[str] | None = None) -> dict[str, object]:
    """Everything about an answer as plain values; times in milliseconds.

    Args:
        answer: what was answered.
        words: the text of every token, to stand beside its log-probability.
    """
    found: dict[str, object] = {
        "text": answer.text,
        "finish": answer.finish.value,
        "tokens": list(answer.tokens),
        "pieces": [
            {"origin": piece.origin.value, "text": piece.text, "tokens": list(piece.tokens)}
            for piece in answer.pieces
        ],
        "notes": list(answer.notes),
        "stats": answer.stats.to_json(),
        "timeline": spans(answer.timeline),
    }
    if answer.logprobs is not None:
        found["logprobs"] = [round(value, 4) for value in answer.logprobs]
        found["words"] = list(words or ())
    return found


def spans(timeline: Timeline) -> list[dict[str, object]]:
    """The spans in the order of their starts, in milliseconds since the first."""
    zero = timeline.start
    return [
        {
            "lane": span.lane,
            "name": span.name,
            "start_ms": round((span.start - zero) * 1e3, 3),
            "end_ms": round((span.end - zero) * 1e3, 3),
            "tokens": span.tokens,
        }
        for span in sorted(timeline.spans, key=lambda span: (span.start, span.end))
    ]


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "none"
    return f"{seconds:.2f} s" if seconds >= 10 else f"{seconds * 1e3:.0f} ms"
