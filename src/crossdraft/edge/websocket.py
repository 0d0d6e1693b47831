"""A client's WebSocket to a crossdraft server."""

import ssl
from dataclasses import dataclass, field

from websockets.exceptions import InvalidURI
from websockets.sync.client import ClientConnection, connect

from crossdraft.edge.tls import TlsFiles
from crossdraft.errors import CrossdraftError

OPEN_S = 10.0
# Advice about a certificate, by OpenSSL's error code.
HINTS = {
    9: "look at this machine's clock",
    10: "have the server get a new one, or look at this machine's clock",
    62: "ask the server by a name that it is for",
    64: "ask the server by an address that it is for",
}


@dataclass(frozen=True)
class ServerAddress:
    """A server's address and the credentials for it.

    Args:
        server: ws://… or wss://….
        route: path of the WebSocket on the server.
        key: API key, if the server asks for one.
        tls: certificates, for wss://….

    Raises:
        CrossdraftError: the address is invalid, or the certificates cannot be used.
    """

    server: str
    route: str
    key: str | None
    tls: TlsFiles
    context: ssl.SSLContext | None = field(init=False)

    def __post_init__(self) -> None:
        if not self.server.startswith(("ws://", "wss://")):
            raise CrossdraftError(
                f"The server is '{self.server[:60]}'; give its address as ws://HOST:PORT or wss://HOST."
            )
        object.__setattr__(self, "context", self.tls.context(self.server))

    def __str__(self) -> str:
        server = self.server.rstrip("/")
        return server + ("" if server.endswith(self.route) else self.route)

    def connect(self, most_bytes: int) -> ClientConnection:
        """Open a connection for messages of at most `most_bytes` bytes.

        Raises:
            CrossdraftError: the address is invalid, or the server's certificate is not trusted.
            InvalidStatus, InvalidHandshake, ConnectionClosed, OSError: the server refuses, or cannot be reached.
        """
        try:
            return connect(
                str(self),
                additional_headers={} if self.key is None else {"Authorization": f"Bearer {self.key}"},
                max_size=most_bytes,
                compression=None,
                open_timeout=OPEN_S,
                proxy=None,
                ssl=self.context,
            )
        except ssl.SSLCertVerificationError as error:
            hint = HINTS.get(error.verify_code, "name its authority with --ca")
            raise CrossdraftError(
                f"The certificate of {self} is not believed ({error.verify_message.rstrip('.')}); {hint}."
            ) from None
        except InvalidURI:
            raise CrossdraftError(f"{self} is no address; give ws://HOST:PORT or wss://HOST.") from None

    def refusal(self, status: int, absent: str) -> CrossdraftError:
        """The error for an HTTP status with which the server refuses the connection.

        Args:
            status: the status.
            absent: sentence for a server without the route.
        """
        match status:
            case 401:
                return CrossdraftError("The server refuses the API key; give its own with --key or CROSSDRAFT_KEY.")
            case 403 | 404:
                return CrossdraftError(absent)
            case 429 | 503:
                return CrossdraftError(f"The server {self} is full (status {status}); ask again later.")
        return CrossdraftError(f"The server refuses the connection to {self} (status {status}); see its log.")
