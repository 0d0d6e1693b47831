# pyright: basic, reportMissingImports=false
"""Workers of a capture as actors on a Ray cluster, each with a target of its own.

Actors and not Ray Data: a shard is large, its order matters and the index is written after each, so what Ray Data adds
(blocks, shuffles, a pool that grows) would be undone again; and it needs pyarrow and pandas.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.capture.plan import CapturePlan
from crossdraft_lab.train.capture.workers import CapturedShard, ShardRecorder, ShardTask


class RayShardWorkers:
    """So many actors; `workers.ShardWorkers`. A cluster is connected to.

    Args:
        plan: of the capture.
        count: of actors, each with a core, and with a GPU where the target is on one.

    Raises:
        CrossdraftError: the cluster has not that many cores or GPUs.
    """

    def __init__(self, plan: CapturePlan, count: int) -> None:
        device = plan.target.model.device
        gpus = int(device.type == "cuda")
        held = ray.cluster_resources()
        for name, needed in (("CPU", count), ("GPU", count * gpus)):
            if held.get(name, 0) < needed:
                raise CrossdraftError(
                    f"The cluster has {held.get(name, 0):g} {name}s, and {count} workers need {needed}; lower --ray."
                )
        self._count = count
        self._worker = ray.remote(ShardRecorder).options(num_cpus=1, num_gpus=gpus)
        # Ray shows each worker the GPU that it may use as the first one.
        self._given = (plan.info, plan.source, plan.spec, plan.batch, "cuda" if gpus else str(device))

    def capture(self, tasks: Sequence[ShardTask]) -> Iterator[CapturedShard]:
        idle = deque(self._worker.remote(*self._given) for _ in range(min(self._count, len(tasks))))
        left = deque(tasks)
        running: dict[Any, tuple[Any, ShardTask]] = {}
        while left or running:
            while idle and left:
                worker, task = idle.popleft(), left.popleft()
                running[worker.capture.remote(task)] = worker, task
            if not running:
                raise CrossdraftError("All workers of the capture were lost; run it again, and it will be resumed.")
            (done, *_), _ = ray.wait([*running], num_returns=1)
            worker, task = running.pop(done)
            try:
                shard = ray.get(done)
            except RayTaskError as error:
                raise (error.cause if isinstance(error.cause, CrossdraftError) else error) from None
            except RayActorError as error:
                if isinstance(cause := getattr(error, "cause", None), CrossdraftError):
                    raise cause from None  # of its constructor
                left.appendleft(task)  # the others do it; it comes out the same
                continue
            idle.append(worker)
            yield shard
