"""The page's own files, which need no key: the page asks for it."""

from importlib.resources import files

from starlette.responses import Response

FILES = {
    "/": "index.html",
    "/page/page.css": "page.css",
    "/page/page.js": "page.js",
    "/page/icon.svg": "icon.svg",
}  # files by their URL paths
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def page_file(path: str) -> Response:
    """Response with the file of a path in `FILES`."""
    name = FILES[path]
    body = files("crossdraft.serve.page").joinpath(name).read_bytes()
    return Response(body, media_type=TYPES[name.rpartition(".")[2]], headers=HEADERS)
