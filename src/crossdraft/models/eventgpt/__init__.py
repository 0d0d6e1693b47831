"""EventGPT: configuration, model, processor, converter. The latter two are loaded when they are first used."""

from importlib import import_module
from typing import TYPE_CHECKING

from transformers import AutoConfig, AutoModel, AutoModelForImageTextToText

from crossdraft.models.eventgpt.configuration import EventGPTConfig
from crossdraft.models.eventgpt.modeling import EventGPTForConditionalGeneration, EventGPTModel

if TYPE_CHECKING:
    from crossdraft.models.eventgpt.convert import EventGPTConversion, convert_eventgpt
    from crossdraft.models.eventgpt.processing import EventGPTProcessor, ProcessorOptions

AutoConfig.register("eventgpt", EventGPTConfig, exist_ok=True)
AutoModel.register(EventGPTConfig, EventGPTModel, exist_ok=True)
AutoModelForImageTextToText.register(EventGPTConfig, EventGPTForConditionalGeneration, exist_ok=True)

# The network alone must need no more than torch and transformers; these also need the events and video rooms.
_LAZY = {
    "EventGPTConversion": "convert",
    "EventGPTProcessor": "processing",
    "ProcessorOptions": "processing",
    "convert_eventgpt": "convert",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "EventGPTConfig",
    "EventGPTConversion",
    "EventGPTForConditionalGeneration",
    "EventGPTModel",
    "EventGPTProcessor",
    "ProcessorOptions",
    "convert_eventgpt",
]  # fmt: skip
