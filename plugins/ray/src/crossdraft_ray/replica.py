"""A replica: the server's application with an engine of its own, called through Ray in place of a network."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.types import Message, Scope

from crossdraft.serve.app import create_app
from crossdraft.serve.logs import start_logging
from crossdraft.serve.service import Service, load_engine
from crossdraft.serve.settings import ServerSettings
from crossdraft_ray.called import called


class Replica:
    """One server of several, as Ray Serve starts it.

    Args:
        settings: settings of the server, as plain values.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        read = ServerSettings(**settings)
        start_logging(read.log_format)
        self._engine = load_engine(read)
        try:
            self._service = Service(read, self._engine)
        except BaseException:
            self._engine.close()
            raise
        self._app = create_app(self._service)

    async def answer(self, scope: Scope, body: bytes) -> AsyncGenerator[Message]:
        """Yield the messages of a response; a cancelled call counts as a client that left."""
        async with aclosing(called(self._app, scope, body)) as messages:
            async for message in messages:
                yield message

    def check_health(self) -> None:
        """Called by Ray again and again; a replica whose engine has stopped is replaced."""
        if self._engine.closed:
            raise RuntimeError("The engine has stopped.")

    def __del__(self) -> None:
        """Called by Ray once no request runs any more, before the replica's process ends."""
        if hasattr(self, "_app"):
            self._service.close()
            self._engine.close()
