"""The recurrent modules of `transformers` models, found by what they have, and read through a `StateCache`.

A module's own projections, activations and norms are used; its convolution and its rule run along the paths of a tree.
Its forward is replaced on the instance, for passes over a `StateCache` alone.
"""

from collections.abc import Callable, Collection, Mapping
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


def residual_convolution(mixer: Any, states: Tensor, layer: StateLayer) -> Tensor:
    """Read a short convolution around which its input goes (Inkling) over [B, n, h]; in float32, as the module does."""
    wide = states.float()
    return (layer.convolve(wide, mixer.conv1d.weight.squeeze(1), mixer.conv1d.bias) + wide).to(states)


def relative_attention(mixer: Any, states: Tensor, mask: Tensor | None, cache: StateCache) -> Tensor:
    """Attend over [B, n, h] with learned scores of the distances along paths (Inkling).

    Args:
        mask: [B, 1, n, keys], boolean or additive; `None` = all keys are seen.
    """
    heads = (-1, mixer.head_dim)
    k = mixer.k_sconv(mixer.k_proj(states), past_key_values=cache).unflatten(-1, heads)
    v = mixer.v_sconv(mixer.v_proj(states), past_key_values=cache).unflatten(-1, heads).transpose(1, 2)
    q = mixer.q_norm(mixer.q_proj(states).unflatten(-1, heads)).transpose(1, 2)
    k, v = cache.update(mixer.k_norm(k).transpose(1, 2), v, mixer.layer_idx)
    own, seen = (places.to(q.device) for places in cache.paths.places)
    distance, reach = (own[:, :, None] - seen[:, None, : k.shape[2]])[:, None], mixer.rel_extent
    scores = (mixer.r_proj(states).unflatten(-1, (q.shape[1], -1)) @ mixer.rel_logits_proj.proj).transpose(1, 2)
    bias = scores.gather(-1, distance.clamp(0, reach - 1).expand(*scores.shape[:2], -1, -1))
    bias = bias.masked_fill((distance < 0) | (distance >= reach), 0)
    if not mixer.is_sliding and (floor := mixer.config.log_scaling_n_floor) is not None:
        far = ((own + 1).float() / floor).clamp(min=1).log() * mixer.config.log_scaling_alpha
        q, bias = (part * (1 + far)[:, None, :, None].to(part) for part in (q, bias))
    if mask is not None:
        bias = bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask
    found = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=mixer.scaling, enable_gqa=True)
    return mixer.o_proj(found.transpose(1, 2).flatten(2))


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
    ("conv1d conv_idx conv_kernel_size", residual_convolution),
)
# The attributes by which attention is known that `relative_attention` reads.
RELATIVE = ("q_norm", "k_norm", "k_sconv", "v_sconv", "r_proj", "rel_logits_proj", "rel_extent")


def find_mixers(model: PreTrainedModel, layers: Mapping[int, str]) -> dict[int, nn.Module]:
    """The recurrent modules of a model's decoder, by the numbers of their states.

    A layer has one, whose number is the layer's; or beside its keys some convolutions, the k-th with the number
    (1 + k) · L + the layer's, of L layers in all.

    Args:
        model: the model.
        layers: index and type of its layers that keep a state.

    Raises:
        CrossdraftError: a layer has no such module, or its rule is not known.
    """
    total = model.config.get_text_config().num_hidden_layers
    known: dict[int, dict[int, Any]] = {}
    for part in model.modules():
        if _rule(part) is not None and isinstance(index := getattr(part, "layer_idx", None), int):
            known.setdefault(index, {})[index + total * (1 + getattr(part, "conv_idx", -1))] = part
    attend = {part.layer_idx for part in find_relative(model)}  # only there convolutions may stand beside keys
    if unknown := [at for at in layers if at not in known or (max(known[at]) >= total) != (at in attend)]:
        raise CrossdraftError(
            f"Layer {unknown[0]} of {type(model).__name__}, of type {layers[unknown[0]]}, keeps a state by a rule that "
            "is not known here; give a model with gated delta nets, Mamba-2, or short convolutions as in LFM2 and "
            "Inkling."
        )
    found = {number: part for index in layers for number, part in known[index].items()}
    if len({part.conv_kernel_size for part in found.values()}) > 1:
        raise CrossdraftError(f"{type(model).__name__} has convolutions of several widths, which is not known here.")
    return found


def find_relative(model: PreTrainedModel) -> tuple[Any, ...]:
    """The modules whose attention depends on distances along paths."""
    return tuple(part for part in model.modules() if all(hasattr(part, name) for name in RELATIVE))


def _rule(module: nn.Module) -> Read | None:
    return next((read for names, read in KINDS if all(hasattr(module, name) for name in names.split())), None)


def read_along_paths(mixers: Mapping[int, nn.Module], relative: Collection[nn.Module] = ()) -> None:
    """Let these modules, and the attention of `relative`, read passes over a `StateCache` along the paths of trees."""
    for number, module in mixers.items():
        if (read := _rule(module)) is not None:
            _replace(module, partial(_forward, partial(read, module), number))
    for module in relative:
        _replace(module, partial(_attend, module))


def _replace(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Let `forward` stand for a module's, which it gets as its last given argument; once."""
    name = "_old_forward" if hasattr(module, "_old_forward") else "forward"  # what accelerate's hooks call
    own = getattr(module, name)
    if not (isinstance(own, partial) and own.func in (_forward, _attend)):
        setattr(module, name, partial(forward, own))


def _attend(mixer: Any, own: Callable[..., Any], hidden_states: Tensor, **kwargs: Any) -> Any:
    """Stand for the forward of an attention; over any other cache it is the module's `own`."""
    cache = kwargs.get("past_key_values")
    if not isinstance(cache, StateCache):
        return own(hidden_states, **kwargs)
    return relative_attention(mixer, hidden_states, kwargs.get("attention_mask"), cache), None


def _forward(
    read: Callable[[Tensor, StateLayer], Tensor],
    number: int,
    own: Callable[..., Tensor],
    hidden_states: Tensor,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Stand for a module's forward; over any other cache it is the module's `own`."""
    cache = kwargs.get("cache_params", kwargs.get("past_key_values"))
    if not isinstance(cache, StateCache):
        return own(hidden_states, *args, **kwargs)
    return read(hidden_states, cache.state_layer(number))
