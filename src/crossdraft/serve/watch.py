"""`/v1/watch`: a WebSocket for questions about every window of a stream, pushed by the client or replayed.

The first message is a `WatchRequest` in JSON. A live source then pushes `streams.messages`; the server's messages are
JSON objects, each with its `type`.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from crossdraft.api import Request
from crossdraft.engine.request import Answer, Piece
from crossdraft.serve import convert
from crossdraft.serve.bodies import validated
from crossdraft.serve.budget import MediaShare
from crossdraft.serve.cameras import cameras
from crossdraft.serve.client_socket import GOING_AWAY, NORMAL, POLICY_VIOLATION, TRY_AGAIN, ClientSocket, FrameRate
from crossdraft.serve.edge import PING_S, SILENT_S
from crossdraft.serve.errors import ApiError, as_api_error, bad_request, overloaded
from crossdraft.serve.gate import RequestInfo
from crossdraft.serve.live import LIMITS, LiveSource
from crossdraft.serve.metrics import FinishedReason
from crossdraft.serve.schema import EventUrl, WatchRequest
from crossdraft.serve.service import Service
from crossdraft.streams import (
    RecordedEvents,
    ReplayClock,
    SlidingWindows,
    StreamWindow,
    Watch,
    Windowing,
    frames_per_window,
    replaying,
)
from crossdraft.streams.live.feed import sources_json, watching
from crossdraft.streams.messages import ROUTE, SCHEMA, StreamEnd

router = APIRouter()
T = TypeVar("T")

MOST_REQUEST = 1 << 17  # bytes of the first message
OVERLOADED = 503
POLL_S = 0.1


class Calls:
    """Coroutines that a thread waits for, run on the event loop of the creation. Once stopped it runs no more."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False

    def wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the event loop and return its result; called in the thread.

        Raises:
            CancelledError: `stop` was called.
        """
        return asyncio.run_coroutine_threadsafe(self._run(work), self._loop).result()

    async def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._stopped:
            raise asyncio.CancelledError
        task = asyncio.ensure_future(work())
        self._tasks.add(task)
        try:
            return await task
        finally:
            self._tasks.discard(task)

    def stop(self) -> None:
        """Cancel the running coroutines; called on the event loop."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()


class WatchConnection:
    """One WebSocket, for one stream."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = ClientSocket(socket)
        self._service: Service = socket.app.state.service
        self._asked: RequestInfo = socket.state.asked
        self._rate = FrameRate(self._service.settings.stream_messages)
        self._share = MediaShare(self._service.media.budget)
        self._calls = Calls()
        self._clock: ReplayClock | None = None
        self._live: LiveSource | None = None
        self._sources: Callable[[], dict[str, object]] = dict  # how what feeds the stream stands
        self._watch: Watch | None = None
        self._window: Callable[[object], AbstractAsyncContextManager[object]] = nullcontext  # readies its events
        self._wants_pieces = False
        self._pieces: list[dict[str, object]] = []  # to be sent

    async def run(self) -> None:
        """Serve the connection until it ends."""
        await self._socket.accept()
        try:
            asked = await asyncio.wait_for(self._first(), self._service.settings.header_seconds)
            async with AsyncExitStack() as held:
                watch, windowing = self._begin(asked, held)
                async with self._receiving() as receiving:
                    feed = await self._feed(asked, windowing, watch, held, receiving)
                    await self._send({"type": "started", "frames": windowing.frames})
                    await self._answer(watch, feed, receiving)
            await self._socket.close(GOING_AWAY if self._service.draining else NORMAL)
        except (WebSocketDisconnect, TimeoutError):  # the client is gone, or never sent its first message
            await self._socket.close(GOING_AWAY)
        except Exception as error:  # noqa: BLE001 - told to the client
            await self._refuse(error)

    async def _first(self) -> WatchRequest:
        message = await self._socket.receive()
        text = message.get("text")
        if text is None or len(text) > MOST_REQUEST:
            raise bad_request(f"The first message is no JSON text of at most {MOST_REQUEST:,} characters; see docs.")
        asked = validated(WatchRequest, text.encode())
        service, longest = self._service, self._service.longest(self._asked.client)
        service.check_model(service.settings.model if asked.model is None else asked.model)
        if asked.max_tokens is not None and asked.max_tokens > longest:
            raise bad_request(f"Answers have at most {longest} tokens here; ask for fewer.", "max_tokens")
        return asked

    def _begin(self, asked: WatchRequest, held: AsyncExitStack) -> tuple[Watch, Windowing]:
        """Make the watch, and the settings of its windows."""
        service, client = self._service, self._asked.client
        every_s, length_s = asked.every_ms / 1e3, asked.window_ms / 1e3
        frames = asked.frames or frames_per_window(service.engine.target, length_s)
        windowing = Windowing(every_s, length_s, frames)
        most = asked.max_tokens if asked.max_tokens is not None else service.open_length(client)
        seconds = service.settings.request_seconds
        questions = [
            Request(question, max_new_tokens=most, max_time=seconds, namespace=client.name)
            for question in asked.questions
        ]
        watch = self._watch = Watch(self._ask, questions)
        held.callback(self._share.close)
        if asked.replay is None and asked.live is None:
            self._live = live = LiveSource(service.media, windowing, watch, self._share, asked.sensor)
            self._sources = lambda: {"pushed": dict(live.counts)}
        self._wants_pieces = asked.pieces
        return watch, windowing

    @asynccontextmanager
    async def _receiving(self) -> AsyncIterator["asyncio.Task[None]"]:
        """Yield a task that receives all messages; it ends only by an error, also when the client is gone."""
        receiving = asyncio.ensure_future(self._receive_all())
        try:
            yield receiving
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    async def _feed(
        self,
        asked: WatchRequest,
        windowing: Windowing,
        watch: Watch,
        held: AsyncExitStack,
        receiving: "asyncio.Task[None]",
    ) -> AbstractContextManager[None]:
        """Make the watch's feed for the answering thread; until it is ready, the client may go away."""
        if self._live is not None:
            return nullcontext()
        preparing = asyncio.ensure_future(self._ready(asked, windowing, watch, held))
        try:
            return await _unless_failed(preparing, {receiving})
        finally:
            preparing.cancel()
            await asyncio.gather(preparing, return_exceptions=True)

    async def _ready(
        self, asked: WatchRequest, windowing: Windowing, watch: Watch, held: AsyncExitStack
    ) -> AbstractContextManager[None]:
        if (replay := asked.replay) is None:
            sources = cameras(asked, self._service.settings.live_hosts, windowing.length_s, self._share)
            frames, events = await held.enter_async_context(sources)
            self._sources = lambda: {"live": _public(sources_json(frames, events))}
            return watching(frames, SlidingWindows(windowing, events, LIMITS, newest=True), watch)
        recording = None if replay.event_url is None else EventUrl(**replay.event_url.model_dump())
        media = self._service.media.replayed(replay.video_url.url, recording, windowing.grid, self._asked.client)
        found = await held.enter_async_context(media)
        clip, self._window = found.video, found.window
        pixels = clip.frames.pixels.numpy()
        events = None if found.events is None else RecordedEvents(found.events)
        windows = SlidingWindows(windowing, events, newest=True)
        self._clock = ReplayClock(replay.speed)
        frames = list(zip(clip.frames.times_s.tolist(), pixels, strict=True))
        return replaying(frames, windows, watch, self._clock, seconds=clip.seconds)

    async def _answer(self, watch: Watch, feed: AbstractContextManager[None], receiving: "asyncio.Task[None]") -> None:
        """Answer windows until the stream ends or fails; no task or thread is left then."""
        threads = ThreadPoolExecutor(1, thread_name_prefix="watch")
        answering = asyncio.get_running_loop().run_in_executor(threads, self._answer_all, watch, feed)
        work = [self._beat(watch), *([self._live.run()] if self._live is not None else [])]
        tasks = {asyncio.ensure_future(one) for one in work}
        try:
            await _unless_failed(answering, {receiving, *tasks})
        finally:
            self._end(watch)
            self._calls.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(answering, *tasks, return_exceptions=True)
            await asyncio.to_thread(threads.shutdown)

    def _end(self, watch: Watch) -> None:
        """End the windows; the waiting window is still answered."""
        if self._clock is not None:
            self._clock.stop()
        if self._live is not None:
            self._live.stop()
        watch.close()

    async def _receive_all(self) -> None:
        """Receive messages; a client that sends nothing of a live stream for long counts as gone."""
        while True:
            try:
                message = await asyncio.wait_for(self._socket.receive(), SILENT_S if self._live is not None else None)
            except TimeoutError:
                raise ApiError(408, f"Nothing came of the stream for {SILENT_S:g} s; connect anew.", "silent") from None
            if not self._rate.passes():
                raise ApiError(
                    429,
                    f"A stream may send {self._rate.most} messages a second; send fewer, larger ones.",
                    "too_many_messages",
                )
            pushed = SCHEMA.decode(message.get("bytes"))
            if self._live is not None:
                self._live.push(pushed)
            elif isinstance(pushed, StreamEnd) and self._watch is not None:
                self._end(self._watch)
            else:
                raise bad_request("A stream that is replayed takes no frames and no events; leave replay out.")

    async def _beat(self, watch: Watch) -> None:
        """Send the window counts every second, until cancelled; end the stream when the server shuts down."""
        said = time.monotonic()
        while True:
            await asyncio.sleep(POLL_S)
            if self._service.draining:
                self._end(watch)
            if time.monotonic() - said >= PING_S:
                said, found = time.monotonic(), watch.summary
                windows = {"due": found.due, "answered": found.answered, "dropped": found.dropped}
                await self._send({"type": "heartbeat", "windows": windows} | self._sources())

    # -- in the thread of the answers ------------------------------------------------------------------------------

    def _answer_all(self, watch: Watch, feed: AbstractContextManager[None]) -> None:
        with feed:
            for window in watch.answers(self._piece, self._signal):
                shown = window.to_json()
                self._calls.wait(lambda shown=shown: self._send({"type": "window", **shown}))
        figures = watch.summary.to_json() | self._sources()
        self._calls.wait(lambda: self._send({"type": "summary", **figures}))

    def _ask(self, request: Request, on_piece: Callable[[Piece], None]) -> Answer:
        return self._calls.wait(lambda: self._answered(request, on_piece))

    # -- on the event loop -----------------------------------------------------------------------------------------

    async def _answered(self, request: Request, on_piece: Callable[[Piece], None]) -> Answer:
        """Return the engine's answer to one question about one window; if cancelled, it ends within a round."""
        async with self._window(request.events) as events:
            stream = self._service.engine.astream(replace(request, events=events), final_only=True)
            try:
                async with aclosing(aiter(stream)) as pieces:  # closed before its events are released
                    async for piece in pieces:
                        on_piece(piece)
                        while self._pieces:
                            await self._send(self._pieces.pop(0))
            except (asyncio.CancelledError, WebSocketDisconnect):  # the client has left
                self._service.metrics.ended(FinishedReason.ABORT)
                raise
        answer = stream.answer
        if answer is None:
            raise overloaded("The answer was cancelled.", "cancelled")
        self._service.metrics.answered(answer.stats, answer.finish)
        return replace(answer, notes=tuple(convert.public_notes(answer.notes)))

    def _piece(self, window: StreamWindow, index: int, piece: Piece) -> None:
        if self._wants_pieces:
            where = {"window": window.number, "end_s": round(window.end_s, 3), "question": index}
            self._pieces.append({"type": "piece", **where, "text": piece.text})

    def _signal(self, there: bool) -> None:
        self._calls.wait(lambda: self._send({"type": "signal", "there": there} | self._sources()))

    async def _send(self, message: Mapping[str, object]) -> None:
        await self._socket.send(json.dumps(message, ensure_ascii=False))

    async def _refuse(self, error: Exception) -> None:
        """Tell the client what is wrong, and end the connection."""
        failed = as_api_error(error)
        self._asked.refused(failed)
        if self._service.engine.closed:  # the server is closing: another one may answer
            failed = overloaded("The server is shutting down; ask another one.", "shutting_down")
        self._service.metrics.failed(failed.status)
        with suppress(WebSocketDisconnect):
            await self._send({"type": "error", **failed.body})
        await self._socket.close(TRY_AGAIN if failed.status == OVERLOADED else POLICY_VIOLATION)


def _public(sources: dict[str, dict[str, Any]]) -> dict[str, object]:
    """The state of sources for a client: without notes that name a path of this machine."""
    return {name: one | {"notes": convert.public_notes(one["notes"])} for name, one in sources.items()}


async def _unless_failed(work: "asyncio.Future[T]", tasks: Collection["asyncio.Future[None]"]) -> T:
    """Await `work`; if one of the tasks fails first, raise its error."""
    running = set(tasks)
    while not work.done():
        done, _ = await asyncio.wait({work, *running}, return_when=asyncio.FIRST_COMPLETED)
        for task in done & running:
            running.discard(task)
            task.result()
    return work.result()


@contextmanager
def _admitted(service: Service, asked: RequestInfo) -> Iterator[None]:
    """Count one more stream, as one request while it lasts: it asks one question at a time.

    Raises:
        ApiError: 503, too many streams run, or the server shuts down; else as `RequestLimits.admitted`.
    """
    service.check_ready()
    if service.streams >= service.settings.streams:
        raise overloaded("As many streams run as the server takes at a time; ask again later.", "streams_full")
    with service.limits.admitted(asked.client):
        service.streams += 1
        try:
            yield
        finally:
            service.streams -= 1


@router.websocket(ROUTE)
async def watch(socket: WebSocket) -> None:
    """Serve a stream."""
    with _admitted(socket.app.state.service, socket.state.asked):
        await WatchConnection(socket).run()
