"""Scopes of API keys: the parts of the server that a key may use.

A camera's key, which may be stolen with the camera, should not read the media folder or ask without limit. A key has
all scopes unless its record names some; a route that is not listed here is only for keys with all scopes.
"""

from typing import Literal, get_args

from crossdraft.serve.errors import ApiError, no_route

Scope = Literal["chat", "edge", "files", "media", "metrics", "watch"]
ALL: frozenset[Scope] = frozenset(get_args(Scope))
# A route takes keys with one of these scopes; () = any key. Uploads are each client's own; an edge uploads its clips.
ROUTES: dict[str, tuple[Scope, ...]] = {
    "/v1/chat/completions": ("chat",),
    "/v1/completions": ("chat",),
    "/v1/responses": ("chat",),
    "/v1/batches": ("chat",),
    "/page/alone": ("chat",),
    "/v1/edge": ("edge",),
    "/v1/watch": ("watch",),
    "/v1/files": ("files", "edge"),
    "/v1/media": ("media",),
    "/v1/media/content": ("media", "files"),  # a file of the media folder, or an upload: `require` decides
    "/page/events.png": ("media", "files"),  # `require` decides here, too
    "/metrics": ("metrics",),
    "/v1/models": (),
    "/openapi.json": (),
    "/version": (),
}
PREFIX = 3  # leading segments that identify a route; further ones are names, as in /v1/files/ID/content


def check_route(path: str, scopes: frozenset[Scope]) -> None:
    """Refuse a route that a key with these scopes may not use.

    Raises:
        ApiError: 403, a scope is lacking; 404, the route is unknown here, and the key does not have all scopes.
    """
    if scopes == ALL:
        return
    wanted = ROUTES.get(path, ROUTES.get("/".join(path.split("/")[:PREFIX])))
    if wanted is None:
        raise no_route(path)
    if wanted:
        require(scopes, *wanted)


def require(scopes: frozenset[Scope], *wanted: Scope) -> None:
    """Refuse a request unless its key has one of the `wanted` scopes.

    Raises:
        ApiError: 403, the key has none of them.
    """
    if scopes.isdisjoint(wanted):
        named = " or ".join(wanted)
        raise ApiError(
            403,
            f"The API key lacks the scope {named}; send another key, or let the server's keys file grant it.",
            "missing_scope",
        )
