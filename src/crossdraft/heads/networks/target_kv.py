"""The keys and values of a target's last layer, for heads that read what the target itself attends to."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel


@dataclass(frozen=True)
class TargetKV:
    """What makes keys and values of the hidden state that enters the target's last layer.

    Args:
        norm: [H] weight of the root-mean-square norm in front of the attention.
        eps: of that norm.
        key, value: [kv_heads·d, H] projections.
        key_bias, value_bias: [kv_heads·d] each, or `None`.
        head_dim: d.
        rope_theta: of the rotary positions by which keys are turned.
    """

    norm: Tensor
    eps: float
    key: Tensor
    value: Tensor
    key_bias: Tensor | None
    value_bias: Tensor | None
    head_dim: int
    rope_theta: float

    @property
    def kv_heads(self) -> int:
        """Heads that keys and values have."""
        return len(self.key) // self.head_dim

    @classmethod
    def of(cls, model: PreTrainedModel) -> "TargetKV | None":
        """That of a decoder built like Llama's (pre-norm, no norms of keys); `None` of any other."""
        text: Any = getattr(model.base_model, "language_model", model.base_model)
        layers = getattr(text, "layers", None)
        attention: Any = getattr(layers[-1], "self_attn", None) if layers else None
        norm: Any = getattr(layers[-1], "input_layernorm", None) if layers else None
        if not hasattr(attention, "v_proj") or not hasattr(norm, "variance_epsilon") or hasattr(attention, "k_norm"):
            return None
        key, value = attention.k_proj, attention.v_proj
        return cls(
            norm=norm.weight.detach(),
            eps=norm.variance_epsilon,
            key=key.weight.detach(),
            value=value.weight.detach(),
            key_bias=None if key.bias is None else key.bias.detach(),
            value_bias=None if value.bias is None else value.bias.detach(),
            head_dim=attention.head_dim,
            rope_theta=(text.config.rope_parameters or {}).get("rope_theta", 10000.0),
        )
