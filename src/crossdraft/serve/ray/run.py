# pyright: basic, reportMissingImports=false
"""`crossdraft serve --ray`: a cluster found or started, replicas deployed, and the proxy until a signal."""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from crossdraft.errors import CrossdraftError
from crossdraft.serve.app import guarded
from crossdraft.serve.ray.proxy import ReplicaProxy
from crossdraft.serve.server import config_of, run
from crossdraft.serve.settings import ServerSettings

log = logging.getLogger("crossdraft.serve")

LEAST_STORE = 128 << 20  # bytes of the object store, through which bodies beyond 100 kB go


@contextmanager
def cluster(settings: ServerSettings) -> Iterator[None]:
    """Connected to the cluster that RAY_ADDRESS names, else to one of this machine, which ends with the context.

    Raises:
        CrossdraftError: it cannot be reached, or its token is not ours.
    """
    # Whoever reaches Ray's ports may run code, and it listens on all addresses: with a token, only who has that. Set
    # before Ray is imported. A cluster that is there already has a mode of its own, which Ray looks after.
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray import serve
    from ray.exceptions import RaySystemError

    quiet = {"log_to_driver": False, "logging_level": logging.WARNING}
    try:
        if address:
            ray.init(address, **quiet)
        else:
            store = max(LEAST_STORE, settings.bodies_bytes)
            ray.init("local", object_store_memory=store, include_dashboard=False, **quiet)
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.start(proxy_location="Disabled")
    except (ConnectionError, RuntimeError, ValueError, RaySystemError) as error:
        ray.shutdown()
        raise CrossdraftError(f"The Ray cluster {address or ''} cannot be used: {error}") from None
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def deployed(settings: ServerSettings) -> Iterator[ReplicaProxy]:
    """The proxy of replicas that run as long as the context. Use within `cluster`.

    Raises:
        CrossdraftError: they cannot be started.
    """
    from ray import serve

    from crossdraft.serve.ray.replicas import RayReplicas, application

    name = settings.ray_app
    try:
        handle = serve.run(application(settings), name=name, route_prefix=None)
    except RuntimeError as error:
        serve.delete(name)
        raise CrossdraftError(f"The replicas did not start: {error}") from None
    try:
        yield ReplicaProxy(settings, RayReplicas(handle))
    finally:
        serve.delete(name)


def serve_on_ray(settings: ServerSettings, listener: socket.socket, started: Callable[[], None]) -> None:
    """Serve until a signal."""
    with cluster(settings), deployed(settings) as proxy:
        run(proxy, config_of(guarded(proxy, proxy), settings), [listener], started)
