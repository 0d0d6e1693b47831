"""`/metrics` of several replicas: each one's own, told apart by a label."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from crossdraft.serve.metrics import PREFIX

REPLICA = "replica"  # the label


class ProxyMetrics:
    """The proxy's own counters."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._failed = Counter(
            f"{PREFIX}:proxy_request_failure",
            "Requests that got no answer, by HTTP status, as the proxy saw them.",
            ["status"],
            registry=self._registry,
        )
        self._lost = Counter(
            f"{PREFIX}:proxy_replica_lost",
            "Requests whose replica was lost, by what became of them.",
            ["outcome"],
            registry=self._registry,
        )

    def failed(self, status: int) -> None:
        """A request was refused or failed."""
        self._failed.labels(str(status)).inc()

    def lost(self, outcome: str) -> None:
        """A request's replica was lost: `retried`, `refused` or `broken` (a stream that had begun)."""
        self._lost.labels(outcome).inc()

    def text(self, replicas: Mapping[str, str]) -> bytes:
        """Prometheus' text format of these and of every replica's, by its name."""
        joined = CollectorRegistry()
        joined.register(_Joined(replicas))
        return generate_latest(self._registry) + generate_latest(joined)


class _Joined(Collector):
    """The families of metrics of several texts, with the name of the text as a label."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def collect(self) -> Iterable[Metric]:
        found: dict[str, Metric] = {}
        for name, text in self._texts.items():
            for family in text_string_to_metric_families(text):
                joined = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    joined.add_sample(sample.name, {**sample.labels, REPLICA: name}, sample.value)
        return found.values()

    def describe(self) -> Iterator[Metric]:
        """Describe nothing: the metrics show once they are collected."""
        return iter(())
