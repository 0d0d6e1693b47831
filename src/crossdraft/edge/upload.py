"""A clip for the cloud, sent before it is asked about: `POST /v1/files`."""

import json
import secrets
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from crossdraft.edge.tls import TlsFiles
from crossdraft.errors import CrossdraftError

UPLOAD_S = 600.0


def upload(server: str, key: str | None, path: Path, tls: TlsFiles = TlsFiles()) -> str:  # noqa: B008 - it is frozen
    """Send a file to a server (ws://… or wss://…); returns the id that requests name it by.

    Raises:
        CrossdraftError: the file cannot be read, or the server does not take it.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CrossdraftError(f"Cannot read {path}: {error.strerror}; check the path.") from None
    bound = secrets.token_hex(16)
    head = f'--{bound}\r\nContent-Disposition: form-data; name="file"; filename="clip{path.suffix}"\r\n\r\n'
    body = head.encode() + content + f"\r\n--{bound}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={bound}"}
    headers |= {} if key is None else {"Authorization": f"Bearer {key}"}
    address = "http" + server.removeprefix("ws").rstrip("/") + "/v1/files"
    try:
        asked = Request(address, body, headers)  # noqa: S310 - http or https
        with urlopen(asked, timeout=UPLOAD_S, context=tls.context(server)) as response:  # noqa: S310 - the same
            return str(json.load(response)["id"])
    except HTTPError as error:
        raise CrossdraftError(f"The server does not take {path} (status {error.code}): {_why(error)}") from None
    except (URLError, OSError, ValueError, KeyError) as error:
        raise CrossdraftError(f"{path} cannot be sent to {address} ({error}); check the server's address.") from None


def _why(error: HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "it does not say why."
