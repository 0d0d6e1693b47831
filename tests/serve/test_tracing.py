"""OpenTelemetry spans."""

import httpx
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from crossdraft.serve.tracing import SpanRecorder
from tests.serve.conftest import body

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_request_is_a_span_with_the_models_work_below_it(start):
    server, kept = start(), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    server.service.spans = SpanRecorder("reference", provider)
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
    found = server.post(body(max_tokens=4), headers=headers)
    assert found.status_code == 200
    httpx.get(f"{server.url}/nothing")
    spans = kept.get_finished_spans()
    outer = next(one for one in spans if one.name == "POST /v1/chat/completions")
    assert (outer.context.trace_id, outer.parent.span_id) == (int(TRACE, 16), int(PARENT, 16))
    assert outer.attributes["crossdraft.request_id"] == "mine"
    assert outer.attributes["gen_ai.usage.output_tokens"] == 4
    inner = [one for one in spans if one.parent is not None and one.parent.span_id == outer.context.span_id]
    assert "target prepare" in {one.name for one in inner}
    assert all(outer.start_time <= one.start_time <= one.end_time <= outer.end_time for one in inner)
    assert next(one for one in spans if one.name == "GET /nothing").attributes["crossdraft.status"] == 404


def test_the_tokens_of_several_answers_are_counted_together(start):
    server, kept = start(), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    server.service.spans = SpanRecorder("reference", provider)
    found = server.post(body(max_tokens=4, n=2, temperature=1.0, seed=1, ignore_eos=True))
    assert found.json()["usage"]["completion_tokens"] == 8
    (outer,) = (one for one in kept.get_finished_spans() if one.name == "POST /v1/chat/completions")
    assert outer.attributes["gen_ai.usage.output_tokens"] == 8
