"""VisionZip (Yang et al. 2024, arXiv 2412.04467): tokens are chosen by the vision encoder's own attention. LOSSY.

Tokens are chosen before the projector, frame by frame, from the features that it reads:

    dominant      the class token, and the patches that it attends to most in that layer, summed over heads
    contextual    every n-th of the others, plus the mean of those rest tokens whose keys are most similar to its own

The choice does not depend on the question, so it is made once a clip, and no training is needed. The authors renumber
the remaining tokens; here each keeps its position, as in every compression of this package.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.modeling_outputs import BaseModelOutputWithPooling

from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.glance.frame_encoder import PIXELS
from crossdraft.specs import Limit, check_settings
from crossdraft_lab.align.predicted import check_readable
from crossdraft_lab.compression.fastv import SHARE
from crossdraft_lab.compression.pool import FrameGrid, GridPrompt

MERGED = Limit("a number above 0 and below 1", lambda value: 0 < value < 1)


@dataclass(frozen=True, slots=True)
class VisionZipSettings:
    """Settings of VisionZip.

    Args:
        keep: share of a frame's tokens that are kept, rounded down.
        contextual: share of the kept tokens that are contextual, at least one; by default 10 of 64, as in the paper.

    Raises:
        CrossdraftError: a number outside its range.
    """

    keep: Annotated[float, SHARE] = 0.25
    contextual: Annotated[float, MERGED] = 0.15625

    def __post_init__(self) -> None:
        check_settings(self, "visionzip", "compression")

    def counts(self, tokens: int) -> tuple[int, int]:
        """Numbers of dominant tokens, class token included, and of contextual ones, for a frame of `tokens` tokens.

        >>> VisionZipSettings(64 / 576).counts(577), VisionZipSettings(0.25).counts(50)
        ((54, 10), (10, 2))

        Raises:
            CrossdraftError: fewer than two tokens are left.
        """
        left = tokens_left(self.keep, tokens, "VisionZip")
        merged = min(left - 1, max(1, round(self.contextual * left)))
        return left - merged, merged


def tokens_left(keep: float, tokens: int, name: str) -> int:
    """Number of a frame's tokens that are kept, rounded down.

    Raises:
        CrossdraftError: fewer than two tokens are left.
    """
    if (left := int(keep * tokens)) < 2:
        raise CrossdraftError(
            f"Of the {tokens} tokens of a frame, keep={keep} leaves {left}; {name} takes two or more."
        )
    return left


def zipped(states: Tensor, attention: Tensor, keys: Tensor, dominant: int, contextual: int) -> tuple[Tensor, Tensor]:
    """Reduce frames to the kept tokens; return their features, in the order of their places, and their places.

    Args:
        states: [F, P, S] features; the class token is the first.
        attention: [F, P] attention that the class token pays.
        keys: [F, P, d] keys, whose cosine measures similarity.
        dominant, contextual: numbers of tokens of each kind to keep.

    Returns:
        [F, K, S] and [F, K].
    """
    kept = torch.zeros(attention.shape, dtype=torch.bool, device=attention.device)
    kept[:, 0] = True
    kept.scatter_(1, attention[:, 1:].topk(dominant - 1, 1).indices + 1, value=True)
    order = kept.logical_not().int().argsort(dim=1, stable=True)  # kept tokens first, then the others
    first, others = order[:, :dominant], order[:, dominant:]
    rest, alike = _rows(states, others), F.normalize(_rows(keys, others), dim=-1)

    count = others.shape[1]
    chosen = torch.arange(0, count, max(1, count // contextual), device=states.device)[:contextual]
    merged = torch.ones(count, dtype=torch.bool, device=states.device)
    merged[chosen] = False
    nearest = (alike[:, merged] @ alike[:, chosen].transpose(1, 2)).argmax(-1)  # [F, tokens that are merged]
    of = F.one_hot(nearest, len(chosen)).to(states)
    means = of.transpose(1, 2) @ rest[:, merged] / of.sum(1).clamp_min(1)[..., None]

    left = torch.cat((_rows(states, first), rest[:, chosen] + means), 1)
    places, order = torch.cat((first, others[:, chosen]), 1).sort(1)
    return _rows(left, order), places


def _rows(values: Tensor, at: Tensor) -> Tensor:
    """Rows [F, n, …] of each frame, selected by `at` [F, n]."""
    return values.gather(1, at[..., None].expand(-1, -1, values.shape[-1]))


class ZippedFeatures(BaseModelOutputWithPooling):
    """Visual features, and their places among all of the clip's tokens; no model reads the places."""

    places: Tensor


def visionzip_target(target: Target, settings: VisionZipSettings) -> Target:
    """Make a target that reads the tokens that VisionZip keeps of each frame.

    Raises:
        CrossdraftError: as `first_places` and `encoder_with_attention`, or too few tokens of a frame would be left.
    """
    prepare = first_places(target, "VisionZip", lambda tokens: sum(settings.counts(tokens)))
    states_of = encoder_with_attention(target, "VisionZip")
    size = FrameGrid(prepare.side, class_token=True).tokens
    dominant, contextual = settings.counts(size)

    def encode(prompt: Prompt) -> Encoded:
        """Compute the visual features that are left, with their places."""
        if prompt.positions is None:
            return target.encode(prompt)
        rows, left = zipped(*states_of(prompt), dominant, contextual)
        places = torch.arange(len(left), device=left.device)[:, None] * size + left
        return projected(target, rows.flatten(0, 1), places.flatten())

    return target.reading(prepare, encode)


def first_places(target: Target, name: str, left: Callable[[int], int]) -> GridPrompt:
    """Make prompts with placeholders for `left(tokens)` of the tokens of each frame, the first until it is encoded.

    Raises:
        CrossdraftError: as `GridPrompt`; in a request, if its frames have no class token.
    """

    def places(grid: FrameGrid, frames: int) -> Tensor:
        if not grid.class_token:
            raise CrossdraftError(f"{name} takes frames with a class token; choose another compression.")
        return (torch.arange(frames)[:, None] * grid.tokens + torch.arange(left(grid.tokens))).flatten()

    return GridPrompt(target, places)


def check_tower(target: Target, name: str) -> None:
    """Raise CrossdraftError unless a target's clips go through a separate vision encoder, as Video-LLaVA's do."""
    check_readable(target)
    if not hasattr(target.model.base_model, "video_tower"):
        raise CrossdraftError(
            f"{name} is for targets with a vision encoder of clips, such as Video-LLaVA, which "
            f"{type(target.model).__name__} has not; choose another compression."
        )


def encoder_with_attention(target: Target, name: str) -> Callable[[Prompt], tuple[Tensor, Tensor, Tensor]]:
    """Make a function that encodes the frames of a prompt.

    Returns:
        The function; it returns the states [F, P, S] that the projector reads, and what `class_attention` does.

    Raises:
        CrossdraftError: the target's clips do not go through a vision encoder with a class token, or its projector
            reads several layers of the encoder.
    """
    check_tower(target, name)
    model: Any = target.model.base_model
    read: Any = target.model.config.vision_feature_layer
    if not isinstance(read, int):
        raise CrossdraftError(
            f"The target's projector reads several layers of its vision encoder, and {name} chooses tokens of one; "
            "choose `pool`."
        )

    def states_of(prompt: Prompt) -> tuple[Tensor, Tensor, Tensor]:
        if PIXELS not in prompt.features:
            raise CrossdraftError(f"A target with {name} reads clips, no images; ask about a clip.")
        pixels = prompt.features[PIXELS].to(target.device, target.model.dtype).flatten(0, 1)
        hidden = model.video_tower(pixels, output_hidden_states=True).hidden_states
        last = read % len(hidden)
        attention, keys = class_attention(_encoder_layers(model.video_tower)[last - 1], hidden[last - 1])
        return hidden[last], attention, keys

    return states_of


def projected(target: Target, rows: Tensor, places: Tensor) -> Encoded:
    """Project the states [n, S] that are left, and note their places [n] among all of the clip's tokens."""
    model: Any = target.model.base_model
    found = ZippedFeatures(pooler_output=model.multi_modal_projector(rows)[None])
    found.places = places.cpu()
    return {"video": found}


def class_attention(layer: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the class token's attention in a layer of the vision encoder, and the keys of all tokens.

    Args:
        layer: layer of CLIP's encoder.
        inputs: [F, P, S] input of the layer.

    Returns:
        [F, P] attention, summed over heads; [F, P, d] keys, their mean over heads.
    """
    own, normed = layer.self_attn, layer.layer_norm1(inputs)
    keys = own.k_proj(normed).unflatten(-1, (own.num_heads, -1))
    query = own.q_proj(normed[:, 0]).unflatten(-1, (own.num_heads, -1))
    scores = torch.einsum("fhd,fphd->fhp", query * own.scale, keys)
    return scores.softmax(-1).sum(1), keys.mean(2)


def _encoder_layers(tower: Any) -> Sequence[Any]:
    """Layers of CLIP's vision encoder, whatever wraps it."""
    inner = getattr(tower, "vision_model", tower)
    return cast("Sequence[Any]", inner.encoder.layers)
