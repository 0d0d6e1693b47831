"""Everything about an answer as plain values, for `--json`."""

from collections.abc import Sequence

from crossdraft.engine.request import Answer
from crossdraft.engine.timeline import Timeline


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
            {"origin": piece.origin.value, "text": piece.text, "tokens": list(piece.tokens)} for piece in answer.pieces
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
