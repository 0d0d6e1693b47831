"""`/v1/chat/completions`: one answer, whole or as a stream."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from crossdraft.engine.request import Answer, Origin, Piece
from crossdraft.engine.request import Request as Question
from crossdraft.serve import convert, sse
from crossdraft.serve.bodies import chat_of, parsed
from crossdraft.serve.errors import ApiError, as_api_error, gone, overloaded, short
from crossdraft.serve.gate import RequestInfo, asked_by, service_of
from crossdraft.serve.keys import Client
from crossdraft.serve.metrics import FinishedReason
from crossdraft.serve.schema import ChatRequest
from crossdraft.serve.service import Service
from crossdraft.streaming import AsyncStream

router = APIRouter()


async def read_chat(service: Service, body: bytes, client: Client | None = None) -> ChatRequest:
    """Read a request's body.

    Args:
        service: the service that is asked.
        body: JSON of any length; the cost of reading it is bounded.
        client: client that sent it. A refused body counts as one of its requests, a valid one once it is admitted.

    Raises:
        ValidationError: the body is no chat request.
        ApiError: it has too many values, or names another model; 429, the client asks too often.
    """
    if client is not None:
        service.rates.check(client)
    try:
        return _of_model(service, await parsed(body, chat_of))
    except (ApiError, ValidationError):
        if client is not None:
            service.rates.count(client)
        raise


def _of_model(service: Service, chat: ChatRequest) -> ChatRequest:
    """Return the request if it names the model that is served; otherwise raise the error 404."""
    if chat.model == service.settings.model:
        return chat
    raise ApiError(
        404,
        f"There is no model {short(chat.model)!r} here, but {service.settings.model!r}.",
        "model_not_found",
        "model",
    )


async def complete(request: Request) -> Response:
    """Answer a chat request."""
    service, asked = service_of(request), asked_by(request)
    body = await request.body()
    if not service.ready:
        raise overloaded("The server is shutting down; ask another one.", "shutting_down")
    chat = await read_chat(service, body, asked.client)
    answering = Answering(service, chat, asked)
    if chat.stream:
        return await answering.stream(request)
    try:
        found = await sse.unless_gone(request.receive, answering.whole())
    except Exception as error:
        raise answering.failed(error) from error
    return gone() if found is None else JSONResponse(found)


async def answered(service: Service, body: bytes, asked: RequestInfo) -> dict[str, object]:
    """Answer a chat request that came otherwise than over HTTP.

    Raises:
        ApiError: why it is refused, or failed.
    """
    answering = Answering(service, await read_chat(service, body, asked.client), asked)
    try:
        return await answering.whole()
    except Exception as error:
        raise answering.failed(error) from error


# A plain route: the body is read and checked above, and FastAPI's own machinery would cost a fifth of the time.
router.add_route("/v1/chat/completions", complete, methods=["POST"])


class Answering:
    """Answers one chat request."""

    def __init__(self, service: Service, chat: ChatRequest, asked: RequestInfo) -> None:
        self.service, self._chat, self._asked = service, chat, asked
        self._over = False  # true once the answer is counted, however it ended
        self._sent = 0  # tokens
        self._usage = dict[str, object]()  # of each further chunk
        self._id, self._created = f"chatcmpl-{asked.request_id}", int(time.time())

    async def whole(self) -> dict[str, object]:
        """Generate the whole answer as OpenAI's JSON."""
        async with AsyncExitStack() as held:
            question = await self.question(held)
            answer = await self.service.engine.agenerate(question)
        self.count(answer)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": convert.logprobs(answer, self.service.engine.target),
            "finish_reason": convert.FINISH_REASONS[answer.finish],
        }
        found = {**self._head("chat.completion"), "choices": [choice], "usage": convert.usage(answer.stats)}
        return found | self._metrics(answer) | self._extras(answer)

    async def stream(self, request: Request) -> Response:
        """Send the answer as a stream. It starts with the first piece: an earlier refusal has its own status."""
        held = AsyncExitStack()
        try:
            begun = await sse.unless_gone(request.receive, self._begin(held))
        except BaseException as error:
            await held.aclose()
            if isinstance(error, Exception):
                raise self.failed(error) from error
            raise
        if begun is None:
            self._left()
            await held.aclose()
            return gone()
        held.callback(self._left)
        return sse.EventStream(self._chunks(*begun), held, {})

    async def _begin(self, held: AsyncExitStack) -> tuple[AsyncStream, AsyncIterator[Piece], Piece | None]:
        """Start a stream and wait for its first piece."""
        question = await self.question(held)
        stream = self.service.engine.astream(question, final_only=not self._chat.crossdraft.provisional)
        pieces = await held.enter_async_context(aclosing(aiter(stream)))
        return stream, pieces, await anext(pieces, None)

    async def question(self, held: AsyncExitStack) -> Question:
        """Load the question as `loaded` does; a cancellation while `held` is open counts the client as gone."""
        held.push(self._cancelled)
        return await self.loaded(held)

    def _cancelled(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, asyncio.CancelledError):
            self._left()

    async def loaded(self, held: AsyncExitStack) -> Question:
        """Convert the request into a question for the engine, once it is admitted and its media are loaded."""
        service, client = self.service, self._asked.client
        held.enter_context(service.limits.admitted(client))
        began = time.perf_counter()
        media = await held.enter_async_context(service.media.loaded(self._chat, client))
        service.metrics.media_loaded(time.perf_counter() - began)
        question = convert.to_request(
            self._chat, media, client.name, service.longest(client), service.settings.request_seconds
        )
        if question.max_new_tokens is None:
            question = replace(question, max_new_tokens=service.open_length(client))
        return question

    async def _chunks(
        self, stream: AsyncStream, pieces: AsyncIterator[Piece], first: Piece | None
    ) -> AsyncGenerator[bytes]:
        yield self._delta({"role": "assistant", "content": ""})
        try:
            if first is not None:
                yield self._piece(first)
                async for piece in pieces:
                    yield self._piece(piece)
        except Exception as error:  # noqa: BLE001 - the status is sent already: the stream says it
            yield self._broken(error)
            yield sse.DONE
            return
        answer = stream.answer
        if answer is None:
            yield self._broken(overloaded("The answer was cancelled.", "cancelled"))
            yield sse.DONE
            return
        self.count(answer)
        yield self._delta({}, convert.FINISH_REASONS[answer.finish])
        options = self._chat.stream_options
        if options is not None and options.include_usage:
            usage = {"choices": [], "usage": convert.usage(answer.stats)}
            yield sse.data(self._head("chat.completion.chunk") | usage | self._metrics(answer))
        if extras := self._extras(answer):
            yield sse.comment(extras["crossdraft"])
        yield sse.DONE

    def _piece(self, piece: Piece) -> bytes:
        """Encode a piece for the client; provisional pieces as a comment."""
        ms = round((time.perf_counter() - self._asked.since) * 1e3, 3)
        if piece.origin is Origin.PROVISIONAL:
            return sse.comment({"provisional": piece.text, "ms": ms})
        more = {"crossdraft": {"origin": str(piece.origin), "tokens": len(piece.tokens), "ms": ms}}
        logprobs = convert.logprobs(piece, self.service.engine.target)
        self._sent += len(piece.tokens)
        if (options := self._chat.stream_options) is not None and options.continuous_usage_stats:
            self._usage = {"usage": convert.usage_so_far(piece.prompt_tokens, self._sent)}
        return self._delta(
            {"content": piece.text}, logprobs=logprobs, more=more if self._chat.crossdraft.origins else {}
        )

    def _delta(
        self,
        delta: dict[str, object],
        reason: str | None = None,
        logprobs: dict[str, object] | None = None,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return sse.data({**self._head("chat.completion.chunk"), "choices": [choice], **self._usage, **more})

    def _head(self, kind: str) -> dict[str, object]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self.service.settings.model}

    def _metrics(self, answer: Answer) -> dict[str, object]:
        if not self.service.settings.per_request_metrics:
            return {}
        return {"metrics": {**convert.metrics(answer.stats), "notes": convert.public_notes(answer.notes)}}

    def _extras(self, answer: Answer) -> dict[str, Any]:
        return {"crossdraft": {"timeline": convert.timeline(answer)}} if self._chat.crossdraft.timeline else {}

    def count(self, answer: Answer) -> None:
        """Count an answer, and note its figures for the log."""
        self._over, stats = True, answer.stats
        self.service.metrics.answered(stats, answer.finish)
        self._asked.answer = answer
        self._asked.facts |= {
            "prompt_tokens": stats.prompt_tokens,
            "cached_tokens": stats.cached_tokens,
            "new_tokens": stats.new_tokens,
            "finish": str(answer.finish),
            "ttft_ms": round((stats.queued_s + stats.ttft_s) * 1e3, 1),
            "tau": round(stats.tau, 2),
            **({"notes": " ".join(answer.other_notes)} if answer.other_notes else {}),
        }

    def _left(self) -> None:
        """Count an answer whose client has gone, unless it was over before."""
        if not self._over:
            self._over = True
            self.service.metrics.ended(FinishedReason.ABORT)

    def _broken(self, error: Exception) -> bytes:
        """Encode an error in the midst of a stream as an event of the stream.

        The gate does not see such an error, so it is counted here.
        """
        found = self.failed(error)
        self.service.metrics.failed(found.status)
        return sse.data(found.body)

    def failed(self, error: Exception) -> ApiError:
        """Count an error, and map it to the error that the client gets in place of an answer."""
        found = as_api_error(error)
        if self.service.engine.closed:  # the server is closing: another one may answer
            found = overloaded("The server is shutting down; ask another one.", "shutting_down")
        if found.code == "queue_full":
            self.service.metrics.refused()
        if found.status == 500:
            self.service.metrics.ended(FinishedReason.ERROR)
        self._over = True
        self._asked.refused(found)
        return found
