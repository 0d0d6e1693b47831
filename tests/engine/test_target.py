import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from crossdraft.engine.conformance import PARENTS, check_conformance
from crossdraft.engine.own_forward import TOKEN_TYPES, OwnForward
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.prompt import Prompt, VisualItem
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from tests.engine.zoo import IMAGES, KIN, VIDEO, ZOO, as_target

TOKENS = range(20, 20 + len(PARENTS))


@pytest.mark.parametrize("name", ZOO | IMAGES | KIN)
def test_conformance_in_float64(name):
    model, prompt = (ZOO | IMAGES | KIN)[name]()
    found = check_conformance(as_target(model, prompt), prompt, TOKENS)
    # GLM-4.5V's router computes in float32 whatever the model is.
    assert found.passes(1e-5 if name == "glm4v_moe" else 1e-10), found


@pytest.mark.parametrize("name", ZOO)
def test_conformance_without_anything_visual(name):
    """The whole prompt is one piece then, and takes the fast path where there is one."""
    model, prompt = ZOO[name]()
    ids = prompt.input_ids[[token not in as_target(model, prompt).reserved for token in prompt.input_ids.tolist()]]
    text = Prompt(ids)
    found = check_conformance(as_target(model, text), text, TOKENS)
    assert found.passes(1e-10), found


@pytest.mark.parametrize("name", ZOO)
@torch.inference_mode()
def test_a_prompt_that_ends_with_a_visual_token_keeps_its_feature(name):
    """Against the model's own passes, over the prompt and over the chain that rides along here."""
    model, prompt = ZOO[name]()
    visual = torch.isin(prompt.input_ids, torch.tensor(sorted(as_target(model, prompt).traits.visual_ids)))
    last = int(visual.nonzero()[-1])
    features = dict(prompt.features)
    features |= {types: features[types][:, : last + 1] for types in features.keys() & TOKEN_TYPES}
    ended = Prompt(prompt.input_ids[: last + 1], features)
    target = as_target(model, prompt)
    (piece,), offset = target.chunks(ended, target.encode(ended))
    cache = target.new_cache()
    cache.rope_deltas[cache.add_row(256)] = offset
    found = target.extend(cache, [PassRow(0, piece, DraftTree.chain([20, 21]))]).logits[0]

    out = model(input_ids=ended.input_ids[None], **features, use_cache=True)
    nodes = model(input_ids=torch.tensor([[20, 21]]), past_key_values=out.past_key_values, use_cache=True)
    expected = torch.cat([out.logits[0, -1:], nodes.logits[0]])
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


@torch.inference_mode()
def test_a_hooked_decoder_takes_its_own_forward():
    """Whoever changes what a layer does must see it in every pass, not in the prefill alone."""
    model, prompt = ZOO["video_llava"]()
    layer = model.model.language_model.layers[1]
    handle = layer.register_forward_hook(lambda module, given, out: 0.5 * out)
    found = check_conformance(as_target(model, prompt), prompt, TOKENS)
    handle.remove()
    assert found.passes(1e-10), found


@torch.inference_mode()
def test_what_a_hook_was_shown_is_not_written_over():
    model, prompt = ZOO["video_llava"]()
    gate = model.model.language_model.layers[1].mlp.act_fn
    shown = []
    handle = gate.register_forward_hook(lambda module, given, out: shown.append((given[0], out)))
    check_conformance(as_target(model, prompt), prompt, TOKENS)
    handle.remove()
    assert shown
    assert all(torch.equal(gate(given), out) for given, out in shown)


@pytest.mark.parametrize("name", ["video_llava", "qwen2_5_vl", "gemma3"])
def test_conformance_with_an_additive_mask(name):
    model, prompt = ZOO[name]("eager")  # its softmax is float32 whatever the model is
    found = check_conformance(as_target(model, prompt), prompt, TOKENS)
    assert found.passes(1e-5), found


@pytest.mark.parametrize("name", ZOO)
def test_conformance_where_the_model_must_encode_for_itself(name):
    """As under transformers 5.17, whose forward takes no encoded features."""
    model, prompt = ZOO[name]()
    target = as_target(model, prompt)
    target.traits = replace(target.traits, takes_encoded=False)
    target.passes = replace(target.passes, traits=target.traits)
    target._own = OwnForward(target.passes)
    found = check_conformance(target, prompt, TOKENS)
    assert found.passes(1e-10), found
    visual = sum(token in target.traits.visual_ids for token in prompt.input_ids.tolist())
    listed = replace(prompt, items=(VisualItem(0, visual, prompt.features),))  # as every clip of a request is
    assert check_conformance(target, listed, TOKENS).passes(1e-10)


def test_captured_features_are_the_models_own():
    model, prompt = ZOO["video_llava"]()
    target = as_target(model, prompt)
    cache = target.new_cache()
    cache.add_row(128)
    encoded = target.encode(prompt)
    pieces, _ = target.chunks(prompt, encoded)
    out = [target.extend(cache, [PassRow(0, piece, capture=(1, -1))]) for piece in pieces]
    found = [torch.cat(parts) for parts in zip(*(each.hidden[0] for each in out), strict=True)]
    whole = model(
        prompt.input_ids[None],
        pixel_values_videos=prompt.features["pixel_values_videos"].double(),
        output_hidden_states=True,
    )
    for layer, mine in zip((1, -1), found, strict=True):
        assert (mine - whole.hidden_states[layer][0]).abs().max() < 1e-12


def test_a_prompt_is_cut_behind_its_last_visual_token():
    model, prompt = ZOO["video_llava"]()
    target = as_target(model, prompt)
    pieces, offset = target.chunks(prompt, {})
    assert [len(piece.tokens) for piece in pieces] == [3 + 40, 3]
    assert offset == 0
    text_only, _ = target.chunks(Prompt(torch.tensor([1, 5, 6])), None)
    assert len(text_only) == 1
    ends_visual, _ = target.chunks(Prompt(torch.tensor([1, VIDEO, VIDEO])), {})
    assert [piece.tokens.tolist() for piece in ends_visual] == [[1, VIDEO, VIDEO]]
    assert ends_visual[0].encoded is not None


def test_visual_placeholders_are_reserved():
    model, prompt = ZOO["video_llava"]()
    assert {97, 98} <= as_target(model, prompt).reserved


def test_attention_that_cannot_express_a_tree_is_refused():
    model, prompt = ZOO["video_llava"]()
    model.config.get_text_config()._attn_implementation = "flash_attention_2"
    with pytest.raises(CrossdraftError, match="cannot express a tree"):
        as_target(model, prompt)


@pytest.mark.parametrize("name", ["qwen2_5_vl", "video_llava", "llava_onevision"])
def test_ragged_rows_equal_rows_alone(name):
    """By the executors `hf` and `fast`: what pads a row is nobody's business."""
    model, prompt = ZOO[name]()
    target = as_target(model, prompt)
    trees = [DraftTree((20, 21, 22), (-1, 0, 0)), DraftTree.empty(), DraftTree.chain([30])]
    chunks = [Chunk(torch.tensor([11])), Chunk(torch.tensor([12, 13])), Chunk(torch.tensor([14]))]

    def prefilled(rows):
        cache = target.new_cache(max_rows=rows)
        for row in range(rows):
            cache.add_row(128)
            pieces, cache.rope_deltas[row] = target.chunks(prompt, target.encode(prompt))
            for piece in pieces:
                target.extend(cache, [PassRow(row, piece)])
        return cache

    layers, cache = (0, 1, -1), prefilled(3)
    rows = [PassRow(row, *one, capture=layers) for row, one in enumerate(zip(chunks, trees, strict=True))]
    together = target.extend(cache, rows)
    assert together.width == pytest.approx((4 + 2 + 2) / 3)
    for row in range(3):
        own = prefilled(1)
        alone = target.extend(own, [replace(rows[row], index=0)])
        assert together.logits[row].shape == alone.logits[0].shape
        assert (together.logits[row] - alone.logits[0]).abs().max() < 1e-12
        for found, expected in zip(together.hidden[row], alone.hidden[0], strict=True):
            assert found.shape == expected.shape
            assert (found - expected).abs().max() < 1e-12
        assert cache.lengths[row] == own.lengths[0]
        end = own.lengths[0] + len(trees[row])
        for layer, one in zip(cache.layers, own.layers, strict=True):
            assert (layer.keys[row, :, :end] - one.keys[0, :, :end]).abs().max() < 1e-12
            assert (layer.values[row, :, :end] - one.values[0, :, :end]).abs().max() < 1e-12


@pytest.mark.parametrize("pasts", [(3, 3), (5, 2), (0, 4)])
def test_who_may_attend_to_what_row_by_row(pasts):
    """The mask is built in one go; here it is computed again position by position."""
    model, prompt = ZOO["video_llava"]()
    target = as_target(model, prompt)
    cache = target.new_cache(max_rows=2)
    trees = [DraftTree.from_paths([[5, 6, 7], [5, 8], [9]]), DraftTree.chain([5, 6])]
    chunks = [Chunk(torch.tensor([1, 2])), Chunk(torch.tensor([3]))]
    for past in pasts:
        cache.lengths[cache.add_row(32)] = past
    width = max(len(chunk.tokens) + len(tree) for chunk, tree in zip(chunks, trees, strict=True))
    keys = cache.open_window(slice(0, 2), width).end
    rows = [PassRow(row, *one) for row, one in enumerate(zip(chunks, trees, strict=True))]
    mask = target.passes.mask(cache, rows, width, keys)
    assert mask.shape == (2, 1, width, keys)
    for row, (past, chunk, tree) in enumerate(zip(pasts, chunks, trees, strict=True)):
        m = len(chunk.tokens)
        for query in range(m + len(tree)):
            node = query - m
            seen = set(range(past + min(query + 1, m)))
            if node >= 0:
                seen |= {past + m + above for above in tree.path(node)}
            assert mask[row, 0, query].nonzero().flatten().tolist() == sorted(seen), (row, query)


def test_nobody_subclasses_it():
    """Pyright, which sees it is final, does not read the tests."""
    declared = re.compile(r"^ *class \w+\(.*\bTarget\b.*\):", re.MULTILINE)
    tests = Path(__file__).parents[1]
    assert [str(path) for path in tests.rglob("*.py") if declared.search(path.read_text())] == []
