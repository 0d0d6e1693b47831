"""TLS on the server's own port, and who must show a certificate for it."""

import ssl

from crossdraft.errors import CrossdraftError
from crossdraft.serve.settings import ServerSettings


def server_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """The TLS context: the server's certificate, and the authority of clients' certificates; `None` = plain HTTP.

    Raises:
        CrossdraftError: a file cannot be read, or is not what it should be.
    """
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a pass phrase: OpenSSL would ask for it on the terminal.
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
