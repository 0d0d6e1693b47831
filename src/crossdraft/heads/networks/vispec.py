"""ViSpec (Kang et al. 2025): the clip compressed to a few prefix rows, and a global visual vector in every text row."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.eagle import Eagle
from crossdraft.heads.networks.layers import DecoderConfig, PrefixKV, split_heads
from crossdraft.specs import Count


@dataclass(frozen=True, kw_only=True)
class ViSpecConfig(DecoderConfig):
    """EAGLE's settings, and the resampler's.

    Args:
        num_q: number of queries: the last is the global vector, the others the prefix.
        visual_ids: ids of the target for what it is shown. With them, as in the authors' code, the text between and
            before images is in the prefix too, and each image has its own rows and its own global vector.
    """

    num_q: Count = 2
    visual_ids: tuple[int, ...] = ()


class Resampler(nn.Module):
    """Learned queries that attend to all rows at once (Q-Former's last step)."""

    def __init__(self, hidden_size: int, queries: int, heads: int, *, bias: bool = False) -> None:
        super().__init__()
        if hidden_size % heads:
            raise CrossdraftError(f"A resampler of {heads} heads cannot share {hidden_size} features evenly.")
        self.head_dim = hidden_size // heads
        self.queries = nn.Parameter(torch.empty(queries, hidden_size))
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        nn.init.normal_(self.queries, std=self.head_dim**-0.5)

    def forward(self, rows: Tensor) -> Tensor:
        """[B, N, H] -> [B, queries, H]."""
        query = split_heads(self.queries[None].expand(len(rows), -1, -1), self.head_dim)
        key, value = split_heads(self.k_proj(rows), self.head_dim), split_heads(self.v_proj(rows), self.head_dim)
        return self.o_proj(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class ViSpec(Eagle):
    """EAGLE after a resampler of the target's visual embeddings.

    The outputs of all but the last query are the prefix, at the last positions of the visual piece. The last one's, g,
    enters with every feature f of the text: img_fc([f; g]). The two halves of that map are two layers here, so that
    g's part is computed once. They are initialised to return f: ViSpec starts as EAGLE.
    """

    config_class = ViSpecConfig
    config: ViSpecConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: ViSpecConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        width = config.hidden_size
        self.adaptor = Resampler(width, config.num_q, config.heads, bias=config.qkv_bias)
        self.img_fc = nn.Linear(width, width)
        self.global_fc = nn.Linear(width, width, bias=False)
        nn.init.eye_(self.img_fc.weight)
        nn.init.zeros_(self.img_fc.bias)
        nn.init.zeros_(self.global_fc.weight)

    @property
    def visual_reads(self) -> tuple[int, ...]:
        return (0, self.config.num_layers) if self.config.visual_ids else (0,)

    def prefix(self, visual: Mapping[int, Tensor], ids: Tensor) -> PrefixKV:
        if self.config.visual_ids:
            return self._with_text(visual, ids)
        found, count = self.adaptor(visual[0]), visual[0].shape[1]
        key, value = self.layer.keys_values(found[:, :-1])
        positions = _last(key.shape[2], torch.arange(count, device=found.device))
        return PrefixKV(key, value, positions, count, global_feature=self.global_fc(found[:, -1:]))

    def _with_text(self, visual: Mapping[int, Tensor], ids: Tensor) -> PrefixKV:
        """The prefix of the authors' code; all rows of a batch show something at the same positions."""
        embeds, features = torch.cat((visual[0][:, 1:], self.embed(ids[:, -1:])), 1), self.last_feature(visual)
        shown = torch.isin(ids[0, 1:], ids.new_tensor(self.config.visual_ids))
        changes = (shown[1:] != shown[:-1]).nonzero().flatten() + 1
        rows, positions, seen = list[Tensor](), list[Tensor](), torch.zeros_like(features[:, :1])
        for at in torch.arange(len(shown), device=ids.device).tensor_split(changes.cpu()):
            if shown[at[0]]:
                found = self.adaptor(embeds[:, at])
                rows.append(found[:, :-1])
                positions.append(_last(found.shape[1] - 1, at))
                seen = self.global_fc(found[:, -1:])
            else:
                rows.append(self.fc(torch.cat((embeds[:, at], self.img_fc(features[:, at]) + seen), -1)))
                positions.append(at)
        key, value = self.layer.keys_values(torch.cat(rows, 1))
        return PrefixKV(key, value, torch.cat(positions), len(shown), global_feature=seen)

    def add_global(self, features: Tensor, global_feature: Tensor | None) -> Tensor:
        fused = self.img_fc(features)
        return fused if global_feature is None else fused + global_feature


def _last(count: int, at: Tensor) -> Tensor:
    """The `count` positions that end with the last of `at`, none of them below 0."""
    return (at[-1] - torch.arange(count - 1, -1, -1, device=at.device)).clamp(min=0)
