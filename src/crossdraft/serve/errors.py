"""Errors as OpenAI's clients know them: `{"error": {"message", "type", "param", "code"}}`."""

import logging
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import pairwise

from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from crossdraft.errors import ContextLengthError, CrossdraftError, QueueFullError, RequestError

log = logging.getLogger(__name__)

TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 408: "timeout_error", 413: "invalid_request_error", 416: "invalid_request_error",
    429: "rate_limit_error", 431: "invalid_request_error", 499: "cancelled", 500: "server_error", 501: "server_error",
    503: "overloaded_error",
}  # fmt: skip
# Fields that only accept their neutral value.
LACKING = frozenset({"modalities", "best_of", "echo", "suffix", "background", "truncation", "skip_special_tokens"})
GONE = 499  # nginx's status for a client that went away
NO_METHOD = "The route does not take this method."
# Features of OpenAI's and vLLM's APIs that are left out on purpose -> what to use instead.
LEFT_OUT = {
    "/v1/embeddings": "the target writes answers and makes no embeddings, so use a server of an embedding model",
    "/v1/audio": "the target hears nothing, so send clips and images to /v1/chat/completions",
    "/v1/images": "the target draws nothing; /v1/chat/completions takes images",
    "/docs": "the routes stand in /openapi.json and docs/serve.md",
}
# Names in the library's errors -> names in a client's request.
FIELDS = {
    "start_us": "start_s", "end_us": "end_s", "clock=own": "clock own", "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens", "template_kwargs": "chat_template_kwargs",
}  # fmt: skip
FIELD = re.compile(rf"\b(?:{'|'.join(FIELDS)})\b")
OPEN = re.compile(r"(?<=\w)=…")  # the end of a keyword whose value is left open
READ = ["GET", "HEAD"]  # for routes whose headers alone a health check, a proxy or a player may want
MOST_NAME = 64  # characters of a name that an error repeats
MOST_NAMES = 5
MOST_SENTENCE = 1000
RETRY_S = 1  # seconds after which a client may ask again


def short(name: object) -> str:
    """Shorten a client's word for an error message.

    >>> short("x" * 100) == "x" * 63 + "…"
    True
    """
    text = str(name)
    return text if len(text) <= MOST_NAME else text[: MOST_NAME - 1] + "…"


class ApiError(Exception):
    """An error that a client gets in place of an answer.

    Args:
        status: HTTP status.
        message: one sentence that says what is wrong, where, and how to correct it.
        code: a word by which programs recognise the error.
        param: name of the request's part that is wrong.
        headers: further headers of the response.
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
        """Error as JSON, in OpenAI's form."""
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """Error as a response."""
        return JSONResponse(self.body, self.status, headers=self.headers)


class DecodeError(CrossdraftError):
    """A file cannot be decoded; the message is for the client that sent the file, and does not hold its path.

    Args:
        message: the sentence.
        param: name of the request's part that holds the file.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def no_route(path: str) -> ApiError:
    """Error 404 for a path that has no route."""
    begin = "/".join(path.split("/")[:3])
    if begin in LEFT_OUT:
        return ApiError(404, f"This server leaves {begin} out on purpose: {LEFT_OUT[begin]}.", "route_left_out")
    return ApiError(404, "There is no such route; see docs/serve.md.")


def gone() -> Response:
    """Response to a client that went away: it is sent to nobody, but the log has its status."""
    return Response(status_code=GONE)


def overloaded(message: str, code: str = "overloaded") -> ApiError:
    """Error 503 with `Retry-After`, after which OpenAI's clients ask again."""
    return ApiError(503, message, code, headers={"Retry-After": str(RETRY_S)})


def too_many(message: str, seconds: int) -> ApiError:
    """Error 429 with `Retry-After`, for a client's own limit."""
    return ApiError(429, message, "rate_limit_exceeded", headers={"Retry-After": str(seconds)})


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Error 400 for a wrong request."""
    return ApiError(400, message, code, param)


def refuse_names(values: Iterable[str], names: Container[str]) -> None:
    """Refuse fields of a request that an endpoint leaves out, though its schema has them.

    Raises:
        ApiError: 400, the first of them.
    """
    if wrong := next((name for name in values if name in names), None):
        raise bad_request(f"Unrecognized request argument: {wrong}; leave it out.", wrong, "unknown_parameter")


def as_api_error(error: BaseException) -> ApiError:
    """Convert an error for the client: with its message if the client can correct it, else a plain 500."""
    match error:
        case ApiError():
            return error
        case QueueFullError():
            return overloaded("As many requests wait as the server's queue holds; ask again later.", "queue_full")
        case ValidationError():
            return from_validation(error)
        case ContextLengthError():
            return too_long(error)
        case CrossdraftError() if not isinstance(error, RequestError):
            param = error.param if isinstance(error, DecodeError) else None
            return bad_request(in_fields(str(error))[:MOST_SENTENCE], param)
    log.error("A request failed.", exc_info=error)
    return ApiError(500, "The server failed on this request; its log says why.", "internal_error")


def in_fields(sentence: str) -> str:
    """Rewrite a sentence of the library for a client: with fields of a body in place of a call's keywords.

    >>> in_fields("give num_frames=… in place of fps=…, or take a part (start_us=…, end_us=…)")
    'give num_frames in place of fps, or take a part (start_s, end_s)'
    """
    return FIELD.sub(lambda found: FIELDS[found[0]], OPEN.sub("", sentence))


def too_long(error: ContextLengthError) -> ApiError:
    """Error 400 in OpenAI's form, which tells clients to send less."""
    most = f"This model's maximum context length is {error.context} tokens."
    if error.prompt is None:
        rest = in_fields(str(error))
    elif error.answer:
        rest = (
            f"However, you requested {error.prompt + error.answer} tokens ({error.prompt} in the messages, "
            f"{error.answer} in the completion). Please reduce the length of the messages or completion. "
            f"At most {max(0, error.context - error.prompt)} tokens fit after these messages."
        )
    else:
        rest = (
            f"However, your messages resulted in {error.prompt} tokens. Please reduce the length of the messages, or "
            "the number of frames."
        )
    return bad_request(f"{most} {rest}", "max_tokens" if error.answer else "messages", "context_length_exceeded")


def from_validation(error: ValidationError) -> ApiError:
    """Describe what is wrong with a request's fields; of several errors the deepest, which is likely what was meant."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    first = max(found, key=lambda one: len(one["loc"]))
    param = _param(first["loc"])
    if first["type"] == "extra_forbidden":
        unknown = [_param(one["loc"]) for one in found if one["type"] == "extra_forbidden"]
        now = FIELDS.get(param, param.replace("guided_", "structured_outputs."))  # vLLM's older names
        mend = f"say {now}" if now != param else f"leave {'them' if len(unknown) > 1 else 'it'} out"
        names = ", ".join(unknown[:MOST_NAMES]) + (" …" if len(unknown) > MOST_NAMES else "")
        several = "s" if len(unknown) > 1 else ""
        return bad_request(f"Unrecognized request argument{several}: {names}; {mend}.", param, "unknown_parameter")
    if first["type"] == "json_invalid":
        where = first["msg"].removeprefix("Invalid JSON: ")
        return bad_request(f"The body is no JSON: {where}; send an object.", None, "invalid_json")
    if first["loc"] and first["loc"][0] in LACKING:
        lacking = short(first["loc"][0])
        return bad_request(f"{lacking}: this server does not have it; leave it out.", lacking, "unsupported_value")
    message = first["msg"].removeprefix("Value error, ")[:MOST_SENTENCE]
    return bad_request(f"{param or 'The body'}: {message}.", param or None, "invalid_value")


def _param(where: Sequence[int | str]) -> str:
    """Path of a field as a client writes it: `messages[0].content`."""
    parts: list[int | str] = []
    for before, part in pairwise(("", *where)):
        # Where a field may be of several kinds, pydantic adds the kind's name behind the field: `content.str`,
        # `content.list[…]`; for a list's element, behind its number.
        kind = isinstance(part, str) and before and isinstance(before, str) and (part == "str" or "[" in part)
        tag = isinstance(before, int) and parts[-2:-1] in (["content"], ["input"])
        if not (kind or tag):
            parts.append(part)
    return "".join(f"[{part}]" if isinstance(part, int) else f".{short(part)}" for part in parts).lstrip(".")
