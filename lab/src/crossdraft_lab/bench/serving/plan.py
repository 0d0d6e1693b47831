"""Settings of `crossdraft bench serve`, and the questions that it asks."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from crossdraft.checks import positive, whole
from crossdraft.engine.request import Request
from crossdraft.serve.settings import ServerSettings, read_settings
from crossdraft_lab.bench.workload import Item

CACHE_BYTES = 256 << 20  # of the prefix cache: it is full soon, so that steady memory shows
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class ServePlan:
    """Settings of a measurement of the server.

    Args:
        folder: folder for clips and the server's log.
        target, drafter: as for `crossdraft serve`.
        pairs: number of questions, each about a clip of its own.
        repeats: starts of the server in the comparison with its engine, and blocks in the comparison with vLLM.
        max_new_tokens: the longest answer.
        max_batch, max_queue: settings of the server.
        clients: number of clients that ask at the same time.
        seconds: duration of the load by `clients`.
        cancels: number of streams that are left early.
        kills: number of times that the drafter is killed under load.
        seed: seed of all random choices.
        vllm_python: interpreter of an environment with vLLM, whose server gets the same requests; `None` leaves it out.
        levels: numbers of clients in the comparison with vLLM.
    """

    folder: Path
    target: str = "reference"
    drafter: str = "auto"
    pairs: int = 24
    repeats: int = 4
    max_new_tokens: int = 96
    max_batch: int = 4
    max_queue: int = 8
    clients: int = 50
    seconds: float = 300.0
    cancels: int = 200
    kills: int = 3
    seed: int = 0
    vllm_python: Path | None = None
    levels: tuple[int, ...] = (1, 4, 16)

    def __post_init__(self) -> None:
        for name in ("pairs", "repeats", "max_new_tokens", "max_batch", "max_queue"):
            whole(name, getattr(self, name))
        for name in ("clients", "cancels", "kills"):
            whole(name, getattr(self, name), least=0)
        positive("seconds", self.seconds)

    @property
    def arguments(self) -> dict[str, Any]:
        """The server's settings."""
        return {
            "target": self.target,
            "drafter": self.drafter,
            "max_batch": self.max_batch,
            "max_queue": self.max_queue,
            "media_root": str(self.folder / "clips"),
            "cache_bytes": CACHE_BYTES,
        }

    def flags(self, **others: object) -> list[str]:
        """Return `arguments` as flags of a command line; `others` replace or extend them."""
        values = (self.arguments | others).items()
        return [part for name, value in values for part in (f"--{name.replace('_', '-')}", _text(value))]

    @property
    def settings(self) -> ServerSettings:
        """`arguments` as settings of an engine in the bench's own process."""
        return read_settings(None, self.arguments)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True, slots=True)
class Question:
    """A question in the server's form and in the engine's, and the answer of the target alone."""

    body: bytes
    request: Request
    text: str = ""


def question(plan: ServePlan, item: Item) -> Question:
    """Convert a pair of the workload into a question."""
    request = replace(item.request, namespace="")
    video, events = Path(str(request.video)).name, Path(str(request.events)).name
    shown = [
        {"type": "video_url", "video_url": {"url": f"file:{video}"}},
        {"type": "event_url", "event_url": {"url": f"file:{events}"}},
        {"type": "text", "text": request.prompt},
    ]
    body = {
        "model": plan.settings.model,
        "messages": [{"role": "user", "content": shown}],
        "max_tokens": plan.max_new_tokens,
        "temperature": 0,
    }
    return Question(json.dumps(body).encode(), request)


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in milliseconds; an empty dict for no values."""
    if not seconds:
        return {}
    values = np.percentile(np.asarray(seconds) * 1e3, [50, 95, 99, 100])
    return {name: round(float(value), 3) for name, value in zip(("p50", "p95", "p99", "max"), values, strict=True)}
