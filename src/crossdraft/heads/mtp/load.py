"""Loads the MTP layers of a target's checkpoint: decoder layers of the target's class, with their weights."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from crossdraft.checkpoints.files import stored_tensors
from crossdraft.checkpoints.locate import TARGETS, shipped_or_found
from crossdraft.checkpoints.mtp import PARTS, find_mtp
from crossdraft.checkpoints.reader import read
from crossdraft.checkpoints.weights import LIBRARY_ERRORS, first_line, quiet
from crossdraft.engine.cache import KVCache
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.drafting.attention import SLOT, CachedAttention
from crossdraft.heads.mtp.network import Mtp, MtpLayer

FULL, SLIDING = "full_attention", "sliding_attention"
Weights = Sequence[Mapping[str, Tensor]]  # of each layer, by the names of `mtp_names`
SIZES = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"
)  # fmt: skip


@torch.inference_mode()
def load_mtp(host: Target, source: str) -> Mtp:
    """Load the MTP layers of a target's checkpoint, in its dtype and on its device, and run them once.

    Raises:
        CrossdraftError: as `find_mtp`; the folder holds another model than the target; weights are missing, left over
            or of another shape; or the target's class has decoder layers that cannot be built or run by themselves.
    """
    folder = shipped_or_found(source, TARGETS)
    try:
        stated: Any = AutoConfig.from_pretrained(str(folder), local_files_only=True)
        there, here = stated.get_text_config().to_dict(), host.text_config.to_dict()
        if other := [name for name in SIZES if there.get(name) != here.get(name)]:
            raise CrossdraftError(
                f"The multi-token-prediction layers in {folder} are another model's: {other[0]} is "
                f"{there.get(other[0])} there and {here.get(other[0])} in the loaded model; load both from one folder, "
                "or name another drafter."
            )
        stored = stored_tensors(folder)
        weights = [{own: read(stored[key]) for own, key in layer.items()} for layer in find_mtp(folder)]
        with quiet():
            head = _made(host, weights)
        attend = CachedAttention(KVCache(head.cache_layers), head.rotary, torch.arange(2, device=host.device), None)
        attend.cache.add_row(2)
        attend.cache.open_window(SLOT, 2)
        rows = head.embed(attend.positions[None])
        head.logits(head.read(rows, rows, None, attend))
    except LIBRARY_ERRORS as error:
        raise CrossdraftError(
            f"The multi-token-prediction layers in {folder} cannot be loaded with the decoder layers of "
            f"{type(host.model).__name__}: {first_line(error)}; name another drafter, such as union:memory,ngram."
        ) from error
    return head


def _made(host: Target, weights: Weights) -> Mtp:
    """Make the network; whatever the library raises means that it cannot be made."""
    model: Any = host.model
    text: Any = getattr(model.base_model, "language_model", model.base_model)
    config = _config(text.config, model.config, len(weights))
    kinds: list[str] = getattr(config, "layer_types", None) or [FULL] * len(weights)
    by_kind = "layer_type" in inspect.signature(inspect.unwrap(text.rotary_emb.forward)).parameters
    layers: list[MtpLayer] = []
    for block, kind, own in zip(_blocks(type(text), config, weights, model.dtype), kinds, weights, strict=True):
        window = config.sliding_window if kind == SLIDING else None
        layer = MtpLayer(text.norm, config.hidden_size, block, kind if by_kind else None, window).to(model.dtype)
        parts = {name: value for name, value in own.items() if name.partition(".")[0] in PARTS}
        layer.load_state_dict(parts | {f"block.{name}": value for name, value in block.state_dict().items()})
        layers.append(layer.to(host.device))
    return Mtp(host, layers, text.rotary_emb).eval()


def _config(text: Any, whole: Any, count: int) -> Any:
    """The configuration of a decoder with `count` layers, all MTP layers, and next to no vocabulary."""
    config = copy.deepcopy(text)
    for name, usual in (("layer_types", FULL), ("mlp_layer_types", "sparse")):
        if own := getattr(config, name, None):
            given = getattr(config, f"mtp_{name}", None) or [usual if usual in own else own[-1]] * count
            setattr(config, name, given[:count])
    if hasattr(config, "first_k_dense_replace"):  # layers without experts; these have them
        config.first_k_dense_replace = 0
    if getattr(config, "is_heterogeneous", False):
        config.per_layer_config = getattr(config, "mtp_per_layer_config", None)
    config.num_hidden_layers, config.vocab_size, config.pad_token_id = count, 1, 0
    if get_checkpoint_conversion_mapping(config.model_type) is None:  # then how experts are stored is the whole model's
        config.model_type = whole.model_type
    return config


def _blocks(kind: Any, config: Any, weights: Weights, dtype: torch.dtype) -> list[nn.Module]:
    """The decoder layers, loaded as those of a model of the target's class."""
    state = {
        f"layers.{number}.{name.removeprefix('block.')}": value
        for number, layer in enumerate(weights)
        for name, value in layer.items()
        if name.startswith("block.")
    }
    settings = {"dtype": dtype, "attn_implementation": config._attn_implementation, "output_loading_info": True}
    decoder, report = kind.from_pretrained(None, config=config, state_dict=state, **settings)
    wrong = [str(key) for name in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in report[name]]
    if wrong := sorted(key for key in wrong if "layers." in key):  # embeddings and the final norm are not used
        raise ValueError(f"{wrong[0]} is missing, left over or of another shape ({len(wrong)} such)")
    return [*decoder.layers]
