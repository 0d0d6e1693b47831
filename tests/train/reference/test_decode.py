"""Greedy decoding of many rows: whatever the draft, the model's own answer."""

import pytest
import torch
from transformers import CLIPVisionConfig, LlamaConfig

from crossdraft.models.eventgpt import EventGPTConfig, EventGPTForConditionalGeneration
from crossdraft.train.reference.models import TrainableEventGPT
from crossdraft.train.reference.packed import greedy_decode, read_prefix

EOS, LIMIT = 1, 9
QUESTIONS = [[5, 6], [7], [8, 9, 10], [5, 7]]


@pytest.fixture(scope="module")
def vlm() -> TrainableEventGPT:
    torch.manual_seed(3)
    text = LlamaConfig(
        vocab_size=30, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64, initializer_range=0.4,
    )  # fmt: skip
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )
    config = EventGPTConfig(vision_config=vision, text_config=text, event_token_id=29, num_event_frames=5)
    return TrainableEventGPT(EventGPTForConditionalGeneration(config).double().eval())


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return torch.randn(2, 5, 3, 28, 28, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def own_words(vlm: TrainableEventGPT, pixels: torch.Tensor, row: int) -> list[int]:
    """The model's own greedy continuation, one full forward a token."""
    clip = pixels[row // 2][None]
    ids = [2, 3, *[29] * vlm.model.config.event_seq_length, *QUESTIONS[row]]
    said: list[int] = []
    while len(said) < LIMIT and (not said or said[-1] != EOS):
        with torch.no_grad():
            logits = vlm.model(input_ids=torch.tensor([[*ids, *said]]), pixel_values_videos=clip).logits
        said.append(int(logits[0, -1].argmax()))
    return said


@pytest.mark.parametrize("draft", ["none", "wrong", "right", "nearly"])
def test_any_draft_gives_the_models_own_answer(vlm: TrainableEventGPT, pixels: torch.Tensor, draft: str) -> None:
    own = [own_words(vlm, pixels, row) for row in range(4)]
    drafts = {
        "none": [[] for _ in own],
        "wrong": [[(t + 1) % 30 for t in words] for words in own],
        "right": own,
        "nearly": [[*words[:3], (words[3] + 1) % 30 if len(words) > 3 else 0, *words[4:]] for words in own],
    }[draft]
    with torch.no_grad():
        prefix = read_prefix(vlm.llama, vlm.prefix_embeds([2, 3], vlm.visual_tokens(vlm.patches(pixels))))
    said, passes = greedy_decode(
        vlm.llama, vlm.head, prefix, QUESTIONS, drafts, eos_id=EOS, max_new_tokens=LIMIT, window=4
    )
    assert said == own
    assert len({tuple(words) for words in own}) > 1, "the rows must differ for the test to mean anything"
    if draft == "right":
        assert passes <= 1 + -(-LIMIT // 4)
    if draft == "wrong":
        assert passes == max(len(words) for words in own)
