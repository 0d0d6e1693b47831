"""An append-only log of answers that several processes read and write.

    one line of JSON: format, version, vocabulary, and a number that changes when the file is written anew
    records: <u32 n> <u64 clip> <u64 question> <n × u32 tokens> <u32 CRC of all that>

Appending and writing anew happen under one lock, beside the file. A process that dies while it appends leaves half a
record at the end; the next one to append cuts it off. When the file holds twice what a store does, the newest half is
written to another file, which then takes its place.
"""

import fcntl
import json
import logging
import os
import struct
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from crossdraft.drafters.memory.datastore import Scope
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

FORMAT, VERSION = "crossdraft answers", 1
MAGIC = json.dumps({"format": FORMAT}).encode()[:-1]  # a file of ours begins so
HEAD = struct.Struct("<IQQ")
CRC = struct.Struct("<I")
LONGEST = 1 << 20  # tokens of one answer
Record = tuple[Scope, list[int]]


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Bytes from the beginning of an edition of the file."""

    edition: str = ""
    at: int = 0


class AppendLog:
    """One file of answers.

    Faults of the file and their repairs are logged as warnings, one sentence each.

    Args:
        path: path of the file, which is made if it is missing.
        capacity: tokens worth keeping.
        vocabulary: a fingerprint; a file of another vocabulary or version is renamed and begun anew.

    Raises:
        CrossdraftError: the file is not a log of answers, or cannot be read or written.
    """

    def __init__(self, path: Path, capacity: int, vocabulary: str) -> None:
        self.path = path
        self.capacity = capacity
        self.vocabulary = vocabulary
        self._read = LogPosition()  # end of the records that `news` returned
        self._whole = LogPosition()  # end of the records that `_repair` checked
        self._held = 0  # tokens up to `_whole`
        self._replaced = False  # a process with another tokenizer has begun the file anew
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                self._open()
        except OSError as error:
            raise CrossdraftError(f"Cannot use the memory {path}: {error.strerror}; name another folder.") from error

    @property
    def edition(self) -> str:
        """The edition of the file that `news` has read from; it changes when the file is written anew."""
        return self._read.edition

    def news(self) -> Iterator[Record]:
        """Answers added since the last call by any process; after the file was written anew, all of its answers."""
        try:
            content = self._unread()
        except OSError as error:
            raise CrossdraftError(f"Cannot read the memory {self.path}: {error.strerror}.") from error
        whole, records = parse(content)
        self._read = LogPosition(self._read.edition, self._read.at + whole)
        yield from records

    def append(self, scope: Scope, tokens: Sequence[int]) -> None:
        """Add an answer for every process; the next `news` returns it too."""
        try:
            with self._locked():
                if not self._repair():
                    return
                with self.path.open("ab") as file:
                    file.write(pack(scope, tokens))
                if self._held + len(tokens) + 1 > 2 * self.capacity:
                    self._shrink()
        except OSError as error:
            raise CrossdraftError(f"Cannot write the memory {self.path}: {error.strerror}.") from error

    def _unread(self) -> bytes:
        with self.path.open("rb") as file:
            begin = self._begin(file.readline(4096))
            if begin is None:
                return b""
            if begin.edition != self._read.edition:
                self._read = begin
            file.seek(self._read.at)
            return file.read()

    def _begin(self, line: bytes) -> LogPosition | None:
        """The position of the records after this first line; `None` if the file cannot be used any more."""
        fault = self._fault(line)
        if fault is None:
            return LogPosition(json.loads(line)["edition"], len(line))
        if not self._replaced:
            log.warning("The memory %s %s by now; nothing more is read from it or added.", self.path, fault)
        self._replaced = True
        return None

    def _open(self) -> None:
        """Use the file if it is of this format and version, else begin it."""
        reason = None
        if self.path.exists():
            with self.path.open("rb") as file:
                reason = self._fault(file.readline(4096))
        if reason is not None:
            old = self.path.with_suffix(".old")
            self.path.replace(old)
            log.warning("The memory %s %s; it was begun anew, the old one is %s.", self.path, reason, old.name)
        if not self.path.exists():
            self._write([])
        else:
            self._repair()

    def _fault(self, line: bytes) -> str | None:
        """The reason why a file with this first line cannot be used; `None` if it can."""
        try:
            head = json.loads(line)
        except ValueError:
            head = None
        if (line.startswith(MAGIC) or MAGIC.startswith(line)) and (head is None or not line.endswith(b"\n")):
            return "was cut off in its first line"
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise CrossdraftError(f"{self.path} is no memory of ours; name another folder.")
        if head.get("version") != VERSION or not isinstance(head.get("edition"), str):
            return f"is of version {head.get('version')}, not {VERSION}"
        if head.get("vocabulary") != self.vocabulary:
            return "was written with another tokenizer"
        return None

    def _repair(self) -> bool:
        """Cut off a half-written record; false if the file cannot be used any more."""
        with self.path.open("r+b") as file:
            begin = self._begin(file.readline(4096))
            if begin is None:
                return False
            if begin.edition != self._whole.edition:
                self._whole, self._held = begin, 0
            file.seek(self._whole.at)
            content = file.read()
            whole, records = parse(content)
            self._whole = LogPosition(begin.edition, self._whole.at + whole)
            self._held += sum(len(tokens) + 1 for _, tokens in records)
            if whole < len(content):
                file.truncate(self._whole.at)
                lost = len(content) - whole
                log.warning("The memory %s was cut off or damaged; its last %d bytes were dropped.", self.path, lost)
        return True

    def _shrink(self) -> None:
        with self.path.open("rb") as file:
            file.readline(4096)
            _, records = parse(file.read())
        kept, room = [], self.capacity
        for record in reversed(records):
            room -= len(record[1]) + 1
            if room < 0:
                break
            kept.append(record)
        self._write(kept[::-1])

    def _write(self, records: Sequence[Record]) -> None:
        edition = uuid.uuid4().hex
        head = {"format": FORMAT, "version": VERSION, "vocabulary": self.vocabulary, "edition": edition}
        temporary = self.path.with_name(f".{self.path.name}-{edition}")
        try:
            temporary.write_bytes(
                json.dumps(head).encode() + b"\n" + b"".join(pack(scope, tokens) for scope, tokens in records)
            )
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def pack(scope: Scope, tokens: Sequence[int]) -> bytes:
    """Pack the bytes of one record."""
    kept = tokens[-LONGEST:]
    body = HEAD.pack(len(kept), scope.clip, scope.question) + struct.pack(f"<{len(kept)}I", *kept)
    return body + CRC.pack(zlib.crc32(body))


def parse(content: bytes) -> tuple[int, list[Record]]:
    """The whole records at the beginning of `content`, and how many bytes they take."""
    records: list[Record] = []
    at = 0
    while at + HEAD.size <= len(content):
        count, clip, question = HEAD.unpack_from(content, at)
        end = at + HEAD.size + 4 * count
        if count > LONGEST or end + CRC.size > len(content):
            break
        if CRC.unpack_from(content, end)[0] != zlib.crc32(content[at:end]):
            break
        records.append((Scope(clip, question), list(struct.unpack_from(f"<{count}I", content, at + HEAD.size))))
        at = end + CRC.size
    return at, records
