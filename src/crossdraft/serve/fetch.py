"""Fetching media by http(s), off by default: only from listed hosts, and never from an internal address.

A name is resolved once and the connection goes to the checked address, so that a second answer of a hostile name server
(DNS rebinding) has no effect. Private, loopback, link-local and reserved ranges are refused, also inside
IPv6 (mapped, NAT64, 6to4, Teredo). Redirects are followed by hand, each checked like the first address.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import BinaryIO
from urllib.parse import SplitResult, urljoin, urlsplit

import h11

from crossdraft.serve.errors import ApiError, bad_request

MOST_REDIRECTS = 3
MOST_HEAD = 16 << 10  # bytes of a response's head
CHUNK = 1 << 16
PORTS = {"http": 80, "https": 443}
NAT64 = ipaddress.ip_network("64:ff9b::/96")
NAT64_LOCAL = ipaddress.ip_network("64:ff9b:1::/48")

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve(host: str, port: int) -> Sequence[str]:
    """Resolve a name to addresses, by the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(one[4][0]) for one in found]


def is_public(address: str) -> bool:
    """True if an address is public, however it is written.

    >>> [is_public(one) for one in ("93.184.216.34", "127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "fe80::1%eth0")]
    [True, False, False, False, False]
    """
    try:
        found: Address = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return all(map(_is_open, _inside(found)))


def _is_open(address: Address) -> bool:
    local = isinstance(address, IPv6Address) and address.is_site_local  # fec0::/10, which is_global takes for open
    return address.is_global and not (address.is_multicast or address.is_reserved or local)


def _inside(address: Address) -> list[Address]:
    """Return an address with the addresses that it represents or is tunnelled to."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:  # the mapped address alone counts
        return [address.ipv4_mapped]
    inner: list[Address] = []
    if address.sixtofour is not None:
        inner.append(address.sixtofour)
    if address.teredo is not None:
        inner += address.teredo
    if address in NAT64:
        return [IPv4Address(int(address) & 0xFFFFFFFF)]
    if address in NAT64_LOCAL:
        inner.append(IPv4Address("127.0.0.1"))  # a network's own translation prefix counts as internal
    return [address, *inner]


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Fetches files by http(s).

    Args:
        hosts: allowed names, or `name:port`; a port other than the scheme's default must be named.
        most: largest number of bytes of a file.
        seconds: time for one file, redirects included.
        resolve, permitted: resolver of names, and test for allowed addresses.
    """

    hosts: frozenset[str]
    most: int
    seconds: float
    resolve: Resolve = resolve
    permitted: Callable[[str], bool] = is_public
    secure: ssl.SSLContext = field(default_factory=ssl.create_default_context)  # reads all root certificates

    async def fetch(self, url: str, path: Path, param: str, hold: Callable[[int], None] = lambda _: None) -> None:
        """Fetch a URL into a file; `hold` is called with the number of bytes before each part is written.

        Raises:
            ApiError: the URL may not be fetched, does not exist, is too large or too slow; and whatever `hold` raises.
        """
        try:
            async with asyncio.timeout(self.seconds):
                with path.open("wb") as file:
                    for _ in range(1 + MOST_REDIRECTS):
                        moved = await self._once(url, file, param, hold)
                        if moved is None:
                            return
                        url = urljoin(url, moved)
        except TimeoutError:
            raise bad_request(f"The address took more than {self.seconds:g} s; upload the file.", param) from None
        except (OSError, h11.ProtocolError, ssl.SSLError, UnicodeError):
            raise bad_request("The address could not be fetched; upload the file.", param) from None
        raise bad_request(f"The address redirects more than {MOST_REDIRECTS} times; give the final one.", param)

    async def _once(self, url: str, file: BinaryIO, param: str, hold: Callable[[int], None]) -> str | None:
        """Fetch from one address; return the next address if this one redirects."""
        parts, host, port = self._checked(url, param)
        addresses = list(dict.fromkeys(await self.resolve(host, port)))
        if not addresses or not all(map(self.permitted, addresses)):
            raise _refused(param)
        reader, writer = await self._connected(addresses, port, host if parts.scheme == "https" else None)
        try:
            return await self._transfer(parts, reader, writer, file, param, hold)
        finally:
            writer.close()

    async def _connected(
        self, addresses: Sequence[str], port: int, name: str | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the first address that accepts; each address gets a part of the time."""
        secure = None if name is None else self.secure
        for address in addresses:
            with suppress(OSError):  # a timeout and a refusal by TLS are OSErrors, too
                async with asyncio.timeout(self.seconds / (1 + len(addresses))):
                    return await asyncio.open_connection(address, port, ssl=secure, server_hostname=name)
        raise ConnectionRefusedError

    def _checked(self, url: str, param: str) -> tuple[SplitResult, str, int]:
        """Split a URL; return its parts, its host and its port if the host is listed."""
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").rstrip(".").encode("idna").decode().lower(), parts.port
        except ValueError:
            raise bad_request("The address is none; write https://host/path.", param) from None
        printable = url.isascii() and url.isprintable() and " " not in url
        if parts.scheme not in PORTS or not printable or parts.username is not None or parts.password is not None:
            raise bad_request("The address is none; write https://host/path.", param)
        usual = PORTS[parts.scheme]
        port = usual if port is None else port
        if not (f"{host}:{port}" in self.hosts or (host in self.hosts and port == usual)):
            raise _refused(param)
        return parts, host, port

    async def _transfer(
        self,
        parts: SplitResult,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        file: BinaryIO,
        param: str,
        hold: Callable[[int], None],
    ) -> str | None:
        link = h11.Connection(h11.CLIENT, MOST_HEAD)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = [("Host", parts.netloc), ("Accept", "*/*"), ("User-Agent", "crossdraft"), ("Connection", "close")]
        writer.write(link.send(h11.Request(method="GET", target=target, headers=headers)) or b"")
        writer.write(link.send(h11.EndOfMessage()) or b"")
        await writer.drain()
        size = 0
        while True:
            event = link.next_event()
            if event is h11.NEED_DATA:
                link.receive_data(await reader.read(CHUNK))
            elif isinstance(event, h11.Response):
                if event.status_code in (301, 302, 303, 307, 308):
                    return dict(event.headers).get(b"location", b"").decode("latin-1")
                if event.status_code != 200:
                    raise bad_request(f"The address answers {event.status_code}; check it.", param)
            elif isinstance(event, h11.Data):
                size += len(event.data)
                if size > self.most:
                    raise bad_request(
                        f"The address holds more than {self.most:,} bytes, the limit; send a smaller file.", param
                    )
                hold(len(event.data))
                file.write(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return None
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionResetError


def _refused(param: str) -> ApiError:
    """Error for every reason: clients must not learn which names lead to internal addresses."""
    return bad_request(
        "The address may not be fetched; upload the file, or send it as data:. Who runs this server names the hosts "
        "that may be (--remote-hosts).",
        param,
        "address_refused",
    )
