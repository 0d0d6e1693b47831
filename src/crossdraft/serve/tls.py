"""TLS on the server's own port, with certificates of clients if required."""

import ssl

from crossdraft.errors import CrossdraftError
from crossdraft.serve.settings import ServerSettings


def server_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """Make the TLS context: server certificate, and authority of clients' certificates; `None` means plain HTTP.

    Raises:
        CrossdraftError: a file cannot be read, or has the wrong content.
    """
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # No session tickets: a client that sends in one thread and receives in another (websockets' synchronous client)
    # may read a ticket while it sends its first request. OpenSSL then loses the request: 10 of 2,400 connections.
    context.num_tickets = 0
    try:
        # An empty pass phrase: otherwise OpenSSL would ask for one on the terminal.
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise CrossdraftError(
            f"The certificate {settings.tls_cert} and its key {settings.tls_key or 'in the same file'} cannot be used "
            f"({error}); give PEM files that belong together, the key without a pass phrase."
        ) from None
    if settings.tls_client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except OSError as error:
            raise CrossdraftError(
                f"The clients' authority {settings.tls_client_ca} cannot be read ({error}); give certificates in PEM."
            ) from None
    return context
