"""Live sources that the server itself reads for `/v1/watch`: of hosts that its operator listed, and of no other."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal

from crossdraft.errors import CrossdraftError
from crossdraft.serve.budget import MediaShare
from crossdraft.serve.errors import bad_request, overloaded
from crossdraft.serve.live import LIMITS
from crossdraft.serve.schema import WatchRequest
from crossdraft.streams.live.address import LiveAddress, live_address
from crossdraft.streams.live.events import MOST_EVENTS, LiveEvents
from crossdraft.streams.live.frames import LiveFrames
from crossdraft.streams.live.read import open_events

HELD_BYTES = 1 << 26  # of frames that are in no window yet


def allowed_source(text: str, of: Literal["events", "video"], hosts: Collection[str]) -> LiveAddress:
    """Parse a client's address of a live source; raise ApiError if it is at none of the allowed `host:port`."""
    allowed = {(host.strip("[]"), port) for host, _, port in (one.rpartition(":") for one in hosts)}
    try:
        found = live_address(text, of, {host for host, _ in allowed})
    except CrossdraftError:
        found = None
    if found is None or (found.host, str(found.port)) not in allowed:
        why = f"This is no address of live {of} that may be used; who runs this server names these (--live-hosts)."
        raise bad_request(why, "live" if of == "video" else "live_events", "address_refused")
    return found


@asynccontextmanager
async def cameras(
    asked: WatchRequest, hosts: Collection[str], length_s: float, share: MediaShare
) -> AsyncIterator[tuple[LiveFrames, LiveEvents | None]]:
    """Yield the started sources of a stream, whose windows are `length_s` long.

    Raises:
        ApiError: 400, a source may not be used; 503, nothing comes from it, or all requests together hold too much.
    """
    video, events = allowed_source(asked.live or "", "video", hosts), None
    share.hold(HELD_BYTES + (0 if asked.live_events is None else 13 * MOST_EVENTS))
    async with AsyncExitStack() as held:
        try:
            if asked.live_events is not None:
                host = allowed_source(asked.live_events, "events", hosts).host
                events = open_events(asked.live_events, length_s, hosts=(host,), sensor=asked.sensor)
                held.push_async_callback(asyncio.to_thread, events.reader.close)
            frames = LiveFrames(video, most_bytes=HELD_BYTES, limits=LIMITS)
            held.push_async_callback(asyncio.to_thread, frames.close)
            await asyncio.to_thread(frames.reader.start)
            if events is not None:
                await asyncio.to_thread(events.reader.start)
                events.align(frames.zero_at, frames.zero_s)
        except CrossdraftError as error:
            raise overloaded(str(error), "no_signal") from None
        yield frames, events
