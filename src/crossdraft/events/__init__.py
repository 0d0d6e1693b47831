"""Event streams: read, slice, render to frames, simulate from video."""

from crossdraft.events.frames import eventgpt_frames
from crossdraft.events.simulate import Simulator, SimulatorConfig, simulate
from crossdraft.events.stream import Events

__all__ = ["Events", "Simulator", "SimulatorConfig", "eventgpt_frames", "simulate"]
