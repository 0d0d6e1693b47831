"""A tiny EventGPT and a tokenizer small enough to work out ids by hand."""

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from crossdraft.models import EventGPTConfig, EventGPTForConditionalGeneration
from tests.engine.zoo import TEXT as ZOO_TEXT
from tests.engine.zoo import VISION
from tests.models.official import byte_tokenizer

TEXT = ZOO_TEXT | {"vocab_size": 300}


@pytest.fixture
def config() -> EventGPTConfig:
    """3 frames of 2x2 patches: 3 + 4 + 1 = 8 features."""
    return EventGPTConfig(vision_config=VISION, text_config=TEXT, event_token_id=299, num_event_frames=3)


@pytest.fixture
def model(config: EventGPTConfig) -> EventGPTForConditionalGeneration:
    torch.manual_seed(1)
    built = EventGPTForConditionalGeneration(config).double().eval()
    with torch.no_grad():  # larger weights than the initial ones, so that a wrong input shows in the logits
        for parameter in built.parameters():
            parameter.mul_(3)
    return built


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """Ids: <unk> <s> </s>, then byte b as 3 + its rank; `<event>` is 299."""
    built = byte_tokenizer(299)
    built.add_tokens(["<event>"], special_tokens=True)
    return built
