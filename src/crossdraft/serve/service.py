"""The state that all routes share: the engine, the media, the clients' limits, and the server's state."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np

from crossdraft.api import Engine, Request, default_drafter
from crossdraft.engine.runner.runner import refusals_unlogged
from crossdraft.errors import CrossdraftError
from crossdraft.ocr import Ocr
from crossdraft.serve.bodies import BodyLimits
from crossdraft.serve.decode import MediaDecoder
from crossdraft.serve.errors import ApiError, bad_request, overloaded, short, too_many
from crossdraft.serve.fetch import Fetcher
from crossdraft.serve.folder import server_folder
from crossdraft.serve.keys import Client, Keys, read_keys
from crossdraft.serve.local_files import LocalFiles
from crossdraft.serve.media import MediaLoader
from crossdraft.serve.media_files import MediaFiles
from crossdraft.serve.metrics import Metrics, ServerState
from crossdraft.serve.response_store import ResponseStore
from crossdraft.serve.settings import ServerSettings
from crossdraft.serve.tracing import SpanRecorder
from crossdraft.serve.uploads import Uploads
from crossdraft.video.clip import DEFAULT_FRAMES, FrameSampling
from crossdraft.video_prompt import video_prompt

log = logging.getLogger(__name__)

WARM_UP_TOKENS = 4
MINUTE_S = 60.0


class RequestRates:
    """Counts the requests of each client in the last minute, and refuses those beyond its limit."""

    def __init__(self) -> None:
        self._recent: dict[str, list[float]] = {}  # times of each client's requests

    def check(self, client: Client) -> None:
        """Refuse if the client's limit is reached; the request is not counted.

        Raises:
            ApiError: 429, the client has sent too many requests.
        """
        most = client.requests_per_minute
        if most is None:
            return
        now = time.monotonic()
        recent = [one for one in self._recent.get(client.name, ()) if one > now - MINUTE_S]
        self._recent[client.name] = recent
        if len(recent) >= most:
            wait = max(1, round(recent[0] + MINUTE_S - now))
            raise too_many(f"You may ask {most} times a minute; ask again later.", wait)

    def count(self, client: Client) -> None:
        """Count one more request; errors as `check`."""
        self.check(client)
        if client.requests_per_minute is not None:
            self._recent[client.name].append(time.monotonic())


class RequestLimits:
    """Counts running requests of one kind, over all clients and for each, and refuses those beyond the limits.

    Args:
        most: largest number of requests of all clients.
        rates: rates of the clients, over all kinds of request.
    """

    def __init__(self, most: int, rates: RequestRates) -> None:
        self._most, self._rates = most, rates
        self._clients = Counter[str]()
        self.active = 0

    @contextmanager
    def admitted(self, client: Client, answers: int = 1) -> Iterator[None]:
        """Count one more request while the context is open, as many times as it asks for answers.

        Raises:
            ApiError: 503, the queue is full; 429, the client's own limit is reached; 400, it holds fewer answers.
        """
        with self.running(client, answers):
            self._rates.count(client)
            yield

    @contextmanager
    def running(self, client: Client, answers: int = 1) -> Iterator[None]:
        """Count a running request as `admitted` does, if the client's rate has counted it already."""
        self._check_room(client, answers)
        self.active += answers
        self._clients[client.name] += answers
        try:
            yield
        finally:
            self.active -= answers
            self._clients[client.name] -= answers
            if not self._clients[client.name]:
                del self._clients[client.name]

    def check(self, client: Client) -> None:
        """Refuse if there is no room for one more request now, without counting it; errors as `admitted`."""
        self._check_room(client)
        self._rates.check(client)

    def _check_room(self, client: Client, answers: int = 1) -> None:
        most = self._most if client.concurrent is None else min(self._most, client.concurrent)
        if answers > most:
            raise bad_request(f"{answers} answers are asked for, and {most} run at a time here; ask for fewer.", "n")
        if self.active + answers > self._most:
            raise overloaded("As many requests wait as the server's queue holds; ask again later.", "queue_full")
        if client.concurrent is not None and self._clients[client.name] + answers > client.concurrent:
            raise too_many(f"You have {client.concurrent} requests running, the limit; wait for one to end.", 1)


class Service:
    """A loaded server without its network. Close it.

    Args:
        settings: see `ServerSettings`.
        engine: a loaded engine, which the caller closes; its queue must hold those of `load_engine`.
        fetcher, local: what fetches media and finds local files, in place of those that the settings describe.
    """

    def __init__(
        self, settings: ServerSettings, engine: Engine, fetcher: Fetcher | None = None, local: LocalFiles | None = None
    ) -> None:
        self.settings, self.engine = settings, engine
        self.created, self.names = int(time.time()), tuple(dict.fromkeys((settings.model, *settings.alias)))
        self.ocr = None if settings.ocr is None else Ocr(settings.ocr)
        self.draining = False
        self.bodies = BodyLimits(settings.bodies_bytes, settings.largest_body)
        self.anybody = Client("", settings.requests_per_minute, settings.concurrent)
        self.keys: Keys | None = None if settings.keys_file is None else read_keys(settings.keys_file, self.anybody)
        most, self.rates = settings.engine.max_batch + (settings.engine.max_queue or 0), RequestRates()
        self.limits = RequestLimits(most, self.rates)  # of answers
        self.behind = RequestLimits(most, self.rates)  # of answers to lines of batches
        self._first_behind = asyncio.Lock()
        self.others = RequestLimits(most, self.rates)  # of uploads and pictures
        self.responses = ResponseStore()
        self.streams = 0  # of `/v1/watch`
        if settings.media_root is not None and not settings.media_root.is_dir():
            raise CrossdraftError(f"There is no media folder at {settings.media_root}; make it, or check the path.")
        with ExitStack() as held:
            self.spans = SpanRecorder(settings.model) if settings.trace_spans else None
            if self.spans is not None:
                held.callback(self.spans.close)
            self.uploads, self.decoder, self.media = self._made(held, fetcher, local or LocalFiles(settings.media_root))
            self.metrics = self._metrics()
            self._held = held.pop_all()

    def _made(
        self, held: ExitStack, fetcher: Fetcher | None, local: LocalFiles
    ) -> tuple[Uploads, MediaDecoder, MediaLoader]:
        """Make the parts with folders, threads or processes; `held` ends them, the decoder first, as it writes."""
        settings = self.settings
        folder = held.enter_context(server_folder())
        spool, recordings = folder / "spool", folder / "recordings"
        for made in (spool, recordings):
            made.mkdir(mode=0o700)
        kept = settings.upload_folder or folder / "uploads"
        uploads = Uploads(kept, settings.upload_bytes, settings.upload_quota, settings.upload_seconds)
        held.callback(uploads.close)
        hosts = frozenset(host.lower() for host in settings.remote_hosts)
        if fetcher is None and hosts:
            fetcher = Fetcher(hosts, settings.remote_bytes, settings.remote_seconds)
        files = MediaFiles(uploads, local, fetcher, spool, settings.local_bytes)
        held.callback(files.close)
        decoder = MediaDecoder(settings.decode_workers, settings.decode_bytes, settings.decode_seconds)
        held.callback(decoder.close)
        decoder.warm_up()
        prepare = video_prompt(self.engine.target.prepare)
        media = MediaLoader(
            files,
            decoder,
            recordings,
            cache_bytes=settings.media_cache_bytes,
            most_bytes=settings.media_bytes,
            most_parts=settings.parts,
            sampling=FrameSampling(DEFAULT_FRAMES) if prepare is None else prepare.sampling,
        )
        return uploads, decoder, media

    def _metrics(self) -> Metrics:
        settings = self.settings
        return Metrics(
            settings.model,
            lambda: ServerState(
                running=min(self.active, settings.engine.max_batch),
                waiting=max(0, self.active - settings.engine.max_batch),
                cached_bytes=self.media.cached_bytes,
                upload_bytes=self.uploads.nbytes,
                drafter=self.engine.drafter_alive,
                rows=self.engine.rows,
                prefill=self.engine.prefill_status,
            ),
        )

    @property
    def active(self) -> int:
        """Number of running answers, those to lines of batches among them."""
        return self.limits.active + self.behind.active

    async def wait_behind(self, answers: int) -> None:
        """Wait until a line of a batch may be asked: no other line runs, or rows are free; errors as `check_ready`."""
        async with self._first_behind:  # first come, first served, whatever batch they are of
            while self.behind.active and self.active + answers > self.settings.engine.max_batch:
                await asyncio.sleep(0.05)
            self.check_ready()

    @property
    def ready(self) -> bool:
        """True if the server takes requests."""
        return not (self.draining or self.engine.closed)

    def check_ready(self) -> None:
        """Refuse a request, with 503, if the server takes none."""
        if not self.ready:
            raise overloaded("The server is shutting down; ask another one.", "shutting_down")

    def check_model(self, name: str) -> None:
        """Refuse a request, with 404, that names another model."""
        if name not in self.names:
            said = f"There is no model {short(name)!r} here, but {self.settings.model!r}."
            raise ApiError(404, said, "model_not_found", "model")

    def longest(self, client: Client) -> int:
        """Largest number of tokens that an answer of a client may have."""
        most = self.settings.max_new_tokens
        return min(client.max_new_tokens or most, most, self.engine.target.context)

    def open_length(self, client: Client) -> int | None:
        """Length limit for a request that states none; `None` leaves it to the checkpoint's default."""
        longest, target = self.longest(client), self.engine.target
        return None if target.defaults.most(target.context) <= longest else longest

    def close(self) -> None:
        """End the workers, and delete all files."""
        self._held.close()


def load_engine(settings: ServerSettings) -> Engine:
    """Load the engine that the settings describe, with room for as many lines of batches as rows, and warm it up.

    Raises:
        CrossdraftError: as `Engine.load`.
    """
    if settings.ocr is not None:
        Ocr(settings.ocr)  # refused before a model is loaded
    drafter = settings.drafter
    if drafter == "auto":
        drafter = default_drafter(settings.target, settings.engine, events=None)
    log.info("loading the models")
    options = replace(settings.engine, max_queue=(settings.engine.max_queue or 0) + settings.engine.max_batch)
    engine = Engine.load(settings.target, drafter, options)
    try:
        log.info("warming up")
        _warm_up(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def _warm_up(engine: Engine) -> None:
    """Answer two requests about a grey clip, so that first-time costs are paid; no drafter learns from them.

    A text model is asked in words.
    """
    from crossdraft.events import Events

    count, sees = 1000, bool(engine.target.traits.visual_ids)
    columns = (np.arange(count) % 64, np.arange(count) % 64, np.arange(count) * 1000, np.arange(count) % 2)
    events = Events.checked(*columns, 64, 64)
    frames = np.full((DEFAULT_FRAMES, 64, 64, 3), 128, np.uint8)
    for _ in range(2):
        shown = {"video": frames, "events": events} if sees else {}
        request = Request("What is ahead?", **shown, max_new_tokens=WARM_UP_TOKENS, namespace=None)
        with refusals_unlogged():  # for example, no edge is connected yet
            engine.generate(request)
