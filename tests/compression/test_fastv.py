"""FastV against its plain algorithm on the model's own layers, and under drafting."""

import copy
import sys
from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache

from crossdraft.compressions import compressed
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.drafters.ngram.drafter import NgramDrafter
from crossdraft.engine.drafter import Needs
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.prefill import prefill
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.compression.fastv import FastVSettings, fastv_target, seen_tokens
from tests.engine.scripted import Scripted
from tests.engine.zoo import ZOO, as_target, noisy
from tests.support import encodes_clips

REQUEST = Request("xx", max_new_tokens=20)
STEPS = 12


@pytest.fixture(scope="module")
def plain():
    model, prompt = ZOO["video_llava"]()
    return as_target(model.double(), prompt)


def fastv_by_layers(target, layer: int, keep: float, steps: int) -> tuple[torch.Tensor, list[int], torch.Tensor]:
    """The algorithm as published: after `layer` layers hidden states are pruned, each layer's cache has its own length.

    Returns the logits after the prompt, the greedy tokens, and the positions that are kept.
    """
    model = copy.deepcopy(target.model)
    text = model.base_model.language_model
    text.config._attn_implementation = "eager"
    prompt = target.prepare(REQUEST)
    ids = prompt.input_ids
    features = model.base_model.get_video_features(prompt.features["pixel_values_videos"].double(), return_dict=True)
    hidden = text.embed_tokens(ids[None])
    visual = torch.isin(ids, torch.tensor(sorted(target.traits.visual_ids))).nonzero().flatten()
    hidden[0, visual] = features.pooler_output.reshape(-1, hidden.shape[-1])
    positions, cache, kept, tokens, paid = torch.arange(len(ids)), DynamicCache(), torch.arange(len(ids)), [], []
    for step in range(steps):
        for number, block in enumerate(text.layers):
            if step == 0 and number == layer:
                best = visual[paid[layer - 1].mean(1)[0, -1, visual].topk(int(len(visual) * keep)).indices]
                others = [position for position in range(len(ids)) if position not in visual]
                kept = torch.cat((torch.tensor(others), best)).sort().values
                hidden, positions = hidden[:, kept], kept
            n = hidden.shape[1]
            mask = torch.full((n, n), -torch.inf, dtype=hidden.dtype).triu(1)[None, None] if n > 1 else None
            turn = text.rotary_emb(hidden, positions[None])
            shared = {"attention_mask": mask, "position_embeddings": turn}
            if step == 0:  # the weights alone: without the cache
                paid.append(block.self_attn(block.input_layernorm(hidden), **shared)[1])
            hidden = block(hidden, past_key_values=cache, **shared)
        logits = model.lm_head(text.norm(hidden))[0, -1]
        if step == 0:
            first = logits
        tokens.append(int(logits.argmax()))
        hidden = text.embed_tokens(torch.tensor([tokens[-1:]]))
        positions = torch.tensor([len(ids) + step])
    return first, tokens, kept


def answer(target, drafter=None, request=REQUEST, rule=None):
    runner = None if drafter is None else DraftRunner(drafter, "before")
    return DecodeLoop(target, runner, rule=rule, adaptive=False).generate([request])[0]


def test_the_best_visual_tokens_are_kept_in_order():
    attention, visual = torch.tensor([0.1, 0.4, 0.2, 0.3]), torch.tensor([2, 3, 4, 6])
    assert seen_tokens(attention, visual, 8, 0.5).tolist() == [0, 1, 3, 5, 6, 7]
    assert seen_tokens(attention, visual, 8, 0.49).tolist() == [0, 1, 3, 5, 7]  # 1.96 of four is one
    assert seen_tokens(attention, visual, 8, 1.0).tolist() == list(range(8))


@encodes_clips
@pytest.mark.parametrize(("layer", "keep"), [(1, 0.5), (2, 0.25), (2, 0.75)])
def test_it_writes_what_the_published_algorithm_writes(plain, layer, keep):
    alone = answer(plain).tokens
    logits, tokens, kept = fastv_by_layers(plain, layer, keep, STEPS)
    assert len(kept) < len(plain.prepare(REQUEST))
    target = fastv_target(plain, FastVSettings(layer, keep))
    prompt = target.prepare(REQUEST)
    read = prefill(target, target.new_cache(), prompt, target.encode(prompt), 200)
    assert torch.allclose(read.logits[0][0], logits, atol=1e-5)  # norms are computed in float32
    assert list(answer(target).tokens)[:STEPS] == tokens[: len(answer(target).tokens)]
    assert answer(plain).tokens == alone  # the target it was made of is what it was


@encodes_clips
def test_keeping_everything_changes_nothing(plain):
    whole, other = fastv_target(plain, FastVSettings(1, 1.0)), fastv_target(plain, FastVSettings(1, 0.25))
    prompt = plain.prepare(REQUEST)
    rows = [
        prefill(one, one.new_cache(), prompt, one.encode(prompt), 200).logits[0][0] for one in (plain, whole, other)
    ]
    assert torch.allclose(rows[0], rows[1], atol=1e-9)
    assert (rows[0] - rows[2]).abs().max() > 1e-3
    assert answer(whole).tokens == answer(plain).tokens


@encodes_clips
def test_a_tree_rides_along_and_drafts_are_lossless_to_the_compressed_target(plain):
    target = fastv_target(plain, FastVSettings(1, 0.5))
    alone = answer(target)
    for drafter in (
        IndependentDrafter(as_target(noisy(copy.deepcopy(plain.model), 0.02), plain.prepare(REQUEST))),
        NgramDrafter(),
    ):
        drafted = answer(target, drafter)
        assert drafted.tokens == alone.tokens
        assert drafted.stats.drafted > 0


@encodes_clips
def test_a_branching_tree_of_the_prompt_s_own_pass(plain):
    """Each node's logits are those after its own path, read token by token."""
    target = fastv_target(plain, FastVSettings(1, 0.5))
    prompt = target.prepare(REQUEST)
    encoded = target.encode(prompt)
    tree = DraftTree((5, 6, 7), (-1, -1, 0))
    read = prefill(target, target.new_cache(), prompt, encoded, 200, tree)
    chain = prefill(target, target.new_cache(), prompt, encoded, 200, DraftTree.chain([5, 7]))
    assert torch.allclose(read.logits[0][[0, 1, 3]], chain.logits[0], atol=1e-9)


@encodes_clips
def test_several_requests_in_a_batch_are_answered_as_alone(plain):
    target = fastv_target(plain, FastVSettings(1, 0.5))
    requests = [replace(REQUEST, max_new_tokens=most) for most in (4, 20, 9)]
    decoder = DecodeLoop(target, None, max_batch=3)
    expected = answer(target).tokens
    assert [found.tokens for found in decoder.generate(requests)] == [expected[: r.max_new_tokens] for r in requests]


@encodes_clips
def test_drafters_that_look_into_it_get_the_visual_features_by_themselves(plain):
    first = []
    for target in (fastv_target(plain, FastVSettings(1, 0.5)), plain):
        drafter = Scripted([], needs=Needs(hidden_layers=(-1,), visual_layers=(0, 3)))
        answer(target, drafter)
        first.append(drafter.outputs[0])
    (read, theirs), (found, wanted) = first, (output.prompt for output in first)
    assert (found.tokens, found.visual_tokens) == (wanted.tokens, wanted.visual_tokens)
    assert torch.equal(found.visual[0], wanted.visual[0])
    assert found.visual[3].shape == wanted.visual[3].shape
    assert read.hidden[-1].shape == theirs.hidden[-1].shape


@encodes_clips
def test_a_planted_bug_would_be_seen(plain, monkeypatch):
    """Dropped tokens that stay visible to what is written after the prompt change it."""
    expected = fastv_by_layers(plain, 1, 0.25, STEPS)[1]
    monkeypatch.setattr(sys.modules[FastVSettings.__module__], "UNSEEN", 0.0)
    assert list(answer(fastv_target(plain, FastVSettings(1, 0.25))).tokens)[:STEPS] != expected


@encodes_clips
def test_what_cannot_be_is_refused(plain):
    with pytest.raises(CrossdraftError, match="keeps 3 layers whole, and the model has 3"):
        compressed(plain, "fastv:layer=3")
    with pytest.raises(CrossdraftError, match=r"got keep=0\.0"):
        compressed(plain, "fastv:keep=0")
    with pytest.raises(CrossdraftError, match="did you mean 'fastv'"):
        compressed(plain, "fastw")
    with pytest.raises(CrossdraftError, match="Llama and Qwen2 decoders"):
        compressed(as_target(*ZOO["qwen2_5_vl"]()), "fastv")
    with pytest.raises(CrossdraftError, match="cannot be compiled"):
        compressed(plain, "fastv:layer=1").compile()
