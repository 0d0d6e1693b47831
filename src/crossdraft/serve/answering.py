"""Answers to a chat request: admitted, asked for, counted. How a client gets them is a `Form`, one for each route."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from crossdraft.engine.request import Answer, Piece
from crossdraft.engine.request import Request as Question
from crossdraft.engine.request_state import OnPiece
from crossdraft.serve import convert, sse
from crossdraft.serve.errors import ApiError, as_api_error, gone, overloaded
from crossdraft.serve.gate import RequestInfo, asked_by, service_of
from crossdraft.serve.metrics import FinishedReason
from crossdraft.serve.schema import ChatRequest
from crossdraft.serve.service import Service

News = tuple[int, Piece | Answer | None]  # the number of an answer, and a piece of it or the whole; `None` = silence
SILENCE: News = (0, None)
BEHIND = -1  # priority of requests of batches; all others have 0


class Form(Protocol):
    """The shape of answers on the wire: a body, or the events of a stream, each method some of them or none."""

    def whole(self, answers: Sequence[Answer]) -> dict[str, object]:
        """The body with all answers."""
        ...

    def begin(self) -> bytes:
        """The events in front of the first piece."""
        ...

    def piece(self, number: int, piece: Piece) -> bytes:
        """The events of a piece of an answer; of provisional ones, too, if the request wants them."""
        ...

    def end(self, number: int, answer: Answer) -> bytes:
        """The events of an answer's end."""
        ...

    def last(self, answers: Sequence[Answer]) -> bytes:
        """The events after the end of all answers."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """The last events of a stream that fails."""
        ...


class Answering:
    """Answers one chat request, as often as it asks."""

    names: tuple[tuple[str, str], ...] = ()  # expressions for a chat's fields in errors -> the endpoint's own

    def __init__(self, service: Service, chat: ChatRequest, asked: RequestInfo) -> None:
        self.service, self._chat, self._asked = service, chat, asked
        self._over = False  # true once the answers are counted, however they ended
        self._news = asyncio.Queue[tuple[int, Piece | Future[Answer] | Exception]]()

    async def respond(self, request: Request, form: Form) -> Response:
        """Answer whole or as a stream, as the request says."""
        if self._chat.stream:
            return await self._stream(request, form)
        found = await sse.unless_gone(request.receive, self.whole(form))
        return gone() if found is None else JSONResponse(found)

    async def whole(self, form: Form) -> dict[str, object]:
        """Wait for all answers, and build their body.

        Raises:
            ApiError: why they are refused, or failed.
        """
        try:
            async with AsyncExitStack() as held:
                questions = await self.questions(held)
                pending = [self._submitted(question, held) for question in questions]
                answers = await asyncio.gather(*map(asyncio.wrap_future, pending))
        except Exception as error:
            raise self.failed(error) from error
        self.count(*answers)
        return form.whole(answers)

    async def _stream(self, request: Request, form: Form) -> Response:
        """Send the answers as a stream, which begins with the first piece: an earlier refusal has its own status.

        If nothing comes for `sse.SILENT_S`, it begins with a comment, and what is refused later is an event.
        """
        async with AsyncExitStack() as stack:
            held = await stack.enter_async_context(AsyncExitStack())
            stack.push_async_callback(_ended, asyncio.ensure_future(self._ask(held)))
            stack.callback(self._left)
            try:
                first = await sse.unless_gone(request.receive, self._next())
            except Exception as error:
                raise self.failed(error) from error
            return gone() if first is None else sse.EventStream(self._events(first, form), stack.pop_all(), {})

    async def _ask(self, held: AsyncExitStack) -> None:
        """Hand the questions to the engine; what comes of them is put into `_news`."""
        loop = asyncio.get_running_loop()

        def put(number: int, one: Piece | Future[Answer]) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits for it
                loop.call_soon_threadsafe(self._news.put_nowait, (number, one))

        try:
            for number, question in enumerate(await self.questions(held)):
                tell = partial(put, number)
                self._submitted(question, held, tell).add_done_callback(tell)
        except Exception as error:  # noqa: BLE001 - raised where it is read
            self._news.put_nowait((0, error))

    def _submitted(self, question: Question, held: AsyncExitStack, on_piece: OnPiece | None = None) -> Future[Answer]:
        """Hand a question to the engine; it is cancelled when `held` is closed, unless it is over."""
        pending = self.service.engine.submit(question, on_piece, provisional=self._chat.crossdraft.provisional)
        held.callback(pending.cancel)
        return pending.future

    async def _next(self) -> News:
        """Wait for the next piece, or end of an answer; `SILENCE` if none comes for `sse.SILENT_S`."""
        try:
            async with asyncio.timeout(sse.SILENT_S):
                number, one = await self._news.get()
        except TimeoutError:
            return SILENCE
        if isinstance(one, Exception):
            raise one
        if isinstance(one, Piece):
            return number, one
        try:
            return number, one.result()
        except CancelledError:
            raise overloaded("The answer was cancelled.", "cancelled") from None
        finally:
            del one  # an error's traceback holds this frame

    async def _events(self, news: News, form: Form) -> AsyncGenerator[bytes]:
        answers, begun = dict[int, Answer](), False
        try:
            while True:
                number, one = news
                if one is None:
                    yield sse.SILENT
                elif not begun:
                    begun = True
                    yield form.begin()
                if isinstance(one, Piece):
                    yield form.piece(number, one)
                elif one is not None:
                    answers[number] = one
                    yield form.end(number, one)
                if len(answers) == self._chat.n:
                    break
                news = await self._next()
        except Exception as error:  # noqa: BLE001 - the status is sent already: the stream says it
            failed = self.failed(error)
            self.service.metrics.failed(failed.status)  # the gate does not see it
            yield form.failed(failed)
            return
        found = [answers[number] for number in sorted(answers)]
        self.count(*found)
        yield form.last(found)

    async def questions(self, held: AsyncExitStack) -> list[Question]:
        """One question for each answer, as `question`."""
        return (await self.question(held)).several(self._chat.n)

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
        if behind := client.behind:
            await service.wait_behind(self._chat.n)
        held.enter_context((service.behind if behind else service.limits).admitted(client, self._chat.n))
        began = time.perf_counter()
        media = await held.enter_async_context(service.media.loaded(self._chat, client))
        service.metrics.media_loaded(time.perf_counter() - began)
        question = convert.to_request(
            self._chat, media, client.name, service.longest(client), service.settings.request_seconds
        )
        if behind:  # it may lose its row again and again, which is no reason to cut it off
            question = replace(question, priority=BEHIND, max_time=None)
        if question.max_new_tokens is None:
            question = replace(question, max_new_tokens=service.open_length(client))
        return question if service.ocr is None else service.ocr.added(question)

    def count(self, *answers: Answer) -> None:
        """Count answers, and note their figures for the log."""
        self._over, stats = True, [answer.stats for answer in answers]
        for answer in answers:
            self.service.metrics.answered(answer.stats, answer.finish)
        self._asked.answer = answers[0]
        new, notes = sum(one.new_tokens for one in stats), [note for one in answers for note in one.other_notes]
        self._asked.facts |= {
            "prompt_tokens": stats[0].prompt_tokens,
            "cached_tokens": stats[0].cached_tokens,
            "new_tokens": new,
            "finish": " ".join(str(answer.finish) for answer in answers),
            "ttft_ms": round((stats[0].queued_s + stats[0].ttft_s) * 1e3, 1),
            "tau": round(new / max(1, sum(one.rounds for one in stats)), 2),
            **({"notes": " ".join(dict.fromkeys(notes))} if notes else {}),
        }

    def _left(self) -> None:
        """Count an answer whose client has gone, unless it was over before."""
        if not self._over:
            self._over = True
            self.service.metrics.ended(FinishedReason.ABORT)

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
        for name, own in self.names:
            found.message, found.param = re.sub(name, own, found.message), re.sub(name, own, found.param or "") or None
        self._asked.refused(found)
        return found


Begin = Callable[[Service, bytes, RequestInfo], Awaitable[tuple[Answering, Form]]]
"""Reads the body of a request to an endpoint."""


def endpoint(begin: Begin) -> Callable[[Request], Awaitable[Response]]:
    """Make the route of an endpoint: a plain one, as FastAPI's own machinery would cost a fifth of the time."""

    async def respond(request: Request) -> Response:
        service, body = service_of(request), await request.body()
        service.check_ready()
        answering, form = await begin(service, body, asked_by(request))
        return await answering.respond(request, form)

    return respond


async def _ended(task: "asyncio.Task[None]") -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    await asyncio.wait([task])
