"""A proxy on loopback in front of servers of this process: what Ray does between the two is not tested here."""

import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest
from starlette.types import ASGIApp, Message, Scope

from crossdraft.serve.app import create_app, guarded
from crossdraft.serve.replicas.called import called
from crossdraft.serve.replicas.proxy import ReplicaLost, ReplicaProxy
from crossdraft.serve.server import DrainingServer, config_of
from crossdraft.serve.service import Service
from crossdraft.serve.sockets import bound_socket
from tests.serve.conftest import Running, settings


@dataclass
class LocalReplicas:
    """`proxy.Replicas` on applications of this process. `lose`: after how many messages the next calls are lost."""

    service: Service
    apps: list[ASGIApp]
    lose: list[int] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    calls: Counter = field(default_factory=Counter)

    async def answer(self, scope: Scope, body: bytes, session: str) -> AsyncGenerator[Message]:
        self.sessions.append(session)
        self.scopes.append(scope)
        self.calls["begun"] += 1
        left = self.lose.pop(0) if self.lose else None
        try:
            async with aclosing(called(self.apps[hash(session) % len(self.apps)], scope, body)) as messages:
                async for message in messages:
                    if left == 0:
                        raise ReplicaLost("its node")
                    left = None if left is None else left - 1
                    yield message
        finally:
            self.calls["ended"] += 1

    async def metrics(self, seconds: float) -> dict[str, str]:
        return {f"r{number}": self.service.metrics.text().decode() for number in range(len(self.apps))}

    async def ready(self, seconds: float) -> int:
        return len(self.apps)

    def stop(self) -> None:
        self.calls["stopped"] += 1


@dataclass(frozen=True)
class Proxied(Running):
    proxy: ReplicaProxy
    replicas: LocalReplicas


@pytest.fixture
def proxied(runner, media_root):
    """Starts a proxy with some settings."""
    started = []

    def begin(**more) -> Proxied:
        found = settings(media_root=media_root, ray=True, max_replicas=2, min_replicas=2, **more)
        service = Service(found, runner.engine)
        replicas = LocalReplicas(service, [create_app(service)] * 2)
        proxy = ReplicaProxy(found, replicas)
        listener = bound_socket("127.0.0.1", 0)
        server = DrainingServer(config_of(guarded(proxy, proxy), found), proxy)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        until = time.monotonic() + 60
        while not server.started and time.monotonic() < until:
            time.sleep(0.01)
        started.append((service, server, thread))
        return Proxied(listener.getsockname()[:2], service, media_root, proxy, replicas)

    yield begin
    for service, server, thread in started:
        server.should_exit = True
        thread.join(30)
        service.close()
