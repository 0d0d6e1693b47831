# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
"""The application for `serve run` and `serve.run`: a router on the head node, replicas wherever there is room."""

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from crossdraft.serve.settings import read_settings
from crossdraft_ray.replica import Replica
from crossdraft_ray.router import Router

# Ray's own session affinity: a ring of hashes, on which a replica that has no room passes to the next.
CONSISTENT_HASH = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
MOST_BACKOFF_S = 0.1  # longest pause between two checks for a replica with room
HEAD_NODE = {"node:__internal_head__": 0.001}
ROUTED = 1_000  # requests that are passed on at a time


def application(args: Mapping[str, Any]) -> serve.Application:
    """Bind the application: one router and its replicas.

    Args:
        args: `min_replicas`, `max_replicas` (default 1), `cpus` and `gpus` of a replica (1, 0), and settings of
            `crossdraft serve`, each by its name.

    Raises:
        CrossdraftError: a setting is unknown or out of range.
    """
    given = dict(args)
    least = int(given.pop("min_replicas", 1))
    most = max(least, int(given.pop("max_replicas", least)))
    cpus, gpus = float(given.pop("cpus", 1)), float(given.pop("gpus", 0))
    settings = read_settings(None, given)
    batch, queue = settings.engine.max_batch, settings.engine.max_queue or 0
    count: dict[str, Any] = {"num_replicas": most}
    if least < most:
        # Ray adds a replica while more than a batch of requests runs on each.
        bounds = {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": batch}
        count = {"autoscaling_config": AutoscalingConfig(**bounds)}
    replicas = serve.deployment(Replica).options(
        name="replica",
        # A batch, and as many to read meanwhile; the rest goes to other replicas, even if it is about the same clip.
        max_ongoing_requests=batch + min(batch, queue),
        max_queued_requests=queue,
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        graceful_shutdown_timeout_s=settings.drain_seconds,
        request_router_config=RequestRouterConfig(
            request_router_class=CONSISTENT_HASH,
            request_router_kwargs={"num_fallback_replicas": most - 1},
            max_backoff_s=MOST_BACKOFF_S,
        ),
        **count,
    )
    router = serve.deployment(Router).options(
        name="router", max_ongoing_requests=ROUTED, ray_actor_options={"num_cpus": 0, "resources": HEAD_NODE}
    )
    return router.bind(replicas.bind(settings.model_dump(mode="json")), settings.parts, settings.body_bytes)
