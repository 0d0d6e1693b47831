"""Differences between `transformers` models, detected, not subclassed: placeholders, positions, masks."""

import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from crossdraft.engine.devices import entry_device
from crossdraft.engine.recurrent.mixers import find_mixers, find_relative
from crossdraft.errors import CrossdraftError

# Where configurations name the ids that visual features replace; EventGPT's frames are a video to its adapter.
PLACEHOLDERS = {
    "image_token_index": "image",
    "image_token_id": "image",
    "event_token_id": "video",
    "video_token_index": "video",
    "video_token_id": "video",
}


# `layer_types` of a decoder, as transformers names them, whose caches and masks are known.
KNOWN_LAYERS = frozenset(("full_attention", "sliding_attention", "chunked_attention"))
TOKEN_TYPES = ("mm_token_type_ids", "token_type_ids")
STATE_LAYERS = frozenset(("linear_attention", "conv"))  # that keep a state
HYBRID_LAYERS = {
    "hybrid": "full_attention",
    "hybrid_sliding": "sliding_attention",
}  # that keep keys, too, and attend so
KEEP_STATES = STATE_LAYERS | HYBRID_LAYERS.keys()
FREE_LAYERS = frozenset(("mlp", "moe"))  # that keep nothing (Nemotron-H)
ROUTES = ("moe_mm_token_type_ids",)


@dataclass(frozen=True)
class ImageBlocks:
    """Visual tokens that see each other, later ones too.

    Args:
        name: the input that marks them.
        marks: its values that do.
        layers: types of layers in which they see each other.
        joined: all of a prompt are one block; otherwise each run of them is one.
        beyond: they see each other beyond a layer's window, too.
    """

    name: str
    marks: frozenset[int]
    layers: frozenset[str]
    joined: bool
    beyond: bool = False

    def of(self, types: Tensor) -> Tensor:
        """[L] number of each token's block, -1 = none, from its types [L]."""
        shown = torch.isin(types, torch.tensor(sorted(self.marks), dtype=types.dtype))
        begins = shown & ~shown.roll(1)
        begins[:1] = shown[:1]
        return torch.where(shown, 0 if self.joined else begins.cumsum(0) - 1, -1)


@dataclass(frozen=True)
class Traits:
    """Properties of a model, as `detect_traits` finds them."""

    placeholders: Mapping[str, int]  # kind of feature -> the id that it replaces
    mrope: int  # axes of M-RoPE positions; 0 = plain positions
    additive_mask: bool
    takes_encoded: bool  # `mm_encoder_outputs`, since transformers 5.18; before, the first piece encodes for itself
    window: int | None = None  # positions up to its own that a token sees in sliding layers; None: there are none
    all_slide: bool = False  # every layer does (Mistral), so that there is one mask
    span: int | None = None  # positions of a chunk, in layers whose tokens see their own chunk alone (Llama 4)
    blocks: ImageBlocks | None = None  # None: visual tokens attend causally, too
    mixers: Mapping[int, nn.Module] = field(default_factory=dict[int, nn.Module])  # by the numbers of their states
    relative: tuple[nn.Module, ...] = ()  # attention that depends on distances along paths
    routed: tuple[str, ...] = ()  # inputs by which visual tokens get experts of their own (ERNIE 4.5 VL)
    marks: frozenset[int] = frozenset()  # ids around an image that are embedded by its encoder's output (Ovis2)

    @property
    def limited(self) -> str | None:
        """Type of the layers that see only near positions; `None` = there are none."""
        return "sliding_attention" if self.window else "chunked_attention" if self.span else None

    @property
    def visual_ids(self) -> frozenset[int]:
        """Every id that stands for something visual, or is embedded with it."""
        return self.marks.union(self.placeholders.values())


def embedded_ids(config: PretrainedConfig) -> int:
    """Number of ids that a model embeds: those of its head, and those that it only reads (Molmo2)."""
    text = config.get_text_config()
    return text.vocab_size + (getattr(text, "additional_vocab_size", None) or 0)


def detect_traits(model: PreTrainedModel) -> Traits:
    """Look at the configuration and the methods of a model, never at its class name.

    Raises:
        CrossdraftError: a kind of attention that trees are not built for (flash-attention 2), or layers of an unknown
            kind.
    """
    config, text = model.config, model.config.get_text_config()
    given: list[str] | None = getattr(text, "layer_types", None)
    layers = None if given is None else [HYBRID_LAYERS.get(kind, kind) for kind in given]
    chunked = layers is not None and "chunked_attention" in layers
    slides = layers is None or "sliding_attention" in layers
    check_layers(type(model).__name__, layers or ())
    kind = text._attn_implementation
    if kind not in ("sdpa", "eager"):
        raise CrossdraftError(
            f"Attention '{kind}' cannot express a tree; load {type(model).__name__} with attn_implementation='sdpa'."
        )
    placeholders = {
        kind: token for name, kind in PLACEHOLDERS.items() if isinstance(token := getattr(config, name, None), int)
    }
    parameters = inspect.signature(inspect.unwrap(model.forward)).parameters
    return Traits(
        placeholders,
        mrope=(axes := _axes(model)),
        additive_mask=kind == "eager",
        takes_encoded="mm_encoder_outputs" in parameters,
        window=getattr(text, "sliding_window", None) if slides else None,
        all_slide=layers is None,
        span=getattr(text, "attention_chunk_size", None) if chunked else None,
        blocks=None if axes else _blocks(model, placeholders, parameters),
        routed=tuple(name for name in ROUTES if name in parameters),
        marks=frozenset(getattr(config, "visual_indicator_token_ids", None) or ()),
        mixers=find_mixers(model, {at: kind for at, kind in enumerate(given or ()) if kind in KEEP_STATES}),
        relative=find_relative(model),
    )


def _axes(model: PreTrainedModel) -> int:
    """Number of axes of a model's M-RoPE positions, by its own positions of a text; 0 = it has none."""
    if not hasattr(model.base_model, "get_rope_index"):
        return 0
    ids = torch.zeros(1, 2, dtype=torch.long)
    try:
        return len(rope_positions(model, ids, {"mm_token_type_ids": torch.zeros_like(ids, dtype=torch.int)})[0])
    except (RuntimeError, ValueError, TypeError, LookupError):  # it is only for prompts that show something
        return 3


def rope_positions(model: PreTrainedModel, ids: Tensor, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """M-RoPE positions [axes, 1, L] by a model's own function, and the offset of later text.

    Args:
        model: a model with `get_rope_index`.
        ids: [1, L] token ids with placeholders.
        inputs: further inputs of the prompt, of which the function gets those that it takes.
    """
    function: Callable[..., tuple[Tensor, Tensor]] = getattr(model.base_model, "get_rope_index")  # noqa: B009
    given: dict[str, Tensor] = {**inputs, "attention_mask": torch.ones_like(ids)}
    if "video_second_per_grid" in inputs:  # Qwen's Omni thinkers name it differently in their forward
        given["second_per_grids"] = inputs["video_second_per_grid"]
    names = inspect.signature(inspect.unwrap(function)).parameters
    return function(input_ids=ids, **{name: given[name] for name in names if name in given})


class _SeenError(Exception):
    """Error that ends a forward once its masks are seen."""


def _blocks(model: PreTrainedModel, placeholders: Mapping[str, int], known: Container[str]) -> ImageBlocks | None:
    """Find the visual tokens that see each other, by the masks that a model makes for its own decoder.

    Its forward is run, as far as the decoder, over ten tokens, two images of two tokens and a clip of two, and over an
    image that is longer than the window.

    Raises:
        CrossdraftError: text sees later tokens, too.
    """
    name = next((one for one in TOKEN_TYPES if one in known), None)
    if name is None:
        return None
    window: int = getattr(model.config.get_text_config(), "sliding_window", None) or 0
    types = torch.tensor([[0, 1, 1, 0, 1, 1, 0, 2, 2, 0, *[1] * (window + 1)]])
    shown = placeholders.get("image", 0)
    ids = torch.where(types > 0, shown, 0)
    masks: dict[str, Tensor | None] = {}

    def look(module: object, arguments: object, named: Mapping[str, Any]) -> None:
        found = named.get("attention_mask")
        masks.update(found if isinstance(found, Mapping) else dict.fromkeys(KNOWN_LAYERS, found))
        raise _SeenError

    decoder: Any = model.get_decoder()
    device = entry_device(model)
    hook = decoder.register_forward_pre_hook(look, with_kwargs=True)
    try:
        with suppress(_SeenError), torch.inference_mode():
            model.base_model(input_ids=ids.to(device), **{name: types.to(device)}, use_cache=False)
    finally:
        hook.remove()
    seen = {  # additive masks are 0 where a token sees
        kind: mask[0, 0].cpu() == (mask.dtype == torch.bool) for kind, mask in masks.items() if mask is not None
    }
    if any(mask[0, 1:].any() or mask[3, 4:].any() for mask in seen.values()):
        name = type(model).__name__
        raise CrossdraftError(f"{name} lets text see later tokens, which no pass here does; give another model.")
    layers = frozenset(kind for kind, mask in seen.items() if mask[1, 2] or mask[7, 8])
    if not layers:
        return None
    one = seen[next(iter(layers))]
    marks = frozenset(mark for mark, at in ((1, 1), (2, 7)) if one[at, at + 1])
    beyond = bool(window and "sliding_attention" in layers and seen["sliding_attention"][10 + window, 10])
    return ImageBlocks(name, marks, layers, joined=bool(one[1, 4]), beyond=beyond)


def check_layers(name: str, layers: Sequence[str]) -> None:
    """Raise CrossdraftError if a decoder has layers whose caches and masks are not known.

    Args:
        name: of the model, or where it lies.
        layers: `layer_types` of its configuration.
    """
    if others := sorted({*map(str, layers)} - KNOWN_LAYERS - KEEP_STATES - FREE_LAYERS):
        known = sorted(KNOWN_LAYERS | KEEP_STATES)
        raise CrossdraftError(
            f"{name} has layers of the types {', '.join(others)}, whose caches and masks are not known here; give a "
            f"model with layers of the types {', '.join(known[:-1])} and {known[-1]} alone."
        )
