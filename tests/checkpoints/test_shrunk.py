"""Configurations of real sizes, shrunk: what decides over masks, positions and caches stays."""

import torch
import transformers

from crossdraft.checkpoints.shrunk import ORDINARY, shrunk, shrunk_ids, shrunk_model


def test_a_decoder_keeps_its_kinds_of_layers_its_heads_and_its_rotation():
    config = transformers.Qwen2_5_VLConfig(
        text_config={
            "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
            "vocab_size": 152064, "rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24]},
        },
        vision_config={"out_hidden_size": 3584, "fullatt_block_indexes": [7, 15, 23, 31]},
    )  # fmt: skip
    small = shrunk(config)
    text, vision = small.text_config, small.vision_config
    assert text.hidden_size // text.num_attention_heads == 128  # so that the rotation's sections fit
    assert (text.num_attention_heads, text.num_key_value_heads) == (4, 2)
    assert text.rope_parameters == config.text_config.rope_parameters
    assert vision.out_hidden_size == text.hidden_size
    assert (vision.patch_size, vision.window_size, vision.spatial_merge_size) == (14, 112, 2)
    assert vision.fullatt_block_indexes == [2, 3]
    assert vision.depth == 4


def test_each_kind_of_layer_stays_in_its_order():
    gemma = shrunk(transformers.Gemma3Config()).text_config
    assert gemma.layer_types == ["sliding_attention", "full_attention", "sliding_attention"]
    assert gemma.sliding_window == 8
    gemma4 = transformers.Gemma4TextConfig(num_hidden_layers=35, num_kv_shared_layers=20, layer_types=None)
    small = shrunk(gemma4)
    borrowed = small.layer_types[-small.num_kv_shared_layers :]
    assert {*borrowed} == {*small.layer_types[: -small.num_kv_shared_layers]} == {*gemma4.layer_types}
    experts = shrunk(transformers.DeepseekV3Config())
    assert (experts.first_k_dense_replace, experts.n_routed_experts, experts.num_experts_per_tok) == (1, 4, 2)
    assert experts.num_hidden_layers == 3
    assert (experts.qk_rope_head_dim, experts.qk_nope_head_dim, experts.v_head_dim) == (64, 128, 128)


def test_named_ids_keep_their_meaning():
    config = transformers.LlavaConfig(image_token_index=31999)
    small = shrunk(config)
    ids = shrunk_ids(config, torch.tensor([1, 450, 31999, 7]))
    assert ids[2] == small.image_token_id >= ORDINARY
    assert ids[0] == small.text_config.bos_token_id
    assert ids.max() < small.text_config.vocab_size


def test_a_model_is_the_same_each_time_and_the_caller_s_random_numbers_stay():
    torch.manual_seed(3)
    following = torch.rand(1)
    torch.manual_seed(3)
    one, two = (
        shrunk_model(transformers.AutoModelForCausalLM, transformers.Gemma2Config(), torch.float64) for _ in range(2)
    )
    assert torch.rand(1) == following
    assert all(torch.equal(a, b) and a.any() for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert one.config._attn_implementation == "eager"  # its class has no sdpa
    assert sum(weight.numel() for weight in one.parameters()) < 5e6
