"""The metrics at `/metrics`: vLLM's names under our prefix, and those of hidden drafting."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from crossdraft.compressions import BudgetStatus
from crossdraft.engine.request import Finish
from crossdraft.engine.stats import Stats

PREFIX = "crossdraft"
LABEL = "model_name"  # vLLM's label
FIRST_S = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
TOKEN_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
WHOLE_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 60, 120, 300)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class FinishedReason(StrEnum):
    """The reason why an answer ended, in vLLM's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


FINISHED = {
    Finish.EOS: FinishedReason.STOP, Finish.STOP: FinishedReason.STOP, Finish.LENGTH: FinishedReason.LENGTH,
    Finish.TIME: FinishedReason.LENGTH, Finish.CANCELLED: FinishedReason.ABORT,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerState:
    """A server's current state.

    Args:
        running, waiting: numbers of requests that share passes, and that wait.
        cached_bytes: bytes of decoded media that are cached.
        upload_bytes: bytes of uploads.
        drafter: true if there is a drafter and it runs.
        rows: number of rows of the target's cache that are in use.
        prefill: state of the quality budget of a speculative prefill; `None` = there is none.
    """

    running: int
    waiting: int
    cached_bytes: int
    upload_bytes: int
    drafter: bool
    rows: int
    prefill: BudgetStatus | None


class Metrics:
    """The counters of one server, in a registry of their own.

    Args:
        model: name of the model, a label of each metric.
        state: returns the server's state; called at each scrape.
    """

    def __init__(self, model: str, state: Callable[[], ServerState]) -> None:
        self._registry, self._model = CollectorRegistry(), model
        self._labels: dict[tuple[Counter, object], Counter] = {}
        self._registry.register(StateCollector(model, state))

        self._prompt = self._counter("prompt_tokens", "Prompt tokens.")
        self._generated = self._counter("generation_tokens", "Generated tokens.")
        self._queries = self._counter("prefix_cache_queries", "Prompt tokens that were looked up in the prefix cache.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens that the prefix cache knew.")
        self._success = self._labelled("request_success", "Answers, by how they ended.", "finished_reason")
        for reason in FinishedReason:  # so that each series exists from the start
            self._of(self._success, reason)
        self._refused = self._counter("admission_rejections", "Requests that found the queue full.")
        self._failed = self._labelled(
            "request_failure", "Requests that were refused or failed, by HTTP status.", "status"
        )
        self._drafts = self._counter("spec_decode_num_drafts", "Verify passes with a draft.")
        self._draft_tokens = self._counter("spec_decode_num_draft_tokens", "Drafted tokens.")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Accepted tokens.")
        self._accepted_at = self._labelled(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted tokens, by their position in the draft.", "position"
        )
        self._hidden = self._counter("spec_decode_num_hidden_draft_tokens", "Tokens of hidden drafts.")
        self._hidden_accepted = self._counter("spec_decode_num_hidden_accepted_tokens", "Those that were accepted.")
        self._passes = self._counter("spec_verify_calls", "Verify passes, drafts or not.")
        self._bad = self._counter("spec_decode_num_bad_drafts", "Drafts that could not be read.")

        self._ttft = self._histogram("time_to_first_token_seconds", "To the first final token.", FIRST_S)
        self._provisional = self._histogram("time_to_first_provisional_seconds", "To the first drafted token.", FIRST_S)
        self._tpot = self._histogram("request_time_per_output_token_seconds", "Per token after the first.", TOKEN_S)
        self._e2e = self._histogram("e2e_request_latency_seconds", "To the whole answer.", WHOLE_S)
        self._queue = self._histogram("request_queue_time_seconds", "In the queue.", FIRST_S)
        self._media = self._histogram("request_media_time_seconds", "Finding and decoding media.", FIRST_S)
        self._share = self._histogram("hidden_share", "Part of hidden drafting that ran while the target read.", SHARES)

    def answered(self, stats: Stats, finish: Finish) -> None:
        """Count an answer that is over, with its figures."""
        self.ended(FINISHED[finish])
        for counter, value in (
            (self._prompt, stats.prompt_tokens),
            (self._generated, stats.new_tokens),
            (self._queries, stats.prompt_tokens),
            (self._hits, stats.cached_tokens),
            (self._drafts, next(iter(stats.drafted_at), 0)),
            (self._draft_tokens, stats.drafted),
            (self._accepted, stats.accepted),
            (self._hidden, stats.hidden_drafted),
            (self._hidden_accepted, stats.hidden_accepted),
            (self._passes, stats.rounds),
            (self._bad, stats.bad_drafts),
        ):
            if value:
                counter.inc(value)
        for position, (more, fewer) in enumerate(pairwise([*stats.accepted_at, 0])):
            if more or fewer:
                self._of(self._accepted_at, position).inc(more)
        self._queue.observe(stats.queued_s)
        if stats.new_tokens:
            self._ttft.observe(stats.queued_s + stats.ttft_s)
            self._e2e.observe(stats.queued_s + stats.total_s + stats.check_s)
        if stats.new_tokens > 1:
            self._tpot.observe((stats.total_s - stats.ttft_s) / (stats.new_tokens - 1))
        if stats.first_provisional_s is not None:
            self._provisional.observe(stats.queued_s + stats.first_provisional_s)
        if stats.hidden_share is not None:
            self._share.observe(stats.hidden_share)

    def ended(self, reason: FinishedReason) -> None:
        """Count an answer that was begun and is over, whether or not it reached a client."""
        self._of(self._success, reason).inc()

    def media_loaded(self, seconds: float) -> None:
        """Record the seconds that the media of a request took to load."""
        self._media.observe(seconds)

    def refused(self) -> None:
        """Count a request that was refused because the queue was full."""
        self._refused.inc()

    def failed(self, status: int) -> None:
        """Count a request that was refused or failed."""
        self._of(self._failed, status).inc()

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def _of(self, counter: Counter, label: object) -> Counter:
        """Counter of one label, cached here: prometheus_client's own look-up takes longer than counting."""
        key = counter, label
        if (found := self._labels.get(key)) is None:
            found = self._labels[key] = counter.labels(self._model, str(label))
        return found

    def _counter(self, name: str, description: str) -> Counter:
        return self._labelled(name, description).labels(self._model)

    def _labelled(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}:{name}", description, (LABEL, *labels), registry=self._registry)

    def _histogram(self, name: str, description: str, buckets: tuple[float, ...]) -> Histogram:
        found = Histogram(f"{PREFIX}:{name}", description, (LABEL,), registry=self._registry, buckets=buckets)
        return found.labels(self._model)


class StateCollector(Collector):
    """A server's state at each scrape, with the budget of its speculative prefill if it has one.

    Args:
        model: name of the model, a label of each metric.
        state: returns the server's state.
    """

    def __init__(self, model: str, state: Callable[[], ServerState]) -> None:
        self._model, self._state = model, state

    def collect(self) -> Iterator[Metric]:
        """All metrics of the server's state."""
        state = self._state()
        yield self._gauge("num_requests_running", "Requests that share passes.", state.running)
        yield self._gauge("num_requests_waiting", "Requests that wait.", state.waiting)
        yield self._gauge("media_cache_bytes", "Decoded frames that are kept.", state.cached_bytes)
        yield self._gauge("upload_bytes", "Uploads.", state.upload_bytes)
        yield self._gauge("drafter_alive", "1 while there is a drafter that runs.", state.drafter)
        yield self._gauge("num_cache_rows", "Rows of the target's cache that are in use.", state.rows)
        if state.prefill is not None:
            yield from self._prefill(state.prefill)

    def _prefill(self, status: BudgetStatus) -> Iterator[Metric]:
        """Yield the threshold, the numbers of requests by the way they were read, and the results of checks."""
        name, described = f"{PREFIX}:speculative_prefill", "Requests, by how they were read."
        yield self._gauge("speculative_prefill_threshold", "The gate's confidence that is asked for.", status.threshold)
        yield self._gauge("speculative_prefill_budget", "1 - ROUGE-L that may be lost on average.", status.budget)
        reads = CounterMetricFamily(f"{name}_requests", described, labels=[LABEL, "read"])
        for read, count in status.counts.items():
            reads.add_metric([self._model, read], count)
        loss = SummaryMetricFamily(f"{name}_check_loss", "1 - ROUGE-L that checks have found.", labels=[LABEL])
        loss.add_metric([self._model], status.compared, status.loss)
        yield from (reads, loss)

    def _gauge(self, name: str, description: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(f"{PREFIX}:{name}", description, labels=[LABEL])
        gauge.add_metric([self._model], value)
        return gauge
