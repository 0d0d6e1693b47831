"""Event streams: read, slice, render to frames."""

from crossdraft.events.excerpt import Excerpt
from crossdraft.events.frames import eventgpt_frames
from crossdraft.events.limits import EventLimits
from crossdraft.events.read import iter_events, read_events
from crossdraft.events.stream import Events, Newest, concatenate
from crossdraft.events.windows import adaptive_windows
from crossdraft.events.write import write_dsec_h5, write_eventgpt_npy, write_events

__all__ = [
    "EventLimits", "Events", "Excerpt", "Newest", "adaptive_windows", "concatenate",
    "eventgpt_frames", "iter_events", "read_events", "write_dsec_h5", "write_eventgpt_npy", "write_events",
]  # fmt: skip
