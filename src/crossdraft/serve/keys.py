"""API keys: the clients that may ask, and their limits.

The file holds only the keys' SHA-256: a key has 256 random bits, which no dictionary lists, so a slow hash would not
protect it better.
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from crossdraft.checks import choice
from crossdraft.errors import CrossdraftError
from crossdraft.serve.scopes import ALL, Scope

PREFIX = "cd-"


class KeyRecord(BaseModel):
    """A key as it is stored in the file.

    Args:
        name: name of the client; uploads, and cached prompts and answers, belong to a name.
        sha256: SHA-256 of the key, in hexadecimal.
        requests_per_minute, concurrent: limits of the client, where they differ from the server's.
        max_new_tokens: largest number of tokens of its answers.
        scopes: parts of the API that it may use (`serve.scopes`); `None` = all.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=64, pattern=r"^[\w.-]+$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    requests_per_minute: int | None = Field(default=None, ge=1)
    concurrent: int | None = Field(default=None, ge=1)
    max_new_tokens: int | None = Field(default=None, ge=1)
    scopes: tuple[Scope, ...] | None = Field(default=None, min_length=1)


@dataclass(frozen=True, slots=True)
class Client:
    """A client and its permissions. `name` is "" if the server has no keys; `behind`: all other requests go first."""

    name: str = ""
    requests_per_minute: int | None = None
    concurrent: int | None = None
    max_new_tokens: int | None = None
    scopes: frozenset[Scope] = ALL
    behind: bool = False


def digest_of(key: str) -> str:
    """SHA-256 of a key, as the key file stores it."""
    return hashlib.sha256(key.encode()).hexdigest()


def new_record(name: str, key: str, scopes: Sequence[str] | None = None) -> KeyRecord:
    """Make the record of a client's key, without limits of its own; `scopes=None` allows all.

    Raises:
        CrossdraftError: the name is not allowed as a client's name, or a scope does not exist.
    """
    known = None if scopes is None else tuple(choice("scope", one, sorted(ALL)) for one in scopes)
    try:
        return KeyRecord(name=name, sha256=digest_of(key), scopes=known)
    except ValidationError:
        raise CrossdraftError(
            f"A client cannot be called {name!r}; take 1 to 64 letters, digits, dots, hyphens and underscores."
        ) from None


def line_of(record: KeyRecord) -> str:
    """Format a record as a line of the file. Values are quoted, as YAML reads some words and hashes as numbers."""
    fields = record.model_dump(exclude_none=True)
    return "{" + ", ".join(f"{name}: {json.dumps(value)}" for name, value in fields.items()) + "}"


def new_key() -> str:
    """Make a random key."""
    return PREFIX + secrets.token_urlsafe(32)


class Keys:
    """The keys of a server, recognised by their hashes. A look-up compares all keys, each in constant time."""

    def __init__(self, records: Sequence[KeyRecord], defaults: Client) -> None:
        self._clients: Mapping[str, Client] = {
            one.sha256: Client(
                one.name,
                one.requests_per_minute or defaults.requests_per_minute,
                one.concurrent or defaults.concurrent,
                one.max_new_tokens or defaults.max_new_tokens,
                ALL if one.scopes is None else frozenset(one.scopes),
            )
            for one in records
        }

    def client(self, key: str) -> Client | None:
        """Return the client that a key belongs to; `None` if there is none."""
        given, found = digest_of(key), None
        for known, client in self._clients.items():
            if hmac.compare_digest(known, given):
                found = client
        return found


def read_keys(path: Path, defaults: Client) -> Keys:
    """Read the keys of a YAML file, a list of `KeyRecord`s.

    Raises:
        CrossdraftError: the file cannot be read, others may write it, or a record is wrong or repeated.
    """
    return Keys(_records(path), defaults)


def _records(path: Path) -> list[KeyRecord]:
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
        given = yaml.safe_load(text)
    except OSError as error:
        raise CrossdraftError(f"The keys of {path} cannot be read: {error.strerror}; check the path.") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise CrossdraftError(f"{path} is no YAML; write a list of keys, as `crossdraft serve new-key` does.") from None
    if mode & 0o022:
        raise CrossdraftError(f"Others may write {path}, and so add keys; run: chmod go-w {path}")
    given = [] if given is None else given  # the file is empty, or holds only comments
    if not isinstance(given, list):
        raise CrossdraftError(f"{path} holds no list; write a list of keys, as `crossdraft serve new-key` does.")
    try:
        records = TypeAdapter(list[KeyRecord]).validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CrossdraftError(f"{path}: the key {where}: {first['msg']}; mend the record.") from None
    for what in ("name", "sha256"):
        values = [getattr(one, what) for one in records]
        if len(set(values)) < len(values):
            raise CrossdraftError(f"{path} has two keys of the same {what}; each client has a key of its own.")
    return records


def append_key(path: Path, record: KeyRecord) -> None:
    """Append a key to a file, which is created if needed, readable by its owner alone.

    Raises:
        CrossdraftError: as `read_keys`, or the file has a key of that name.
    """
    text = ""
    if path.exists():
        if any(one.name == record.name for one in _records(path)):
            raise CrossdraftError(f"{path} has a key of {record.name}; choose another name, or delete that one.")
        text = path.read_text(encoding="utf-8")
    try:
        with open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write("\n" if text and not text.endswith("\n") else "")  # an editor may leave out the last line end
            file.write(f"- {line_of(record)}\n")
    except OSError as error:
        raise CrossdraftError(f"Cannot write {path}: {error.strerror}; choose another place.") from None
