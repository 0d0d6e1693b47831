"""Files of a request's media: an upload, a file of the media folder, a fetched one, or one sent as `data:`."""

import asyncio
import hashlib
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from crossdraft.data_url import MOST_HEAD, DataUrl, data_url, scheme_of
from crossdraft.engine.content import SETTLED_NS, file_digest
from crossdraft.serve.budget import MediaShare
from crossdraft.serve.errors import bad_request
from crossdraft.serve.fetch import Fetcher
from crossdraft.serve.keys import Client
from crossdraft.serve.local_files import LocalFiles
from crossdraft.serve.media_cache import MediaCache
from crossdraft.serve.scopes import require
from crossdraft.serve.uploads import ID, Uploads
from crossdraft.video.clip import FrameSampling

REMEMBERED = 4096  # file versions whose digests are remembered
INLINE = 1 << 20  # base64 characters of a request that are decoded on the event loop; more in a thread
QUOTED = 64  # base64 characters that are decoded in the time of one %xx
HASHERS = 2  # threads


@dataclass(frozen=True, slots=True)
class MediaFile:
    """A file on this machine, by its path, and the digest of its bytes."""

    path: Path
    digest: bytes


class Decoded(Protocol):
    """A decoded medium."""

    @property
    def nbytes(self) -> int:
        """Bytes that the decoded medium takes."""
        ...


@dataclass(slots=True)
class MediaScope:
    """State of one request's media: its client, frame sampling, held media, and files to delete."""

    client: Client
    sampling: FrameSampling
    share: MediaShare
    files: list[Path] = field(default_factory=list[Path])
    _inline: int = 0  # characters decoded on the event loop so far
    _held: list[Decoded] = field(default_factory=list[Decoded])

    @property
    def owner(self) -> str:
        """Name of the client whose uploads and cached media the request may use."""
        return self.client.name

    def hold(self, decoded: Decoded, key: object) -> None:
        """Hold a medium that other requests may hold, too, by its `key`; errors as `MediaShare.hold`."""
        self.share.hold(decoded.nbytes, key)
        self._held.append(decoded)

    def inline(self, data: DataUrl) -> bool:
        """True if a file is small enough, together with those before it, to be decoded on the event loop."""
        cost = self._inline + data.length * (QUOTED if data.quoted else 1)
        if cost < INLINE:
            self._inline = cost
        return cost < INLINE

    def close(self) -> None:
        """Release the held media, and delete the files."""
        self.share.close()
        self._held.clear()
        for path in self.files:
            path.unlink(missing_ok=True)


class MediaFiles:
    """Finds the file that a URL names.

    Args:
        uploads, local, fetcher: sources of files; without a fetcher nothing is fetched.
        spool: folder for files that live as long as a request.
        most_local: largest number of bytes of a file of the media folder.
    """

    def __init__(
        self, uploads: Uploads, local: LocalFiles, fetcher: Fetcher | None, spool: Path, most_local: int
    ) -> None:
        self.uploads, self.local, self.fetcher = uploads, local, fetcher
        self._spool, self._most_local = spool, most_local
        self._hashing = ThreadPoolExecutor(HASHERS, thread_name_prefix="hash")  # a large file blocks no other request
        self._versions = MediaCache[bytes](REMEMBERED, lambda _: 1)

    @property
    def spooled(self) -> int:
        """Number of files of requests that are not over."""
        return sum(1 for _ in self._spool.iterdir())

    def new(self) -> Path:
        """Make a name for a file that its request deletes."""
        return self._spool / secrets.token_hex(16)

    def close(self) -> None:
        """End the hashing threads."""
        self._hashing.shutdown(wait=False, cancel_futures=True)

    async def find(self, url: str, scope: MediaScope, param: str) -> MediaFile:
        """Find the file that a URL names.

        Raises:
            ApiError: the file does not exist, is too large, cannot be fetched, or the key may not name files here.
        """
        if ID.fullmatch(url):
            upload = self.uploads.get(url, scope.owner, param)
            return MediaFile(upload.path, upload.digest)
        match scheme_of(url):
            case "data":
                return await self.sent(data_of(url, param), scope, param)
            case "file":
                require(scope.client.scopes, "media")
                path = self.local.find(url, param)
                return MediaFile(path, await self._digest(path, param))
            case "http" | "https":
                return await self._remote(url, scope, param)
        raise bad_request(
            "The address is of no known kind; send data:…;base64,…, file:…, or the id of an upload.", param
        )

    async def sent(self, data: DataUrl, scope: MediaScope, param: str) -> MediaFile:
        """Write the content of a `data:` URL to a file that lives as long as the request; errors as `find`."""
        scope.share.hold(data.nbytes)
        path = self._new_of(scope)
        file = path.open("xb")  # not in the thread, which may outlive the request and its files

        def write() -> MediaFile:
            digest = hashlib.sha256()
            with file:
                try:
                    for part in data.decoded():
                        file.write(part)
                        digest.update(part)
                except ValueError:
                    raise bad_request("The data: address is no base64; encode the file again.", param) from None
                if not file.tell():
                    raise bad_request("The data: address is empty; send the file.", param)
            return MediaFile(path, digest.digest())

        return write() if scope.inline(data) else await asyncio.to_thread(write)

    async def _remote(self, url: str, scope: MediaScope, param: str) -> MediaFile:
        if self.fetcher is None:
            raise bad_request(
                "This server fetches nothing from addresses; upload the file, or send it as data:.",
                param,
                "address_refused",
            )
        path = self._new_of(scope)
        await self.fetcher.fetch(url, path, param, scope.share.growing())
        return MediaFile(path, await self._hash(path))

    async def _digest(self, path: Path, param: str) -> bytes:
        """Digest of a file's bytes, cached by the file's version once that is older than a tick of its clock."""
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
        return await asyncio.get_running_loop().run_in_executor(self._hashing, file_digest, path)

    def _new_of(self, scope: MediaScope) -> Path:
        path = self.new()
        scope.files.append(path)
        return path


def data_of(url: str, param: str) -> DataUrl:
    """Parse a `data:` URL.

    Raises:
        ApiError: the URL is no valid `data:` URL.
    """
    found = data_url(url)
    if found is None:
        raise bad_request(
            f"The data: address has no comma within {MOST_HEAD} characters; write data:video/mp4;base64,….", param
        )
    return found
