"""Uploads: files that a client sends once and names by an id afterwards. Each belongs to the client that sent it."""

import hashlib
import os
import re
import secrets
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import BinaryIO

from crossdraft.errors import CrossdraftError
from crossdraft.files import only_process
from crossdraft.serve.errors import ApiError, bad_request

ID = re.compile(r"file-[0-9a-f]{32}")
SUFFIX = re.compile(r"\.[a-z0-9]{1,8}")
CHUNK = 1 << 20
MOST_FILES = 1000  # files of one client
EXPIRE_S = 60.0  # seconds between two checks for uploads that are too old


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that a client uploaded.

    Args:
        id: id by which requests name it.
        owner: name of the client.
        name: name that the client gave it; shown, never used as a path.
        purpose: purpose as in OpenAI's API; stored, and not used.
        path: path of the file.
        digest: SHA-256 of its bytes.
        size: number of bytes.
        created: time of the upload, in seconds since the epoch.
    """

    id: str
    owner: str
    name: str
    purpose: str
    path: Path
    digest: bytes
    size: int
    created: float

    def to_json(self) -> dict[str, object]:
        """OpenAI's file object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size,
            "created_at": int(self.created),
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
        }


class Uploads:
    """The uploads of a server, in a folder of its own. May be used from any thread. Close it.

    Args:
        folder: folder of the uploads; created if needed.
        most: largest number of bytes of one upload.
        quota: largest number of bytes of all uploads of one client.
        seconds: seconds after which an upload is deleted.

    Raises:
        CrossdraftError: the folder cannot be created or written, others may enter it, or another server uses it.
    """

    def __init__(self, folder: Path, most: int, quota: int, seconds: float) -> None:
        self.folder, self._most, self._quota, self._seconds = folder, most, quota, seconds
        self._files: dict[str, Upload] = {}
        self._lock = threading.RLock()  # guards the files
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_mode & 0o077:
                raise CrossdraftError(f"Others may enter the upload folder {folder}; run: chmod go= {folder}")
        except OSError as error:
            raise CrossdraftError(
                f"Uploads cannot be kept in {folder}: {error.strerror}; choose another --upload-folder."
            ) from None
        self._held = ExitStack()
        self._held.enter_context(only_process(folder))
        for path in folder.iterdir():  # files left by a server that was killed
            if ID.match(path.name) and (path.is_symlink() or not path.is_dir()):
                path.unlink()
        self._closed = threading.Event()
        self._expiring = threading.Thread(target=self._expire, name="uploads", daemon=True)
        self._expiring.start()

    def add(self, owner: str, name: str, purpose: str, file: BinaryIO) -> Upload:
        """Store a file.

        Raises:
            ApiError: the file is empty or too large, the client has no quota left, or a name is not Unicode.
        """
        _check_name(name)
        _check_name(purpose)
        room = self.room(owner)
        found = f"file-{secrets.token_hex(16)}"
        path, digest, size = self.folder / f"{found}{_suffix(name)}", hashlib.sha256(), 0
        try:
            with open(path, "xb", opener=_private) as kept:
                while chunk := file.read(CHUNK):
                    size += len(chunk)
                    self._check(size, room)
                    digest.update(chunk)
                    kept.write(chunk)
            upload = Upload(found, owner, name[:255], purpose[:64], path, digest.digest(), size, time.time())
            with self._lock:  # checked again: another upload of the client may have come
                self._check(size, self.room(owner))
                self._files[found] = upload
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return upload

    def room(self, owner: str) -> int:
        """Number of bytes that a client may still add; errors as `add`."""
        if len(mine := self.of(owner)) >= MOST_FILES:
            raise ApiError(413, f"You have {MOST_FILES} files, the limit; delete some.", "quota_exceeded", "file")
        return self._quota - sum(one.size for one in mine)

    def _check(self, size: int, room: int) -> None:
        if not size:
            raise bad_request("The file is empty; send it again.", "file")
        if size > self._most:
            raise ApiError(413, f"The file has more than {self._most:,} bytes, the limit.", "file_too_large", "file")
        if size > room:
            raise ApiError(
                413,
                f"Your files would have more than {self._quota:,} bytes, the limit; delete some.",
                "quota_exceeded",
                "file",
            )

    def get(self, found: str, owner: str, param: str | None = None) -> Upload:
        """Return a client's upload.

        Raises:
            ApiError: the upload does not exist, or belongs to another client, with the same error for both.
        """
        self.expire()
        upload = self._files.get(found)
        if upload is None or upload.owner != owner:
            raise ApiError(404, "There is no such file; upload it to /v1/files.", "file_not_found", param)
        return upload

    def of(self, owner: str) -> list[Upload]:
        """Return a client's uploads, newest first."""
        self.expire()
        return sorted((one for one in self._all() if one.owner == owner), key=lambda one: -one.created)

    def delete(self, found: str, owner: str) -> None:
        """Delete a client's upload; errors as `get`."""
        self._remove(self.get(found, owner))

    def expire(self) -> None:
        """Delete uploads that are too old."""
        oldest = time.time() - self._seconds
        for upload in self._all():
            if upload.created < oldest:
                self._remove(upload)

    def _expire(self) -> None:
        """Delete old uploads periodically, in a thread that ends with `close`."""
        while not self._closed.wait(min(self._seconds, EXPIRE_S)):
            self.expire()

    def _all(self) -> list[Upload]:
        with self._lock:
            return [*self._files.values()]

    def _remove(self, upload: Upload) -> None:
        with self._lock:
            self._files.pop(upload.id, None)
        upload.path.unlink(missing_ok=True)

    @property
    def nbytes(self) -> int:
        """Bytes of all uploads."""
        return sum(one.size for one in self._all())

    def close(self) -> None:
        """Delete all uploads: ids do not outlive the server."""
        self._closed.set()
        self._expiring.join()
        for upload in self._all():
            self._remove(upload)
        self._held.close()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _check_name(name: str) -> None:
    """Refuse a name with half a surrogate pair: a list of files with such a name cannot be sent."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise bad_request("The file's name or purpose is no Unicode; send it in UTF-8.", "file") from None


def _suffix(name: str) -> str:
    """A file name's suffix if it is harmless, else ""; some formats are recognized by it."""
    suffix = PurePath(name).suffix.lower()
    return suffix if SUFFIX.fullmatch(suffix) else ""
