"""The proxy in front of replicas: it checks who asks, chooses a replica, and passes on what that sends.

A request whose replica is lost before anything of the answer was sent is asked again, once, of another. A stream that
had begun ends with one error event: what came until then is right, and the client asks again.
"""

from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any, Protocol

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from crossdraft.edge import frames as edge
from crossdraft.serve import sse
from crossdraft.serve.bodies import BodyLimits
from crossdraft.serve.errors import NO_METHOD, READ, ApiError, as_api_error, gone, no_route, overloaded
from crossdraft.serve.files import local_path, sent
from crossdraft.serve.gate import asked_by
from crossdraft.serve.keys import Client, Keys, read_keys
from crossdraft.serve.local_files import LocalFiles
from crossdraft.serve.page.static import FILES, page_file
from crossdraft.serve.replicas.metrics import ProxyMetrics
from crossdraft.serve.replicas.sticky import session_of
from crossdraft.serve.scopes import require
from crossdraft.serve.service import RequestLimits, RequestRates
from crossdraft.serve.settings import ServerSettings
from crossdraft.streams import messages as watch

ANSWERS = ("/v1/chat/completions", "/page/alone")
UPLOADS, MEDIA = "/v1/files", "/v1/media/content"
REFUSED = {
    edge.ROUTE: "Edges are not served by replicas on Ray; start a server of its own for them.",
    watch.ROUTE: "Streams are not watched by replicas on Ray; start a server of its own for them.",
}
LOOK_S = 5.0  # seconds in which all replicas must say how they are
PASSED_ON = (
    "type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "client",
    "server",
)  # fmt: skip
KEPT_BACK = frozenset({b"content-length", b"transfer-encoding", b"origin", b"x-request-id"})  # these are checked here


class ReplicaLost(Exception):
    """A replica ended, or its node did, before its response was whole."""


class Replicas(Protocol):
    """Several servers behind one proxy."""

    def answer(self, scope: Scope, body: bytes, session: str) -> AsyncGenerator[Message]:
        """The messages of the response of one of them; of the same one for the same session, while that has room.

        Raises:
            ReplicaLost: it was lost; maybe after some messages.
            ApiError: none has room, or the call was ended by `stop`.
        """
        ...

    async def metrics(self, seconds: float) -> dict[str, str]:
        """The text of `/metrics` of all that say it in time, by their names."""
        ...

    async def ready(self, seconds: float) -> int:
        """Count the replicas that report in time that they take requests."""
        ...

    def stop(self) -> None:
        """End all calls that run."""
        ...


class ReplicaProxy:
    """The application of `crossdraft serve --ray`, to be put behind the gate, and what the gate and the network need.

    Args:
        settings: of the server.
        replicas: that answer.
    """

    def __init__(self, settings: ServerSettings, replicas: Replicas) -> None:
        self.settings, self._replicas = settings, replicas
        self.draining = False
        self.bodies = BodyLimits(settings.bodies_bytes, settings.largest_body)
        self._local = LocalFiles(settings.media_root)
        self.spans = None  # the replicas' have them
        self.metrics = ProxyMetrics()
        self.anybody = Client("", settings.requests_per_minute, settings.concurrent)
        self.keys: Keys | None = None if settings.keys_file is None else read_keys(settings.keys_file, self.anybody)
        most, rates = (settings.max_batch + settings.max_queue) * settings.max_replicas, RequestRates()
        self._limits, self._others = RequestLimits(most, rates), RequestLimits(most, rates)

    @property
    def active(self) -> int:
        """Answers that run."""
        return self._limits.active

    def stop(self) -> None:
        """End what runs, with an error."""
        self._replicas.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "websocket":
            refused = REFUSED.get(scope["path"])
            raise ApiError(501, refused) if refused is not None else no_route(scope["path"])
        request = Request(scope, receive)
        try:
            found = await self._answered_here(request)
            if found is not None:
                await found(scope, receive, send)
                return
            # Other routes have no body to read. These want a key, if there are keys, and so a client has its share.
            body = await request.body() if request.method == "POST" and request.scope["path"] in ANSWERS else b""
            with self._admitted(request):
                await sse.unless_gone(receive, self._pass_on(request, body, send))
        except ClientDisconnect:
            await gone()(scope, receive, send)
        except Exception as error:
            raise as_api_error(error) from error

    async def _answered_here(self, request: Request) -> Response | None:
        """The response to what is asked of the proxy itself.

        Raises:
            ApiError: that there is not.
        """
        path = request.scope["path"]
        if path in FILES:
            if request.method not in READ:
                raise ApiError(405, NO_METHOD)
            return page_file(path)
        if path == "/health":
            return JSONResponse({"status": "ok"})
        if path == "/ready":
            ready = 0 if self.draining else await self._replicas.ready(LOOK_S)
            if not ready:
                raise overloaded("No replica takes requests now; ask again later.", "not_ready")
            return JSONResponse({"status": "ready", "replicas": ready})
        if path == "/metrics":
            text = self.metrics.text(await self._replicas.metrics(LOOK_S))
            return Response(text, media_type=CONTENT_TYPE_LATEST)
        if path == UPLOADS or path.startswith(f"{UPLOADS}/"):
            raise ApiError(
                501,
                "Replicas on Ray take no uploads, for each would have only its own; send the file as data:, or name "
                "one of the media folder.",
                "uploads_refused",
            )
        if self.draining:
            raise overloaded("The server is shutting down; ask another one.", "shutting_down")
        if path == MEDIA and request.method == "GET" and (url := request.query_params.get("url")) is not None:
            # Between a replica and here all of a file would be held, however slowly a client reads it.
            require(asked_by(request).client.scopes, "media")
            return sent(local_path(self._local, url))
        return None

    def _admitted(self, request: Request) -> AbstractContextManager[None]:
        """Counts a request, for as long as the context; raises `ApiError` where there are too many."""
        client = asked_by(request).client
        path = request.scope["path"]
        if path in ANSWERS:
            return self._limits.admitted(client)
        return self._others.admitted(client) if path.startswith("/page/events") else nullcontext()

    async def _pass_on(self, request: Request, body: bytes, send: Send) -> None:
        """Let a replica answer, or, if that is lost, another one."""
        asked = asked_by(request)
        posted = request.method == "POST"
        session = await session_of(body, asked.client, self.settings.parts) if posted else ""
        scope = _passed_on(request.scope, len(body), asked.request_id)
        for last in (False, True):
            forwarding = _Forwarding(send)
            try:
                async with aclosing(self._replicas.answer(scope, body, session)) as messages:
                    await forwarding.run(messages)
            except ReplicaLost:
                error = overloaded("The replica that answered was lost; ask again.", "replica_lost")
                if forwarding.begun or last:
                    self.metrics.lost("broken" if forwarding.begun else "refused")
                    await forwarding.end(error)
                    return
                self.metrics.lost("retried")
                asked.facts["retried"] = True
            except ApiError as error:
                await forwarding.end(error)
                return
            else:
                return


class _Forwarding:
    """Sends on the messages of a response. Its head waits for the first bytes: until then all can be taken back.

    Args:
        send: to the client.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._head: Message | None = None
        self.begun = False
        self._streams = False

    async def run(self, messages: AsyncGenerator[Message]) -> None:
        """Send all of them."""
        async for message in messages:
            if message["type"] == "http.response.start":
                self._head = message
                self._streams = (b"content-type", sse.EventStream.media_type.encode()) in _kinds(message["headers"])
                continue
            if not self.begun and self._head is not None:
                self.begun = True
                await self._send(self._head)
            await self._send(message)

    async def end(self, error: ApiError) -> None:
        """End what had begun with an event that says why.

        Raises:
            ApiError: nothing had begun, so the error is the response; or what had begun is no stream of events, and
                the connection is all that can be ended.
        """
        if not (self.begun and self._streams):
            raise error
        await self._send({"type": "http.response.body", "body": sse.data(error.body) + sse.DONE, "more_body": False})


def _kinds(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers without parameters of their values."""
    return [(name.lower(), value.partition(b";")[0].strip()) for name, value in headers]


def _passed_on(scope: Scope, length: int, request_id: str) -> Scope:
    """A request as a replica gets it: plain values, its body whole."""
    kept = [(name, value) for name, value in scope["headers"] if name.lower() not in KEPT_BACK]
    kept += [(b"content-length", str(length).encode()), (b"x-request-id", request_id.encode())]
    found: dict[str, Any] = {name: scope[name] for name in PASSED_ON if name in scope}
    return found | {"headers": kept, "state": {}}
