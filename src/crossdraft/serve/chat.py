"""`/v1/chat/completions`: answers, whole or as a stream."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from fastapi import APIRouter
from pydantic import ValidationError

from crossdraft.engine.request import Answer, Origin, Piece
from crossdraft.serve import convert, sse
from crossdraft.serve.answering import Answering, endpoint
from crossdraft.serve.bodies import chat_of, parsed
from crossdraft.serve.errors import ApiError, bad_request
from crossdraft.serve.gate import RequestInfo
from crossdraft.serve.keys import Client
from crossdraft.serve.schema import ChatRequest
from crossdraft.serve.service import Service

router = APIRouter()


A = TypeVar("A", bound=ChatRequest)


async def read_body(service: Service, body: bytes, parse: Callable[[bytes], A], client: Client) -> A:
    """Read a request's body.

    Args:
        service: the service that is asked.
        body: JSON of any length; the cost of reading it is bounded.
        parse: parses it.
        client: client that sent it. A refused body counts as one of its requests, a valid one once it is admitted.

    Raises:
        ValidationError: the body is no request.
        ApiError: it has too many values, or names another model; 429, the client asks too often.
    """
    service.rates.check(client)
    try:
        service.check_model((found := await parsed(body, parse)).model)
    except (ApiError, ValidationError):
        service.rates.count(client)
        raise
    return found


async def read_chat(service: Service, body: bytes, client: Client) -> ChatRequest:
    """Read the body of a chat request for one answer; see `read_body`."""

    def one(body: bytes) -> ChatRequest:
        if (chat := chat_of(body)).n > 1:
            raise bad_request("n: there is one answer here; leave it out.", "n", "unsupported_value")
        return chat

    return await read_body(service, body, one, client)


async def begin(service: Service, body: bytes, asked: RequestInfo) -> "tuple[Answering, ChatForm]":
    """Read the body of a chat request; errors as `read_body`."""
    chat = await read_body(service, body, chat_of, asked.client)
    return Answering(service, chat, asked), ChatForm(service, chat, asked)


router.add_route("/v1/chat/completions", endpoint(begin), methods=["POST"])


class ChatForm:
    """OpenAI's chat completions; see `Form`."""

    ids, kind, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, service: Service, chat: ChatRequest, asked: RequestInfo) -> None:
        self._service, self._chat, self._asked = service, chat, asked
        self._target = service.engine.target
        self._sent, self._calls = 0, Counter[int]()  # tokens; calls of each answer
        self._usage = dict[str, object]()  # of each further chunk
        self._id, self._created = f"{self.ids}{asked.request_id}", int(time.time())

    def whole(self, answers: Sequence[Answer]) -> dict[str, object]:
        """The body, with a choice for each answer."""
        choices = [self._answered(number, answer) for number, answer in enumerate(answers)]
        found = {**self._head(self.kind), "choices": choices, "usage": self._used(answers)}
        return found | self._metrics(answers[0]) | self._extras(answers[0])

    def begin(self) -> bytes:
        """A chunk with the role for each answer."""
        role = {"role": "assistant", "content": ""}
        return b"".join(self._delta(number, role) for number in range(self._chat.n))

    def piece(self, number: int, piece: Piece) -> bytes:
        """A chunk of text, and chunks of calls; provisional pieces are comments."""
        ms = round((time.perf_counter() - self._asked.since) * 1e3, 3)
        if piece.origin is Origin.PROVISIONAL:
            return sse.comment({"provisional": piece.text, "ms": ms} | ({"index": number} if number else {}))
        more = {"crossdraft": {"origin": str(piece.origin), "tokens": len(piece.tokens), "ms": ms}}
        logprobs = convert.logprobs(piece, self._target)
        self._sent += len(piece.tokens)
        if (options := self._chat.stream_options) is not None and options.continuous_usage_stats:
            self._usage = {"usage": convert.usage_so_far(piece.prompt_tokens, self._sent)}
        shown = more if self._chat.crossdraft.origins else {}
        calls = [self._delta(number, one) for one in convert.call_deltas(piece.calls, self._calls[number])]
        self._calls[number] += len(piece.calls)
        return self._delta(number, {"content": piece.text}, logprobs=logprobs, more=shown) + b"".join(calls)

    def end(self, number: int, answer: Answer) -> bytes:
        """The chunk with the reason of an answer's end."""
        return self._delta(number, {}, convert.finish_reason(answer))

    def last(self, answers: Sequence[Answer]) -> bytes:
        """The usage and the timeline, if they are asked for, and the end of the stream."""
        found, options = b"", self._chat.stream_options
        if options is not None and options.include_usage:
            usage = {"choices": [], "usage": self._used(answers)}
            found = sse.data(self._head(self.chunk) | usage | self._metrics(answers[0]))
        if extras := self._extras(answers[0]):
            found += sse.comment(extras["crossdraft"])
        return found + sse.DONE

    def failed(self, error: ApiError) -> bytes:
        """The error, and the end of the stream."""
        return sse.data(error.body) + sse.DONE

    def _delta(
        self,
        number: int,
        delta: Mapping[str, object],
        reason: str | None = None,
        logprobs: dict[str, object] | None = None,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> bytes:
        choice = self._choice(number, delta, reason, logprobs)
        return sse.data({**self._head(self.chunk), "choices": [choice], **self._usage, **more})

    def _answered(self, number: int, answer: Answer) -> dict[str, object]:
        """The choice of a whole answer."""
        return {
            "index": number,
            "message": convert.message(answer),
            "logprobs": convert.logprobs(answer, self._target),
            "finish_reason": convert.finish_reason(answer),
        }

    def _choice(
        self, number: int, delta: Mapping[str, object], reason: str | None, logprobs: dict[str, object] | None
    ) -> dict[str, object]:
        """The choice of a chunk."""
        return {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def _head(self, kind: str) -> dict[str, object]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._chat.model}

    def _metrics(self, answer: Answer) -> dict[str, object]:
        if not self._service.settings.per_request_metrics:
            return {}
        return {"metrics": {**convert.metrics(answer.stats), "notes": convert.public_notes(answer.notes)}}

    def _extras(self, answer: Answer) -> dict[str, Any]:
        return {"crossdraft": {"timeline": convert.timeline(answer)}} if self._chat.crossdraft.timeline else {}

    def _used(self, answers: Sequence[Answer]) -> dict[str, object]:
        return convert.usage(*(answer.stats for answer in answers))
