"""`/v1/files`: uploads, which requests name by their ids; and the files of the media folder, for pages to show."""

import asyncio
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from crossdraft.serve.errors import READ, ApiError, bad_request
from crossdraft.serve.gate import asked_by, service_of
from crossdraft.serve.keys import Client
from crossdraft.serve.local_files import LocalFiles
from crossdraft.serve.scopes import require
from crossdraft.serve.service import Service
from crossdraft.serve.uploads import ID, Upload

router = APIRouter()

MOST_LISTED = 10_000  # OpenAI's limit
UTF_8 = (b"utf-8", b"utf8")
# A browser must treat an uploaded file only as the media that it is asked to play.
SHOWN = {"content-security-policy": "sandbox; default-src 'none'", "cache-control": "private, no-store"}
TYPES = {".mp4": "video/mp4", ".webm": "video/webm", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}


@router.post("/v1/files")
async def upload(request: Request) -> Response:
    """Store an uploaded file; the form has `file` and `purpose`, as OpenAI's clients send it."""
    service, client = service_of(request), asked_by(request).client
    service.check_ready()
    service.others.check(client)
    service.rates.count(client)
    _check_kind(request.headers.get("content-type", ""))
    try:
        return JSONResponse((await _kept(request, service, client)).to_json())
    except (MultiPartException, MultipartParseError, HTTPException):
        raise bad_request("The form is broken or has too many fields; send `file` and `purpose`.", "file") from None


def _check_kind(content_type: str) -> None:
    """Refuse a form that is not UTF-8: some of Python's other codecs make strings that no JSON can hold.

    Raises:
        ApiError: the form has another charset.
    """
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        raise bad_request("The body is no form; send the file as multipart/form-data.", "file")
    if options.get(b"charset", b"utf-8").lower() not in UTF_8:
        raise bad_request("The form is in another charset than UTF-8; leave the charset out.", "file")


async def _kept(request: Request, service: Service, client: Client) -> Upload:
    """Store the upload in a form. It counts as running while it is written, not while the client sends it."""
    async with request.form(max_files=1, max_fields=8, max_part_size=1 << 12) as form:
        file, purpose = form.get("file"), form.get("purpose", "user_data")
        if not isinstance(file, UploadFile) or not isinstance(purpose, str):
            raise bad_request("The form has no file; send one as `file`.", "file")
        name = file.filename or "file"
        with service.others.running(client):
            return await asyncio.to_thread(service.uploads.add, client.name, name, purpose, file.file)


@router.get("/v1/files")
async def listed(
    request: Request,
    purpose: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = MOST_LISTED,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Response:
    """List one page of the client's uploads, newest first or last, of one purpose, from behind the upload `after`."""
    service, owner = service_of(request), asked_by(request).client.name
    found = service.uploads.of(owner)[:: 1 if order == "desc" else -1]
    if after is not None:
        found = found[found.index(service.uploads.get(after, owner, "after")) + 1 :]
    if purpose is not None:
        found = [one for one in found if one.purpose == purpose]
    data = [one.to_json() for one in found[:limit]]
    return JSONResponse({"object": "list", "data": data, "has_more": len(found) > limit})


@router.get("/v1/files/{found}")
async def described(request: Request, found: str) -> Response:
    """Describe an upload."""
    service, owner = service_of(request), asked_by(request).client.name
    return JSONResponse(service.uploads.get(found, owner).to_json())


@router.api_route("/v1/files/{found}/content", methods=READ)
async def content(request: Request, found: str) -> Response:
    """Send an upload's bytes."""
    service, owner = service_of(request), asked_by(request).client.name
    return sent(service.uploads.get(found, owner).path)


@router.delete("/v1/files/{found}")
async def delete(request: Request, found: str) -> Response:
    """Delete an upload."""
    service, owner = service_of(request), asked_by(request).client.name
    service.uploads.delete(found, owner)
    return JSONResponse({"id": found, "object": "file", "deleted": True})


@router.get("/v1/media")
async def media(request: Request) -> Response:
    """List files of the media folder that requests may name; not in OpenAI's API."""
    service = service_of(request)
    with service.others.running(asked_by(request).client):
        found: list[dict[str, Any]] = await asyncio.to_thread(service.media.files.local.listed)
    return JSONResponse({"object": "list", "data": found})


@router.api_route("/v1/media/content", methods=READ)
async def media_content(request: Request, url: str) -> Response:
    """Send the bytes of a file of the media folder, or of an upload; supports `Range`."""
    return sent(path_of(service_of(request), url, asked_by(request).client))


def path_of(service: Service, url: str, client: Client) -> Path:
    """Return the path of a file of the media folder, or of a client's upload.

    Raises:
        ApiError: the file does not exist, or the client's key may not name it.
    """
    if ID.fullmatch(url):
        require(client.scopes, "files")
        return service.uploads.get(url, client.name).path
    require(client.scopes, "media")
    return local_path(service.media.files.local, url)


def local_path(local: LocalFiles, url: str) -> Path:
    """Return the path of a file of the media folder; errors as `path_of`."""
    try:
        return local.find(url, "url")
    except ApiError as error:
        raise ApiError(404, error.message, error.code, error.param) from None


def sent(path: Path) -> Response:
    """Response with a file's bytes, or with the requested `Range` of them."""
    return KeptFile(path, headers=SHOWN, media_type=TYPES.get(path.suffix.lower(), "application/octet-stream"))


class KeptFile(FileResponse):
    """A file as a response; a bad `Range` gives a JSON error, for which starlette sends plain text or no text."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, or the error."""
        refused: ApiError | None = None

        async def noted(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] in (400, 416):
                refused = _bad_range(message["status"], Headers(raw=message["headers"]).get("content-range"))
            if refused is None:
                await send(message)

        await super().__call__(scope, receive, noted)
        if refused is not None:
            await refused.response()(scope, receive, send)


def _bad_range(status: int, size: str | None) -> ApiError:
    """Error for a `Range` that cannot be read, or lies outside the file."""
    if status == 400:
        return bad_request("The Range header cannot be read; write it as bytes=0-1023.", "range", "invalid_range")
    message = f"The file has no bytes in this Range ({size}); ask for others."
    return ApiError(416, message, "range_not_satisfiable", "range", {"Content-Range": str(size)})
