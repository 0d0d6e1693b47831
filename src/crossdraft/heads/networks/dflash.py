"""DFlash (z-lab 2026, 2602.06036): block drafting: all tokens of a draft in one pass over masked positions.

    block at position t  root x(t+1)   MASK     MASK     …          bidirectional attention within the block
    predicts             –             x(t+2)   x(t+3)   …
    keys and values of each layer      of the target's features up to t (all layers read, projected once), and the rows

Nothing is autoregressive: a position is not conditioned on the tokens chosen for the positions before it. In training a
few positions of each text are anchors of a block, all blocks in one pass. Layers may slide, and may be causal within
the block; a published head reads the whole prompt, its visual part included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head, SharedWeights, shifted
from crossdraft.heads.networks.layers import (
    Attend,
    DecoderConfig,
    DecoderLayer,
    KeyValue,
    RMSNorm,
    Rotary,
    check_scales,
    columns,
    concat_layers,
)
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.specs import Count

SPREAD = 5  # layers of the target that are read by default: the authors' number


@dataclass(frozen=True, kw_only=True)
class DFlashConfig(DecoderConfig):
    """A block drafter. `steps` is the number of tokens drafted in one pass; the authors' block size adds the root.

    Args:
        layers: number of the drafter's own layers.
        read_layers: hidden states of the target that it reads; empty = five, spread over the depth.
        level_scales: factors of the hidden states read, see `concat_layers`; empty = 1 each.
        anchors: most positions of one text at which a block begins while training.
        mask_token: id whose embedding is the mask's, the only kind of mask in the authors' files; `None` = the mask's
            embedding is learned, and such a head cannot be exported.
        windows: of each layer, the distance in positions from which on its rows see nothing; 0 = they see everything.
            Empty = no layer slides.
        causal_layers: numbers of the layers whose rows see no later row of their block.
        whole_prompt: read the prompt's visual part too; if not, only the text behind it.
        root_predicts: the root's row predicts the token after the root, and each mask's the one behind.
        own_head: its LM head is its own; if not, the target's.

    Raises:
        CrossdraftError: a layer is outside the target or the drafter, `mask_token` is none of the target's ids, or
            `windows` is not one number a layer.
    """

    layers: Count = 2
    read_layers: tuple[int, ...] = ()
    level_scales: tuple[float, ...] = ()
    anchors: Count = 16
    mask_token: int | None = None
    windows: tuple[int, ...] = ()
    causal_layers: tuple[int, ...] = ()
    whole_prompt: bool = False
    root_predicts: bool = False
    own_head: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if outside := [layer for layer in self.read_layers if not 0 <= layer <= self.num_layers]:
            raise CrossdraftError(
                f"DFlash cannot read layer {outside[0]}: the target has hidden states 0 … {self.num_layers}."
            )
        if self.level_scales:
            check_scales(self.level_scales, len(self.read_layers))
        if self.mask_token is not None and not 0 <= self.mask_token < self.vocab_size:
            raise CrossdraftError(
                f"DFlash's mask_token {self.mask_token} is none of the target's {self.vocab_size} ids."
            )
        if self.windows and (len(self.windows) != self.layers or min(self.windows) < 0):
            raise CrossdraftError(
                f"DFlash's windows must be {self.layers} numbers, one a layer, each 0 or more; not {self.windows}."
            )
        if not {*self.causal_layers} <= {*range(self.layers)}:
            raise CrossdraftError(f"DFlash's causal_layers are of 0 … {self.layers - 1}, not {self.causal_layers}.")


class DFlash(Head):
    """DFlash's head. Embeddings and LM head are the target's; the mask's embedding is learned, or a token's."""

    config_class = DFlashConfig
    config: DFlashConfig
    mask_row: Tensor

    def __init__(self, config: DFlashConfig, shared: SharedWeights) -> None:
        self.owns_head = config.own_head
        super().__init__(config, shared)
        self.first = 0 if config.root_predicts else 1  # row of a block that predicts the token after the root
        size = config.hidden_size
        self.rotary = Rotary(config.head_dim, config.rope_theta, config.max_positions)
        if config.mask_token is None:
            self.mask_row = nn.Parameter(torch.randn(size) * float(shared.embeddings.float().std()))
        else:
            self.register_buffer("mask_row", shared.embeddings[config.mask_token].clone(), persistent=False)
        self.level_scales = config.level_scales or (1.0,) * len(self.reads)
        self.fc = nn.Linear(len(self.reads) * size, size, bias=False)
        self.hidden_norm = RMSNorm(size, config.eps)
        self.layers = nn.ModuleList([DecoderLayer(config) for _ in range(config.layers)])
        for layer in self.layers:  # the authors' layers are Qwen3's
            attention = cast("DecoderLayer", layer).self_attn
            attention.q_norm = RMSNorm(config.head_dim, config.eps)
            attention.k_norm = RMSNorm(config.head_dim, config.eps)
        self.norm = RMSNorm(size, config.eps)

    @property
    def reads(self) -> tuple[int, ...]:
        return self.config.read_layers or spread(self.config.num_layers)

    @property
    def visual_reads(self) -> tuple[int, ...]:
        return self.reads if self.config.whole_prompt else ()

    @property
    def max_depth(self) -> int:
        return self.config.steps

    def sees(self, layer: int, distance: Tensor) -> Tensor:
        """Positions [...] from a key to a block's row -> true where the row may attend to the key in this layer."""
        window = self.config.windows[layer] if self.config.windows else 0
        seen = distance.abs() < window if window else torch.ones_like(distance, dtype=torch.bool)
        return seen & (distance >= 0) if layer in self.config.causal_layers else seen

    def context(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """Captured features [..., H] of each layer -> [..., H]."""
        return self.hidden_norm(self.fc(concat_layers(hidden, self.reads, self.level_scales)))

    def scales(self) -> dict[str, Tensor]:
        return {"fc.weight": columns(self.fc.weight, self.level_scales)}

    def keys_values(self, context: Tensor) -> list[KeyValue]:
        """[B, n, H] -> each layer's keys and values of these positions, not rotated."""
        return [cast("DecoderLayer", layer).self_attn.keys_values(context) for layer in self.layers]

    def block(self, roots: Tensor) -> Tensor:
        """[..., A] ids of roots -> [..., A, first + steps, H] rows of their blocks."""
        embeds = self.embed(roots)[..., None, :]
        masks = self.mask_row.expand(*embeds.shape[:-2], self.config.steps - 1 + self.first, -1)
        return torch.cat((embeds, masks), -2)

    def draft(self, rows: Tensor, attend: Attend) -> Tensor:
        """Blocks' rows [B, n, H] -> logits [B, n, D]."""
        for index, layer in enumerate(self.layers):
            rows = layer(rows, attend, index)
        return self.lm_head(self.norm(rows))

    def after(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """A row's logits [..., D] -> [n, D] or [..., D], once the tokens [n] or [...] before are known."""
        return logits.expand(*tokens.shape, -1)

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        anchors, chosen = self._anchors(batch)
        rows, hidden, start = self.block(shifted(batch.tokens, 1).gather(1, anchors)), batch.hidden, 0
        if front := {layer: batch.visual[layer] for layer in self.visual_reads if layer in batch.visual}:
            hidden = {layer: torch.cat((part, hidden[layer]), 1) for layer, part in front.items()}
            start = front[self.reads[0]].shape[1]
        attend = BlockAttention(self, anchors + start, rows.shape[2], self.keys_values(self.context(hidden)))
        logits = self.draft(rows.flatten(1, 2), attend).unflatten(1, rows.shape[1:3])[:, :, self.first :]
        valid = torch.zeros_like(batch.tokens, dtype=torch.bool).scatter(1, anchors, chosen)
        nowhere = logits.new_zeros(*batch.tokens.shape, logits.shape[-1])
        index = anchors[..., None].expand(-1, -1, logits.shape[-1])
        before = [shifted(batch.tokens, offset).gather(1, anchors) for offset in range(1, 1 + self.config.steps)]
        return [
            DraftLogits(offset, nowhere.scatter(1, index, self.after(logits[:, :, offset - 1], tokens)), valid=valid)
            for offset, tokens in enumerate(before, 1)
        ]

    def _anchors(self, batch: TrainBatch) -> tuple[Tensor, Tensor]:
        """Positions [B, A] of anchors, and whether they were chosen or are padding.

        Random while training, otherwise evenly over the answer, so that evaluation is deterministic.
        """
        loss_mask = batch.loss_mask(1)
        count = min(self.config.anchors, loss_mask.shape[1])
        if self.training:
            order = torch.rand(loss_mask.shape, device=loss_mask.device)
        else:
            share = count / loss_mask.sum(1, keepdim=True).clamp(min=1)
            rank = loss_mask.cumsum(1)
            order = 0.5 * ((rank * share).floor() > ((rank - 1) * share).floor())
        score, positions = (order + loss_mask).topk(count, 1)
        return positions, score >= 1


class BlockAttention:
    """Attention of blocks: each over the text up to its anchor, and over its own rows at the positions after it.

    Args:
        head: the head.
        anchors: [B, A] positions.
        width: rows of a block.
        text: each layer's keys and values [B, kv_heads, T, d], not rotated.
    """

    def __init__(self, head: DFlash, anchors: Tensor, width: int, text: Sequence[KeyValue]) -> None:
        self.rotary, self.text, self.sees = head.rotary, text, head.sees
        rows = torch.arange(width, device=anchors.device)
        self.positions = (anchors[..., None] + 1 + rows).flatten(1)[:, None]  # [B, 1, A·width]
        self.before = torch.arange(text[0][0].shape[2], device=anchors.device)
        left_from = anchors.repeat_interleave(width, 1)  # [B, A·width]
        block = torch.arange(anchors.shape[1], device=anchors.device).repeat_interleave(width)
        known = self.before <= left_from[..., None]
        own = (block == block[:, None]).expand(len(anchors), -1, -1)
        self.mask = torch.cat((known, own), -1)[:, None]
        keys = torch.cat((self.before.expand(len(anchors), 1, -1), self.positions), -1)
        self.distance = self.positions[..., None] - keys[:, :, None]  # [B, 1, A·width, T + A·width]

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        text_key, text_value = self.text[layer]
        keys = torch.cat((self.rotary(text_key, self.before), self.rotary(key, self.positions)), 2)
        return F.scaled_dot_product_attention(
            self.rotary(query, self.positions),
            keys,
            torch.cat((text_value, value), 2),
            self.mask & self.sees(layer, self.distance),
            enable_gqa=keys.shape[1] != query.shape[1],
        )


def spread(depth: int, count: int = SPREAD) -> tuple[int, ...]:
    """Hidden states spread evenly from the first layer's output to the last layer's input; fewer in a shallow target.

    The authors choose slightly differently: of 36 layers they read the outputs of 1, 9, 17, 25 and 33 counted from 0,
    which are hidden states 2, 10, 18, 26 and 34; these are 1, 10, 18, 26 and 35. `read_layers` can name the authors'.

    >>> spread(7)
    (1, 2, 4, 5, 6)
    """
    last = max(depth - 1, 1)
    return tuple(sorted({round(1 + position * (last - 1) / (count - 1)) for position in range(count)}))
