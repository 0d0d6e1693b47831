"""The network side: uvicorn on our connections, and an orderly shutdown."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from types import FrameType

import uvicorn

from crossdraft.serve.app import create_app
from crossdraft.serve.connections import ServerLoop, protocols
from crossdraft.serve.gate import MOST_HEAD
from crossdraft.serve.service import Service
from crossdraft.serve.tls import server_context
from crossdraft.signals import handled
from crossdraft.streams.messages import MESSAGE_BYTES

log = logging.getLogger("crossdraft.serve")

IDLE_S = 5  # seconds that a connection may be idle between two requests
POLL_S = 0.05


class DrainingServer(uvicorn.Server):
    """A server that, on SIGTERM and on Ctrl-C, refuses new requests, ends the running ones, and exits with status 0.

    While it drains it still listens, so that `/ready` and new requests are answered 503. A second signal, or the
    deadline, ends the remaining requests with an error.

    Args:
        config: uvicorn's configuration.
        service: the service that is served.
        started: called once the server listens.
    """

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._service, self._tell_started = service, started
        self._draining: asyncio.Task[None] | None = None
        self._hurried = False

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until it is told to end."""
        with asyncio.Runner(loop_factory=partial(ServerLoop, self._service.settings)) as runner:
            runner.run(self.serve(sockets=sockets))

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Install our handlers while the server runs; uvicorn would raise the signal again after its end."""
        return handled(self.handle_exit, signal.SIGTERM, signal.SIGINT)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        self._tell_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note a signal: the first asks for an orderly shutdown, the second for an immediate one."""
        # A handler may interrupt code that holds the engine's locks, so the work that it asks for is done by `_drain`.
        self._hurried = self._service.draining
        self._service.draining = True

    async def on_tick(self, counter: int) -> bool:
        """Start to drain if a signal asked for it; called every tenth of a second."""
        if self._service.draining and self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        return await super().on_tick(counter)

    async def _drain(self) -> None:
        seconds = self._service.settings.drain_seconds
        log.info("shutting down: no more requests, %s run", self._service.active)
        until = asyncio.get_running_loop().time() + seconds
        while self._service.active and not self._hurried and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(POLL_S)
        if self._service.active:
            log.warning("%s requests did not end in time", self._service.active)
            await asyncio.to_thread(self._service.engine.close)  # ends them with an error
        self.should_exit = True


def configured(service: Service) -> uvicorn.Config:
    """Make uvicorn's configuration for a service."""
    tls = server_context(service.settings)
    http, ws = protocols(service.settings)
    return uvicorn.Config(
        create_app(service),
        http=http,
        ws=ws,
        ws_max_size=MESSAGE_BYTES,
        ws_per_message_deflate=False,
        loop="asyncio",
        ssl_context_factory=None if tls is None else lambda config, default: tls,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=MOST_HEAD,
        proxy_headers=False,
    )
