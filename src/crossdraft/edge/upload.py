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
    address, context = "http" + server.removeprefix("ws").rstrip("/") + "/v1/files", tls.context(server)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def asked(method: str, url: str, seconds: float, body: bytes | None = None, kind: str = "*/*") -> Mapping[str, Any]:
        request = Request(url, body, headers | {"Content-Type": kind}, method=method)  # noqa: S310 - http or https
        with urlopen(request, timeout=seconds, context=context) as response:  # noqa: S310 - http or https
            return json.load(response)

    try:
        content = path.read_bytes()
    except OSError as error:
        raise CrossdraftError(f"Cannot read {path}: {error.strerror}; check the path.") from None
    bound = secrets.token_hex(16)
    head = f'--{bound}\r\nContent-Disposition: form-data; name="file"; filename="clip{path.suffix}"\r\n\r\n'
    body = head.encode() + content + f"\r\n--{bound}--\r\n".encode()
    try:
        kept = str(asked("POST", address, UPLOAD_S, body, f"multipart/form-data; boundary={bound}")["id"])
    except HTTPError as error:
        raise CrossdraftError(f"The server does not take {path} (status {error.code}): {_why(error)}") from None
    except (URLError, OSError, ValueError, KeyError, TypeError) as error:
        raise CrossdraftError(f"{path} cannot be sent to {address} ({error}); check the server's address.") from None
    try:
        yield kept
    finally:
        try:
            asked("DELETE", f"{address}/{kept}", DELETE_S)
        except (URLError, OSError, ValueError) as error:  # the question is answered, or has failed for another reason
            why = _why(error) if isinstance(error, HTTPError) else error
            log.warning(
                "The clip stays on the server as %s until that deletes it; it could not be deleted (%s).", kept, why
            )


def _why(error: HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "it does not say why."
