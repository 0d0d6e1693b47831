"""`/v1/responses`: the answers of chats as OpenAI's newer objects and events."""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from crossdraft.engine.request import Answer, Piece
from crossdraft.messages import ToolCall
from crossdraft.serve import convert, sse
from crossdraft.serve.answering import Answering, endpoint
from crossdraft.serve.bodies import validated
from crossdraft.serve.chat import read_body
from crossdraft.serve.errors import ApiError
from crossdraft.serve.gate import RequestInfo, asked_by, service_of
from crossdraft.serve.response_items import ResponseRequest
from crossdraft.serve.response_store import StoredResponse
from crossdraft.serve.service import Service

router = APIRouter()
ECHOED = ("instructions", "previous_response_id", "temperature", "top_logprobs", "top_p", "user")


async def begin(service: Service, body: bytes, asked: RequestInfo) -> "tuple[Answering, ResponseForm]":
    """Read the body of a response request; errors as `chat.read_body`."""

    def parse(body: bytes) -> ResponseRequest:
        found, messages = validated(ResponseRequest, body), list[Any]()
        if (name := found.previous_response_id) is not None:
            messages = from_json(service.responses.get(name, asked.client.name, previous=True).messages)
        if found.instructions:
            messages = [{"role": "system", "content": found.instructions}, *messages]
        return found.model_copy(update={"messages": found.continued(messages)})

    chat = await read_body(service, body, parse, asked.client)
    return Responding(service, chat, asked), ResponseForm(service, chat, asked)


router.add_route("/v1/responses", endpoint(begin), methods=["POST"])


@router.get("/v1/responses/{found}")
async def stored(request: Request, found: str) -> Response:
    """Return a response that was stored."""
    body = service_of(request).responses.get(found, asked_by(request).client.name).body
    return Response(body, media_type="application/json")


@router.delete("/v1/responses/{found}")
async def delete(request: Request, found: str) -> Response:
    """Forget a response."""
    service_of(request).responses.delete(found, asked_by(request).client.name)
    return JSONResponse({"id": found, "object": "response", "deleted": True})


class Responding(Answering):
    """Answers a response request. Messages lose their number, as those of the conversation so far count, too."""

    names = (r"\bmax_tokens\b", "max_output_tokens"), (r"\bmessages(\[\d+\](\.content)?)+|^messages$", "input")


class ResponseForm:
    """OpenAI's responses; see `Form`. A whole response is made of the items of a stream's events."""

    def __init__(self, service: Service, chat: ResponseRequest, asked: RequestInfo) -> None:
        self._service, self._chat, self._asked = service, chat, asked
        self._id, self._created, self._events = f"resp_{secrets.token_hex(16)}", int(time.time()), 0
        self._output: list[dict[str, Any]] = []  # items that are over
        self._text, self._logprobs = list[str](), list[Any]()  # of the message that is open, if there is any
        self._textless = list[Any]()  # log-probabilities of tokens whose text is still to come
        self._message, self._status = "", "in_progress"  # its id; of the response

    def whole(self, answers: Sequence[Answer]) -> dict[str, object]:
        for piece in answers[0].pieces:
            self.piece(0, piece)
        self.end(0, answers[0])
        return self._stored(answers[0])

    def begin(self) -> bytes:
        found = self._object()
        return self._event("response.created", response=found) + self._event("response.in_progress", response=found)

    def piece(self, number: int, piece: Piece) -> bytes:
        logprobs: Any = convert.logprobs(piece, self._service.engine.target)
        self._textless += logprobs["content"] if logprobs else ()
        events = self._said(piece.text, self._textless) if piece.text else b""
        if piece.text or piece.calls:  # those of a call are shown nowhere
            self._textless = []
        return events + b"".join(map(self._called, piece.calls))

    def end(self, number: int, answer: Answer) -> bytes:
        self._status = "incomplete" if convert.FINISH_REASONS[answer.finish] == "length" else "completed"
        events = b"" if self._message or self._output else self._said("", [])
        return events + self._close(self._status)

    def last(self, answers: Sequence[Answer]) -> bytes:
        return self._event(f"response.{self._status}", response=self._stored(answers[0]))

    def failed(self, error: ApiError) -> bytes:
        """An event of the error, whose `error` OpenAI's clients raise, and one of the response."""
        events, self._status = b"" if self._events else self.begin(), "failed"
        events += self._event("error", code=error.code, message=error.message, param=error.param, **error.body)
        code = "server_error" if error.status >= 500 else "invalid_prompt"  # OpenAI names few
        more = {"output": self._output, "error": {"code": code, "message": error.message}}
        return events + self._event("response.failed", response=self._object() | more)

    def _event(self, kind: str, **fields: object) -> bytes:
        self._events += 1
        return f"event: {kind}\n".encode() + sse.data({"type": kind, "sequence_number": self._events - 1, **fields})

    def _said(self, text: str, logprobs: Any) -> bytes:
        """More text of a message, which is opened if none is open."""
        events, at = b"", len(self._output)
        if not self._message:
            self._message, self._text, self._logprobs = f"msg_{secrets.token_hex(16)}", [], []
            events = self._event("response.output_item.added", output_index=at, item=self._item([], "in_progress"))
            events += self._part_event("response.content_part.added", part=_part("", []))
        self._text.append(text)
        self._logprobs += logprobs
        return events + (self._part_event("response.output_text.delta", delta=text, logprobs=logprobs) if text else b"")

    def _close(self, status: str) -> bytes:
        """End the open message."""
        if not self._message:
            return b""
        text, at = "".join(self._text), len(self._output)
        part = _part(text, self._logprobs)
        events = self._part_event("response.output_text.done", text=text, logprobs=self._logprobs)
        events += self._part_event("response.content_part.done", part=part)
        self._output.append(self._item([part], status))
        self._message = ""
        return events + self._event("response.output_item.done", output_index=at, item=self._output[at])

    def _called(self, call: ToolCall) -> bytes:
        """A call of a tool, which is an item of its own."""
        events, at = self._close("completed"), len(self._output)
        item = {"id": f"fc_{secrets.token_hex(16)}", "type": "function_call", "call_id": call.id, "name": call.name}
        begun = {**item, "arguments": "", "status": "in_progress"}
        self._output.append({**item, "arguments": call.arguments, "status": "completed"})
        events += self._event("response.output_item.added", output_index=at, item=begun)
        kind, where = "response.function_call_arguments", {"item_id": item["id"], "output_index": at}
        events += self._event(f"{kind}.delta", **where, delta=call.arguments)
        events += self._event(f"{kind}.done", **where, name=call.name, arguments=call.arguments)
        return events + self._event("response.output_item.done", output_index=at, item=self._output[at])

    def _part_event(self, kind: str, **fields: object) -> bytes:
        where = {"item_id": self._message, "output_index": len(self._output), "content_index": 0}
        return self._event(kind, **where, **fields)

    def _item(self, content: list[object], status: str) -> dict[str, object]:
        return {"id": self._message, "type": "message", "status": status, "role": "assistant", "content": content}

    def _stored(self, answer: Answer) -> dict[str, object]:
        """The response that is over, after it was stored for later requests."""
        usage = convert.usage(answer.stats)
        found = self._object() | {
            "output": self._output,
            "incomplete_details": {"reason": "max_output_tokens"} if self._status == "incomplete" else None,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": answer.stats.cached_tokens, "cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
        }
        if self._chat.store is not False:
            kept = [*self._chat.messages[bool(self._chat.instructions) :], convert.message(answer)]
            stored = StoredResponse(to_json(found), to_json(kept, exclude_none=True))
            self._service.responses.put(self._asked.client.name, self._id, stored)
        return found

    def _object(self) -> dict[str, object]:
        chat = self._chat
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "model": chat.model,
            "status": self._status,
            "output": [],
            "error": None,
            "incomplete_details": None,
            "usage": None,
            "text": {"format": {"type": "text"}, **chat.text.model_dump(exclude_none=True)},
            "tools": chat.flat_tools,
            "tool_choice": chat.flat_choice,
            "parallel_tool_calls": chat.parallel_tool_calls is not False,
            "reasoning": {"effort": None, "summary": None},
            "truncation": "disabled",
            "store": chat.store is not False,
            "metadata": chat.metadata or {},
            "max_output_tokens": chat.max_tokens,
            **{name: getattr(chat, name) for name in ECHOED},
        }


def _part(text: str, logprobs: Any) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
