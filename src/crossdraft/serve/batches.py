"""`/v1/batches`: uploads of requests, answered behind all others into uploads of the same client."""

import asyncio
import json
import logging
import secrets
import time
from collections import defaultdict
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import islice
from tempfile import TemporaryFile
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from crossdraft.serve.batch import Endpoint, answers, lines_of
from crossdraft.serve.bodies import parsed, validated
from crossdraft.serve.errors import ApiError, as_api_error, bad_request, too_many
from crossdraft.serve.gate import asked_by, service_of
from crossdraft.serve.keys import Client
from crossdraft.serve.schema import Body, Id
from crossdraft.serve.service import Service

log = logging.getLogger("crossdraft.serve")
router = APIRouter()
Batch = dict[str, Any]  # OpenAI's object

MOST_LINES = 50_000  # of a batch; OpenAI's limit
MOST_BATCHES = 100  # of a client; the oldest that is over is forgotten for a new one
WINDOW_S = 86_400  # seconds after which a batch ends with what it has
OVER = ("completed", "failed", "expired", "cancelled")
TIMES = [f"{status}_at" for status in ("in_progress", "finalizing", "cancelling", *OVER)]
ShortText = Annotated[str, Field(max_length=512)]
Limit = Annotated[int, Query(ge=1, le=100)]


class BatchRequest(Body):
    """A batch to be answered."""

    input_file_id: Id
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: dict[ShortText, ShortText] | None = Field(default=None, max_length=16)


class Batches:
    """The batches of a server, in memory, by client; of each client one is answered at a time."""

    def __init__(self, service: Service) -> None:
        self._service, self._turns = service, defaultdict[str, asyncio.Lock](asyncio.Lock)
        self.clients = defaultdict[str, dict[str, Batch]](dict)
        self.tasks = dict[str, asyncio.Task[None]]()  # of batches that are not over, by id

    def get(self, found: str, owner: str, param: str | None = None) -> Batch:
        """Return a client's batch, or raise 404."""
        if (batch := self.clients[owner].get(found)) is None:
            raise ApiError(404, "There is no such batch, or no longer; list yours.", "batch_not_found", param)
        return batch

    def begin(self, asked: BatchRequest, client: Client) -> Batch:
        """Queue a batch; refuse one without an upload of the client's, and one beyond the limit."""
        self._service.uploads.get(asked.input_file_id, client.name, "input_file_id")
        mine, name, now = self.clients[client.name], f"batch_{secrets.token_hex(16)}", int(time.time())
        if len(mine) >= MOST_BATCHES:
            if (old := next((one for one, found in mine.items() if found["status"] in OVER), None)) is None:
                raise too_many(f"You have {MOST_BATCHES} batches that are not over, the limit; ask again later.", 10)
            del mine[old]
        mine[name] = {"id": name, "object": "batch", **asked.model_dump(), "status": "validating", "created_at": now}
        mine[name] |= {"expires_at": now + WINDOW_S, "request_counts": {"total": 0, "completed": 0, "failed": 0}}
        mine[name] |= dict.fromkeys(("errors", "output_file_id", "error_file_id", *TIMES))
        self.tasks[name] = asyncio.create_task(self._run(mine[name], client))
        return mine[name]

    async def _run(self, batch: Batch, client: Client) -> None:
        """Answer a batch when its turn comes; whatever ends it, what was answered until then is kept."""
        ended = "completed"
        try:
            async with asyncio.timeout(WINDOW_S), self._turns[client.name]:
                await self._answer(batch, client)
        except TimeoutError:
            ended = "expired"
        except asyncio.CancelledError:
            ended = "cancelled"
        except Exception as error:  # noqa: BLE001 - the batch says it
            batch["errors"], ended = {"object": "list", "data": [as_api_error(error).body["error"]]}, "failed"
        _enter(batch, ended)
        del self.tasks[batch["id"]]
        log.info("%s %s", batch["id"], ended, extra={"facts": {"client": client.name, **batch["request_counts"]}})

    async def _answer(self, batch: Batch, client: Client) -> None:
        """Ask the lines, as far as the client's quota goes; write answers into one upload, errors into another."""
        service, uploads, counts = self._service, self._service.uploads, batch["request_counts"]
        anyhow = replace(client, requests_per_minute=None, concurrent=None, behind=True)
        parallel = min(service.settings.engine.max_batch, client.concurrent or MOST_LINES)
        given = uploads.get(batch["input_file_id"], client.name).path
        temporary = partial(TemporaryFile, dir=uploads.folder)
        with given.open("rb") as file, temporary() as said, temporary() as wrong:
            lines = partial(lines_of, file, service.settings.body_bytes)
            counts["total"] = await asyncio.to_thread(lambda: sum(1 for _ in islice(lines(), MOST_LINES + 1)))
            if not 0 < counts["total"] <= MOST_LINES:
                raise bad_request(f"A batch has 1 to {MOST_LINES:,} lines; send others.", "input_file_id", "lines")
            file.seek(0)
            _enter(batch, "in_progress")
            try:
                async with aclosing(answers(service, lines(), anyhow, set(), parallel)) as found:
                    async for one in found:
                        line, room = json.dumps(one).encode() + b"\n", uploads.room(client.name)
                        if said.tell() + wrong.tell() + len(line) > min(room, service.settings.upload_bytes):
                            raise ApiError(413, "The answers are more than your files may be.", "quota_exceeded")
                        good = (one["response"] or {}).get("status_code") == 200
                        (said if good else wrong).write(line)
                        counts["completed" if good else "failed"] += 1
                _enter(batch, "finalizing")
            finally:
                for kind, made in (("output", said), ("error", wrong)):
                    if made.tell():
                        made.seek(0)
                        add = partial(uploads.add, client.name, f"{batch['id']}_{kind}.jsonl", "batch_output", made)
                        batch[f"{kind}_file_id"] = (await asyncio.to_thread(add)).id


def _enter(batch: Batch, status: str) -> None:
    batch |= {"status": status, f"{status}_at": int(time.time())}


@router.post("/v1/batches")
async def create(request: Request) -> Response:
    """Have the lines of an upload answered, within a day."""
    service, client, body = service_of(request), asked_by(request).client, await request.body()
    service.check_ready()
    service.rates.count(client)
    asked = await parsed(body, partial(validated, BatchRequest))
    return JSONResponse(request.app.state.batches.begin(asked, client))


@router.get("/v1/batches")
async def listed(request: Request, limit: Limit = 20, after: str | None = None) -> Response:
    """List one page of the client's batches, newest first, from behind the batch `after`."""
    batches, owner = request.app.state.batches, asked_by(request).client.name
    found = [*batches.clients[owner].values()][::-1]
    begin = 0 if after is None else found.index(batches.get(after, owner, "after")) + 1
    data = found[begin : begin + limit]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return JSONResponse({"object": "list", "data": data, "has_more": len(found) > begin + limit, **ends})


@router.get("/v1/batches/{found}")
async def described(request: Request, found: str) -> Response:
    """Describe a batch."""
    return JSONResponse(request.app.state.batches.get(found, asked_by(request).client.name))


@router.post("/v1/batches/{found}/cancel")
async def cancel(request: Request, found: str) -> Response:
    """Cancel a batch; what was answered until then is kept."""
    batches = request.app.state.batches
    batch = batches.get(found, asked_by(request).client.name)
    if batch["status"] not in ("validating", "in_progress"):
        raise bad_request(f"The batch is {batch['status']}, and cannot be cancelled.", code="invalid_status")
    _enter(batch, "cancelling")
    batches.tasks[found].cancel()
    return JSONResponse(batch)
