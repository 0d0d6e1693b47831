"""The drafter `partial`: the target itself over a part of its keys and values (SpecPV: Tan et al. 2025, made lossless).

SpecPV verifies most drafts of a long context against a partial cache, and all of it only now and then: what the partial
passes let through stands, so its answers are LOSSY. Here the same partial passes draft, and every token is verified
over the whole cache: `cascade:partial,event` is SpecPV's hierarchy, with full verification of everything. So it pays
only where a partial pass is much cheaper than a whole one: where keys and values weigh more than weights.

The part, in blocks of 16 tokens, for each layer and head: the first `sinks` blocks, the last `window`, and between
them the `blocks` whose keys answer the question's queries best (after Quest: Tang et al. 2024). SpecPV chooses anew at
every full verification; here it is done once an answer. Of tokens that are verified, the target's own keys and values
are put in place of those that a partial pass made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from crossdraft.drafters.base import Draws
from crossdraft.drafters.independent import IndependentDrafter, IndependentState
from crossdraft.engine.cache import KVPrefix, KVSpan
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.drafters.guided.drafter import decoder_of
from crossdraft_lab.drafters.partial import PartialSettings

BLOCK = 16  # tokens
MOST_QUERIES = 64  # last tokens of the prompt whose queries choose

KeysValues = tuple[Tensor, Tensor]


@dataclass(eq=False)
class PartialState(IndependentState):
    """One answer; nothing is drafted until the target has read the prompt. `exact` answer tokens have its own KV."""

    spare: int = field(kw_only=True)
    read: bool = field(default=False, kw_only=True)
    exact: int = field(default=0, kw_only=True)


class PartialDrafter(IndependentDrafter):
    """Drafts with the target's own layers over a part of its cache.

    Args:
        target: whose weights and features it uses.
        banned: ids that must never be drafted.
        part: how much of the cache.

    Raises:
        CrossdraftError: the target's keys cannot be computed from its features.
    """

    def __init__(self, target: Target, banned: Sequence[int] = (), part: PartialSettings | None = None) -> None:
        if target.traits.mrope or target.traits.window is not None:
            raise CrossdraftError(
                f"The keys of a {type(target.model).__name__} stand at positions of their own, or some of its layers "
                "slide; 'partial' needs a target of plain positions."
            )
        self.decoder = decoder_of(target.model)
        super().__init__(target, banned)
        self.part = part or PartialSettings()
        layers = tuple(range(len(self.decoder.layers)))
        self.needs = Needs(hidden_layers=layers, visual_layers=layers)

    def _begin(self, request: Request) -> PartialState:
        cache, none = self.model.new_cache(capacity=1), torch.empty(0, self.model.vocab_size)
        spare = min(request.token_limit, 2 * self.model.context)
        return PartialState(request.sampling, cache, [], Draws(request.sampling, self.model.device), none, spare=spare)

    def room(self, state: IndependentState) -> int:
        return super().room(state) if isinstance(state, PartialState) and state.read else 0

    def _propose(self, state: IndependentState, budget: Budget) -> Draft:
        read = isinstance(state, PartialState) and state.read
        return super()._propose(state, budget) if read else Draft(DraftTree.empty())

    def _commit(self, state: IndependentState, output: VerifyOutput) -> None:
        if not isinstance(state, PartialState):
            raise CrossdraftError("A state of another drafter was committed to 'partial'.")
        first = 0
        if output.prompt is not None:
            first = len(output.prompt.tokens)
            self._read(state, output, first)
        if not state.read:
            return
        super()._commit(state, output)
        self._correct(state, {layer: rows[first:] for layer, rows in output.hidden.items()})

    def _read(self, state: PartialState, output: VerifyOutput, text: int) -> None:
        """Take a part of the prompt's keys and values, computed from the target's features of the prompt."""
        prompt = output.prompt
        if prompt is None:
            return
        ids = [*prompt.visual_tokens, *prompt.tokens]
        positions = torch.arange(len(ids), device=self.model.device)
        parts: list[KeysValues] = []
        for layer, block in enumerate(self.decoder.layers):
            front = prompt.visual.get(layer)
            own = output.hidden[layer][:text]
            states = own if front is None else torch.cat((front, own))
            keys, values = keys_values(self.decoder, block, states, positions)
            kept = kept_tokens(last_queries(self.decoder, block, states, positions), keys, self.part)
            parts.append((take(keys, kept), take(values, kept)))
        count = parts[0][0].shape[1]
        state.prompt = ids[-count:]
        state.cache = self.model.new_cache(capacity=count + state.spare)
        row = state.cache.add_row(count + state.spare)
        state.cache.append(row, KVPrefix(((KVSpan(dict(enumerate(parts))), count),)))
        state.cache.rope_deltas[row] = len(ids) - count
        state.read = True

    def _correct(self, state: PartialState, hidden: Mapping[int, Tensor]) -> None:
        """Replace keys and values of partial passes by the target's own, for the tokens that the target has read."""
        count = len(state.committed) - 1 - state.exact  # the target has not read the last token yet
        if count <= 0:
            return
        start = len(state.prompt) + state.cache.rope_deltas[0] + state.exact
        positions = torch.arange(start, start + count, device=self.model.device)
        layers: list[KeysValues] = []
        for layer, block in enumerate(self.decoder.layers):
            layers.append(keys_values(self.decoder, block, hidden[layer][:count], positions))
        state.cache.truncate(0, len(state.prompt) + state.exact)
        state.cache.append(0, KVPrefix(((KVSpan(dict(enumerate(layers))), count),)))
        state.exact += count
        state.fed = state.committed[:-1]


def keys_values(decoder: Any, block: Any, states: Tensor, positions: Tensor) -> KeysValues:
    """Rotated keys, and values, [heads, n, d] each, of states [n, H] that enter a layer."""
    rows, attention = block.input_layernorm(states[None]), block.self_attn
    key, value = _heads(attention, attention.k_proj(rows)), _heads(attention, attention.v_proj(rows))
    return _rotated(decoder, key, positions)[0], value[0]


def last_queries(decoder: Any, block: Any, states: Tensor, positions: Tensor) -> Tensor:
    """[query heads, m, d] rotated queries of the last m states, at most `MOST_QUERIES`."""
    rows = block.input_layernorm(states[None, -MOST_QUERIES:])
    query = _heads(block.self_attn, block.self_attn.q_proj(rows))
    return _rotated(decoder, query, positions[-MOST_QUERIES:])[0]


def _heads(attention: Any, rows: Tensor) -> Tensor:
    """[1, n, heads · d] -> [1, heads, n, d]."""
    return rows.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)


def _rotated(decoder: Any, rows: Tensor, positions: Tensor) -> Tensor:
    return apply_rotary_pos_emb(rows, rows[:, :1], *decoder.rotary_emb(rows, positions[None]))[0]


def kept_tokens(queries: Tensor, keys: Tensor, part: PartialSettings) -> Tensor:
    """[heads, n] tokens that each head keeps, rising; as many in every head.

    A block's score is Quest's: with the largest and the least value of each dimension of its keys as corners, the
    larger of their products with a query, averaged over queries and over the query heads of a key head. It is SpecPV's
    own (`refresh_retrieval`), which takes the larger of two products where Quest adds the larger of each dimension.

    Args:
        queries: [query heads, m, d].
        keys: [heads, N, d].
        part: what to keep.
    """
    heads, total, width = keys.shape
    sink, window = part.sinks * BLOCK, part.window * BLOCK
    count = max(0, total - sink - window) // BLOCK
    if count <= part.blocks:
        return torch.arange(total, device=keys.device).expand(heads, -1)
    blocks = keys[:, sink : sink + count * BLOCK].reshape(heads, count, BLOCK, width)
    grouped = queries.reshape(heads, -1, width)  # the query heads of a key head follow each other
    corners = (blocks.amax(2), blocks.amin(2))
    products = [grouped @ corner.transpose(1, 2) for corner in corners]
    scores = torch.maximum(*products).mean(1)
    best = scores.topk(part.blocks, dim=1).indices.sort(1).values
    middle = (sink + best[..., None] * BLOCK + torch.arange(BLOCK, device=keys.device)).flatten(1)
    first = torch.arange(sink, device=keys.device).expand(heads, -1)
    last = torch.arange(sink + count * BLOCK, total, device=keys.device).expand(heads, -1)
    return torch.cat((first, middle, last), 1)


def take(rows: Tensor, kept: Tensor) -> Tensor:
    """Rows [heads, n, d] that each head keeps of [heads, N, d]."""
    return rows.gather(1, kept[..., None].expand(-1, -1, rows.shape[-1]))
