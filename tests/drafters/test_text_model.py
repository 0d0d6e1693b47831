"""Text models after the adapter that was made for models that see."""

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from crossdraft.drafters.language_model.text_model import TextPrompt, text_model
from crossdraft.engine.conformance import PARENTS, check_conformance
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from tests.drafters.cross_vocab.tokenizers import byte_level

SHAPE = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SMALL = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**SMALL, bos_token_id=1, eos_token_id=2)),
}
TOKENIZER = byte_level(" car", "USER", " ASSISTANT")


@pytest.mark.parametrize("name", MODELS)
def test_the_adapter_works_for_text_models(name):
    model = MODELS[name]().double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    adapter = text_model(model, TextPrompt(TOKENIZER), TOKENIZER.decode, [2])
    prompt = Prompt(torch.tensor([1, 5, 6, 7, 8, 9]))
    found = check_conformance(adapter, prompt, range(20, 20 + len(PARENTS)))
    assert found.passes(1e-10), found


def test_a_model_without_a_cache_of_keys_is_refused():
    with torch.device("meta"):
        model = MambaForCausalLM(MambaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1))
    with pytest.raises(CrossdraftError, match="MambaForCausalLM cannot draft: its forward takes no"):
        text_model(model, TextPrompt(TOKENIZER), TOKENIZER.decode, [2])


def test_a_model_that_does_not_say_its_context_is_refused():
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    model.config.__dict__["max_position_embeddings"] = None  # as in a config class that has no such field
    with pytest.raises(CrossdraftError, match="does not say max_position_embeddings"):
        text_model(model, TextPrompt(TOKENIZER), TOKENIZER.decode, [2])


def text_of(prompt: Prompt) -> str:
    return TOKENIZER.decode(prompt.input_ids)


def test_the_plain_prompt():
    assert text_of(TextPrompt(TOKENIZER)(Request("Which {car}?"))) == "USER: Which {car}? ASSISTANT:"


def test_a_chat_template_is_used_where_there_is_one(monkeypatch):
    monkeypatch.setattr(
        TOKENIZER,
        "chat_template",
        "{{ messages[0].content }}|{% if add_generation_prompt %}A:{% endif %}",
        raising=False,
    )
    prepare = TextPrompt(TOKENIZER)
    assert text_of(prepare(Request("Which car?"))) == "Which car?|A:"
    monkeypatch.setattr(TOKENIZER, "chat_template", "{{ raise_exception('no') }}")
    with pytest.raises(CrossdraftError, match="chat template cannot be filled in: no;"):
        prepare(Request("Which car?"))
