"""The executor `fast` against the model's own forward: the same bits, wherever both may be asked."""

from dataclasses import replace

import pytest
import torch

from crossdraft.engine.fast.forward import CAUSAL_ROWS, PACKED, FastDecoder, attend, mask_bias
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.tree import DraftTree
from tests.engine.zoo import KIN, ZOO, as_target

SHOWS = ("video_llava", "llava_next_video", "llava_onevision", "internvl", "smolvlm", "eventgpt", "qwen2_5_vl")
FAST = (*SHOWS, "qwen2_vl", "llava_onevision_qwen3", "qwen3_vl")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FAST)
@torch.inference_mode()
def test_logits_and_hidden_states_are_the_models_own_to_the_bit(name, dtype):
    model, prompt = (ZOO | KIN)[name]()
    target = as_target(model.to(dtype), prompt)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])
    cache = target.new_cache()
    cache.add_row(64)
    row = PassRow(0, Chunk(ids[0, :5]), DraftTree.chain(ids[0, 5:].tolist()), capture=(-1,))
    logits, layer = target.fast(target.passes.build(cache, [row]), cache)
    own = model(input_ids=ids, use_cache=False, output_hidden_states=True, logits_to_keep=3)
    assert torch.equal(logits, own.logits[0])
    assert all(torch.equal(layer(number), its[0]) for number, its in enumerate(own.hidden_states))


@pytest.mark.parametrize("name", sorted(set(ZOO) - set(FAST)))
def test_other_anatomies_keep_their_own_forward(name):
    assert as_target(*ZOO[name]()).fast is None


@torch.inference_mode()
def test_a_decoder_that_adds_visual_features_to_several_layers_reads_them_by_its_own_forward(monkeypatch):
    model, prompt = ZOO["qwen3_vl"]()
    target, sizes = as_target(model, prompt), []
    monkeypatch.setattr(
        FastDecoder,
        "__call__",
        lambda self, one, cache, own=FastDecoder.__call__: (sizes.append(len(one.ids)), own(self, one, cache))[1],
    )
    cache = target.new_cache()
    cache.add_row(128)
    pieces = target.chunks(prompt, target.encode(prompt), whole=True)[0]
    for piece in pieces:
        target.extend(cache, [PassRow(0, piece)])
    assert sizes == [len(pieces[1].tokens)]


def test_states_that_were_once_asked_of_the_model_leave_it_usable():
    """`transformers` then keeps hooks that record nothing more; those of others do something."""
    model, prompt = ZOO["qwen3_vl"]()
    target = as_target(model, prompt)
    model(input_ids=torch.tensor([[5, 6, 7]]), output_hidden_states=True)
    assert any(layer._forward_hooks for layer in target.fast.text.layers)
    assert target.fast.usable
    target.fast.text.layers[0].register_forward_hook(lambda *_: None)
    assert not target.fast.usable


def first_piece(name, dtype, *, skip=False, own=False):
    """Logits, keys and values of a prompt's first piece.

    Args:
        skip: nobody asks for its logits.
        own: it is read by the model's own forward.
    """
    model, prompt = ZOO[name]()
    target = as_target(model.to(dtype), prompt)
    piece = target.chunks(prompt, target.encode(prompt))[0][0]
    cache = target.new_cache()
    cache.add_row(128)
    target.fast = None if own else target.fast
    out = target.extend(cache, [PassRow(0, replace(piece, skip_logits=skip))])
    length = cache.lengths[0]
    return out.logits[0], [
        part[:, :, :length].clone() for layer in cache._stores for part in (layer.keys, layer.values)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SHOWS)
def test_a_piece_that_nobody_asks_about_leaves_the_same_keys_and_values(name, dtype):
    answer, asked = first_piece(name, dtype, own=True)
    nothing, unasked = first_piece(name, dtype, skip=True)
    assert len(answer) == 1
    assert len(nothing) == 0  # so it was read the short way
    assert all(torch.equal(mine, its) for mine, its in zip(unasked, asked, strict=True))


@pytest.mark.parametrize("name", SHOWS)
def test_of_a_piece_that_ends_a_prompt_the_last_token_alone_goes_through_the_last_layer(name, monkeypatch):
    """Its logits are the model's own; keys and values are the same to the bit."""
    (answer,), asked = first_piece(name, torch.float64, own=True)
    rests = []
    monkeypatch.setattr(
        FastDecoder,
        "after_attention",
        lambda self, layer, stream, mixed, own=FastDecoder.after_attention: (
            rests.append(len(stream)),
            own(self, layer, stream, mixed),
        )[1],
    )
    (mine,), kept = first_piece(name, torch.float64)
    assert (mine - answer).abs().max() < 1e-12
    assert all(torch.equal(one, its) for one, its in zip(kept, asked, strict=True))
    assert rests[-1] == 1 < rests[0]


def test_features_that_are_not_as_many_as_their_placeholders_are_the_models_own_business():
    model, prompt = ZOO["video_llava"]()
    target = as_target(model, prompt)
    encoded = target.encode(prompt)
    piece = target.chunks(prompt, encoded)[0][0]
    cache = target.new_cache()
    cache.add_row(128)
    short = replace(piece, tokens=piece.tokens[:-1], encoded=encoded)
    with pytest.raises(ValueError, match="do not match"):  # as transformers says it
        target.extend(cache, [PassRow(0, short)])


@pytest.mark.parametrize("masked_groups", [True, False])  # as on a CPU, and on CUDA
@pytest.mark.parametrize("queries", [1, 5, PACKED, PACKED + 1])
@pytest.mark.parametrize("rows", [1, 3])
def test_grouped_heads_attend_as_the_plain_formula_says(rows, queries, masked_groups):
    """In double precision; the heads of few tokens are the kernel's one head, and CUDA's has groups or a bias."""
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(rows, queries, 6, 8, dtype=torch.float64, generator=draw).transpose(1, 2)
    keys, values = torch.randn(2, rows, 2, 11, 8, dtype=torch.float64, generator=draw)
    seen = torch.rand(rows, 1, queries, 11, generator=draw) < 0.5
    seen[..., 0] = True
    asked = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def kernel(query, keys, *others, enable_gqa=False, **settings):
        asked.append((query.shape[1], keys.shape[1], enable_gqa))
        return plain(query, keys, *others, enable_gqa=enable_gqa, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", kernel)
        for shown in (seen, None):
            bias = None if shown is None else mask_bias(query, shown)
            found = attend(query, keys, values, bias, causal=False, scale=0.3, masked_groups=masked_groups)
            scores = 0.3 * query @ keys.repeat_interleave(3, 1).transpose(-1, -2)
            weights = (scores if shown is None else scores.masked_fill(~shown, float("-inf"))).softmax(-1)
            assert found.shape == query.shape
            assert (found - weights @ values.repeat_interleave(3, 1)).abs().max() < 1e-14
    packed, grouped, repeated = (2, 2, False), (6, 2, True), (6, 6, False)
    if masked_groups:
        assert asked == [packed if queries <= PACKED else grouped] * 2
    else:
        assert asked == [packed if queries == 1 else repeated, grouped]


@pytest.mark.parametrize("count", [2, CAUSAL_ROWS, CAUSAL_ROWS + 1, 2 * CAUSAL_ROWS, 3 * CAUSAL_ROWS - 5])
@pytest.mark.parametrize("groups", [1, 3])
def test_a_first_pass_attends_part_by_part_as_at_once(count, groups):
    """Each query sees the keys up to its own, and no other: by the plain formula, in double precision."""
    draw = torch.Generator().manual_seed(count)
    query = torch.randn(1, 2 * groups, count, 8, dtype=torch.float64, generator=draw)
    keys, values = torch.randn(2, 1, 2, count + 7, 8, dtype=torch.float64, generator=draw)[:, :, :, :count]
    found = attend(query, keys, values, None, causal=True, scale=0.3)
    wide, wide_values = (one.repeat_interleave(groups, 1) for one in (keys, values))
    later = torch.ones(count, count, dtype=torch.bool).triu(1)
    weights = (0.3 * query @ wide.transpose(-1, -2)).masked_fill(later, float("-inf")).softmax(-1)
    assert found.shape == query.shape
    assert (found - weights @ wide_values).abs().max() < 1e-12
