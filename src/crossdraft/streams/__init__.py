"""Standing questions about a stream: sliding windows of frames and events, the newest of which is answered."""

from crossdraft.streams.replay import Pace, replay, replaying
from crossdraft.streams.summary import WatchSummary
from crossdraft.streams.watch import AnsweredWindow, Ask, QuestionAnswer, Watch, ask_engine, frames_per_window
from crossdraft.streams.windows import EventBuffer, EventSource, Recording, SlidingWindows, Window, Windowing

__all__ = [
    "AnsweredWindow", "Ask", "EventBuffer", "EventSource", "Pace", "QuestionAnswer", "Recording", "SlidingWindows",
    "Watch", "WatchSummary", "Window", "Windowing", "ask_engine", "frames_per_window", "replay", "replaying",
]  # fmt: skip
