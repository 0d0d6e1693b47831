"""Multi-token prediction (MTP): layers of the target's own class that predict one token more each (DeepSeek-V3: 2024).

    E(i, k) = norm(block_k(project[norm(embedding of x_i); norm(E(i-1, k-1))])),  E(i, -1) = the target's feature at i

The token after x_i, the d-th of a draft, is predicted from E(i, d) by the target's head. So layer k reads the text up
to the root and a draft's nodes of depth 1 to k, and a node of depth d has rows in the layers d and above. Where a draft
is deeper than there are layers, the last one reads its own output: with one layer MTP is EAGLE.
"""

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.engine.target import Target
from crossdraft.heads.drafting.attention import CachedAttention
from crossdraft.heads.networks.autoregressive import Autoregressive
from crossdraft.heads.networks.base import HeadConfig
from crossdraft.heads.networks.layers import Attend


class MtpLayer(nn.Module):
    """One MTP layer around a decoder layer, `block`; its norms have the class of `norm`, the target's final one.

    `kind` is its type, if rotary positions depend on that, and `window` the positions up to its own that a row sees.
    """

    def __init__(self, norm: nn.Module, width: int, block: nn.Module, kind: str | None, window: int | None) -> None:
        super().__init__()
        self.embed_norm, self.hidden_norm, self.norm = (copy.deepcopy(norm) for _ in range(3))
        self.project = nn.Linear(2 * width, width, bias=False)
        self.block, self.kind, self.window = block, kind, window

    def forward(self, embeds: Tensor, features: Tensor, **arguments: Any) -> Tensor:
        """Embeddings and features [1, n, H] -> [1, n, H]; `arguments` are the decoder layer's."""
        rows = self.project(torch.cat((self.embed_norm(embeds), self.hidden_norm(features)), -1))
        found = self.block(rows, **arguments)
        return self.norm(found[0] if isinstance(found, tuple) else found)


class Mtp(Autoregressive):
    """The K MTP layers of the target `host`, with its embeddings, output head and `rotary` positions.

    Outputs are [1, n, K·H]: E of a row at its layer, then at each layer above it.
    """

    owns_head = False

    def __init__(self, host: Target, layers: Sequence[MtpLayer], rotary: Any) -> None:
        nn.Module.__init__(self)  # no copy of the target's head is made
        model: Any = host.model
        text, ids = model.config.get_text_config(), tuple(range(host.vocab_size))
        self.config = HeadConfig(  # pyright: ignore[reportAttributeAccessIssue, reportIncompatibleVariableOverride]
            hidden_size=text.hidden_size, vocab_size=len(ids), num_layers=text.num_hidden_layers, draft_ids=ids
        )
        self.mtp: Any = nn.ModuleList(layers)
        self.cache_layers, self.additive = len(layers), host.traits.additive_mask
        self.axes = host.traits.mrope or 1
        self.register_buffer("draft_ids", torch.tensor(ids, device=host.device), persistent=False)
        self.register_buffer("embeddings", model.get_input_embeddings().weight.detach(), persistent=False)
        self.lm_head, self.rotary = model.get_output_embeddings(), rotary

    @property
    def visual_reads(self) -> tuple[int, ...]:
        return 0, self.config.num_layers

    def logits(self, outputs: Tensor) -> Tensor:
        return self.lm_head(outputs[..., : self.config.hidden_size])

    def read(self, embeds: Tensor, features: Tensor, before: Tensor | None, attend: CachedAttention) -> Tensor:
        """Read pairs of the text: embeddings, and the target's features before them, [1, n, H]; returns [1, n, K·H].

        `before` is the output [1, 1, K·H] at the pair before; `None` = there is none.
        """
        found = [self._run(0, embeds, features, attend, 0)]
        earlier = (torch.zeros_like(found[0][:, :1]),) * self.cache_layers
        if before is not None:
            earlier = before.split(embeds.shape[-1], -1)
        for layer, part in enumerate(earlier[:-1], 1):
            found.append(self._run(layer, embeds, torch.cat((part, found[-1][:, :-1]), 1), attend, 0))
        return torch.cat(found, -1)

    def decode(self, embeds: Tensor, features: Tensor, attend: Attend, step: int) -> Tensor:
        own, size = cast("CachedAttention", attend), self.config.hidden_size
        layers = range(min(step, self.cache_layers - 1), self.cache_layers)
        parts = zip(layers, features.split(size, -1), strict=False)
        found = torch.cat([self._run(layer, embeds, part, own, step) for layer, part in parts], -1)
        return F.pad(found, (0, features.shape[-1] - found.shape[-1]))

    def _run(self, layer: int, embeds: Tensor, features: Tensor, attend: CachedAttention, step: int) -> Tensor:
        one: MtpLayer = self.mtp[layer]
        positions = attend.positions.expand(self.axes, -1)[:, None] if self.axes > 1 else attend.positions[None]
        kind = {} if one.kind is None else {"layer_type": one.kind}
        return one(
            embeds,
            features,
            attention_mask=self._mask(layer, attend, embeds.shape[1], step),
            position_ids=positions,
            position_embeddings=self.rotary(embeds, positions, **kind),
            past_key_values=attend.cache,
            use_cache=True,
        )

    def _mask(self, layer: int, attend: CachedAttention, count: int, step: int) -> Tensor | None:
        """[1, 1, n, keys] the entries that each row sees; `None` = plain causal attention.

        The first k entries of layer k have no features: E(i, k) begins with i = k + 1.
        """
        window, mask, past = self.mtp[layer].window, attend.mask, attend.cache.lengths[0]
        if mask is None and window is None and not layer and (count == 1 or not (past or self.additive)):
            return None
        keys = torch.arange(past + count, device=attend.positions.device)
        own = keys[past:, None]
        # A draft's entries begin at `text`, and its rows follow the text's by their depth.
        rows, text = (torch.full_like(own, attend.text - 1 + step), attend.text) if step else (own, past + count)
        mask = (keys <= rows if mask is None else mask) & ((keys >= layer) | (keys == own))
        if window is not None:  # a draft's own nodes are all within it
            mask = mask & ((keys > rows - window) | (keys >= text))
        if not self.additive:
            return mask[None, None]
        dtype = self.embeddings.dtype
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)[None, None]
