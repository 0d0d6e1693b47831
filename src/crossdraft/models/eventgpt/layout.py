"""The official checkpoint's layout: what its tensors are called, and what the model expects in their place.

model.visual_tower.visual_tower.[vision_model.]*   CLIP, written by transformers 4.37 (the segment is gone in v5)
model.visual_projector.{0,2}.*                     projector
model.feature_adaptor.*                            adaptor
model.{embed_tokens,layers,norm}.*, lm_head.*      Llama
"""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from transformers import CLIPVisionConfig

from crossdraft.errors import CrossdraftError
from crossdraft.models.eventgpt.checkpoint import library_errors_as
from crossdraft.models.eventgpt.configuration import EventGPTConfig
from crossdraft.models.eventgpt.modeling import EventGPTForConditionalGeneration

VISION_PREFIX = "model.vision_tower."
EMBEDDING, HEAD = "model.language_model.embed_tokens.weight", "lm_head.weight"
CLIP_HEAD_DIM = 64  # of every CLIP vision encoder that OpenAI released

PREFIXES = (  # the longer of two that fit stands first
    ("model.visual_tower.visual_tower.vision_model.", VISION_PREFIX),
    ("model.visual_tower.visual_tower.", VISION_PREFIX),
    ("model.visual_projector.0.", "model.multi_modal_projector.linear_1."),
    ("model.visual_projector.2.", "model.multi_modal_projector.linear_2."),
    ("model.feature_adaptor.", "model.event_adaptor."),
    ("model.embed_tokens.", "model.language_model.embed_tokens."),
    ("model.layers.", "model.language_model.layers."),
    ("model.norm.", "model.language_model.norm."),
)
_QFORMER = ("model.query_embedder.", "model.query_embeddings", "model.attention_layers.")
# Constants that older versions of transformers stored; the model computes them.
_BUFFERS = (".rotary_emb.inv_freq", ".embeddings.position_ids")


def refuse_qformer(config: Mapping[str, object], names: Iterable[str]) -> None:
    """Raise CrossdraftError if the checkpoint has the event Q-Former, whose code was never released."""
    weights = [name for name in names if name.startswith(_QFORMER)]
    if config.get("use_event_qformer") or weights:
        sign = f"the weights {weights[0]} …" if weights else "use_event_qformer in its config.json"
        raise CrossdraftError(
            f"The checkpoint has an event Q-Former ({sign}), whose code was never released; convert one without it."
        )


def rename(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Official names to ours; stored constants are dropped, unknown names stay as they are.

    Returns:
        The renamed tensors, and the names of what was dropped.

    Raises:
        CrossdraftError: two tensors fall on one name.
    """
    renamed: dict[str, Tensor] = {}
    dropped = [name for name in weights if name.endswith(_BUFFERS)]
    for name, tensor in weights.items():
        if name.endswith(_BUFFERS):
            continue
        new = next((ours + name.removeprefix(theirs) for theirs, ours in PREFIXES if name.startswith(theirs)), name)
        if new in renamed:
            raise CrossdraftError(f"The checkpoint holds {new} twice, with and without 'vision_model.'; mend it.")
        renamed[new] = tensor
    return renamed, dropped


def vision_config_of(weights: Mapping[str, Tensor]) -> CLIPVisionConfig:
    """The vision encoder's shape from its renamed weights; all but the number of heads follows from them.

    Raises:
        CrossdraftError: there is no CLIP vision encoder, or it cannot have heads of that width.
    """
    wanted = (
        "embeddings.patch_embedding.weight",
        "embeddings.position_embedding.weight",
        "encoder.layers.0.mlp.fc1.weight",
    )
    patch, position, mlp = (weights.get(VISION_PREFIX + name) for name in wanted)
    if patch is None or position is None or mlp is None or (patch.ndim, position.ndim, mlp.ndim) != (4, 2, 2):
        raise CrossdraftError(
            "The checkpoint has no CLIP vision encoder under model.visual_tower.visual_tower; give the merged "
            "EventGPT weights."
        )
    layers = {
        name.removeprefix(VISION_PREFIX).split(".")[2]
        for name in weights
        if name.startswith(f"{VISION_PREFIX}encoder.layers.")
    }
    hidden, patch_size = patch.shape[0], patch.shape[-1]
    with library_errors_as("The vision encoder has another shape than OpenAI's", "give its own with --vision-config"):
        return CLIPVisionConfig(
            hidden_size=hidden,
            intermediate_size=mlp.shape[0],
            num_hidden_layers=len(layers),
            num_attention_heads=max(1, hidden // CLIP_HEAD_DIM),
            patch_size=patch_size,
            image_size=patch_size * math.isqrt(max(position.shape[0] - 1, 0)),
        )


def check_strict(config: EventGPTConfig, weights: Mapping[str, Tensor]) -> None:
    """Compare names and shapes with the model's own.

    Raises:
        CrossdraftError: anything is missing, unexpected, of another shape or quantised; all of it is listed.
    """
    remedy = "check config.json, and give the vision encoder's own with --vision-config"
    with library_errors_as("No EventGPT can be built to the checkpoint's shapes", remedy), torch.device("meta"):
        expected = EventGPTForConditionalGeneration(config).state_dict()
    quantised = [f"{name} {tensor.dtype}" for name, tensor in weights.items() if not tensor.dtype.is_floating_point]
    shapes = [
        f"{name} {list(weights[name].shape)} instead of {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    faults = [
        _listed("missing", [name for name in expected if name not in weights]),
        _listed("unexpected", [name for name in weights if name not in expected]),
        _listed("of a wrong shape", shapes),
        _listed("of no floating-point type", quantised),
    ]
    if any(faults):
        raise CrossdraftError(
            f"The checkpoint does not fit an EventGPT: {'; '.join(filter(None, faults))}; give the official layout."
        )


def _listed(what: str, names: list[str], limit: int = 8) -> str:
    if not names:
        return ""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{len(names)} {what} ({', '.join(names[:limit])}{more})"
