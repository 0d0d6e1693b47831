"""The media of a request: found, decoded in another process, cached for later requests."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from crossdraft.data_url import scheme_of
from crossdraft.events.excerpt import DecodedExcerpt, Excerpt
from crossdraft.serve.budget import MediaBudget, MediaShare
from crossdraft.serve.decode import DecodedVideo, MediaDecoder
from crossdraft.serve.errors import ApiError, bad_request
from crossdraft.serve.keys import Client
from crossdraft.serve.media_cache import MediaCache
from crossdraft.serve.media_files import MediaFiles, MediaScope, data_of
from crossdraft.serve.recordings import LoadedRecording, Media, Recordings
from crossdraft.serve.schema import (
    ChatRequest,
    EventPart,
    EventUrl,
    FilePart,
    ImagePart,
    TextPart,
    VideoPart,
    VideoSampling,
    VideoUrl,
)
from crossdraft.serve.uploads import ID
from crossdraft.video.clip import MAX_FRAMES, DecodedClip, FrameSampling
from crossdraft.video.grid import WindowGrid

REMEMBERED = 4096  # names of media that are remembered
IMAGE, VIDEO, STILLS = "image", "video", "stills"  # `STILLS` are frames that the client has sampled
CLIP, RECORDING = "replay.video_url", "replay.event_url"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _ShownPart:
    """A part of a message in the engine's form, and its length if it is a clip."""

    part: dict[str, object]
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class _Visual:
    """An image or a clip as it was sent: its kind, and the digest of its bytes."""

    kind: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class LoadedMedia:
    """Messages and recording in the form of `crossdraft.Request`."""

    messages: list[dict[str, object]]
    events: DecodedExcerpt | None


@dataclass(frozen=True, slots=True)
class ReplayedMedia:
    """A clip that is replayed as a stream.

    Args:
        video: frames that its windows show.
        events: events of an event camera at the same time.
        window: context in which a part of `events` can be read by the drafter.
    """

    video: DecodedVideo
    events: Excerpt | None
    window: Callable[[object], AbstractAsyncContextManager[object]]


class MediaLoader:
    """Loads the media of requests.

    Args:
        files: finds the files.
        decoder: decodes the files.
        folder: folder for the events of recordings.
        cache_bytes: largest number of bytes of decoded media that are cached.
        most_bytes: largest number of bytes that all requests may hold at a time.
        most_parts: largest number of media in one request.
        sampling: frames that the target reads of a clip, unless a request says otherwise.
    """

    def __init__(
        self,
        files: MediaFiles,
        decoder: MediaDecoder,
        folder: Path,
        *,
        cache_bytes: int,
        most_bytes: int,
        most_parts: int,
        sampling: FrameSampling,
    ) -> None:
        self.files, self.decoder = files, decoder
        self._most_parts, self._sampling = most_parts, sampling
        self.budget = MediaBudget(most_bytes)
        self._decoded = MediaCache[Media](cache_bytes, lambda media: media.nbytes)
        self._recordings = Recordings(decoder, self._decoded, folder)
        self._kinds = MediaCache[str](REMEMBERED, lambda _: 1)
        self._visuals = MediaCache[_Visual](REMEMBERED, lambda _: 1)  # media by the client's uuid
        self._addresses = MediaCache[str](REMEMBERED, lambda _: 1)  # addresses of recordings, by the client's uuid

    @property
    def cached_bytes(self) -> int:
        """Number of bytes of cached media."""
        return self._decoded.held

    @asynccontextmanager
    async def loaded(self, chat: ChatRequest, client: Client) -> AsyncIterator[LoadedMedia]:
        """Load all media of a client's request; its files exist while the context is open.

        Raises:
            ApiError: a medium cannot be found, or there are too many or too large ones.
            CrossdraftError: a medium cannot be decoded.
        """
        with self._scope(client, self._sampling_of(chat)) as scope:
            yield await self._loaded(chat, scope)

    @asynccontextmanager
    async def replayed(
        self, url: str, recording: EventUrl | None, grid: WindowGrid, client: Client
    ) -> AsyncIterator[ReplayedMedia]:
        """Load a clip to be replayed as a stream; errors as `loaded`."""
        with self._scope(client, self._sampling) as scope:
            file = await self.files.find(url, scope, CLIP)
            key = (client.name, "stream", file.digest, grid)
            video = await self._held(key, lambda: self.decoder.grid(file.path, grid, CLIP), scope)
            if recording is None:
                yield ReplayedMedia(video, None, nullcontext)
                return
            found = await self._event(recording, None, scope, RECORDING)

            @asynccontextmanager
            async def window(part: object) -> AsyncIterator[object]:
                with self._scope(client, self._sampling) as own:  # a long recording is decoded window by window
                    yield await self._recordings.decoded(found, part, own) if isinstance(part, Excerpt) else part

            yield ReplayedMedia(video, found.shown(video.seconds), window)

    async def frame(self, image: bytes, name: str) -> np.ndarray:
        """Decode a frame that was pushed as a file, to uint8 RGB [H, W, 3]; it is not cached.

        Raises:
            DecodeError: the frame cannot be decoded.
        """
        path = self.files.new()
        try:
            path.write_bytes(image)
            return (await self.decoder.image(path, name)).pixels[0].numpy()
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def _scope(self, client: Client, sampling: FrameSampling) -> Iterator[MediaScope]:
        scope = MediaScope(client, sampling, MediaShare(self.budget))
        try:
            yield scope
        finally:
            scope.close()

    def _sampling_of(self, chat: ChatRequest) -> FrameSampling:
        asked = chat.media_io_kwargs.video if chat.media_io_kwargs is not None else None
        found = None if asked is None else _sampling(asked)
        return found or self._sampling

    async def _loaded(self, chat: ChatRequest, scope: MediaScope) -> LoadedMedia:
        """Load all parts of all messages concurrently: a recording is read while the clip is decoded."""
        media = {
            (number, index): part
            for number, message in enumerate(chat.messages)
            if not isinstance(message.content, str)
            for index, part in enumerate(message.content)
            if not isinstance(part, TextPart)
        }
        if len(media) > self._most_parts:
            raise bad_request(f"The request has more than {self._most_parts} images, clips and recordings.", "messages")
        loading = [self._part(part, scope, f"messages[{at[0]}].content[{at[1]}]") for at, part in media.items()]
        loaded = dict(zip(media, await _all(loading), strict=True))
        messages: list[dict[str, object]] = []
        for number, message in enumerate(chat.messages):
            content: object = message.content
            if not isinstance(content, str):
                found = [loaded.get((number, index), part) for index, part in enumerate(content)]
                content = [_shown(one) for one in found if isinstance(one, TextPart | _ShownPart)]
            role = "system" if message.role == "developer" else message.role
            calls = message.model_dump(include={"tool_calls", "tool_call_id", "name"}, exclude_none=True)
            messages.append({"role": role, "content": content, **calls})
        recorded = [one for one in loaded.values() if isinstance(one, LoadedRecording)]
        if len(recorded) > 1:
            raise bad_request("The request has two event recordings; send one, of the last clip's moment.", "messages")
        clips = [one.seconds for one in loaded.values() if isinstance(one, _ShownPart) and one.seconds is not None]
        seconds = clips[-1] if clips else 0.0
        events = await self._recordings.decoded(one := recorded[0], one.shown(seconds), scope) if recorded else None
        return LoadedMedia(messages, events)

    async def _part(self, part: object, scope: MediaScope, param: str) -> "_ShownPart | LoadedRecording":
        match part:
            case ImagePart():
                return await self._image(part.image_url.url if part.image_url else None, part.uuid, scope, param)
            case VideoPart():
                return await self._video(part.video_url or VideoUrl(), part.uuid, scope, param)
            case EventPart():
                return await self._event(part.event_url or EventUrl(), part.uuid, scope, param)
            case FilePart():
                return await self._upload(part.file.file_id, scope, param)
        raise TypeError(part)

    async def _upload(self, found: str, scope: MediaScope, param: str) -> "_ShownPart | LoadedRecording":
        """Load an upload that is named in OpenAI's way, without its kind."""
        file = self.files.uploads.get(found, scope.owner, param)
        kind = await self._kinds.get((scope.owner, file.digest), lambda: self.decoder.kind_of(file.path, param))
        if kind == "image":
            return await self._image(found, None, scope, param)
        if kind == "video":
            return await self._video(VideoUrl(url=found), None, scope, param)
        return await self._event(EventUrl(url=found), None, scope, param)

    # -- images and clips ------------------------------------------------------------------------------------------

    async def _image(self, url: str | None, uuid: str | None, scope: MediaScope, param: str) -> _ShownPart:
        clip, _ = await self._visual(IMAGE, url, uuid, None, scope, param)
        return _ShownPart({"type": "image", "image": clip})

    async def _video(self, asked: VideoUrl, uuid: str | None, scope: MediaScope, param: str) -> _ShownPart:
        clip, seconds = await self._visual(VIDEO, asked.url, uuid, _sampling(asked), scope, param)
        return _ShownPart({"type": "video", "video": clip}, seconds)

    async def _visual(
        self, kind: str, url: str | None, uuid: str | None, asked: FrameSampling | None, scope: MediaScope, param: str
    ) -> tuple[DecodedClip, float]:
        """Load an image or a clip, and its length; the part's own sampling `asked` overrides the request's."""
        name = (scope.owner, kind, uuid)
        if url is None:
            visual, paths = self._visuals.known(name), list[Path]()
            if visual is None:
                raise _unknown(uuid, param)
        else:
            self._visuals.forget(name)  # the name is reused for another medium, even if this fails
            visual, paths = await self._sent(kind, url, scope, param)
        sampling = _sampled(visual, asked, scope, param)

        async def decode() -> DecodedVideo:
            if not paths:  # known by its name, but its frames are no longer cached
                raise _unknown(uuid, param)
            if kind == IMAGE:
                return DecodedVideo(await self.decoder.image(paths[0], param))
            if sampling is None:
                return await self.decoder.stills(paths, param)
            return await self.decoder.clip(paths[0], sampling, param)

        video = await self._held((scope.owner, visual.kind, visual.digest, sampling), decode, scope)
        if uuid is not None:
            self._visuals.put(name, visual)
        return DecodedClip(visual.digest, sampling, video.frames), video.seconds

    async def _sent(self, kind: str, url: str, scope: MediaScope, param: str) -> tuple[_Visual, list[Path]]:
        """Find the image or clip that a URL names, and its file; frames that the client has sampled: one file each."""
        shots = data_of(url, param).shots() if kind == VIDEO and scheme_of(url) == "data" else []
        if not shots:
            file = await self.files.find(url, scope, param)
            return _Visual(kind, file.digest), [file.path]
        if len(shots) > MAX_FRAMES:
            raise bad_request(f"The clip has more than {MAX_FRAMES} frames, the limit; send fewer.", param)
        files = [await self.files.sent(shot, scope, param) for shot in shots]
        digest = hashlib.sha256(b"".join(file.digest for file in files)).digest()
        return _Visual(STILLS, digest), [file.path for file in files]

    async def _held(
        self, key: Hashable, decode: Callable[[], Coroutine[Any, Any, DecodedVideo]], scope: MediaScope
    ) -> DecodedVideo:
        """Return a decoded clip, which the request holds from now on."""
        video = cast(DecodedVideo, await self._decoded.get(key, decode))  # as the key says
        scope.hold(video, key)
        return video

    # -- recordings ------------------------------------------------------------------------------------------------

    async def _event(self, asked: EventUrl, uuid: str | None, scope: MediaScope, param: str) -> LoadedRecording:
        name, url = (scope.owner, "event", uuid), asked.url
        if url is None:
            url = self._addresses.known(name)
            if url is None:
                raise _unknown(uuid, param)
        else:
            self._addresses.forget(name)
        file = await self.files.find(url, scope, param)
        found = await self._recordings.load(file, asked, scope, param)
        if uuid is not None and (ID.fullmatch(url) or scheme_of(url) == "file"):  # other addresses end with the request
            self._addresses.put(name, url)
        return found


def _shown(part: TextPart | _ShownPart) -> dict[str, object]:
    return {"type": "text", "text": part.text} if isinstance(part, TextPart) else part.part


async def _all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines and return all their results; the first error cancels the others before it is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _sampling(asked: VideoSampling) -> FrameSampling | None:
    """The frame sampling that a part or a request asks for; `None` if it does not say."""
    if asked.num_frames is None and asked.fps is None:
        return None
    return FrameSampling(asked.num_frames, asked.fps, max_frames=asked.max_frames or MAX_FRAMES)


def _sampled(visual: _Visual, asked: FrameSampling | None, scope: MediaScope, param: str) -> FrameSampling | None:
    """The sampling of an image or a clip; `None` for images, and for frames that the client has sampled."""
    if visual.kind == VIDEO:
        return asked or scope.sampling
    if asked is not None:
        raise bad_request("The clip is of frames that were sampled; leave out num_frames, fps and max_frames.", param)
    return None


def _unknown(uuid: str | None, param: str) -> ApiError:
    if uuid is None:
        return bad_request("The part has neither an address nor a uuid; give one.", param)
    return bad_request("Nothing is known by this uuid any more; send its address, too.", param, "unknown_uuid")
