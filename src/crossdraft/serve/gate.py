"""The gate that every request passes: an id, the client's key, limits on its body, a line in the log.

Deny by default: if there are keys, every route that is not on the short public list needs one.
"""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from urllib.parse import SplitResult, quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crossdraft.checks import is_address
from crossdraft.engine.request import Answer
from crossdraft.serve.bodies import BodyLimits, ValueCounter, closing, too_large
from crossdraft.serve.errors import GONE, ApiError, as_api_error, overloaded
from crossdraft.serve.keys import Client, Keys
from crossdraft.serve.page_files import FILES
from crossdraft.serve.scopes import check_route
from crossdraft.serve.service import Service
from crossdraft.serve.settings import FORM_BYTES, ServerSettings
from crossdraft.serve.tracing import SpanRecorder

log = logging.getLogger("crossdraft.serve")

ALIVE = frozenset({"/health", "/ready"})
PUBLIC = ALIVE | FILES.keys()  # the page asks for the key
BEYOND = "beyond_connections"  # key in the scope's state, for a connection beyond the limit
UPLOAD = "/v1/files"
MOST_HEAD = 16 << 10  # bytes of all headers
MOST_HEADERS = 100
HEADS = frozenset({"http.response.start", "websocket.http.response.start", "websocket.accept"})
REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
ALWAYS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


@dataclass(slots=True)
class RequestInfo:
    """The gate's record of one request.

    Args:
        request_id: the client's own `X-Request-Id`, else a new one.
        client: client that asks.
        since: time of arrival, by `time.perf_counter`.
        facts: further facts for the log.
        answer: the answer, if the request asked for one.
        status: status of the response, once it has begun; 101 for an accepted WebSocket.
        body_bytes: number of bytes of its body that have arrived.
        arriving: true while its body is incomplete.
    """

    request_id: str
    client: Client = field(default_factory=Client)
    since: float = field(default_factory=time.perf_counter)
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    answer: Answer | None = None
    status: int = 0
    body_bytes: int = 0
    arriving: bool = False

    def refused(self, error: ApiError) -> None:
        """Note for the log why the request is refused: field, code, and the sentence for the client."""
        said = {"param": error.param, "code": error.code, "reason": error.message}
        self.facts |= {name: value for name, value in said.items() if value is not None}


RecordRequest = Callable[[RequestInfo], None]
"""Logs a finished request that came over a WebSocket, as a request over HTTP is logged."""


class FailureCounts(Protocol):
    """Counts requests that were refused or failed."""

    def failed(self, status: int) -> None: ...


class Guarded(Protocol):
    """The part of a server that the gate needs: a `Service`, or a router in front of several."""

    @property
    def settings(self) -> ServerSettings: ...
    @property
    def keys(self) -> Keys | None: ...
    @property
    def anybody(self) -> Client: ...
    @property
    def bodies(self) -> BodyLimits: ...
    @property
    def metrics(self) -> FailureCounts: ...
    @property
    def spans(self) -> SpanRecorder | None: ...


def service_of(request: Request) -> Service:
    """Return the service behind a route."""
    return request.app.state.service


def asked_by(request: Request) -> RequestInfo:
    """Return the gate's record of a request."""
    return request.state.asked


def _check_head(headers: Headers) -> None:
    """Refuse heads that are too long, or that state the body's end in two ways (request smuggling).

    Raises:
        ApiError: the head is such a one.
    """
    if sum(len(name) + len(value) for name, value in headers.raw) > MOST_HEAD or len(headers.raw) > MOST_HEADERS:
        raise ApiError(431, "The headers are too long; leave some out.", "headers_too_large")
    if "transfer-encoding" in headers and "content-length" in headers:
        raise ApiError(
            400, "The request has a length and a transfer encoding; send one.", headers={"Connection": "close"}
        )


def _check_room(scope: Scope) -> None:
    """Refuse a connection beyond the limit, unless it is for a health check.

    Raises:
        ApiError: the connection is beyond the limit; it is closed, to make room for the next one.
    """
    if scope.get("state", {}).get(BEYOND) and scope["path"] not in ALIVE:
        full = overloaded("There are as many connections as the server takes; ask again later.", "connections_full")
        full.headers["Connection"] = "close"
        raise full


def _parts(address: str) -> SplitResult:
    """Split a URL; an invalid one such as `http://[` gives empty parts."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _kind(scope: Scope) -> str:
    """The kind of a request with a body: uploads are counted separately, as in `Service.others`."""
    return UPLOAD if scope["path"] == UPLOAD else ""


def _request_id(headers: Headers) -> str:
    """The client's own request id if it is well-formed, else a new one."""
    given = headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else secrets.token_hex(16)


def _answering(send: Send, asked: RequestInfo) -> Send:
    """Wrap `send` to add the headers of all responses and note the status, also of a route's own refusals."""

    async def answer(message: Message) -> None:
        if message["type"] in HEADS:
            asked.status = message.get("status", 101)
            found = MutableHeaders(raw=message.setdefault("headers", []))
            found["x-request-id"] = asked.request_id
            for name, value in ALWAYS.items():
                found.setdefault(name, value)
        await send(message)

    return answer


class Gate:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, service: Guarded) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it here."""
        if scope["type"] == "websocket":
            await self._open(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = RequestInfo(_request_id(headers))
        answer = _answering(send, asked)
        try:
            _check_head(headers)
            _check_room(scope)
            self._check_origin(headers)
            if scope["path"] not in PUBLIC:
                self._admit(scope, headers, asked)
            scope.setdefault("state", {})["asked"] = asked
            await self._app(scope, self._bounded(scope, headers, receive, asked), answer)
        except ApiError as error:
            if asked.status:
                raise
            asked.refused(error)
            await error.response()(scope, receive, answer)
        finally:
            self._arrived(scope, asked)
            self._service.bodies.release(asked.client, asked.body_bytes)
            self._record(scope, headers, asked)

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a WebSocket pass, or refuse it with the status that a request would have."""
        headers = Headers(scope=scope)
        asked = RequestInfo(_request_id(headers))
        answer = _answering(send, asked)
        try:
            _check_head(headers)
            self._check_origin(headers)
            self._admit(scope, headers, asked)
            scope.setdefault("state", {}).update(asked=asked, record=partial(self._record, scope, headers))
            await self._app(scope, receive, answer)
        except Exception as error:
            if asked.status:
                raise
            refused = as_api_error(error)
            asked.refused(refused)
            await refused.response()(scope, receive, answer)
        finally:
            self._record(scope, headers, asked)

    def _check_origin(self, headers: Headers) -> None:
        """Refuse pages of other origins, whose requests a browser may send unasked; and foreign host names.

        Host names matter to a server without keys: a page whose own name resolves to this server (DNS rebinding) has
        the same origin, for the browser. A host that is an address is no page's name.

        Raises:
            ApiError: the origin or the host name is refused.
        """
        settings, host = self._service.settings, headers.get("host", "")
        origin = headers.get("origin")
        allowed = "*" in settings.cors_origins or origin in settings.cors_origins
        if origin is not None and not allowed and _parts(origin).netloc != host:
            raise ApiError(403, "Pages of other origins may not ask; name them in cors_origins.", "origin_refused")
        if self._service.keys is None or settings.allowed_hosts:
            name = _parts(f"//{host}").hostname or ""
            if name != "localhost" and name not in settings.allowed_hosts and not is_address(name):
                raise ApiError(
                    403, "The server is not known by this name; name it with --allowed-hosts.", "host_refused"
                )

    def _admit(self, scope: Scope, headers: Headers, asked: RequestInfo) -> None:
        """Note the client by the request's key, and refuse a route that this key may not use.

        Raises:
            ApiError: 401, no client has the key; 403, the key may not use the route.
        """
        asked.client = self._client(headers)
        check_route(scope["path"], asked.client.scopes)

    def _client(self, headers: Headers) -> Client:
        """Return the client whose key a request has.

        Raises:
            ApiError: no client has the key.
        """
        if self._service.keys is None:
            return self._service.anybody
        scheme, _, key = headers.get("authorization", "").partition(" ")
        client = self._service.keys.client(key.strip()) if scheme.lower() == "bearer" else None
        if client is None:
            raise ApiError(
                401,
                "The API key is missing or wrong; send it as Authorization: Bearer.",
                "invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return client

    def _bounded(self, scope: Scope, headers: Headers, receive: Receive, asked: RequestInfo) -> Receive:
        """Wrap `receive` so that a body that is too long or too slow is refused.

        Raises:
            ApiError: the head states too long a body, or the client is sending as many bodies as it may.
        """
        settings, bodies, uploads = self._service.settings, self._service.bodies, _kind(scope) == UPLOAD
        named = settings.upload_bytes if uploads else settings.body_bytes
        most = named + FORM_BYTES if uploads else named
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > most:
            raise too_large(f"{named:,} bytes")
        if length not in ("", "0") or "transfer-encoding" in headers:
            bodies.begin(asked.client, _kind(scope))
            asked.arriving = True
        values, ended, until = ValueCounter(), False, time.monotonic() + settings.body_seconds

        async def bounded() -> Message:
            nonlocal ended
            if ended:  # only a disconnect can come now
                return await receive()
            try:
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    message = await receive()
            except TimeoutError:
                raise closing(ApiError(408, "The body took too long to arrive; send it again.", "timeout")) from None
            part = message.get("body", b"")
            more = len(part)
            asked.body_bytes += more
            ended = not message.get("more_body", False)
            if ended:
                self._arrived(scope, asked)
            bodies.hold(asked.client, more)
            if asked.body_bytes > most:
                raise too_large(f"{named:,} bytes")
            if not uploads:
                values.push(part)
            bodies.check(asked.client)
            return message

        return bounded

    def _arrived(self, scope: Scope, asked: RequestInfo) -> None:
        """Note that a body is complete, or will never be."""
        if asked.arriving:
            asked.arriving = False
            self._service.bodies.end(asked.client, _kind(scope))

    def _record(self, scope: Scope, headers: Headers, asked: RequestInfo) -> None:
        status = asked.status
        ms = round((time.perf_counter() - asked.since) * 1e3, 1)
        address, _ = scope.get("client") or ("", 0)
        facts = {"request_id": asked.request_id, "client": asked.client.name or address, "ms": ms, **asked.facts}
        path = quote(scope["path"])[:200]  # a decoded path may hold any character, even line breaks
        method = scope.get("method", "WEBSOCKET")
        log.info("%s %s %s", method, path, status or "gone", extra={"facts": facts})
        if status >= 400 and status != GONE:
            self._service.metrics.failed(status)
        if self._service.spans is not None:
            name, more = f"{method} {path}", {"status": status}
            self._service.spans.record(name, asked.since, headers, facts | more, asked.answer)
