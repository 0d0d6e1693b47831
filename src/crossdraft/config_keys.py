"""Allow-lists for other projects' `config.json`: what is done with each key of a layout.

A model whose config asks for something that our network does not do answers or drafts badly, without an error. So a
key is *followed*, known to change no logit, accepted with the values that our networks have anyway, or refused by name;
one that stands in no table is refused, whatever its value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as short
from typing import Any, Literal

from crossdraft.errors import CrossdraftError

Why = Literal["names", "tokens", "training", "dtype", "program", "tensors", "windows", "text", "drafting"]


@dataclass(frozen=True)
class Followed:
    """A key whose value becomes the field `field` of our network's configuration."""

    field: str


@dataclass(frozen=True)
class OfTarget:
    """A key that holds a size of the target, and must be this target's; null = not said."""

    size: Literal["hidden_size", "num_layers"]


@dataclass(frozen=True)
class Harmless:
    """A key that changes no logit.

    Args:
        why: it names things, numbers tokens, is about training, about the stored dtype, about what another program
            keeps or returns, is decided by the tensors, is about sliding windows that are off, about rows that are no
            text, or about how another program drafts.
    """

    why: Why


@dataclass(frozen=True)
class Only:
    """A key that our networks follow with these values alone.

    Args:
        values: allowed values of the key, or with `each`, of every item of its list.
        absent: readers' default for a missing key, if not among `values`; `None` = the key may be missing.
        unless: another key that switches this key off if present and false.
    """

    values: tuple[Any, ...]
    each: bool = False
    absent: Any = None
    unless: str | None = None

    def allow(self, value: object) -> bool:
        """True if our networks support the value."""
        if self.each and isinstance(value, list):
            return all(item in self.values for item in value)
        return value in self.values


@dataclass(frozen=True)
class Nested:
    """A key that holds a table of its own, or a list of such where `many`; null = empty."""

    keys: "Table"
    many: bool = False


Rule = Followed | OfTarget | Harmless | Only | Nested
Table = Mapping[str, Rule]


def check(config: Mapping[str, Any], table: Table, sizes: Mapping[str, int], where: str = "") -> None:
    """Refuse a config that has a key outside the table, or a value that our networks do not follow.

    Args:
        config: the other project's config.
        table: table of the config's layout.
        sizes: the target's sizes, for `OfTarget`.
        where: the enclosing keys, each followed by a dot.

    Raises:
        CrossdraftError: there is such a key; the message names it with its value.
    """
    for key, rule in table.items():
        if key not in config and isinstance(rule, Only) and rule.absent is not None:
            raise CrossdraftError(
                f"The checkpoint's config.json lacks '{where}{key}', which its readers then take as {rule.absent!r}; "
                f"networks of ours can only follow {_listed(rule.values)}. If the head was trained so, add the key."
            )
    for key, value in config.items():
        _check_one(key, value, config, table, sizes, where)


def _check_one(
    key: str, value: object, config: Mapping[str, Any], table: Table, sizes: Mapping[str, int], where: str
) -> None:
    found = f"The checkpoint's config.json has {where}{key} = {short(value)}"
    match table.get(key):
        case None:
            raise CrossdraftError(
                f"{found}, a key that we do not know and that may change the network; use the program that wrote "
                "it, or take the key out if it changes nothing."
            )
        case Only() as rule if not rule.allow(value) and not (rule.unless and config.get(rule.unless) is False):
            raise CrossdraftError(
                f"{found}; networks of ours can only follow {_listed(rule.values)}. Use the program that wrote it."
            )
        case OfTarget(size) if value is not None and value != sizes[size]:
            raise CrossdraftError(
                f"The checkpoint was made for a target whose {where}{key} is {short(value)}; this one's is "
                f"{sizes[size]}. Name its own."
            )
        case Nested(keys, many) if value is not None:
            for inner in value if many and isinstance(value, list) else [value]:
                if not isinstance(inner, Mapping):
                    raise CrossdraftError(f"{found}, which must hold keys and values; is it whole?")
                check(inner, keys, sizes, f"{where}{key}.")
        case _:
            pass


def _listed(values: tuple[Any, ...]) -> str:
    return " or ".join(map(repr, values))


def value_at(config: Mapping[str, Any], path: str) -> Any:
    """Return the value of a key, or of a key inside another (`outer.inner`); `None` if it is missing."""
    outer, _, inner = path.rpartition(".")
    return ((config.get(outer) or {}) if outer else config).get(inner)


def agreed(found: Mapping[str, Any]) -> Any:
    """Return the one value that several keys share; `None` if all are null.

    Raises:
        CrossdraftError: two of the keys contradict each other; both are named.
    """
    (first, value), *rest = [(path, value) for path, value in found.items() if value is not None] or [("", None)]
    for path, other in rest:
        if other != value:
            raise CrossdraftError(
                f"The checkpoint's config.json says {first} = {short(value)} and {path} = {short(other)}; take out the "
                "one that the head was not trained with."
            )
    return value


def _harmless(why: Why, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), Harmless(why))


# What `transformers` writes into the config of any model, in its releases 4 and 5.
PRETRAINED: Table = {
    **_harmless(
        "names",
        "_name_or_path name_or_path transformers_version auto_map finetuning_task task_specific_params tokenizer_class "
        "id2label label2id num_labels problem_type prefix modal_type",
    ),
    **_harmless(
        "tokens",
        "bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id image_token_id video_token_id "
        "vision_start_token_id vision_end_token_id",
    ),
    **_harmless("dtype", "dtype torch_dtype"),
    **_harmless("training", "initializer_range attention_dropout"),
    **_harmless(
        "program",
        "use_cache output_attentions output_hidden_states return_dict use_return_dict torchscript use_bfloat16 "
        "tf_legacy_loss attn_implementation _attn_implementation _attn_implementation_autoset base_model_tp_plan "
        "base_model_pp_plan base_model_ep_plan has_no_defaults_at_init chunk_size_feed_forward",
    ),
    **_harmless(
        "drafting",
        "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k "
        "top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size "
        "bad_words_ids num_return_sequences output_scores return_dict_in_generate forced_bos_token_id "
        "forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens "
        "begin_suppress_tokens",
    ),
    "is_encoder_decoder": Only((False, None)),
    "is_decoder": Only((False, None)),
    "add_cross_attention": Only((False, None)),
    "cross_attention_hidden_size": Only((None,)),
    "tie_encoder_decoder": Only((False, None)),
    "pruned_heads": Only(({}, None)),
    "quantization_config": Only((None,)),
}

ROPE: Table = {
    "rope_type": Only(("default", "mrope")),
    "type": Only(("default", "mrope")),
    "rope_theta": Followed("rope_theta"),
    "partial_rotary_factor": Only((1, None)),
    # Our heads read text, whose temporal, height and width positions are one number: M-RoPE is plain there.
    "mrope_section": Harmless("text"),
    "mrope_interleaved": Harmless("text"),
}

# The settings of a decoder layer, as Llama's and Qwen's configs in `transformers` have them.
DECODER: Table = {
    **PRETRAINED,
    "hidden_size": OfTarget("hidden_size"),
    "vocab_size": Followed("draft_ids"),  # may be padded otherwise than the target's
    "intermediate_size": Followed("intermediate_size"),
    "num_attention_heads": Followed("heads"),
    "num_key_value_heads": Followed("kv_heads"),
    "head_dim": Followed("head_dim"),
    "max_position_embeddings": Followed("max_positions"),
    "rms_norm_eps": Followed("eps"),
    "rope_theta": Followed("rope_theta"),
    "rope_parameters": Nested(ROPE),
    "rope_scaling": Nested(ROPE),
    "partial_rotary_factor": Only((1, None)),
    "hidden_act": Only(("silu",)),
    "attention_bias": Only((False, None)),
    "mlp_bias": Only((False, None)),
    "qkv_bias": Only((False, None)),
    "pretraining_tp": Only((1, None)),
    "tie_word_embeddings": Harmless("tensors"),
    "layer_types": Only(("full_attention", None), each=True),
    "use_sliding_window": Only((False, None)),
    "sliding_window": Only((None,), unless="use_sliding_window"),
    "max_window_layers": Harmless("windows"),
}

# What the configs of LLaVA's and Qwen2-VL's heads keep of their targets' vision encoders, which heads do not run.
VISION: Table = _harmless(
    "program",
    "vision_config vision_token_id image_aspect_ratio image_grid_pinpoints freeze_mm_mlp_adapter "
    "freeze_mm_vision_resampler mm_hidden_size mm_projector_type mm_resampler_type mm_use_im_patch_token "
    "mm_use_im_start_end mm_vision_select_feature mm_vision_select_layer mm_vision_tower tune_mm_mlp_adapter "
    "tune_mm_vision_resampler unfreeze_mm_vision_tower use_mm_proj",
)
