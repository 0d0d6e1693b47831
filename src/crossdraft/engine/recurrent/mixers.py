"""The recurrent modules of `transformers` models, found by what they have, and read through a `StateCache`.

A module's own projections, activations and norms are used; its convolution and its rule run along the paths of a tree.
Its forward is replaced on the instance, for passes over a `StateCache` alone.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from crossdraft.engine.recurrent.cache import StateCache, StateLayer
from crossdraft.errors import CrossdraftError

Read = Callable[[Any, Tensor, StateLayer], Tensor]
EPSILON = 1e-6  # of normed queries and keys


def delta_net(mixer: Any, states: Tensor, layer: StateLayer) -> Tensor:
    """Read a gated delta net (Qwen3-Next, Qwen3.5) over [B, n, h]; in float32, as the module does."""
    if hasattr(mixer, "in_proj_qkvz"):
        parts = mixer.fix_query_key_value_ordering(mixer.in_proj_qkvz(states), mixer.in_proj_ba(states))
        mixed, (z, b, a) = torch.cat([part.flatten(2) for part in parts[:3]], -1), parts[3:]
    else:
        mixed, b, a = mixer.in_proj_qkv(states), mixer.in_proj_b(states), mixer.in_proj_a(states)
        z = mixer.in_proj_z(states).unflatten(-1, (-1, mixer.head_v_dim))
    decay = -mixer.A_log.float().exp() * F.softplus(a.float() + mixer.dt_bias)
    mixed = _convolved(mixer, mixer.conv1d, mixed, layer)
    q, k, v = mixed.split([mixer.key_dim, mixer.key_dim, mixer.value_dim], -1)
    heads = _normed(q, mixer.head_k_dim), _normed(k, mixer.head_k_dim), _heads(v, mixer.head_v_dim)
    answers = _delta(layer, *heads, decay.transpose(1, 2)[..., None], b.sigmoid())
    return mixer.out_proj(mixer.norm(answers.to(states), z).flatten(2))


def kimi_delta(mixer: Any, states: Tensor, layer: StateLayer) -> Tensor:
    """Read Kimi Delta Attention over [B, n, h]: the gated delta rule with a decay for each channel; in float32."""
    mixed = torch.cat([project(states) for project in (mixer.q_proj, mixer.k_proj, mixer.v_proj)], -1)
    q, k, v = _convolved(mixer, mixer.conv1d, mixed, layer).chunk(3, -1)
    d = mixer.head_dim
    decay = mixer.forget_gate(states).transpose(1, 2)
    answers = _delta(layer, _normed(q, d), _normed(k, d), _heads(v, d), decay, mixer.b_proj(states).sigmoid())
    gate = mixer.g_b_proj(mixer.g_a_proj(states)).unflatten(-1, (-1, d))
    return mixer.o_proj(mixer.o_norm(answers.to(states), gate).flatten(2))


def mamba2(mixer: Any, states: Tensor, layer: StateLayer) -> Tensor:
    """Read a Mamba-2 module over [B, n, h]; in float32.

    Steps are clamped as the module clamps them in a forward over several tokens; over one, transformers 5.23 does not.
    """
    sizes = mixer.intermediate_size, mixer.n_groups * mixer.ssm_state_size
    gate, mixed, step = mixer.in_proj(states).split([sizes[0], mixer.conv_dim, mixer.num_heads], -1)
    x, b, c = _convolved(mixer, mixer.conv1d, mixed, layer).split([sizes[0], sizes[1], sizes[1]], -1)
    step = F.softplus(step + mixer.dt_bias.to(step)).clamp(*mixer.time_step_limit).float().transpose(1, 2)[..., None]
    x, b, c = _heads(x, mixer.head_dim), _heads(b, mixer.ssm_state_size), _heads(c, mixer.ssm_state_size)
    decay = -mixer.A_log.float().exp()[:, None, None] * step
    answers = layer.read(c, b, x * step, decay) + mixer.D[:, None, None] * x
    return mixer.out_proj(mixer.norm(answers.transpose(1, 2).flatten(2), gate).to(states))


def short_convolution(mixer: Any, states: Tensor, layer: StateLayer) -> Tensor:
    """Read a gated short convolution (LFM2) over [B, n, h]."""
    before, behind, x = mixer.in_proj(states).chunk(3, -1)
    return mixer.out_proj(behind * layer.convolve(before * x, mixer.conv.weight.squeeze(1), mixer.conv.bias))


def _convolved(mixer: Any, conv: nn.Conv1d, mixed: Tensor, layer: StateLayer) -> Tensor:
    return ACT2FN[mixer.activation](layer.convolve(mixed, conv.weight.squeeze(1), conv.bias))


def _heads(states: Tensor, size: int) -> Tensor:
    """[B, n, H · d] -> [B, H, n, d] in float32."""
    return states.unflatten(-1, (-1, size)).transpose(1, 2).float()


def _normed(states: Tensor, size: int) -> Tensor:
    """`_heads`, each of length 1."""
    heads = _heads(states, size)
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + EPSILON)


def _delta(layer: StateLayer, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """[B, n, H, dv] answers of the delta rule; beta [B, n, H]."""
    strength = beta.float().transpose(1, 2)[..., None]
    return layer.read(q * q.shape[-1] ** -0.5, k, v, decay.float(), strength).transpose(1, 2)


# The attributes by which a module is known, and how it is read.
KINDS: tuple[tuple[str, Read], ...] = (
    ("conv1d A_log dt_bias in_proj_qkv in_proj_z in_proj_b in_proj_a norm out_proj", delta_net),
    ("conv1d A_log dt_bias in_proj_qkvz in_proj_ba norm out_proj", delta_net),
    ("conv1d q_proj k_proj v_proj forget_gate b_proj g_a_proj g_b_proj o_norm o_proj", kimi_delta),
    ("conv1d A_log D dt_bias in_proj n_groups ssm_state_size time_step_limit norm out_proj", mamba2),
    ("conv in_proj out_proj conv_kernel_size bias", short_convolution),
)


def find_mixers(model: PreTrainedModel, layers: Mapping[int, str]) -> dict[int, nn.Module]:
    """The recurrent modules of a model's decoder.

    Args:
        model: the model.
        layers: index and type of its layers that keep a state.

    Raises:
        CrossdraftError: a layer has no such module, or its rule is not known.
    """
    known = {getattr(part, "layer_idx", None): part for part in model.modules() if _rule(part) is not None}
    if unknown := [index for index in layers if index not in known]:
        raise CrossdraftError(
            f"Layer {unknown[0]} of {type(model).__name__}, of type {layers[unknown[0]]}, keeps a state by a rule that "
            "is not known here; give a model with gated delta nets, Mamba-2, or short convolutions as in LFM2."
        )
    found: dict[int, Any] = {index: known[index] for index in layers}
    if len({part.conv_kernel_size for part in found.values()}) > 1:
        raise CrossdraftError(f"{type(model).__name__} has convolutions of several widths, which is not known here.")
    return found


def _rule(module: nn.Module) -> Read | None:
    return next((read for names, read in KINDS if all(hasattr(module, name) for name in names.split())), None)


def read_along_paths(mixers: Mapping[int, nn.Module]) -> None:
    """Let these modules read passes over a `StateCache` along the paths of trees."""
    for index, module in mixers.items():
        name = "_old_forward" if hasattr(module, "_old_forward") else "forward"  # what accelerate's hooks call
        own, read = getattr(module, name), _rule(module)
        if read is not None and not (isinstance(own, partial) and own.func is _forward):
            setattr(module, name, partial(_forward, own, partial(read, module), index))


def _forward(
    own: Callable[..., Tensor],
    read: Callable[[Tensor, StateLayer], Tensor],
    index: int,
    hidden_states: Tensor,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Stand for a module's forward; over any other cache it is the module's `own`."""
    cache = kwargs.get("cache_params", kwargs.get("past_key_values"))
    if not isinstance(cache, StateCache):
        return own(hidden_states, *args, **kwargs)
    return read(hidden_states, cache.state_layer(index))
