# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false
"""Replicas as Ray Serve runs them: how many, where, which one answers, and how calls of theirs fail."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from grpc.aio import AioRpcError
from ray import serve
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, TaskCancelledError, WorkerCrashedError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.types import Message, Scope

from crossdraft.serve.errors import overloaded
from crossdraft.serve.replicas.proxy import ReplicaLost
from crossdraft.serve.replicas.replica import Replica
from crossdraft.serve.settings import ServerSettings

# Ray's own session affinity: a ring of hashes, on which a replica that has no room passes to the next.
ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
MOST_BACKOFF_S = 0.1  # between two looks whether a replica has room
HEALTH_PERIOD_S, HEALTH_TIMEOUT_S = 5.0, 15.0
LOST = (AioRpcError, NodeDiedError, ObjectLostError, RayActorError, WorkerCrashedError, ReplicaUnavailableError)


def at_a_time(settings: ServerSettings) -> int:
    """Requests that a replica is given at a time: a batch, and as many to read meanwhile as may wait.

    More wait at the proxy, so that a clip that everybody asks about is answered by other replicas, too.
    """
    return settings.max_batch + min(settings.max_batch, settings.max_queue)


def application(settings: ServerSettings) -> serve.Application:
    """The application for `serve.run`."""
    if settings.min_replicas == settings.max_replicas:
        count: dict[str, Any] = {"num_replicas": settings.max_replicas}
    else:
        bounds = {"min_replicas": settings.min_replicas, "max_replicas": settings.max_replicas}
        count = {"autoscaling_config": AutoscalingConfig(**bounds, target_ongoing_requests=settings.max_batch)}
    deployment = serve.deployment(Replica).options(
        name="replica",
        max_ongoing_requests=at_a_time(settings),
        max_queued_requests=settings.max_queue,
        ray_actor_options={"num_cpus": settings.replica_cpus, "num_gpus": settings.replica_gpus},
        graceful_shutdown_timeout_s=settings.drain_seconds,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        request_router_config=RequestRouterConfig(
            request_router_class=ROUTER,
            request_router_kwargs={"num_fallback_replicas": settings.max_replicas - 1},
            max_backoff_s=MOST_BACKOFF_S,
        ),
        **count,
    )
    return deployment.bind(settings.model_dump(mode="json"))


class RayReplicas:
    """The replicas behind a handle: `proxy.Replicas`."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._running: set[Any] = set()

    async def answer(self, scope: Scope, body: bytes, session: str) -> AsyncGenerator[Message]:
        response = self._handle.options(stream=True, session_id=session).answer.remote(scope, body)
        self._running.add(response)
        try:
            async for message in response:
                yield message
        except LOST as error:
            raise ReplicaLost(str(error)) from error
        except BackPressureError:
            raise overloaded(
                "As many requests wait as the server's queue holds; ask again later.", "queue_full"
            ) from None
        except DeploymentUnavailableError:
            raise overloaded("There are no replicas; ask again later.", "no_replicas") from None
        except TaskCancelledError:  # by `stop`
            raise overloaded("The server is shutting down; ask another one.", "shutting_down") from None
        except (asyncio.CancelledError, GeneratorExit):  # the client has gone
            response.cancel()
            raise
        finally:
            self._running.discard(response)

    async def metrics(self, seconds: float) -> dict[str, str]:
        return dict(await self._of_all("metrics", seconds))

    async def ready(self, seconds: float) -> int:
        return sum(await self._of_all("ready", seconds))

    async def _of_all(self, method: str, seconds: float) -> list[Any]:
        """Call a method of every replica; returns the results that come within so many seconds."""
        try:
            found = await self._handle.broadcast(method).results_async(timeout_s=seconds, return_exceptions=True)
        except TimeoutError:
            return []
        return [one for one in found if not isinstance(one, BaseException)]

    def stop(self) -> None:
        for response in [*self._running]:
            response.cancel()
