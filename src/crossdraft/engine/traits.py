"""Differences between `transformers` models, detected, not subclassed: placeholders, positions, masks."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from crossdraft.errors import CrossdraftError

# Where configurations name the ids that visual features replace; EventGPT's frames are a video to its adapter.
PLACEHOLDERS = {
    "image_token_index": "image",
    "image_token_id": "image",
    "event_token_id": "video",
    "video_token_index": "video",
    "video_token_id": "video",
}


KNOWN_LAYERS = frozenset(
    ("full_attention", "sliding_attention")
)  # `layer_types` of a decoder, as transformers names them


@dataclass(frozen=True)
class Traits:
    """Properties of a model, as `detect_traits` finds them."""

    placeholders: Mapping[str, int]  # kind of feature -> the id that it replaces
    mrope: bool
    additive_mask: bool
    takes_encoded: bool  # `mm_encoder_outputs`, since transformers 5.18; before, the first piece encodes for itself
    window: int | None = None  # positions up to its own that a token sees in sliding layers; None: there are none
    all_slide: bool = False  # every layer does (Mistral), so that there is one mask
    images_whole: bool = False  # tokens of one image, marked in `token_type_ids`, see each other, later ones too

    @property
    def visual_ids(self) -> frozenset[int]:
        """Every id that stands for something visual."""
        return frozenset(self.placeholders.values())


def detect_traits(model: PreTrainedModel) -> Traits:
    """Look at the configuration and the methods of a model, never at its class name.

    Raises:
        CrossdraftError: a kind of attention that trees are not built for (flash-attention 2), or that no tree can be
            verified with (layers that keep a state).
    """
    config, text = model.config, model.config.get_text_config()
    layers = getattr(text, "layer_types", None)
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
        mrope=hasattr(model.base_model, "get_rope_index"),
        additive_mask=kind == "eager",
        takes_encoded="mm_encoder_outputs" in parameters,
        window=getattr(text, "sliding_window", None) if slides else None,
        all_slide=layers is None,
        images_whole="token_type_ids" in parameters,
    )


def check_layers(name: str, layers: Sequence[str]) -> None:
    """Raise CrossdraftError if no tree can be read by any of a decoder's layers, as by those that keep a state.

    Args:
        name: of the model, or where it lies.
        layers: `layer_types` of its configuration.
    """
    if "linear_attention" in layers:
        raise CrossdraftError(
            f"{name} has linear-attention layers: their state sums up every token read, so that the branches of a tree "
            "cannot be read in one pass, nor rejected tokens taken back; give a model whose layers all attend in full."
        )
    if others := sorted({*map(str, layers)} - KNOWN_LAYERS):
        raise CrossdraftError(
            f"{name} has layers of the types {', '.join(others)}, whose caches and masks are not known here; give a "
            f"model with layers of the types {' and '.join(sorted(KNOWN_LAYERS))} alone."
        )
