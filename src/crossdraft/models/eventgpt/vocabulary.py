"""EventGPT's own tokens: their ids, and rows of the embedding and the head for those that have none yet."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from crossdraft.errors import CrossdraftError
from crossdraft.models.eventgpt.layout import EMBEDDING, HEAD
from crossdraft.models.eventgpt.processing import EV_END, EV_START

EV_PATCH, EVENT = "<ev_patch>", "<event>"


@dataclass(frozen=True, slots=True)
class TokenRows:
    """EventGPT's own tokens, and the rows of embedding and head.

    Args:
        tokens: id of each of EventGPT's own tokens; `<event>` is the placeholder.
        rows_read, rows_written: rows of the embedding, and of the head, before and after.
    """

    tokens: Mapping[str, int]
    rows_read: int
    rows_written: int

    @property
    def fresh(self) -> tuple[str, ...]:
        """The tokens that the checkpoint had no row for."""
        return tuple(token for token, row in self.tokens.items() if row >= self.rows_read)


def extend_vocabulary(
    tokenizer: PreTrainedTokenizerBase, weights: dict[str, Tensor], *, patch: bool, start_end: bool
) -> TokenRows:
    """Add to the tokenizer what the official loader adds, and the placeholder; give every token its row.

    Both arguments are changed in place. A checkpoint may have more rows than its tokenizer has tokens
    (padding): those stay.

    Raises:
        CrossdraftError: embedding or head is missing, or they do not agree.
    """
    rows_read = _rows(weights)
    tokens = _add_tokens(tokenizer, patch, start_end)
    rows = max(rows_read, len(tokenizer))
    for name in (EMBEDDING, HEAD):
        weights[name] = _extend_rows(weights[name], rows)
    return TokenRows(tokens, rows_read, rows)


def _rows(weights: Mapping[str, Tensor]) -> int:
    """Rows of the embedding, which the head has as well."""
    lacking = [name for name in (EMBEDDING, HEAD) if name not in weights]
    if lacking:
        raise CrossdraftError(f"The checkpoint lacks {', '.join(lacking)}; give the merged EventGPT weights.")
    embedding, head = list(weights[EMBEDDING].shape), list(weights[HEAD].shape)
    if embedding != head or len(embedding) != 2:
        raise CrossdraftError(
            f"The checkpoint's embedding is {embedding} and its head {head}, but both must be [tokens, width]; "
            "give the merged EventGPT weights."
        )
    return embedding[0]


def _add_tokens(tokenizer: PreTrainedTokenizerBase, patch: bool, start_end: bool) -> dict[str, int]:
    """Add the tokens in the official loader's order, the placeholder last. Known tokens keep their ids."""
    wanted = [EV_PATCH] * patch + [EV_START, EV_END] * start_end + [EVENT]
    tokenizer.add_tokens(wanted, special_tokens=True)
    vocabulary = tokenizer.get_vocab()
    return {token: vocabulary[token] for token in wanted}


def _extend_rows(weight: Tensor, rows: int) -> Tensor:
    """Lengthen an embedding or head [V, h] to `rows` by copies of the mean row.

    As a row of the head the mean scores the mean of all logits, so greedy decoding never picks an added token.
    """
    mean = weight.mean(dim=0, keepdim=True, dtype=torch.float64).to(weight.dtype)
    return torch.cat([weight, mean.expand(rows - len(weight), -1)])
