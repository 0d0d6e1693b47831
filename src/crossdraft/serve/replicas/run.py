# pyright: basic, reportMissingImports=false
"""`crossdraft serve --ray`: replicas deployed on a cluster, and the proxy until a signal."""

import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from crossdraft.clusters import ray_cluster
from crossdraft.errors import CrossdraftError
from crossdraft.serve.app import guarded
from crossdraft.serve.replicas.proxy import ReplicaProxy
from crossdraft.serve.server import config_of, run
from crossdraft.serve.settings import ServerSettings


@contextmanager
def deployed(settings: ServerSettings) -> Iterator[ReplicaProxy]:
    """The proxy of replicas that run as long as the context. A cluster is connected to.

    Raises:
        CrossdraftError: they cannot be started.
    """
    from ray import serve

    from crossdraft.serve.replicas.deployment import RayReplicas, application

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(proxy_location="Disabled")
    try:
        try:
            handle = serve.run(application(settings), name=settings.ray_app, route_prefix=None)
        except RuntimeError as error:
            sentence = str(error).strip().partition("\n")[0]
            raise CrossdraftError(f"The replicas did not start; Ray's logs say more: {sentence}") from None
        yield ReplicaProxy(settings, RayReplicas(handle))
    finally:
        serve.delete(settings.ray_app)


def serve_on_ray(settings: ServerSettings, listener: socket.socket, started: Callable[[], None]) -> None:
    """Serve until a signal."""
    os.environ.setdefault("RAY_SERVE_USE_GRPC_BY_DEFAULT", "1")  # read once, by an import; half the time of a call
    by_signal = signal.getsignal(signal.SIGTERM)
    with ray_cluster(settings.bodies_bytes):
        signal.signal(signal.SIGTERM, by_signal)  # Ray's own would end its processes at once, with status 1
        with deployed(settings) as proxy:
            run(proxy, config_of(guarded(proxy, proxy), settings), [listener], started)
