# pyright: basic, reportMissingImports=false
"""A Ray cluster to work on: the one that RAY_ADDRESS names, else one of this machine's own."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from crossdraft.errors import CrossdraftError

LEAST_STORE = 128 << 20  # bytes of the object store, through which what is larger than 100 kB goes


@contextmanager
def ray_cluster(store_bytes: int = LEAST_STORE) -> Iterator[None]:
    """Connected to a cluster. One that was started for this ends with the context.

    Args:
        store_bytes: of shared memory for what is on its way between processes, in a cluster that is started here.

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
    from ray.exceptions import RayError

    try:
        if address:
            ray.init(address, log_to_driver=False, logging_level=logging.WARNING)
        else:
            ray.init(
                "local",
                object_store_memory=max(LEAST_STORE, store_bytes),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
    except (OSError, RuntimeError, ValueError, RayError) as error:
        ray.shutdown()
        sentence = str(error).strip().partition("\n")[0]
        raise CrossdraftError(f"The Ray cluster {address or 'of this machine'} cannot be used: {sentence}") from None
    try:
        yield
    finally:
        ray.shutdown()
