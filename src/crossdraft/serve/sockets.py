"""The server's listening socket; this module imports nothing of the server."""

import socket


def bound_socket(host: str, port: int) -> socket.socket:
    """Make a bound socket; errors as `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.create_server((host, port), family=family, backlog=128)
    # Connections inherit this. asyncio sets it only on sockets that name their protocol, which these do not; without it
    # the body of a response may wait 40 ms for the acknowledgement of its head.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found
