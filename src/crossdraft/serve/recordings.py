"""Event recordings of requests, decoded once by a worker into a file of plain columns, which the drafter maps.

A short recording is decoded whole, while the clip is decoded, so that any part of it can be used. Of a longer one only
the part that the clip shows is decoded, as soon as the clip's length is known.
"""

import hashlib
import secrets
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from crossdraft.errors import CrossdraftError
from crossdraft.events.excerpt import DecodedExcerpt, Excerpt, shown_in
from crossdraft.serve.decode import DecodedVideo, EventColumns, MediaDecoder
from crossdraft.serve.decode_process import EVENT_BYTES
from crossdraft.serve.errors import bad_request
from crossdraft.serve.media_cache import MediaCache
from crossdraft.serve.media_files import MediaFile, MediaScope
from crossdraft.serve.schema import EventUrl

MOST_WHOLE = 4_000_000  # events of a recording that is decoded whole: 52 MB
MOST_EVENTS = 16_000_000  # newest events of a part; no drafter reads more
DIGEST_BYTES = 16
SMALL = 1 << 10  # bytes that a recording takes without its events


class DecodedRecording:
    """Events in a file of columns, which is deleted when no request and no cache refers to this object any more.

    Args:
        columns: description of the file.
        path: path of the file; `None` if nothing was written because there are too many events.
        digest: [16] bytes that identify the content.
    """

    def __init__(self, columns: EventColumns, path: Path | None, digest: bytes) -> None:
        self.columns, self.path, self.digest = columns, path, digest
        if path is not None:
            weakref.finalize(self, path.unlink, missing_ok=True)

    @property
    def nbytes(self) -> int:
        """Bytes of the file, or of the description where no file was written."""
        return SMALL + EVENT_BYTES * (self.columns.count or 0)

    def excerpt(self, of: Excerpt) -> DecodedExcerpt:
        """Excerpt of the decoded events that `of` names in the recording."""
        if self.path is None:
            raise ValueError("Nothing of it was written.")
        span, found = (of.start_us, of.end_us), self.columns
        return DecodedExcerpt(
            self.path, *span, "eventgpt", found.sensor, of.whole, of.windows, digest=self.digest, notes=found.notes
        )


Media = DecodedVideo | DecodedRecording


@dataclass(frozen=True, slots=True)
class LoadedRecording:
    """A recording of a request.

    Args:
        asked: URL, and the part of the recording that the drafter is to read.
        file: the recording's file.
        decoded: its events; without a file if there are too many.
        param: name of the request's part that names it.
    """

    asked: EventUrl
    file: MediaFile
    decoded: DecodedRecording = field(repr=False)
    param: str

    def shown(self, seconds: float) -> Excerpt:
        """Part of the recording that a clip of `seconds` seconds shows.

        Raises:
            ApiError: the recording has no such part.
        """
        asked, path = self.asked, self.file.path
        try:
            how = (asked.format, asked.sensor, False, asked.windows)
            whole = Excerpt(path, None, None, *how, time_unit=asked.time_unit)
            first_us = self.decoded.columns.first_us
            return shown_in(whole, first_us, seconds, asked.clock).part(asked.start_s, asked.end_s)
        except CrossdraftError as error:
            raise bad_request(str(error).replace(str(path), self.param), self.param) from None


class Recordings:
    """Decodes recordings, and keeps their events for later requests.

    Args:
        decoder: decodes them, in its workers.
        cache: cache of all decoded media.
        folder: folder for the files.
    """

    def __init__(self, decoder: MediaDecoder, cache: MediaCache[Media], folder: Path) -> None:
        self._decoder, self._cache, self._folder = decoder, cache, folder

    async def load(self, file: MediaFile, asked: EventUrl, scope: MediaScope, param: str) -> LoadedRecording:
        """Load a recording, decoded if it is short; the request holds it.

        Raises:
            ApiError: all requests hold too much.
            DecodeError: the recording cannot be read, or holds no events.
        """
        whole = Excerpt(file.path, format=asked.format, sensor=asked.sensor, time_unit=asked.time_unit)
        return LoadedRecording(asked, file, await self._decoded(whole, file.digest, scope, param), param)

    async def decoded(self, recording: LoadedRecording, part: Excerpt, scope: MediaScope) -> DecodedExcerpt:
        """Decode a part of a recording for the drafter; the request holds it. Errors as `load`."""
        found = recording.decoded
        if found.path is None:
            found = await self._decoded(part, recording.file.digest, scope, recording.param)
        return found.excerpt(part)

    async def _decoded(self, part: Excerpt, digest: bytes, scope: MediaScope, param: str) -> DecodedRecording:
        how = part.path.suffix, part.format, part.sensor, part.time_unit
        key = (scope.owner, "event", digest, *how, part.start_us, part.end_us)
        found = await self._cache.get(key, lambda: self._decode(part, repr(key).encode(), param))
        recording = cast(DecodedRecording, found)  # as the key says
        scope.hold(recording, key)
        return recording

    async def _decode(self, part: Excerpt, key: bytes, param: str) -> DecodedRecording:
        most = MOST_WHOLE if part.start_us is None else MOST_EVENTS
        path = self._folder / secrets.token_hex(16)
        path.touch(0o600)  # not in the worker's thread, which may outlive the request and its files
        try:
            columns = await self._decoder.events(part, most, path, param)
        except BaseException:
            path.unlink()
            raise
        if columns.count is None:
            path.unlink()
        digest = hashlib.sha256(key).digest()[:DIGEST_BYTES]
        return DecodedRecording(columns, None if columns.count is None else path, digest)
