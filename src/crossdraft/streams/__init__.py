"""Standing questions about a stream: sliding windows of frames and events, the newest of which is answered."""

from crossdraft.streams.replay import ReplayClock, replay, replaying
from crossdraft.streams.summary import WatchSummary
from crossdraft.streams.watch import AnsweredWindow, Answerer, QuestionAnswer, Watch, ask_engine, frames_per_window
from crossdraft.streams.windows import EventBuffer, EventSource, RecordedEvents, SlidingWindows, StreamWindow, Windowing

__all__ = [
    "AnsweredWindow",
    "Answerer",
    "EventBuffer",
    "EventSource",
    "QuestionAnswer",
    "RecordedEvents",
    "ReplayClock",
    "SlidingWindows",
    "StreamWindow",
    "Watch",
    "WatchSummary",
    "Windowing",
    "ask_engine",
    "frames_per_window",
    "replay",
    "replaying",
]  # fmt: skip
