"""Tables of other projects' head layouts: who writes them, and which keys of `config.json` they may have.

Importing this module needs no PyTorch, so that a wrong folder is refused at once.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from crossdraft.checkpoints.locate import TARGETS, shipped_or_found
from crossdraft.config_keys import DECODER, PRETRAINED, VISION, Followed, Harmless, Nested, OfTarget, Only, Table, check
from crossdraft.errors import CrossdraftError
from crossdraft.files import read_json

CONFIG = "config.json"
LLAMA = ("LlamaForCausalLM", "LlamaForCausalLMEagle", "EagleLlamaForCausalLM")
MSD_TYPES = ("llava", "qwen2_vl")
# Heads of VLMs in EAGLE-1's layout have the target's own type and class.
MODEL_TYPES = ("llama", "qwen2", *MSD_TYPES, "llava_next", "qwen2_5_vl")
ARCHITECTURES = (
    *LLAMA, "Qwen2ForCausalLM", "LlavaLlamaForCausalLM", "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration",
)  # fmt: skip
ARCHITECTURES_3 = (
    "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen2_5vlForCausalLM", "Eagle3Qwen3vlForCausalLM",
)  # fmt: skip
DSPARKS = ("Qwen3DSparkModel", "DSparkDraftModel")  # of DeepSpec, and of SpecForge
MASKS = ("mask_token_id", "ptd_token_id", "pard_token")
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
LEVELS = "eagle_aux_hidden_state_layer_ids"
LAYER_KEYS: Table = {
    **DECODER,
    "qkv_bias": Followed("qkv_bias"),
    "model_type": Only(("llama", "qwen2")),
    "num_hidden_layers": Only((1,)),
}
EAGLE_KEYS: Table = {
    **LAYER_KEYS,
    **VISION,
    "model_type": Only(MODEL_TYPES),
    "architectures": Only((*([name] for name in ARCHITECTURES), list(LLAMA[1:]))),
    "bias": Followed("fc.bias"),
    "dropout": Harmless("training"),
}
NETWORK_3: Table = {
    "draft_vocab_size": Followed("draft_ids"),
    "target_hidden_size": OfTarget("hidden_size"),
    LEVELS: Followed("levels"),
    **{flag: Followed(flag) for flag in FLAGS},
    "embed_requires_grad": Harmless("tensors"),
}
EAGLE3_KEYS: Table = {
    **LAYER_KEYS,
    **NETWORK_3,
    "architectures": Only(tuple([name] for name in (*LLAMA, *ARCHITECTURES_3))),
    "bias": Only((False, None)),
    "aux_hidden_states_layer_ids": Followed("levels"),  # AngelSlim's key
    "eagle_aux_injection_mode": Only(("fused_fc", None)),
    "eagle_aux_layer_bands": Only((None,)),
    "eagle_config": Nested(  # ModelOpt's key
        {
            LEVELS: Followed("levels"),
            **dict.fromkeys(("use_aux_hidden_state", "use_input_layernorm_in_first_layer"), Only((True,))),
            "use_last_layernorm": Only((True,)),
            "use_mtp_layernorm": Only((False,)),
        }
    ),
}
# P-EAGLE's, told by its tensor `mask_hidden`.
PEAGLE_KEYS: Table = {
    **EAGLE3_KEYS,
    **dict.fromkeys(MASKS, Followed("mask_token")),
    "architectures": Only(tuple([name] for name in (*LLAMA, *ARCHITECTURES_3, "PEagleDraftModel"))),
    "num_hidden_layers": Followed("layers"),
    "parallel_drafting": Only((True, None)),
}
METHOD: Table = dict.fromkeys(("proposal_type", "verifier_accept_k", "accept_tolerance"), Harmless("drafting"))

MEDUSA_KEYS: Table = {
    **PRETRAINED,
    "architectures": Only((["MedusaModel"], None)),
    "model_type": Only(("medusa", None)),
    "base_model_name_or_path": Harmless("names"),
    "medusa_num_heads": Followed("steps"),
    "medusa_num_layers": Followed("layers"),
    "hidden_size": OfTarget("hidden_size"),
    "vocab_size": Followed("draft_ids"),
}
DRAFT: Table = {  # keys in `dflash_config`, or beside it
    "projector_type": Only(("dspark", None)),
    "markov_rank": Followed("markov_rank"),
    "markov_head_type": Only(("vanilla", None)),
    "sample_from_anchor": Followed("root_predicts"),
    **dict.fromkeys(("enable_confidence_head", "confidence_head_with_markov"), Harmless("drafting")),
    **dict.fromkeys(("confidence_head_alpha", "num_anchors"), Harmless("training")),
    "mask_token_id": Followed("mask_token"),
    "target_layer_ids": Followed("read_layers"),
    "block_size": Followed("steps"),
    **dict.fromkeys(("output_multiplier", "input_embedding_scale"), Only((1, None))),
    "final_logit_softcapping": Only((None, 0)),
    "causal": Followed("causal_layers"),
    "whole_prompt": Only((True, False, None)),  # ours
}
SLIDING, FULL = "sliding_attention", "full_attention"
DFLASH_KEYS: Table = {
    **DECODER,
    **DRAFT,
    "architectures": Only((["DFlashDraftModel"], *([name] for name in DSPARKS))),
    "model_type": Only(("qwen3", "dspark")),
    "draft_vocab_size": Followed("draft_ids"),
    "num_hidden_layers": Followed("layers"),
    "num_target_layers": OfTarget("num_layers"),
    "layer_types": Only((FULL, SLIDING, None), each=True),
    **dict.fromkeys(("use_sliding_window", "sliding_window"), Followed("windows")),
    "is_causal": Followed("causal_layers"),
    "dflash_config": Nested(DRAFT),
}


def _speculators(algorithm: str, classes: str, own: Table, layer: Table) -> Table:
    """Keys of speculators' files: of a head, and of its layers."""
    return {
        **{key: rule for key, rule in DECODER.items() if not isinstance(rule, Followed | OfTarget | Nested)},
        **own,
        "architectures": Only(([f"{classes}Speculator"], [f"{classes}DraftModel"], None)),
        "model_type": Harmless("names"),
        "speculators_model_type": Only(tuple(ALGORITHMS)),
        "speculators_version": Harmless("names"),
        "enable_sp_ulysses": Harmless("training"),
        "draft_vocab_size": Followed("draft_ids"),
        "target_hidden_size": OfTarget("hidden_size"),
        "transformer_layer_config": Nested({**layer, "architectures": Harmless("names")}),
        "speculators_config": Nested(
            {
                "algorithm": Only((algorithm,)),
                "default_proposal_method": Harmless("drafting"),
                "proposal_methods": Nested({**METHOD, "speculative_tokens": Followed("steps")}, many=True),
                "verifier": Nested({"name_or_path": Harmless("names"), "architectures": Harmless("names")}),
            }
        ),
    }


ALGORITHMS = {"eagle3": "Eagle3", "peagle": "PEagle", "dflash": "DFlash", "dspark": "DSpark"}
LLAMA_LAYER = {**LAYER_KEYS, "model_type": Only(("llama",))}
THREE: Table = {**NETWORK_3, "norm_before_residual": Only((False, True), absent=True)}
# Their sliding windows count from the block's root, and from each row in vLLM: not read.
BLOCK: Table = {
    **DRAFT, "aux_hidden_state_layer_ids": Followed("read_layers"), "sliding_window_non_causal": Harmless("windows"),
}  # fmt: skip
BLOCK_LAYER = {**DECODER, "model_type": Only(("qwen3",)), "num_hidden_layers": Followed("layers")}
SPECULATORS: Mapping[str, Table] = {
    "eagle3": _speculators("eagle3", "Eagle3", THREE, LLAMA_LAYER),
    "peagle": _speculators(
        "peagle",
        "PEagle",
        {**THREE, "mask_token_id": Followed("mask_token")},
        {**LLAMA_LAYER, "num_hidden_layers": Followed("layers")},
    ),
    **{name: _speculators(name, ALGORITHMS[name], BLOCK, BLOCK_LAYER) for name in ("dflash", "dspark")},
}
# Of EAGLE's networks the tensors tell which it is: the keys of all are known.
EITHER = {**PEAGLE_KEYS, **EAGLE_KEYS, "architectures": Harmless("names"), "num_hidden_layers": Followed("layers")}
TABLES = {"eagle": EITHER, "medusa": MEDUSA_KEYS, "dflash": DFLASH_KEYS}
OWNS: Mapping[str, Callable[[Mapping[str, Any], str], bool]] = {  # of a config, and its first architecture
    "eagle": lambda config, named: (
        config.get("model_type") in MODEL_TYPES and named in (*ARCHITECTURES, *ARCHITECTURES_3, "PEagleDraftModel")
    ),
    "speculators": lambda config, named: "speculators_model_type" in config,
    "medusa": lambda config, named: "medusa_num_heads" in config,
    "dflash": lambda config, named: "dflash_config" in config or named in ("DFlashDraftModel", *DSPARKS),
}


def layout_of(config: Mapping[str, Any], where: str) -> str:
    """Name of the layout of a `config.json`; `where`, the file's path, begins the error message.

    Raises:
        CrossdraftError: the layout is not supported.
    """
    for name, owns in OWNS.items():
        if owns(config, (config.get("architectures") or [""])[0]):
            return name
    kind = config.get("architectures") or config.get("model_type") or "no architecture"
    raise CrossdraftError(
        f"{where} describes {kind}, which is no head that we can read; we read the layouts of {', '.join(OWNS)}."
    )


def speculators_table(config: Mapping[str, Any]) -> Table:
    """The keys of one of speculators' files, by its algorithm."""
    return SPECULATORS.get(str(config.get("speculators_model_type")), SPECULATORS["eagle3"])


def check_new(out: Path) -> None:
    """Raise CrossdraftError if a folder to write is there already and not empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CrossdraftError(f"{out} is there already; name a new folder.")


def foreign_config(folder: Path) -> Mapping[str, Any]:
    """Read the `config.json` of another project's folder; raise CrossdraftError if it is missing or damaged."""
    if not folder.is_dir():
        raise CrossdraftError(f"{folder} is no folder; name one that holds a head's config.json and weights.")
    return read_json(folder / CONFIG)


def check_early(folder: Path, target: str) -> None:
    """Raise CrossdraftError unless a folder holds a head that can be read for a target, by their configurations."""
    config, host = foreign_config(folder), read_json(shipped_or_found(target, TARGETS) / CONFIG)
    layout, text = layout_of(config, str(folder / CONFIG)), host.get("text_config") or host
    table = speculators_table(config) if layout == "speculators" else TABLES[layout]
    sizes = {"hidden_size": text.get("hidden_size", 0), "num_layers": text.get("num_hidden_layers", 0)}
    if all(sizes.values()):
        check(config, table, sizes)
