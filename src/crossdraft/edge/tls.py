"""TLS at the edge: the authorities that are trusted, and the edge's own certificate."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from crossdraft.errors import CrossdraftError


@dataclass(frozen=True)
class TlsFiles:
    """PEM files for TLS at the edge.

    Args:
        ca: authorities of servers' certificates; `None` = those of the system.
        cert: the edge's own certificate, for a server that asks for one.
        key: private key of `cert`; `None` = it is in the same file.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def context(self, server: str) -> ssl.SSLContext | None:
        """Make the TLS context of a connection to a server, wss://…; `None` for ws://….

        Raises:
            CrossdraftError: a file cannot be used, a key has no certificate, or the server is without TLS.
        """
        if not server.startswith("wss:"):
            if self != TlsFiles():
                raise CrossdraftError(f"Certificates are given for {server}, which is without TLS; ask it as wss://….")
            return None
        if self.key is not None and self.cert is None:
            raise CrossdraftError(f"The key {self.key} is given without a certificate; name that, too: --cert.")
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key, password=lambda: "")
        except (OSError, ValueError) as error:
            given = ", ".join(str(one) for one in (self.ca, self.cert, self.key) if one is not None)
            raise CrossdraftError(f"The certificates {given} cannot be used ({error}); give PEM files.") from None
        return context
