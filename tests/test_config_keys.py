"""Each key of a foreign config: a value that is not neutral is refused by name, or does what the publisher's code does.

A plant shows that the check would notice a key that is taken without a word.
"""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from crossdraft.config_keys import Followed, Harmless, Nested, Only, check
from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert import layouts
from crossdraft.heads.convert.convert import READERS
from crossdraft.heads.convert.converter import ForeignHead
from crossdraft.heads.files import revived
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft_lab.train.heads.export import LONG, random_batch
from tests.heads.convert.folders import LEVELS, exported, host
from tests.heads.convert.publishers import POSITION, PUBLISHERS
from tests.heads.convert.test_layouts import BLOCKS, PARALLEL, block_tensors, parallel_tensors

LAYOUTS = {
    "eagle1": "eagle", "eagle": "eagle3", "speculators": "eagle3", "dflash": "dflash", "medusa": "medusa",
    "dspark": "dflash", "peagle": "eagle3",
}  # fmt: skip
CONVERTER = {"eagle1": "eagle", "dspark": "dflash", "peagle": "eagle"}  # where the layout's name is another
MADE = {  # layouts that nothing of ours writes
    "dspark": (BLOCKS["SpecForge"], block_tensors), "peagle": (PARALLEL["SpecForge"], parallel_tensors),
}  # fmt: skip
OTHERS: dict[str, Any] = {  # where "twice as much" would say nothing
    "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "layer_types": ["sliding_attention"] * 2,
    "hidden_act": "gelu",
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "eos_token_id": 3,
    "dtype": "float16",
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "initializer_range": 0.5,
    "id2label": {0: "yes"},
    "label2id": {"yes": 0},
}


SAID_BY = {  # settings whose sentence names the tensor that they do not fit
    **dict.fromkeys(
        ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"), ("The weights do",)
    ),
    "draft_vocab_size": ("lm_head.weight",),
    "num_hidden_layers": ("lacks 'layers.",),
    "dflash_config": ("The weights do",),
    "markov_rank": ("lacks 'markov_head.",),
    "vocab_size": ("'markov_w2.weight' has", "The head drafts 60 of"),
}


def other(key: str, value: Any) -> Any:
    """A value that the key does not have by default."""
    if key in OTHERS:
        return OTHERS[key]
    if value is None or isinstance(value, str | list | dict):
        return 7
    return not value if isinstance(value, bool) else value * 2 + 1


FROM_TRANSFORMERS = {
    key: other(key, value)
    for kind in (LlamaConfig, Qwen2Config, Qwen3Config)
    for key, value in kind().to_dict().items()
}
PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
PUBLISHED: dict[str, Any] = {
    "rope_parameters": PARTIAL,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "partial_rotary_factor": 0.5,
    "rope_theta": 500.0,
    "norm_before_residual": True,
    "norm_before_fc": True,
    "norm_output": True,
    "fc_norm": True,
    LEVELS: [1, 2, 3],
    "aux_hidden_states_layer_ids": [0, 1, 2],
    "aux_hidden_state_layer_ids": [0, 1, 2],
    "eagle_aux_injection_mode": "banded_mix_fc",
    "eagle_aux_layer_bands": [[1, 2], [3]],
    "eagle_config": {LEVELS: [0, 1, 2], "use_aux_hidden_state": True},
    "qk_norm": True,
    "logit_scale": 0.5,
    "sliding_window": 3,
    "target_hidden_size": 64,
    "num_target_layers": 3,
    "truncated_vocab_size": 20,
    "dflash_config": {"mask_token_id": 2, "target_layer_ids": [1, 2, 4], "attention_mode": "mla"},
    "block_size": 3,
    "is_causal": True,
    "projector_type": "dspark",
    "markov_rank": 64,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "emb_dim": 8,
    "gru_hidden_dim": 8,
    "shift_label": True,
    "sample_from_anchor": True,
    "output_multiplier": 0.5,
    "input_embedding_scale": 2.0,
    "final_logit_softcapping": 3.0,
    "quantization_config": {"bits": 4},
    "medusa_fc_bias": True,
    "conv_kernel_size": 2,
}
CASES = [*FROM_TRANSFORMERS.items(), *PUBLISHED.items()]


def of_layout(layout: str) -> ForeignHead:
    """A small head in that layout, whose config says each of its settings once."""
    if layout in MADE:
        made, tensors_of = MADE[layout]
        return ForeignHead(copy.deepcopy(made), tensors_of(made))
    more = {"layers": 1} if layout in ("dflash", "medusa") else {}
    foreign = exported(LAYOUTS[layout], CONVERTER.get(layout, layout), **more)[1]
    config = copy.deepcopy(dict(foreign.config))
    config.pop("eagle_config", None)
    layer = config.get("transformer_layer_config", config)
    if "rope_theta" in layer:
        del layer["rope_parameters"], layer["rope_scaling"]
    return ForeignHead(config, foreign.tensors)


@torch.inference_mode()
def ours(foreign: ForeignHead, layout: str) -> torch.Tensor:
    """Two drafts' logits of the imported head."""
    native = READERS[CONVERTER.get(layout, layout)](foreign, host())
    blocks = CONVERTER.get(layout, layout) == "dflash"
    settings = replace(native.config, anchors=LONG) if blocks else native.config  # a block at each position
    head = revived(native.network, settings, host().shared, native.weights)
    return torch.stack([one.logits[0, POSITION] for one in head(random_batch(head))[:2]])


def batch_of(foreign: ForeignHead, layout: str) -> TrainBatch:
    """The batch that `ours` reads."""
    return random_batch(exported(LAYOUTS[layout], CONVERTER.get(layout, layout))[0])


def changed(config: dict[str, Any], layout: str, key: str, value: Any, inner: bool) -> dict[str, Any]:
    if value is not None and key == "rope_parameters":  # one place for its angle
        config = copy.deepcopy(config)
        config.get("transformer_layer_config", config).pop("rope_theta", None)
    if key in ("aux_hidden_states_layer_ids", "eagle_config"):
        config = {name: one for name, one in config.items() if name != LEVELS}
    if inner:
        return {**config, "transformer_layer_config": {**config["transformer_layer_config"], key: value}}
    return {**config, key: value}


def imported(foreign: ForeignHead, layout: str) -> torch.Tensor | str:
    """`ours`, or the sentence that refuses it."""
    try:
        return ours(foreign, layout)
    except CrossdraftError as error:
        return str(error)


def check_key(layout: str, key: str, value: Any, *, inner: bool = False) -> str:
    """Whether the key was "refused" or "taken"; an `AssertionError` where it was taken and changed the network."""
    foreign = of_layout(layout)
    config = changed(dict(foreign.config), layout, key, value, inner)
    found = imported(ForeignHead(config, foreign.tensors), layout)
    if isinstance(found, str):
        assert any(name in found for name in (key, *SAID_BY.get(key, ()))), found
        return "refused"
    with torch.inference_mode():
        theirs = PUBLISHERS[layout](config, foreign.tensors, batch_of(foreign, layout))
    assert torch.allclose(found, theirs[: len(found)], atol=1e-3, rtol=1e-4), (
        f"{key} = {value!r} changes the publisher's network"
    )
    return "taken"


WHERE = [*((layout, False) for layout in LAYOUTS), ("speculators", True)]


@pytest.mark.parametrize(("layout", "inner"), WHERE)
@pytest.mark.parametrize(("key", "value"), CASES, ids=[f"{key}-{index}" for index, (key, _) in enumerate(CASES)])
def test_a_key_is_refused_by_name_or_does_what_the_publishers_code_does(layout, inner, key, value):
    check_key(layout, key, value, inner=inner)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_unknown_key_is_refused_whatever_its_value(layout):
    for value in (None, False, 0, "new", {"a": [1] * 1000}):
        assert check_key(layout, "a_key_of_tomorrow", value) == "refused"


@pytest.mark.parametrize(
    ("layout", "key", "value"),
    [
        ("eagle", "rope_theta", 500.0),
        ("eagle", "rms_norm_eps", 0.01),
        ("eagle", "max_position_embeddings", 4096),
        ("eagle", LEVELS, [1, 2, 3]),
        ("eagle", "norm_output", True),
        ("eagle", "norm_before_residual", True),
        ("speculators", "norm_before_residual", True),
        ("eagle", "aux_hidden_states_layer_ids", [0, 1, 2]),
        ("eagle", "eagle_config", {LEVELS: [0, 1, 2], "use_aux_hidden_state": True}),
        ("eagle", "tie_word_embeddings", True),
        ("eagle", "rope_scaling", {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True}),
        ("eagle1", "rope_theta", 500.0),
        ("eagle1", "rms_norm_eps", 0.01),
        ("speculators", LEVELS, [1, 2, 3]),
        ("dflash", "block_size", 3),
        ("dflash", "rms_norm_eps", 0.01),
        ("dflash", "is_causal", True),
        ("dspark", "sample_from_anchor", False),
        ("dspark", "block_size", 3),
        ("peagle", "norm_before_residual", True),
        ("peagle", "mask_token_id", 7),
        ("peagle", LEVELS, [1, 2, 3]),
        ("dflash", "dflash_config", {"mask_token_id": 2, "target_layer_ids": [0, 1, 2, 3, 4], "whole_prompt": True}),
    ],
)
def test_a_followed_key_is_followed(layout, key, value):
    assert check_key(layout, key, value) == "taken"


@pytest.mark.parametrize(
    ("layout", "table", "key", "value"),
    [
        ("dspark", layouts.DFLASH_KEYS, "hidden_act", "gelu"),
        ("peagle", layouts.PEAGLE_KEYS, "mlp_bias", True),
        ("eagle", layouts.EAGLE3_KEYS, "attention_bias", True),
        ("eagle", layouts.EAGLE3_KEYS, "mlp_bias", True),
        ("eagle", layouts.EAGLE3_KEYS, "hidden_act", "gelu"),
        ("eagle", layouts.EAGLE3_KEYS, "layer_types", ["sliding_attention"]),
        ("eagle1", layouts.EAGLE_KEYS, "use_sliding_window", True),
        ("dflash", layouts.DFLASH_KEYS, "attention_bias", True),
        ("dflash", layouts.DFLASH_KEYS, "output_multiplier", 0.5),
        ("dflash", layouts.DFLASH_KEYS, "input_embedding_scale", 2.0),
    ],
)
def test_a_key_that_is_wrongly_called_harmless_would_be_noticed(layout, table, key, value, monkeypatch):
    """The planted bug."""
    monkeypatch.setitem(table, key, Harmless("names"))
    with pytest.raises(AssertionError, match="changes the publisher's network"):
        check_key(layout, key, value)


@torch.inference_mode()
@pytest.mark.parametrize("layout", ["eagle", "speculators"])
@pytest.mark.parametrize("flag", ["fc_norm", "norm_before_fc"])
def test_norms_before_the_projection_are_read_as_their_publishers_do(layout, flag):
    """EAGLE-3.1's norms of each level, and gpt-oss's of all; another norm's weight is noticed."""
    foreign, levels = of_layout(layout), 3 if flag == "fc_norm" else 1
    names = [f"fc_norm.{level}.weight" for level in range(3)] if levels == 3 else ["input_norm.weight"]
    size = 3 // levels * host().hidden_size
    draws = torch.rand(levels, size, generator=torch.Generator().manual_seed(5)) + 0.5
    tensors = {**foreign.tensors, **dict(zip(names, draws, strict=True))}
    config = {**foreign.config, flag: True}
    found = ours(ForeignHead(config, tensors), layout)
    theirs = PUBLISHERS[layout](config, tensors, batch_of(foreign, layout))
    assert torch.allclose(found, theirs[: len(found)], atol=1e-3, rtol=1e-4)
    wrong = PUBLISHERS[layout](config, {**tensors, names[0]: torch.ones(size)}, batch_of(foreign, layout))
    assert not torch.allclose(found, wrong[: len(found)], atol=1e-2, rtol=1e-2)


def test_a_head_of_speculators_without_the_residuals_key_is_refused():
    foreign = of_layout("speculators")
    config = {key: value for key, value in foreign.config.items() if key != "norm_before_residual"}
    with pytest.raises(CrossdraftError, match="lacks 'norm_before_residual', which its readers then take as True"):
        ours(ForeignHead(config, foreign.tensors), "speculators")


@pytest.mark.parametrize(
    ("table", "config", "sentence"),
    [
        ({"a": Nested({"b": Only((1,))})}, {"a": {"b": 2}}, "a.b = 2; networks of ours can only follow 1"),
        (
            {"a": Nested({"b": Only((1,))}, many=True)},
            {"a": [{"b": 1}, {"c": 2}]},
            "a.c = 2, a key that we do not know",
        ),
        ({"a": Nested({"b": Followed("eps")})}, {"a": [{"b": 1}]}, "a = .* must hold keys and values"),
        ({"w": Only((None,), unless="on"), "on": Only((False,))}, {"w": 64}, "w = 64"),
    ],
)
def test_nested_keys_are_named_with_those_above(table, config, sentence):
    with pytest.raises(CrossdraftError, match=sentence):
        check(config, table, {})


def test_a_window_is_off_where_its_switch_is():
    table = {"w": Only((None,), unless="on"), "on": Only((False,))}
    check({"w": 64, "on": False}, table, {})
    check({"w": None}, table, {})


@pytest.mark.parametrize("table", [layouts.EAGLE_KEYS, layouts.EAGLE3_KEYS, layouts.DFLASH_KEYS, layouts.MEDUSA_KEYS])
def test_no_key_of_the_network_is_called_harmless(table):
    shapes = {"hidden_size", "vocab_size", "num_hidden_layers", "rope_parameters", "rope_scaling"}
    assert not any(isinstance(table[key], Harmless) for key in shapes & table.keys())
