# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
"""The deployment that Ray Serve's HTTP proxy calls: it chooses a replica by the clip, and passes its response on.

A request whose replica is lost before anything of the answer was sent is asked again, once, of another. A stream that
had begun ends with one error event: what came until then is right, and the client asks again.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from grpc.aio import AioRpcError
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, WorkerCrashedError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Scope

from crossdraft.serve import sse
from crossdraft.serve.errors import ApiError, overloaded
from crossdraft_ray.sticky import session_of

LOST = (AioRpcError, NodeDiedError, ObjectLostError, RayActorError, WorkerCrashedError, ReplicaUnavailableError)
UPLOADS = ("/v1/files", "/v1/batches")
NO_UPLOADS = "Replicas take no uploads; send the file as data:, or name one of the media folder."
PASSED_ON = ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path")
OF_CONNECTION = frozenset({b"content-length", b"transfer-encoding"})


class Router:
    """Passes requests on to replicas.

    Args:
        replicas: the handle of their deployment.
        parts: images, clips and recordings that a request may hold.
        body_bytes: size of the largest body.
    """

    def __init__(self, replicas: DeploymentHandle, parts: int, body_bytes: int) -> None:
        self._replicas, self._parts, self._body_bytes = replicas, parts, body_bytes

    async def __call__(self, request: Request) -> Response:
        """Pass on a replica's response; for one clip of a client always the same replica's, while that has room."""
        if request.url.path.startswith(UPLOADS):
            return ApiError(501, NO_UPLOADS).response()
        try:
            body = await self._body(request)
            owner = request.headers.get("authorization", "")
            session = await session_of(body, owner, self._parts) if request.method == "POST" else ""
            return await self._response(_plain(request.scope, len(body)), body, session)
        except ApiError as error:
            return error.response()
        except BackPressureError:
            return overloaded("As many requests wait as may; ask again later.", "queue_full").response()
        except DeploymentUnavailableError:
            return overloaded("There are no replicas; ask again later.", "no_replicas").response()

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > self._body_bytes:
                raise ApiError(413, f"The body has more than {self._body_bytes} bytes; send less.")
        return bytes(body)

    async def _response(self, scope: Scope, body: bytes, session: str) -> Response:
        for _ in range(2):
            messages = self._messages(scope, body, session)
            try:
                head, first = await anext(messages), await anext(messages)
            except LOST:
                continue
            response = StreamingResponse(_rest(first, messages, head), head["status"])
            response.raw_headers = [(bytes(name), bytes(value)) for name, value in head["headers"]]
            return response
        raise overloaded("The replica that answered was lost; ask again.", "replica_lost")

    async def _messages(self, scope: Scope, body: bytes, session: str) -> AsyncGenerator[Message]:
        response = self._replicas.options(stream=True, session_id=session).answer.remote(scope, body)
        try:
            async for message in response:
                yield message
        finally:  # where the client has gone, the answer ends
            response.cancel()


async def _rest(first: Message, messages: AsyncGenerator[Message], head: Message) -> AsyncGenerator[bytes]:
    """Yield the rest of a response's body; a stream whose replica is lost ends with an event that says so."""
    yield first.get("body", b"")
    try:
        async with aclosing(messages):
            async for message in messages:
                yield message.get("body", b"")
    except LOST:
        if not any(value.startswith(sse.EventStream.media_type.encode()) for _, value in head["headers"]):
            raise
        yield sse.data(overloaded("The replica that answered was lost; ask again.", "replica_lost").body) + sse.DONE


def _plain(scope: Scope, length: int) -> Scope:
    """Convert a request's scope for a replica: plain values, the body whole."""
    kept = [(bytes(name), bytes(value)) for name, value in scope["headers"] if name.lower() not in OF_CONNECTION]
    found: dict[str, Any] = {name: scope[name] for name in PASSED_ON if name in scope}
    client = tuple(scope["client"]) if scope.get("client") else None
    return found | {"client": client, "headers": [*kept, (b"content-length", str(length).encode())], "state": {}}
