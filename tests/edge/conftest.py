"""A real server whose drafter is at the edge, once for all tests, and the reference pair's event drafter."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from crossdraft import Engine, Request
from crossdraft.edge.client import EdgeAnswer, EdgeClient
from crossdraft.edge.frames import fingerprint_of
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.sampling import Sampling
from crossdraft.load import tokenizer_of
from crossdraft.methods import build
from crossdraft.records import DrafterContext
from crossdraft.serve.service import load_engine
from crossdraft.serve.settings import ServerSettings, read_settings
from tests.serve.conftest import Runner, Running, with_clip

QUESTION = "What is the car in front doing?"
TOKENS = 24


@pytest.fixture(scope="session")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_clip(tmp_path_factory.mktemp("edge"))


def settings(**more) -> ServerSettings:
    """Nothing is kept of a clip, so that there is a prefill to draft in."""
    given = {"max_batch": 2, "max_queue": 4, "drafter": "edge", "cache_bytes": 0}
    return read_settings(None, {**given, **more})


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with load_engine(settings()) as engine:
        yield engine


@pytest.fixture
def start(engine: Engine, media: Path):
    """Starts a server."""
    runner, started = Runner(engine, media), []

    def begin(**more) -> Running:
        started.append(runner.start(settings(media_root=media, **more)))
        return started[-1][0]

    yield begin
    for one in started:
        runner.stop(*one)


@pytest.fixture(scope="session")
def drafter(engine: Engine) -> Drafter[Any]:
    target = engine.target
    banned = tuple(sorted(target.reserved))
    return build("event", DrafterContext(vocab_size=target.vocab_size, eos=tuple(target.eos), banned=banned))


@pytest.fixture(scope="session")
def fingerprint() -> bytes:
    return fingerprint_of(tokenizer_of("reference").get_vocab())


@pytest.fixture(scope="session")
def alone(engine: Engine, media: Path) -> tuple[int, ...]:
    return engine.alone(Request(QUESTION, str(media / "clip.mp4"), max_new_tokens=TOKENS)).tokens


def chat(question: str = QUESTION, **more) -> dict[str, object]:
    content = [{"type": "video_url", "video_url": {"url": "file:clip.mp4"}}, {"type": "text", "text": question}]
    messages = [{"role": "user", "content": content}]
    return {"model": "reference", "messages": messages, "max_tokens": TOKENS, "temperature": 0, **more}


@dataclass
class Edge:
    """Asks as `crossdraft edge` does."""

    fingerprint: bytes
    drafter: Drafter[Any]
    recording: Path

    def request(self, **sampling) -> Request:
        drawn = Sampling(**({"temperature": 0.0} | sampling))
        return Request(QUESTION, events=str(self.recording), max_new_tokens=TOKENS, sampling=drawn)

    def client(self, address: str, key: str | None = None, **more) -> EdgeClient:
        return EdgeClient(address, key, "event", self.fingerprint, **more)

    def ask(self, client: EdgeClient, show=lambda *piece: None, *, drafts: bool = True, **sampling) -> EdgeAnswer:
        asked = self.request(**sampling)
        body = chat(**({"temperature": 0} | {k: v for k, v in sampling.items() if v is not None}))
        return client.ask(body, asked, self.drafter if drafts else None, show)


@pytest.fixture
def edge(fingerprint: bytes, drafter: Drafter[Any], media: Path) -> Edge:
    return Edge(fingerprint, drafter, media / "clip.h5")
