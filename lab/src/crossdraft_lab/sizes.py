"""Sizes of a head that follow from its target; importing this needs torch and transformers alone."""

from typing import Any

from crossdraft.engine.target import Target
from crossdraft.heads.event_medusa.network import DrafterMedusaConfig
from crossdraft.heads.glance.network import GlanceConfig
from crossdraft.heads.networks.base import HeadConfig
from crossdraft.heads.networks.dflash import DFlashConfig
from crossdraft.heads.networks.eagle3 import Eagle3Config, levels_of
from crossdraft.heads.networks.layers import DecoderConfig
from crossdraft.heads.networks.medusa import HydraConfig

SHALLOW = 8  # with fewer layers, L - 3 is no high level


def default_layers(depth: int) -> tuple[int, ...]:
    """Layers that our heads read: EAGLE-3's three levels, the last layer's input, and its output."""
    wanted = {2, depth // 2, depth - 3, depth - 1, depth}
    return tuple(sorted(layer for layer in wanted if 0 <= layer <= depth))


def sizes_of(kind: type[HeadConfig], host: Target) -> dict[str, Any]:
    """Settings of a network that follow from the model that it belongs to, by name.

    Args:
        kind: the network's configuration class.
        host: the model whose features the head reads: the target, or an event model.
    """
    text = host.text_config
    sizes: dict[str, Any] = {}
    if issubclass(kind, DecoderConfig):
        sizes |= _decoder_sizes(text)
        # A draft may reach beyond the end of a short context; too many positions only add rows to a table.
        sizes["max_positions"] = max(host.context, kind.max_positions)
    if issubclass(kind, HydraConfig):  # both H in the paper
        sizes |= {"token_size": text.hidden_size, "width": text.hidden_size}
    if issubclass(kind, DrafterMedusaConfig):
        sizes["width"] = text.hidden_size
    if issubclass(kind, DFlashConfig):
        sizes["read_layers"] = default_layers(text.num_hidden_layers)
    if issubclass(kind, Eagle3Config):
        sizes["levels"] = default_levels(text.num_hidden_layers)
    if issubclass(kind, GlanceConfig):
        sizes |= {"heads": text.num_attention_heads, "intermediate_size": text.intermediate_size}
    return sizes


def default_levels(depth: int) -> tuple[int, int, int]:
    """Layers of EAGLE-3's low, middle and high hidden states: 2, L/2 and L - 3, all kept by `crossdraft capture`.

    In a target of fewer than 8 layers L - 3 would be the middle; there the high level is the last layer's input.

    >>> default_levels(28), default_levels(12), default_levels(7)
    ((2, 14, 25), (2, 6, 9), (2, 3, 6))
    """
    return levels_of(depth) if depth >= SHALLOW else (min(2, depth), depth // 2, max(depth - 1, 0))


def source_layers(depth: int, *, several: bool) -> tuple[int, ...]:
    """Hidden states that an adapter reads of a drafter of that depth: the last one, or several including the last.

    >>> source_layers(32, several=False), source_layers(32, several=True), source_layers(2, several=True)
    ((32,), (2, 16, 32), (0, 1, 2))
    """
    if not several:
        return (depth,)
    return (2, depth // 2, depth) if depth >= SHALLOW else tuple(range(depth + 1))


def _decoder_sizes(text: Any) -> dict[str, Any]:
    """Sizes of attention and MLP, equal to those of the target's own layers."""
    heads = text.num_attention_heads
    rope = getattr(text, "rope_parameters", None) or {}
    return {
        "heads": heads,
        "kv_heads": getattr(text, "num_key_value_heads", None) or heads,
        "head_dim": getattr(text, "head_dim", None) or text.hidden_size // heads,
        "intermediate_size": text.intermediate_size,
        "rope_theta": float(rope.get("rope_theta", DecoderConfig.rope_theta)),
        "eps": float(getattr(text, "rms_norm_eps", DecoderConfig.eps)),
    }
