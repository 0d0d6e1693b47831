"""The ASGI application: one router a file, behind one gate."""

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from crossdraft import __version__
from crossdraft.errors import CrossdraftError
from crossdraft.serve import batches, chat, completions, edge, files, responses, status, watch
from crossdraft.serve.errors import NO_METHOD, ApiError, as_api_error, bad_request, gone, no_route
from crossdraft.serve.gate import Gate, Guarded, asked_by
from crossdraft.serve.openapi import OpenApi
from crossdraft.serve.page import routes as page
from crossdraft.serve.service import Service

ROUTERS = (
    batches.router,
    chat.router,
    completions.router,
    edge.router,
    files.router,
    responses.router,
    status.router,
    watch.router,
    page.router,
)


def create_app(service: Service) -> ASGIApp:
    """Build the application of a service."""
    # No pages that list the routes: such pages load scripts from other hosts.
    routes = OpenApi(title="crossdraft", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    routes.state.service = service
    routes.state.edges = edge.EdgeSessions(service.settings)
    routes.state.batches = batches.Batches(service)
    for router in ROUTERS:
        routes.include_router(router, include_in_schema=router is not page.router)
    routes.add_api_websocket_route("/{path:path}", no_websocket)
    for kind in (ApiError, CrossdraftError, ValidationError, Exception):
        routes.add_exception_handler(kind, refused)
    routes.add_exception_handler(HTTPException, unrouted)
    routes.add_exception_handler(RequestValidationError, misnamed)
    routes.add_exception_handler(ClientDisconnect, left)
    return guarded(routes, service)


def guarded(app: ASGIApp, service: Guarded) -> ASGIApp:
    """Put an application behind the gate, and behind CORS if origins are configured."""
    app = Gate(app, service)
    if service.settings.cors_origins:  # outside the gate, as a browser's preflight request has no key
        app = CORSMiddleware(
            app,
            allow_origins=list(service.settings.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],  # clients send many headers of their own (OpenAI's: x-stainless-…); none is trusted
            expose_headers=["x-request-id", "retry-after"],
        )
    return app


async def refused(request: Request, error: Exception) -> Response:
    """Handle any exception that a route raises."""
    return refused_as(request, as_api_error(error))


def refused_as(request: Request, error: ApiError) -> Response:
    """Return the response to a refused request; the reason is noted for the log."""
    asked_by(request).refused(error)
    return error.response()


async def left(request: Request, error: Exception) -> Response:
    """Handle a client that went away before its body was whole, which is no failure."""
    return gone()


async def unrouted(request: Request, error: Exception) -> Response:
    """Handle a request that no route takes."""
    code = error.status_code if isinstance(error, HTTPException) else 500
    if code == 404:
        return refused_as(request, no_route(request.scope["path"]))
    headers = error.headers if isinstance(error, HTTPException) else None
    message = NO_METHOD if code == 405 else "The request cannot be read."
    return refused_as(request, ApiError(code, message, headers=headers))


async def no_websocket(socket: WebSocket) -> None:
    """Refuse a WebSocket that no other route takes; starlette by itself would answer with an empty 403."""
    raise no_route(socket.scope["path"])


async def misnamed(request: Request, error: Exception) -> Response:
    """Handle wrong parameters of a route."""
    first = error.errors()[0] if isinstance(error, RequestValidationError) else {"loc": ["request"], "msg": "is wrong"}
    name = str(first["loc"][-1])
    return refused_as(request, bad_request(f"{name}: {first['msg']}.", name, "invalid_value"))
