"""OpenTelemetry spans: one a request, below it what the target and the drafter did for the answer.

They are made when a request is over, of what was measured anyway. Where they go is OpenTelemetry's own affair:
`OTEL_EXPORTER_OTLP_ENDPOINT` and its companions. A client's `traceparent` is the parent.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from crossdraft.engine.request import Answer
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


class SpanRecorder:
    """Makes spans. Close it, so that none is lost.

    Args:
        model: the model's name.
        provider: of tracers; by default one that exports by OTLP over HTTP.

    Raises:
        CrossdraftError: OpenTelemetry is not installed.
    """

    def __init__(self, model: str, provider: "TracerProvider | None" = None) -> None:
        self._model, self._provider = model, provider or _exporting()
        self._tracer = self._provider.get_tracer("crossdraft")
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()

    def record(
        self, name: str, since: float, headers: Mapping[str, str], facts: Mapping[str, object], answer: Answer | None
    ) -> None:
        """A request that is over now.

        Args:
            name: of its span.
            since: when it came, by `time.perf_counter`.
            headers: the client's, of which `traceparent` is read.
            facts: what else is known of it.
            answer: if it has one.
        """
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, set_span_in_context

        parent = extract({key: headers[key] for key in ("traceparent", "tracestate") if key in headers})
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, start_time=self._ns(since))
        for fact, value in facts.items():
            if isinstance(value, str | int | float):
                span.set_attribute(f"crossdraft.{fact}", value)
        if answer is not None:
            span.set_attribute("gen_ai.response.model", self._model)
            span.set_attribute("gen_ai.usage.input_tokens", answer.stats.prompt_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", answer.stats.new_tokens)
            below = set_span_in_context(span)
            for one in answer.timeline.spans:
                child = self._tracer.start_span(f"{one.lane} {one.name}", below, start_time=self._ns(one.start))
                child.set_attribute("crossdraft.lane", one.lane)
                child.set_attribute("crossdraft.tokens", one.tokens)
                child.end(self._ns(one.end))
        span.end(self._ns(time.perf_counter()))

    def _ns(self, seconds: float) -> int:
        """Nanoseconds since the epoch of a time by `time.perf_counter`, which timelines use, too."""
        return self._epoch_ns + round(seconds * 1e9)

    def close(self) -> None:
        """Send what is still to be sent."""
        self._provider.shutdown()


def _exporting() -> "TracerProvider":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise CrossdraftError(
            "Spans need OpenTelemetry; install it: pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        ) from None
    found = TracerProvider()
    found.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return found
