"""DFlash's files (z-lab, 2602.06036): a Qwen3 config with its block in `dflash_config`, and the drafter's own layers.

Layers of the target are numbered by their output. The mask is the target's embedding of `mask_token_id`, and the
output rows are the target's, all of them; neither is stored.
"""

from collections.abc import Mapping
from typing import Any, cast

from crossdraft.config_keys import DECODER, Followed, Nested, OfTarget, Only, Table, check
from crossdraft.dtypes import dtype_name
from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert.converter import (
    Converter,
    ForeignHead,
    NativeHead,
    TargetInfo,
    decoder_settings,
    layer_numbers,
    layers_of,
    llama_config,
    number,
    renamed,
    without_embeddings,
)
from crossdraft.heads.networks.dflash import DFlashConfig, spread

SHARED = ("fc.weight", "hidden_norm.weight", "norm.weight")
LAYER = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm",
    "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm",
)  # fmt: skip
BLOCK = 16  # DFlash's default
QWEN3_DEFAULTS = {"head_dim": 128, "num_key_value_heads": 32}  # where `Qwen3Config` differs from Llama's
DRAFT: Table = {  # keys in `dflash_config`, or beside it
    "mask_token_id": Followed("mask_token"),
    "target_layer_ids": Followed("read_layers"),
    "block_size": Followed("steps"),
    "output_multiplier": Only((1, None)),
    "input_embedding_scale": Only((1, None)),
    "final_logit_softcapping": Only((None, 0)),
}
KEYS: Table = {
    **DECODER,
    **DRAFT,
    "architectures": Only((["DFlashDraftModel"],)),
    "model_type": Only(("qwen3",)),
    "num_hidden_layers": Followed("layers"),
    "num_target_layers": OfTarget("num_layers"),
    "is_causal": Only((False, None)),
    "dflash_config": Nested(DRAFT),
}
WHOLE_PROMPTS = (
    "Heads of ours are trained on the text behind what is seen; a server that feeds DFlash whole prompts, as vLLM "
    "does, accepts next to nothing of its drafts."
)


def write(ours: NativeHead, host: TargetInfo) -> ForeignHead:
    """Convert our DFlash head to z-lab's files.

    Raises:
        CrossdraftError: its mask is a learned embedding, or it reads the embeddings: DFlash's files hold neither.
    """
    config = cast("DFlashConfig", ours.config)
    if config.mask_token is None:
        raise CrossdraftError(
            "The head learnt its mask's row, which DFlash's files cannot hold: train it with a mask_token to export it."
        )
    block = {
        "mask_token_id": config.mask_token,
        "target_layer_ids": layer_numbers(config.read_layers or spread(config.num_layers), "entering", "output"),
    }
    theirs = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **llama_config(config, config.layers),
        "layer_types": ["full_attention"] * config.layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "block_size": config.steps + 1,  # their block includes the root
        "num_target_layers": config.num_layers,
        "dflash_config": block,
        "torch_dtype": dtype_name(ours.dtype),
    }
    notes = [WHOLE_PROMPTS]
    if len(config.draft_ids) < config.vocab_size:
        notes.append(f"DFlash has no draft vocabulary: elsewhere all {config.vocab_size} ids are drafted.")
    return ForeignHead(theirs, ours.weights, tuple(notes))


def read(foreign: ForeignHead, host: TargetInfo) -> NativeHead:
    """Convert z-lab's DFlash to our head, over the whole vocabulary.

    Raises:
        CrossdraftError: it has another architecture (DFlash-2, sliding windows), is incomplete, or is another target's.
    """
    check(foreign.config, KEYS, host.sizes)
    theirs = {**QWEN3_DEFAULTS, **foreign.config}
    block: Mapping[str, Any] = {**theirs, **(theirs.get("dflash_config") or {})}
    outputs, mask = layers_of(block.get("target_layer_ids"), "target_layer_ids"), block.get("mask_token_id")
    if not outputs or mask is None:
        missing = "mask_token_id" if outputs else "target_layer_ids"
        raise CrossdraftError(f"The checkpoint's config.json lacks '{missing}' in 'dflash_config'; is it whole?")
    if type(mask) is not int:
        raise CrossdraftError(f"The checkpoint's config.json has {mask!r} as 'mask_token_id', which must be an id.")
    layers = number(theirs, "num_hidden_layers")
    names = (*SHARED, *(f"layers.{layer}.{part}.weight" for layer in range(layers) for part in LAYER))
    weights = renamed(without_embeddings(foreign.tensors, host), {name: name for name in names})
    config = DFlashConfig(
        **decoder_settings(theirs, host),
        draft_ids=tuple(range(host.vocab_size)),
        steps=number(block, "block_size", BLOCK) - 1,
        layers=layers,
        read_layers=tuple(layer_numbers(outputs, "output", "entering")),
        mask_token=mask,
    )
    return NativeHead("dflash", config, weights)


DFLASH = Converter(
    ("dflash",),
    lambda config: "dflash_config" in config or "DFlashDraftModel" in (config.get("architectures") or []),
    write,
    read,
)
