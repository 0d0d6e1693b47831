"""Addresses of live sources: `live:` and where a camera's data come from."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from crossdraft.checks import LIVE, is_live, is_loopback
from crossdraft.errors import CrossdraftError

KINDS = {
    "events": ("tcp://HOST:PORT", "unix:PATH", "evt:tcp://HOST:PORT", "evt:unix:PATH", "evt:-", "dv", "bag:PATH"),
    "video": ("udp://HOST:PORT", "tcp://HOST:PORT", "rtsp://HOST/PATH", "v4l2:/dev/videoN"),
}
# Of two slashes a `Path` keeps one.
_PARTS = re.compile(r"((?:evt:)?tcp|udp|rtsp):/{1,2}([^/].*)|((?:evt:)?unix|bag|v4l2):(.+)|(evt:-|dv)")


@dataclass(frozen=True, slots=True)
class LiveAddress:
    """The place of a live source.

    Attributes:
        kind: how it is read: of events "tcp" and "unix" (iniVation's network stream), "evt:tcp", "evt:unix" and "evt:-"
            (EVT words), "dv" (a camera here), "bag" (a .db3 that grows); of video "udp", "tcp", "rtsp", "v4l2".
        host, port: of a network; "" and 0 elsewhere.
        path: of a socket, file or device; of RTSP the whole URL, which may hold a password: `str()` leaves that out.
    """

    kind: str
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if not self.host:
            return f"{LIVE}{self.kind}{':' if self.path else ''}{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{LIVE}{self.kind}://{host}:{self.port}{urlsplit(self.path).path}"


def live_address(text: str, of: Literal["events", "video"], hosts: Collection[str] = ()) -> LiveAddress:
    """Parse the address of a live source of events or video, at this machine or one of the allowed `hosts`.

    Raises:
        CrossdraftError: it is no address of such a source, or of a host that is not allowed.
    """
    shown = re.sub(r"/+[^/]*@", "//", re.sub(r"(?<=tcp|udp|tsp):/+", "://", text))[:60]  # a `Path` has one slash
    forms = f"{LIVE}{f', {LIVE}'.join(KINDS[of])}"
    found = _PARTS.fullmatch(text.removeprefix(LIVE)) if is_live(text) and text.isprintable() else None
    network, place, kind, path, alone = found.groups() if found else (None,) * 5
    known = {re.sub(r":?/.*|:PATH", "", one) for one in KINDS[of]}
    if (kind := network or kind or alone) not in known:
        raise CrossdraftError(f"'{shown}' is no address of live {of}; write {forms}.")
    if not network:
        return LiveAddress(str(kind), path=path or "")
    try:
        parts = urlsplit(f"{network.removeprefix('evt:')}://{place}")
        host, port = parts.hostname or "", parts.port or (554 if network == "rtsp" else 0)
    except ValueError:
        raise CrossdraftError(f"'{shown}' names no host and port; write {forms}.") from None
    if not host or not port or (network != "rtsp" and (parts.path or parts.query or parts.username)):
        raise CrossdraftError(f"'{shown}' names no host and port; write {forms}.")
    if not is_loopback(host) and host not in {name.lower() for name in hosts}:
        raise CrossdraftError(f"'{shown}' is of the host {host}, which is not allowed; say --live-host {host}.")
    return LiveAddress(network, host, port, parts.geturl() if network == "rtsp" else "")
