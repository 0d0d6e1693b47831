"""Networks. Importing this package makes them known to the `transformers` Auto classes."""

from crossdraft.models.eventgpt import EventGPTConfig, EventGPTForConditionalGeneration, EventGPTModel

__all__ = ["EventGPTConfig", "EventGPTForConditionalGeneration", "EventGPTModel"]
