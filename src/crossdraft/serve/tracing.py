"""OpenTelemetry spans: one for each request, and below it those of the target and the drafter.

They are made when a request is over, from its timeline. Their destination is configured by OpenTelemetry's own
variables: `OTEL_EXPORTER_OTLP_ENDPOINT` and the like. A client's `traceparent` is the parent.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from crossdraft.engine.request import Answer
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


class SpanRecorder:
    """Records spans. Close it, so that none is lost.

    Args:
        model: name of the model.
        provider: provider of tracers; by default one that exports by OTLP over HTTP.

    Raises:
        CrossdraftError: OpenTelemetry is not installed.
    """

    def __init__(self, model: str, provider: "TracerProvider | None" = None) -> None:
        self._model, self._provider = model, provider or _exporting()
        self._tracer = self._provider.get_tracer("crossdraft")
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()

    def record(
        self, name: str, since: float, headers: Mapping[str, str], facts: Mapping[str, Any], answer: Answer | None
    ) -> None:
        """Record a request that is over now.

        Args:
            name: name of its span.
            since: its time of arrival, by `time.perf_counter`.
            headers: headers of the request, of which `traceparent` is read.
            facts: further attributes of the span.
            answer: the answer, if there is one.
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
            span.set_attribute("gen_ai.usage.output_tokens", facts.get("new_tokens", answer.stats.new_tokens))
            below = set_span_in_context(span)
            for one in answer.timeline.spans:
                child = self._tracer.start_span(f"{one.lane} {one.name}", below, start_time=self._ns(one.start))
                child.set_attribute("crossdraft.lane", one.lane)
                child.set_attribute("crossdraft.tokens", one.tokens)
                child.end(self._ns(one.end))
        span.end(self._ns(time.perf_counter()))

    def _ns(self, seconds: float) -> int:
        """Convert a time by `time.perf_counter`, which timelines use, too, to nanoseconds since the epoch."""
        return self._epoch_ns + round(seconds * 1e9)

    def close(self) -> None:
        """Export the spans that are not exported yet."""
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
