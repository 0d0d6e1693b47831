"""A real server on loopback, once for all tests: the reference pair, a clip, and what a test needs to look inside."""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import openai
import pytest

from crossdraft import Engine
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request_state import RequestState
from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.serve.decode import MediaDecoder
from crossdraft.serve.server import DrainingServer, configured
from crossdraft.serve.service import Service, load_engine
from crossdraft.serve.settings import ServerSettings, read_settings
from crossdraft.serve.sockets import bound_socket
from crossdraft_lab.scenes import make_scene, split_seeds, write_clip
from tests.engine.late_target import wait_for

QUESTION = "What is the car in front doing?"


@dataclass(frozen=True)
class Running:
    """A server that runs in a thread."""

    address: tuple[str, int]
    service: Service
    root: Path

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    @property
    def engine(self) -> Engine:
        return self.service.engine

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)

    def post(self, body: object, **more) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=60, **more)

    def connection(self) -> socket.socket:
        found = socket.create_connection(self.address, timeout=20)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found

    def rows(self) -> int:
        """Rows of the engine's cache that are in use, between two rounds."""
        return self.engine._scheduler.call(lambda: self.engine.rows)


@dataclass
class Runner:
    """Starts servers, and ends them. Their decoding processes start with the first job, if there is one."""

    engine: Engine
    root: Path

    def start(self, settings: ServerSettings, **more) -> tuple[Running, DrainingServer, threading.Thread]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MediaDecoder, "warm_up", lambda decoder: None)
            service = Service(settings, self.engine, **more)
        listener = bound_socket("127.0.0.1", 0)
        server = DrainingServer(configured(service), service)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        until = time.monotonic() + 60
        while not server.started and time.monotonic() < until:
            time.sleep(0.01)
        return Running(listener.getsockname()[:2], service, self.root), server, thread

    @staticmethod
    def stop(running: Running, server: DrainingServer, thread: threading.Thread) -> None:
        server.should_exit = True
        thread.join(30)
        running.service.close()


@pytest.fixture(scope="session")
def media_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_clip(tmp_path_factory.mktemp("media"))


def with_clip(root: Path) -> Path:
    """A folder of media: a scene's clip and recording, by plain names."""
    clip = write_clip(make_scene(split_seeds("test")[0]), root)
    clip.video.rename(root / "clip.mp4")
    clip.events.rename(root / "clip.h5")
    return root


def settings(**more) -> ServerSettings:
    """Not adaptive: on a machine that is busy with other things drafts may cost more than they save."""
    ours = {"max_batch": 2, "max_queue": 4, "drafter": "glance", "placement": "process", "adaptive": False}
    return read_settings(None, ours | more)


@pytest.fixture(scope="session")
def runner(media_root: Path) -> Iterator[Runner]:
    with load_engine(settings()) as engine:
        yield Runner(engine, media_root)


@pytest.fixture(scope="session")
def server(runner: Runner, media_root: Path) -> Iterator[Running]:
    started = runner.start(settings(media_root=media_root, body_bytes=8 << 20, header_seconds=1, body_seconds=2))
    yield started[0]
    runner.stop(*started)


@pytest.fixture
def drafted_for(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target waits for what is drafted: on a busy machine it would often be first."""
    worker = getattr(server.engine.drafter, "drafter", None)
    assert isinstance(worker, ProcessDrafter)
    wait_for(monkeypatch, worker)


@dataclass
class HeldRounds:
    """Rounds of an engine that wait, once begun, until they may go on; how many have begun."""

    begun: int = 0
    go: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def held_rounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldRounds]:
    held, run_pass = HeldRounds(), DecodeLoop._pass

    def late(loop: DecodeLoop, rows: list[RequestState]) -> None:
        if any(not row.pending for row in rows):  # not one that only reads a prompt
            held.begun += 1
            assert held.go.wait(60)
        run_pass(loop, rows)

    monkeypatch.setattr(DecodeLoop, "_pass", late)
    yield held
    held.go.set()


@pytest.fixture
def start(runner: Runner, media_root: Path):
    """Starts another server on the same engine, with other settings."""
    started = []

    def begin(fetcher=None, **more) -> Running:
        started.append(runner.start(settings(media_root=media_root, **more), fetcher=fetcher))
        return started[-1][0]

    yield begin
    for one in started:
        runner.stop(*one)


def content(question: str = QUESTION, video: str | None = "file:clip.mp4", events: str | None = "file:clip.h5"):
    shown = [] if video is None else [{"type": "video_url", "video_url": {"url": video}}]
    shown += [] if events is None else [{"type": "event_url", "event_url": {"url": events}}]
    return [*shown, {"type": "text", "text": question}]


def messages(*arguments, **more):
    return [{"role": "user", "content": content(*arguments, **more)}]


def body(**more) -> dict:
    return {"model": "reference", "messages": messages(), "max_tokens": 24, **more}
