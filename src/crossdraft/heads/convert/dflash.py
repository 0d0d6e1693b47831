"""DFlash's files (z-lab, 2602.06036): a Qwen3 config with its block in `dflash_config`, and the drafter's own layers.

DSpark's (DeepSpec, SpecForge) are the same with a Markov head, and DeepSpec's with copies of the target's embeddings
and LM head. Their root's row predicts too. Those of speculators name hidden states by the layer that they enter.

Layers of the target are numbered by their output. The mask is the target's embedding of `mask_token_id`, and the
output rows are the target's, all of them; neither is stored. Where no key says so, sliding layers are causal within the
block and the others are not, as vLLM and SGLang read these files (sglang#34524: 5.62 tokens accepted against 5.27).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from crossdraft.config_keys import agreed, check
from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert.converter import (
    ForeignHead,
    NativeHead,
    TargetInfo,
    alike,
    decoder_settings,
    draft_ids_of,
    layer_numbers,
    layers_of,
    number,
    renamed,
    shared_ids,
    with_rows,
    without_embeddings,
)
from crossdraft.heads.convert.layouts import DFLASH_KEYS, DSPARKS, FULL, SLIDING
from crossdraft.heads.networks.dflash import DFlashConfig
from crossdraft.heads.networks.dspark import DSparkConfig

SHARED = ("fc.weight", "hidden_norm.weight", "norm.weight")
HEAD, CONFIDENCE = "lm_head.weight", "confidence_head."
MARKOV = ("markov_w1.weight", "markov_w2.weight")
MAPS = ("d2t", "t2d")
LAYER = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm",
    "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm",
)  # fmt: skip
BLOCK = 16  # DFlash's default
QWEN3_DEFAULTS = {"head_dim": 128, "num_key_value_heads": 32}  # where `Qwen3Config` differs from Llama's


def read_dflash(foreign: ForeignHead, host: TargetInfo) -> NativeHead:
    """Convert DFlash or DSpark to our head, over all ids that it shares with the target.

    Raises:
        CrossdraftError: it has another architecture (DFlash-2), is incomplete, is another target's, or its config
            contradicts itself.
    """
    check(foreign.config, DFLASH_KEYS, host.sizes)
    theirs = {**QWEN3_DEFAULTS, **foreign.config}
    named = (theirs.get("architectures") or [""])[0]
    block = {"sample_from_anchor": named in DSPARKS, **theirs, **(theirs.get("dflash_config") or {})}
    outputs = layers_of(block.get("target_layer_ids"), "target_layer_ids")
    return read_block(theirs, block, foreign.tensors, host, layer_numbers(outputs, "output", "entering"))


def read_block(
    theirs: Mapping[str, Any],
    block: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    host: TargetInfo,
    read_layers: Sequence[int],
) -> NativeHead:
    """Read a block drafter from the checked settings of its layers and of its block, and its tensors."""
    if not read_layers or type(mask := block.get("mask_token_id")) is not int:
        missing = "an id as 'mask_token_id'" if read_layers else "'target_layer_ids'"
        raise CrossdraftError(f"The checkpoint's config.json lacks {missing} of its block; is it whole?")
    layers = number(theirs, "num_hidden_layers")
    windows = _windows(theirs, layers)
    causal = agreed({"is_causal": theirs.get("is_causal"), "dflash_config.causal": block.get("causal")})
    slides = tuple(layer for layer in range(layers) if windows[layer])
    rest = {name: x for name, x in without_embeddings(tensors, host).items() if not name.startswith(CONFIDENCE)}
    maps = {name: rest.pop(name) for name in MAPS if name in rest}
    stated, known = number(theirs, "vocab_size"), shared_ids(theirs, host)
    ids = draft_ids_of(maps, len(maps.get("d2t", range(stated))), stated)
    kept = [row for row, token in enumerate(ids) if token < known]
    draft_ids = tuple(ids[row] for row in kept)
    rank, root = block.get("markov_rank") or 0, bool(block.get("sample_from_anchor"))
    own = [*SHARED, *(f"layers.{layer}.{part}.weight" for layer in range(layers) for part in LAYER)]
    own += [HEAD] if HEAD in rest else []
    names = {name: name for name in own} | ({f"markov_head.{name}": name for name in MARKOV} if rank else {})
    weights = renamed(rest, names)
    for name in (HEAD, MARKOV[1]):
        if name in weights:
            if len(weights[name]) != len(ids):
                raise CrossdraftError(
                    f"The checkpoint's '{name}' has {len(weights[name])} rows, and {len(ids)} ids are drafted; is it "
                    "whole?"
                )
            weights[name] = weights[name][kept]
    if HEAD in weights and alike(weights[HEAD], host.shared.lm_head[list(draft_ids)]):
        del weights[HEAD]
    markov: dict[str, Any] = {}
    if rank:
        markov["markov_rank"] = number(block, "markov_rank")
        weights[MARKOV[0]] = with_rows(weights[MARKOV[0]], host.vocab_size)
    config = (DSparkConfig if rank else DFlashConfig)(
        **decoder_settings(theirs, host),
        **markov,
        draft_ids=draft_ids,
        root_predicts=root,
        own_head=HEAD in weights,
        steps=number(block, "block_size", BLOCK) - (0 if root else 1),
        layers=layers,
        read_layers=tuple(read_layers),
        mask_token=mask,
        windows=windows if slides else (),
        causal_layers=slides if causal is None else tuple(range(layers)) if causal else (),
        # Without the key a file is z-lab's, or an old one of ours, which has a key of Llama's that Qwen3 has not.
        whole_prompt="mlp_bias" not in theirs if (whole := block.get("whole_prompt")) is None else whole,
    )
    return NativeHead("dspark" if rank else "dflash", config, weights)


def _windows(theirs: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """The window of each layer, 0 where it does not slide."""
    kinds = theirs.get("layer_types")
    if kinds is None:  # as `Qwen3Config` has it
        full = number(theirs, "max_window_layers", 28) if theirs.get("use_sliding_window") else layers
        kinds = [FULL if layer < full else SLIDING for layer in range(layers)]
    if len(kinds) != layers:
        raise CrossdraftError(
            f"The checkpoint's config.json has {len(kinds)} layer_types and num_hidden_layers = {layers}; is it whole?"
        )
    if SLIDING not in kinds:
        return (0,) * layers
    if theirs.get("use_sliding_window") is False or theirs.get("sliding_window") is None:
        raise CrossdraftError(
            "The checkpoint's config.json has layer_types that slide, but no sliding_window, or use_sliding_window = "
            "false; make it say what the head was trained with."
        )
    window = number(theirs, "sliding_window")
    return tuple(window if kind == SLIDING else 0 for kind in kinds)
