"""`/`: the page, its files, pictures of events, and a comparison with the target alone."""

import asyncio
import threading
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Annotated, TypeVar

import cv2
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from crossdraft.alone import target_alone
from crossdraft.serve import sse
from crossdraft.serve.answering import Answering
from crossdraft.serve.chat import read_chat
from crossdraft.serve.errors import READ, gone, overloaded
from crossdraft.serve.files import SHOWN, path_of
from crossdraft.serve.gate import asked_by, service_of
from crossdraft.serve.page.strip import COLUMNS, MOST_FRAMES
from crossdraft.serve.page_files import FILES, page_file
from crossdraft.serve.service import Service

router = APIRouter()
T = TypeVar("T")

LOOK_S = 0.05  # seconds between two checks for other requests


async def page(request: Request) -> Response:
    """Send the page, or a file of it."""
    return page_file(request.scope["path"])


for path in FILES:
    router.add_api_route(path, page, methods=READ)


@router.get("/page/events.png")
async def events(
    request: Request,
    url: str,
    seconds: Annotated[float, Query(ge=0, le=1e6, allow_inf_nan=False)] = 0,
    frames: Annotated[int, Query(ge=COLUMNS, le=MOST_FRAMES, multiple_of=COLUMNS)] = MOST_FRAMES,
) -> Response:
    """Send a recording's frames as one picture (`event_strip`); `url` as in `/v1/media/content`."""
    service, client = service_of(request), asked_by(request).client
    path = path_of(service, url, client)

    async def draw() -> bytes:
        pixels = await service.decoder.strip(path, seconds, frames, "The recording")
        _, picture = await asyncio.to_thread(cv2.imencode, ".png", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))
        return picture.tobytes()

    with service.others.admitted(client):
        found = await sse.unless_gone(request.receive, draw())
    return gone() if found is None else Response(found, media_type="image/png", headers=SHOWN)


def _check_idle(service: Service, own: int = 0) -> None:
    """Refuse if more than `own` requests are being answered, or the server is not ready.

    Raises:
        ApiError: 503.
    """
    if service.active > own or not service.ready:
        raise overloaded("Others are being answered; compare when the server has nothing else to do.", "busy")


async def _while_idle(service: Service, running: "asyncio.Future[T]") -> T:
    """Await the only running request; as soon as another one comes, fail as `_check_idle` does."""
    while not (await asyncio.wait([running], timeout=LOOK_S))[0]:
        _check_idle(service, own=1)
    return await running


@router.post("/page/alone")
async def alone(request: Request) -> Response:
    """Answer with the target alone, now, and time the pair; the body is that of `/v1/chat/completions`.

    The pair answers anew as well, without cached prompts and answers, which the target alone does not have either.
    Nothing else runs in the engine meanwhile: the request is refused while others are being answered, and it ends with
    the same error as soon as another request comes.
    """
    service, asked = service_of(request), asked_by(request)
    chat = await read_chat(service, await request.body(), asked.client)
    answering, stop = Answering(service, chat, asked), threading.Event()

    async def answer() -> dict[str, object]:
        _check_idle(service)
        async with AsyncExitStack() as held:
            question = await answering.loaded(held)
            _check_idle(service, own=1)  # the clip may have taken seconds
            pairing = asyncio.ensure_future(service.engine.agenerate(replace(question, namespace=None)))
            try:
                pair = await _while_idle(service, pairing)
            finally:
                pairing.cancel()
            running = asyncio.ensure_future(asyncio.to_thread(target_alone, service.engine, question, stop))
            try:
                found = await _while_idle(service, running)
            finally:  # a thread cannot be cancelled: it is told to stop, and counts as a request until it ends
                stop.set()
                await asyncio.wait([running])
        stats = found.answer.stats
        times = {"ttft_ms": stats.ttft_s, "total_ms": stats.total_s, "pair_ms": pair.stats.total_s}
        shown = {name: round(seconds * 1e3, 3) for name, seconds in times.items()}
        return {"text": found.answer.text, "new_tokens": stats.new_tokens, "cores": found.cores, **shown}

    try:
        found = await sse.unless_gone(request.receive, answer())
    except Exception as error:
        raise answering.failed(error) from error
    return gone() if found is None else JSONResponse(found)
