"""The media of a request: found, decoded in a process of its own, kept for later requests."""

import asyncio
import base64
import binascii
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import unquote_to_bytes

import numpy as np

from crossdraft.engine.content import SETTLED_NS
from crossdraft.errors import CrossdraftError
from crossdraft.events.excerpt import Excerpt, shown_in
from crossdraft.serve.budget import MediaBudget, MediaShare
from crossdraft.serve.decode import DecodedVideo, MediaDecoder
from crossdraft.serve.errors import ApiError, bad_request
from crossdraft.serve.fetch import Fetcher
from crossdraft.serve.local_files import LocalFiles
from crossdraft.serve.schema import ChatRequest, EventPart, EventUrl, FilePart, ImagePart, TextPart, VideoPart, VideoUrl
from crossdraft.serve.uploads import ID, Uploads
from crossdraft.video.clip import MAX_FRAMES, DecodedClip, FrameSampling
from crossdraft.video.grid import WindowGrid

REMEMBERED = 4096  # names of media, and recordings that were looked through
STILLS = "data:video/jpeg;base64,"
INLINE = 1 << 20  # characters of base64 that are decoded at once; more are in a thread
INLINE_QUOTED = 1 << 14  # of %xx, which takes a hundred times as long
HASHERS = 2  # threads
CLIP, RECORDING = "replay.video_url", "replay.event_url"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _File:
    """A file on this machine: where it lies, and the digest of its bytes."""

    path: Path
    digest: bytes


@dataclass(slots=True)
class _Making(Generic[T]):
    """A value that is being made, and how many wait for it."""

    task: "asyncio.Task[T]"
    waiting: int = 0


class _Cache(Generic[T]):
    """Values by key, the least recently used ones forgotten; each is made once, however many ask for it at a time."""

    def __init__(self, most: int, size: Callable[[T], int]) -> None:
        self._most, self._size = most, size
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self._making: dict[Hashable, _Making[T]] = {}
        self.held = 0

    def known(self, key: Hashable) -> T | None:
        """The value, if it is there."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    async def get(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The value. Who asks may be cancelled: it is still made for others that wait for it, but not for nobody."""
        while (value := self.known(key)) is None:
            making, first = self._making.get(key), False
            if making is None:
                making, first = _Making(asyncio.get_running_loop().create_task(make())), True
                making.task.add_done_callback(lambda done: self._keep(key, done))
                self._making[key] = making
            making.waiting += 1
            try:
                return await asyncio.shield(making.task)
            except Exception:
                if first:  # others try what is theirs: the file may have gone with the request that had it
                    raise
            finally:
                making.waiting -= 1
                if not making.waiting:
                    making.task.cancel()
                    if self._making.get(key) is making:
                        del self._making[key]
        return value

    def _keep(self, key: Hashable, done: "asyncio.Task[T]") -> None:
        if key in self._making and self._making[key].task is done:
            del self._making[key]
        if not done.cancelled() and done.exception() is None:
            self.put(key, done.result())

    def put(self, key: Hashable, value: T) -> None:
        """Keep a value, unless it alone is too large."""
        if self._size(value) > self._most:
            return
        old = self._values.pop(key, None)
        self.held += self._size(value) - (0 if old is None else self._size(old))
        self._values[key] = value
        while self.held > self._most:
            self.held -= self._size(self._values.popitem(last=False)[1])


@dataclass(frozen=True, slots=True)
class _ShownPart:
    """A part of a message as the engine takes it, and how long it is, if it is a clip."""

    part: dict[str, object]
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class _Recorded:
    """An event recording that was read once.

    Args:
        asked: which part of it the drafter is to read.
        file: where it lies.
        first_us: time of its first event.
        param: the part of the request that names it.
    """

    asked: EventUrl
    file: _File
    first_us: int
    param: str


@dataclass(slots=True)
class _Scope:
    """One request's own: whose it is, how many frames of a clip it wants, what it holds, the files that go with it."""

    owner: str
    sampling: FrameSampling
    share: MediaShare
    files: list[Path] = field(default_factory=list)

    def close(self) -> None:
        """It is over."""
        self.share.close()
        for path in self.files:
            path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class LoadedMedia:
    """Messages and recording as `crossdraft.Request` takes them."""

    messages: list[dict[str, object]]
    events: Excerpt | None


class MediaLoader:
    """Loads the media of requests.

    Args:
        spool: a folder for files that live as long as a request.
        cache_bytes: of decoded frames that are kept.
        most_bytes: that all requests may hold at a time.
        most_local: bytes of a file of the media folder.
        most_parts: of one request.
        sampling: how many frames the target reads, where a request does not say.
    """

    def __init__(
        self,
        uploads: Uploads,
        local: LocalFiles,
        fetcher: Fetcher | None,
        decoder: MediaDecoder,
        spool: Path,
        *,
        cache_bytes: int,
        most_bytes: int,
        most_local: int,
        most_parts: int,
        sampling: FrameSampling,
    ) -> None:
        self.uploads, self.local, self.fetcher, self.decoder = uploads, local, fetcher, decoder
        self._spool, self._most_local, self._most_parts, self._sampling = spool, most_local, most_parts, sampling
        self.budget = MediaBudget(most_bytes)
        self._hashing = ThreadPoolExecutor(HASHERS, thread_name_prefix="hash")  # a large file keeps nobody else waiting
        self._versions = _Cache[bytes](REMEMBERED, lambda _: 1)
        self._decoded = _Cache[DecodedVideo](cache_bytes, _size)
        self._recordings = _Cache[int](REMEMBERED, lambda _: 1)  # a client's recording -> time of its first event
        self._kinds = _Cache[str](REMEMBERED, lambda _: 1)
        self._names = _Cache[Hashable](REMEMBERED, lambda _: 1)  # a client's uuid -> what it is known by here

    @property
    def cached_bytes(self) -> int:
        """Of decoded frames."""
        return self._decoded.held

    @property
    def spooled(self) -> int:
        """Files of requests that are not over."""
        return sum(1 for _ in self._spool.iterdir())

    @asynccontextmanager
    async def loaded(self, chat: ChatRequest, owner: str) -> AsyncIterator[LoadedMedia]:
        """All media of a request of a client; its files are there as long as the context.

        Raises:
            ApiError: something cannot be found, or there is too much of it.
            CrossdraftError: something cannot be decoded.
        """
        scope = _Scope(owner, self._sampling_of(chat), MediaShare(self.budget))
        try:
            yield await self._loaded(chat, scope)
        finally:
            scope.close()

    @asynccontextmanager
    async def replayed(
        self, url: str, recording: EventUrl | None, grid: WindowGrid, owner: str
    ) -> AsyncIterator[tuple[DecodedVideo, Excerpt | None]]:
        """A clip as a stream: the frames that its windows show, and what an event camera saw; errors as `loaded`."""
        scope = _Scope(owner, self._sampling, MediaShare(self.budget))

        try:
            file = await self._file(url, scope, CLIP)
            key = (owner, "stream", file.digest, grid)
            video = await self._held(key, lambda: self.decoder.grid(file.path, grid, CLIP), scope)
            recorded = None if recording is None else await self._event(recording, None, scope, RECORDING)
            yield video, None if recorded is None else _excerpt(recorded, video.seconds)
        finally:
            scope.close()

    async def frame(self, image: bytes, name: str) -> np.ndarray:
        """A frame that was pushed as a file, uint8 RGB [H, W, 3]; nothing of it is kept.

        Raises:
            DecodeError: it cannot be decoded.
        """
        path = self._spool / secrets.token_hex(16)
        try:
            path.write_bytes(image)
            return (await self.decoder.image(path, name)).pixels[0].numpy()
        finally:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """End its threads."""
        self._hashing.shutdown(wait=False, cancel_futures=True)

    def _sampling_of(self, chat: ChatRequest) -> FrameSampling:
        asked = chat.media_io_kwargs.video if chat.media_io_kwargs is not None else None
        return self._sampling if asked is None else _sampling(self._sampling, asked, "media_io_kwargs.video")

    async def _loaded(self, chat: ChatRequest, scope: _Scope) -> LoadedMedia:
        """All parts of all messages, side by side: a recording is read while the clip is decoded."""
        parts = {
            (number, index): part
            for number, message in enumerate(chat.messages)
            if not isinstance(message.content, str)
            for index, part in enumerate(message.content)
        }
        if sum(not isinstance(part, TextPart) for part in parts.values()) > self._most_parts:
            raise bad_request(f"The request has more than {self._most_parts} images, clips and recordings.", "messages")
        loading = [self._part(part, scope, f"messages[{at[0]}].content[{at[1]}]") for at, part in parts.items()]
        loaded = dict(zip(parts, await _all(loading), strict=True))
        messages: list[dict[str, object]] = []
        for number, message in enumerate(chat.messages):
            content: object = message.content
            if not isinstance(content, str):
                found = [one for at, one in loaded.items() if at[0] == number]
                content = [one.part for one in found if isinstance(one, _ShownPart)]
            messages.append({"role": "system" if message.role == "developer" else message.role, "content": content})
        recorded = [one for one in loaded.values() if isinstance(one, _Recorded)]
        if len(recorded) > 1:
            raise bad_request("The request has two event recordings; send one, of the last clip's moment.", "messages")
        clips = [one.seconds for one in loaded.values() if isinstance(one, _ShownPart) and one.seconds is not None]
        seconds = clips[-1] if clips else 0.0
        return LoadedMedia(messages, _excerpt(recorded[0], seconds) if recorded else None)

    async def _part(self, part: object, scope: _Scope, param: str) -> "_ShownPart | _Recorded":
        match part:
            case ImagePart():
                return await self._image(part.image_url.url if part.image_url else None, part.uuid, scope, param)
            case VideoPart():
                return await self._video(part.video_url or VideoUrl(), part.uuid, scope, param)
            case EventPart():
                return await self._event(part.event_url or EventUrl(), part.uuid, scope, param)
            case FilePart():
                return await self._upload(part.file.file_id, scope, param)
            case TextPart():
                return _ShownPart({"type": "text", "text": part.text})
        raise TypeError(part)

    async def _upload(self, found: str, scope: _Scope, param: str) -> "_ShownPart | _Recorded":
        """An upload that is named as OpenAI does, without saying what it is."""
        file = self.uploads.get(found, scope.owner, param)
        kind = await self._kinds.get((scope.owner, file.digest), lambda: self.decoder.kind_of(file.path, param))
        if kind == "image":
            return await self._image(found, None, scope, param)
        if kind == "video":
            return await self._video(VideoUrl(url=found), None, scope, param)
        return await self._event(EventUrl(url=found), None, scope, param)

    # -- images and clips ------------------------------------------------------------------------------------------

    async def _image(self, url: str | None, uuid: str | None, scope: _Scope, param: str) -> _ShownPart:
        async def decode(file: _File) -> DecodedVideo:
            return DecodedVideo(await self.decoder.image(file.path, param))

        clip, _ = await self._visual("image", url, uuid, None, decode, scope, param)
        return _ShownPart({"type": "image", "image": clip})

    async def _video(self, asked: VideoUrl, uuid: str | None, scope: _Scope, param: str) -> _ShownPart:
        sampling = _sampling(scope.sampling, asked, param)
        if asked.url is not None and asked.url.startswith(STILLS) and "," in asked.url[len(STILLS) :]:
            return await self._stills(asked.url[len(STILLS) :].split(","), scope, param)

        async def decode(file: _File) -> DecodedVideo:
            return await self.decoder.clip(file.path, sampling, param)

        clip, seconds = await self._visual("video", asked.url, uuid, sampling, decode, scope, param)
        return _ShownPart({"type": "video", "video": clip}, seconds)

    async def _visual(
        self,
        kind: str,
        url: str | None,
        uuid: str | None,
        sampling: FrameSampling | None,
        decode: Callable[[_File], Coroutine[Any, Any, DecodedVideo]],
        scope: _Scope,
        param: str,
    ) -> tuple[DecodedClip, float]:
        """An image or a clip, and how long it is."""
        name = (scope.owner, kind, uuid)
        if url is None:
            digest = self._names.known(name) if uuid is not None else None
            video = None if digest is None else self._decoded.known((scope.owner, kind, digest, sampling))
            if not isinstance(digest, bytes) or video is None:
                raise _unknown(uuid, param)
            scope.share.hold(_size(video), (scope.owner, kind, digest, sampling))
        else:
            file = await self._file(url, scope, param)
            digest = file.digest
            video = await self._held((scope.owner, kind, digest, sampling), lambda: decode(file), scope)
            if uuid is not None:
                self._names.put(name, digest)
        return DecodedClip(digest, sampling, video.frames), video.seconds

    async def _held(
        self, key: Hashable, decode: Callable[[], Coroutine[Any, Any, DecodedVideo]], scope: _Scope
    ) -> DecodedVideo:
        """A decoded clip, which the request holds from now on."""
        video = await self._decoded.get(key, decode)
        scope.share.hold(_size(video), key)
        return video

    async def _stills(self, shots: list[str], scope: _Scope, param: str) -> _ShownPart:
        """Frames that the client has sampled: one address with several JPEG files, as vLLM takes them."""
        if len(shots) > MAX_FRAMES:
            raise bad_request(f"The clip has more than {MAX_FRAMES} frames, the limit; send fewer.", param)
        files = [await self._data(f"image/jpeg;base64,{shot}", scope, param) for shot in shots]
        digest = hashlib.sha256(b"".join(file.digest for file in files)).digest()
        key = (scope.owner, "stills", digest, None)
        video = await self._held(key, lambda: self.decoder.stills([file.path for file in files], param), scope)
        return _ShownPart({"type": "video", "video": DecodedClip(digest, None, video.frames)}, 0.0)

    # -- recordings ------------------------------------------------------------------------------------------------

    async def _event(self, asked: EventUrl, uuid: str | None, scope: _Scope, param: str) -> _Recorded:
        name, url = (scope.owner, "event", uuid), asked.url
        if url is None:
            url = self._names.known(name) if uuid is not None else None
            if not isinstance(url, str):
                raise _unknown(uuid, param)
        file = await self._file(url, scope, param)
        key = (scope.owner, file.digest, file.path.suffix, asked.format, asked.sensor)
        first = await self._recordings.get(
            key, lambda: self.decoder.recording(file.path, asked.format, asked.sensor, param)
        )
        if uuid is not None and not url.startswith("data:"):  # whose file is gone with the request
            self._names.put(name, url)
        return _Recorded(asked, file, first, param)

    # -- files -----------------------------------------------------------------------------------------------------

    async def _file(self, url: str, scope: _Scope, param: str) -> _File:
        """The file that an address names."""
        scheme, colon, rest = url.partition(":")
        if ID.fullmatch(url):
            upload = self.uploads.get(url, scope.owner, param)
            return _File(upload.path, upload.digest)
        match scheme.lower() if colon else "":
            case "data":
                return await self._data(rest, scope, param)
            case "file":
                path = self.local.find(url, param)
                return _File(path, await self._digest(path, param))
            case "http" | "https":
                return await self._remote(url, scope, param)
        raise bad_request(
            "The address is of no known kind; send data:…;base64,…, file:…, or the id of an upload.", param
        )

    async def _digest(self, path: Path, param: str) -> bytes:
        """Of a file's bytes, as of an upload's; remembered by its version, once that is older than its clock's tick."""
        found = path.stat()
        if found.st_size > self._most_local:
            raise bad_request(
                f"The file has more than {self._most_local:,} bytes, the limit; name a smaller one.", param
            )
        version = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        known = self._versions.known(version)
        if known is None:
            known = await self._hash(path)
            if time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) > SETTLED_NS:
                self._versions.put(version, known)
        return known

    async def _hash(self, path: Path) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._hashing, _hashed, path)

    async def _data(self, rest: str, scope: _Scope, param: str) -> _File:
        """What `data:` holds, in a file for as long as the request."""
        head, comma, body = rest.partition(",")
        if not comma:
            raise bad_request("The data: address has no comma; write data:video/mp4;base64,….", param)

        whole = head.lower().endswith(";base64")
        scope.share.hold(len(body) * 3 // 4 if whole else len(body))
        path = self._new_file(scope)
        file = path.open("xb")  # not in the thread, which may outlive the request: its name goes with that

        def write() -> _File:
            with file:
                try:
                    found = base64.b64decode(body, validate=True) if whole else unquote_to_bytes(body)
                except (binascii.Error, ValueError):
                    raise bad_request("The data: address holds no base64; encode the file again.", param) from None
                if not found:
                    raise bad_request("The data: address is empty; send the file.", param)
                file.write(found)
            return _File(path, hashlib.sha256(found).digest())

        return write() if len(body) < (INLINE if whole else INLINE_QUOTED) else await asyncio.to_thread(write)

    async def _remote(self, url: str, scope: _Scope, param: str) -> _File:
        if self.fetcher is None:
            raise bad_request(
                "This server fetches nothing from addresses; upload the file, or send it as data:.",
                param,
                "address_refused",
            )
        path = self._new_file(scope)
        await self.fetcher.fetch(url, path, param, scope.share.hold)
        return _File(path, await self._hash(path))

    def _new_file(self, scope: _Scope) -> Path:
        path = self._spool / secrets.token_hex(16)
        scope.files.append(path)
        return path


async def _all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What all of them return; the first error ends the others before it is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _excerpt(recorded: _Recorded, seconds: float) -> Excerpt:
    """The part of a recording that a clip of so many seconds shows."""
    asked, path = recorded.asked, recorded.file.path
    try:
        recording = Excerpt(path, format=asked.format, sensor=asked.sensor, windows=asked.windows)
        return shown_in(recording, recorded.first_us, seconds, asked.clock).part(asked.start_s, asked.end_s)
    except CrossdraftError as error:
        raise bad_request(str(error).replace(str(path), recorded.param), recorded.param) from None


def _sampling(default: FrameSampling, asked: VideoUrl, param: str) -> FrameSampling:
    """How many frames a request wants."""
    if asked.num_frames is None and asked.fps is None and asked.max_frames is None:
        return default
    if asked.num_frames is not None and (asked.fps is not None or asked.max_frames is not None):
        raise bad_request("Give num_frames, or fps and max_frames.", param)
    if asked.num_frames is None and asked.fps is None:
        raise bad_request("max_frames bounds fps; give both, or num_frames.", param)
    return FrameSampling(asked.num_frames, asked.fps, max_frames=asked.max_frames or MAX_FRAMES)


def _size(video: DecodedVideo) -> int:
    return int(video.frames.pixels.nbytes)


def _hashed(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _unknown(uuid: str | None, param: str) -> ApiError:
    if uuid is None:
        return bad_request("The part has neither an address nor a uuid; give one.", param)
    return bad_request("Nothing is known by this uuid any more; send its address, too.", param, "unknown_uuid")
