"""Upload of a clip to the cloud before the question, and its deletion afterwards: `/v1/files`."""

import json
import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from crossdraft.edge.tls import TlsFiles
from crossdraft.errors import CrossdraftError

UPLOAD_S = 600.0
DELETE_S = 10.0
log = logging.getLogger(__name__)


@contextmanager
def uploaded(server: str, key: str | None, path: Path, tls: TlsFiles = TlsFiles()) -> Iterator[str]:  # noqa: B008 - it is frozen
    """Upload a file to a server (ws://… or wss://…); yield its id for requests; delete it there at the end.

    Raises:
        CrossdraftError: the file cannot be read, or the server refuses it.
    """
    files = FilesOfServer(server, key, tls)
    kept = files.add(path)
    try:
        yield kept
    finally:
        try:
            files.delete(kept)
        except CrossdraftError as error:  # the question is answered, or has failed for another reason
            log.warning("%s", error)


class FilesOfServer:
    """A client's uploads on a server.

    Args:
        server: address of the server, ws://… or wss://….
        key: the client's API key.
        tls: certificates.
    """

    def __init__(self, server: str, key: str | None, tls: TlsFiles) -> None:
        self._address = "http" + server.removeprefix("ws").rstrip("/") + "/v1/files"
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._context = tls.context(server)

    def add(self, path: Path) -> str:
        """Upload a file; return its id on the server.

        Raises:
            CrossdraftError: the file cannot be read, or the server refuses it.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise CrossdraftError(f"Cannot read {path}: {error.strerror}; check the path.") from None
        bound = secrets.token_hex(16)
        head = f'--{bound}\r\nContent-Disposition: form-data; name="file"; filename="clip{path.suffix}"\r\n\r\n'
        body = head.encode() + content + f"\r\n--{bound}--\r\n".encode()
        kind = {"Content-Type": f"multipart/form-data; boundary={bound}"}
        asked = Request(self._address, body, self._headers | kind)  # noqa: S310 - http or https
        try:
            return str(self._asked(asked, UPLOAD_S)["id"])
        except HTTPError as error:
            raise CrossdraftError(f"The server does not take {path} (status {error.code}): {_why(error)}") from None
        except (URLError, OSError, ValueError, KeyError, TypeError) as error:
            raise CrossdraftError(
                f"{path} cannot be sent to {self._address} ({error}); check the server's address."
            ) from None

    def delete(self, kept: str) -> None:
        """Delete a file by its id.

        Raises:
            CrossdraftError: the server does not confirm the deletion.
        """
        asked = Request(f"{self._address}/{kept}", headers=self._headers, method="DELETE")  # noqa: S310 - http or https
        try:
            self._asked(asked, DELETE_S)
        except (URLError, OSError, ValueError) as error:
            why = _why(error) if isinstance(error, HTTPError) else error
            raise CrossdraftError(
                f"The clip stays on the server as {kept} until that deletes it, for it could not be deleted ({why})."
            ) from None

    def _asked(self, asked: Request, seconds: float) -> Mapping[str, Any]:
        with urlopen(asked, timeout=seconds, context=self._context) as response:  # noqa: S310 - http or https
            return json.load(response)


def _why(error: HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "it does not say why."
