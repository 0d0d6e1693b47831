"""A text model whose every word follows from the one before it: it drafts well without having been trained."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from crossdraft.drafters.cross_vocab.vocabulary import TokenTable, read_token_table
from crossdraft.engine.target import Target
from crossdraft.text_model import TextPrompt, text_model


def bigram_model(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], lead: str = "") -> LlamaForCausalLM:
    """Logits are log counts of which token follows which in `texts`; `lead` is the prompt's end, in front of each.

    The layers add a little noise, so that a cache that is wrong shows.
    """
    end, size = tokenizer.eos_token_id, len(tokenizer)
    hidden = -(-size // 8) * 8
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=hidden,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=hidden // 8,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=end,
    )
    model = LlamaForCausalLM(config).double().eval()
    follows: Counter[tuple[int, int]] = Counter()
    for text in texts:
        follows.update(pairwise([*tokenizer.encode(lead)[-1:], *tokenizer.encode(text), end]))
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(size, hidden))
        head = torch.zeros(size, hidden)
        for (before, after), count in follows.items():
            head[after, before] = 1.0 + count
        model.lm_head.weight.copy_(head)
    return model


def as_drafter(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> tuple[Target, TokenTable]:
    """After the adapter, and its vocabulary."""
    ends = [tokenizer.eos_token_id]
    adapter = text_model(model, TextPrompt(tokenizer), tokenizer.decode, ends)
    return adapter, read_token_table(tokenizer, adapter.vocab_size, ends)
