"""Content digests, by which two requests show the same clip or recording if all bytes are equal."""

import hashlib
import logging
import stat
import struct
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import numpy as np
import torch
from torch import Tensor

log = logging.getLogger(__name__)

DIGEST_BYTES = 16
SETTLED_NS = 2_000_000_000  # a file changed less than this ago may change again within one tick of its clock
REMEMBERED = 4096  # files whose digests are kept
MOST_AT_ONCE = 1 << 26  # bytes of a file that is hashed while its request waits: about 0.1 s
MOST_BYTES = 1 << 36  # largest file that is hashed at all

FileVersion = tuple[int, int, int, int, int]


class NoDigestError(Exception):
    """Error for a value whose content has no digest: a folder, a stream, an object of an unknown kind."""


@dataclass(frozen=True)
class Content:
    """Digests of the media that a request shows, and the files that were read for them.

    Args:
        digest: [16] bytes, of the namespace and of everything that is shown.
        files: the files that were read, each with its version.
        fresh: the files that may have changed since without a new version, each with its digest.
        items: [16] bytes of each image, clip or recording.
    """

    digest: bytes
    files: tuple[tuple[Path, FileVersion], ...] = ()
    fresh: tuple[tuple[Path, bytes], ...] = ()
    items: tuple[bytes, ...] = ()
    _same: list[bool] = field(default_factory=list[bool], repr=False, compare=False)  # result, once known

    @classmethod
    def joined(cls, contents: "Sequence[Content]") -> "Content":
        """The content of several items."""
        items = tuple(content.digest for content in contents)
        digest = items[0] if len(items) == 1 else hashlib.sha256(b"".join(items)).digest()[:DIGEST_BYTES]
        files = dict.fromkeys(file for content in contents for file in content.files)
        fresh = dict.fromkeys(file for content in contents for file in content.fresh)
        return cls(digest, tuple(files), tuple(fresh), items)

    @property
    def unchanged(self) -> bool:
        """True if no file has changed since its digest; otherwise nothing made from the files belongs to this content.

        Call it after reading the files: true then means that the bytes read have this digest. Fresh files are compared
        by their bytes, once, and again only after `reread`.
        """
        if not self._same:
            self._same.append(self._fresh_same())
        return self._same[0] and all(_version(path) == version for path, version in self.files)

    def reread(self) -> None:
        """Have the next check compare the fresh files anew, as one of them is being read again."""
        self._same.clear()

    def _fresh_same(self) -> bool:
        try:
            return all(file_digest(path) == digest for path, digest in self.fresh)
        except OSError:
            return False


class ContentDigests:
    """Digests of requests' contents; remembers files' digests by device, inode, size and times.

    As in git's index, a version is only trusted if it was no longer fresh when the file was read: a file may change
    twice within one tick of the clock that its times come from.

    Hashing a file of more than `MOST_AT_ONCE` bytes would hold up the caller: such a file has no content until a thread
    of its own has hashed it, one file at a time. May be used by several threads.
    """

    def __init__(self) -> None:
        self._files: OrderedDict[FileVersion, bytes] = OrderedDict()
        self._lock = Lock()  # guards `_files` and `_hashing`
        self._hashing: Thread | None = None  # a large one

    def of(self, *values: object) -> Content | None:
        """The content of some values together, `None` if one of them has no digest.

        Args:
            values: paths (`str` or `Path`, read as files), arrays, tensors, and mappings, sequences and dataclasses of
                these and of plain values. Inside those only a `Path` is read as a file; fields that a dataclass does
                not compare are left out.
        """
        digest = hashlib.sha256()
        files: list[tuple[Path, FileVersion, bytes | None]] = []
        try:
            for value in values:
                self._add(digest, Path(value) if isinstance(value, str) else value, files)
        except (NoDigestError, OSError):  # the later reader of the file reports its fault
            return None
        fresh = tuple((path, found) for path, _, found in files if found is not None)
        return Content(digest.digest()[:DIGEST_BYTES], tuple((path, version) for path, version, _ in files), fresh)

    def _add(self, digest: Any, value: object, files: list[tuple[Path, FileVersion, bytes | None]]) -> None:
        """Feed a value to a hash, with its kind and size, so that different values never feed the same bytes."""
        match value:
            case None | bool() | int() | float() | str() | bytes():
                _feed(digest, type(value).__name__, repr(value).encode())
            case Path():
                _feed(digest, f"file {value.suffix}", self._of_file(value, files))
            case Tensor():
                raw = value.detach().cpu().contiguous()
                _feed(digest, f"tensor {raw.dtype} {tuple(raw.shape)}", raw.flatten().view(torch.uint8).numpy())
            case np.ndarray() if not value.dtype.hasobject:
                raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
                _feed(digest, f"array {value.dtype.descr} {value.shape}", raw)
            case _:
                parts = _parts(value)
                _feed(digest, type(value).__qualname__, struct.pack("<q", len(parts)))
                for part in parts:
                    self._add(digest, part, files)

    def _of_file(self, path: Path, files: list[tuple[Path, FileVersion, bytes | None]]) -> bytes:
        """[32] bytes: the digest of a file's own bytes; it is noted in `files`, with the digest if it is fresh."""
        now, version = time.time_ns(), _version(path)
        if version is None:
            raise NoDigestError(str(path))
        settled, large = now - max(version[3:]) > SETTLED_NS, version[2] > MOST_AT_ONCE
        found = self._remembered(version)
        if found is None and large:
            if settled:
                self._hash_elsewhere(path, version)
            raise NoDigestError(str(path))
        known, found = found is not None, found or file_digest(path)
        files.append((path, version, None if settled or known else found))
        if settled and not known:
            self._remember(version, found)
        return found

    def _remembered(self, version: FileVersion) -> bytes | None:
        with self._lock:
            if version in self._files:
                self._files.move_to_end(version)
            return self._files.get(version)

    def _remember(self, version: FileVersion, digest: bytes) -> None:
        with self._lock:
            self._files[version] = digest
            if len(self._files) > REMEMBERED:
                self._files.popitem(last=False)

    def _hash_elsewhere(self, path: Path, version: FileVersion) -> None:
        """Have a large file hashed, for later requests about it, unless another one is being hashed."""

        def hash_file() -> None:
            try:
                digest = file_digest(path)
            except OSError as error:
                log.info("%s could not be hashed: %s", path, error)
                return
            if _version(path) == version:
                self._remember(version, digest)

        with self._lock:
            if version[2] > MOST_BYTES or (self._hashing is not None and self._hashing.is_alive()):
                return
            # A daemon does not keep the program from ending.
            self._hashing = Thread(target=hash_file, name="hashing", daemon=True)
            self._hashing.start()
        log.warning(
            "%s has %s bytes, which are being hashed meanwhile; the prefix cache keeps what is read of it from a later "
            "question on.", path, f"{version[2]:,}",
        )  # fmt: skip


def file_digest(path: Path) -> bytes:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _version(path: Path) -> FileVersion | None:
    """Device, inode, size and times of a regular file."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _parts(value: object) -> list[Any]:
    """List the contents of a container, in an order that does not depend on chance."""
    if isinstance(value, Mapping):
        return [part for key in sorted(value, key=repr) for part in (key, value[key])]
    if isinstance(value, Sequence):
        return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value) if field.compare]
    raise NoDigestError(type(value).__name__)


def _feed(digest: Any, kind: str, data: Any) -> None:
    digest.update(f"{kind}:{len(data)}:".encode())
    digest.update(data)
