"""Errors as OpenAI's clients know them: `{"error": {"message", "type", "param", "code"}}`."""

import logging
from collections.abc import Mapping

from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from crossdraft.errors import CrossdraftError, QueueFullError, RequestError

log = logging.getLogger(__name__)

TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 408: "timeout_error", 413: "invalid_request_error", 429: "rate_limit_error",
    431: "invalid_request_error", 499: "cancelled", 500: "server_error", 503: "overloaded_error",
}  # fmt: skip
KINDS = frozenset({"str", "text", "image_url", "video_url", "event_url", "file"})  # of contents and parts
GONE = 499  # nginx's status for a client that went away
RETRY_S = 1  # after which a client may ask again


class ApiError(Exception):
    """What a client gets in place of an answer.

    Args:
        status: of HTTP.
        message: one sentence: what is wrong, where, how to mend it.
        code: a word that programs can tell it by.
        param: the part of the request that it is about.
        headers: more headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, object]:
        """As JSON."""
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """As a response."""
        return JSONResponse(self.body, self.status, headers=self.headers)


def gone() -> Response:
    """To a client that went away: nobody reads it, but the log has its status."""
    return Response(status_code=GONE)


def overloaded(message: str, code: str = "overloaded") -> ApiError:
    """503 with `Retry-After`, after which OpenAI's clients ask again."""
    return ApiError(503, message, code, headers={"Retry-After": str(RETRY_S)})


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400."""
    return ApiError(400, message, code, param)


def as_api_error(error: BaseException) -> ApiError:
    """What a client is to know of an error: the sentence of one that is theirs to mend, of ours nothing but that."""
    match error:
        case ApiError():
            return error
        case QueueFullError():
            return overloaded("As many requests wait as the server's queue holds; ask again later.", "queue_full")
        case ValidationError():
            return from_validation(error)
        case CrossdraftError() if not isinstance(error, RequestError):
            return bad_request(str(error))
    log.error("A request failed.", exc_info=error)
    return ApiError(500, "The server failed on this request; its log says why.", "internal_error")


def from_validation(error: ValidationError) -> ApiError:
    """What is wrong with a request's fields: of several things the deepest, which is what the client meant."""
    first = max(error.errors(include_url=False, include_context=False), key=lambda one: len(one["loc"]))
    # Where a field may be of several kinds, pydantic puts the kind's name between the others.
    parts = [part for part in first["loc"] if isinstance(part, int) or not (part in KINDS or "[" in part)]
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    if first["type"] == "extra_forbidden":
        return bad_request(f"Unrecognized request argument: {param}; leave it out.", param, "unknown_parameter")
    if first["type"] == "json_invalid":
        return bad_request("The body is no JSON; send an object.", None, "invalid_json")
    message = first["msg"].removeprefix("Value error, ")
    return bad_request(f"{param or 'The body'}: {message}.", param or None, "invalid_value")
