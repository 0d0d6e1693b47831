"""Which visual tokens stay: attention checked against an eager model's own, the rest by hand."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.engine.prompt import Prompt
from crossdraft.errors import CrossdraftError
from crossdraft_lab.drafters.guided.drafter import attention_scores, decoder_of, kept_positions, pruned
from tests.engine.zoo import VIDEO, ZOO


def eager(name):
    """Hidden states and attention weights of a model that gives them away, and where its clip and question stand."""
    model, prompt = ZOO[name]("eager")
    features = {key: value.double() for key, value in prompt.features.items()}
    with torch.inference_mode():
        out = model(input_ids=prompt.input_ids[None], **features, output_attentions=True, output_hidden_states=True)
    seen = (prompt.input_ids == VIDEO).nonzero()[:, 0]
    asking = torch.arange(int(seen[-1]) + 1, len(prompt))
    states = {layer: states[0] for layer, states in enumerate(out.hidden_states[:-1])}
    return model, states, [weights[0] for weights in out.attentions], asking, seen


@pytest.mark.parametrize("name", ["video_llava", "llava_onevision", "llava_next_video"])
@torch.inference_mode()
def test_the_attention_is_the_models_own(name):
    model, states, weights, asking, seen = eager(name)
    for layers in ([0], [2], [0, 1, 2]):
        own = attention_scores(decoder_of(model), {layer: states[layer] for layer in layers}, asking, seen)
        models = torch.stack([weights[layer][:, asking][..., seen].mean((0, 1)) for layer in layers]).mean(0)
        assert torch.allclose(own, models, atol=1e-6)  # eager attention takes its softmax in single precision
        assert own.std() > 1e-3


@pytest.mark.parametrize("bug", ["another layer", "without positions", "sees the future"])
@torch.inference_mode()
def test_another_attention_would_be_noticed(bug, monkeypatch):
    model, states, weights, asking, seen = eager("video_llava")
    entering = states[1]
    if bug == "another layer":
        entering = states[2]
    elif bug == "without positions":
        turn = "crossdraft_lab.drafters.guided.drafter.apply_rotary_pos_emb"
        monkeypatch.setattr(turn, lambda query, key, cos, sin: (query, key))
    else:
        monkeypatch.setattr(torch.Tensor, "masked_fill", lambda self, mask, value: self)
    own = attention_scores(decoder_of(model), {1: entering}, asking, seen)
    assert not torch.allclose(own, weights[1][:, asking][..., seen].mean((0, 1)), atol=1e-4)


@pytest.mark.parametrize(
    ("scores", "keep", "mass", "kept"),
    [
        ([0.1, 0.5, 0.1, 0.1, 0.1, 0.1], 0.5, 0.4, [0, 1, 5]),  # one covers 40 %, then the first and last of the rest
        ([0.3, 0.0, 0.3, 0.0, 0.4, 0.0], 0.5, 0.6, [0, 1, 4]),  # two of them: 4, then 0 before 2
        ([0.3, 0.0, 0.3, 0.0, 0.4, 0.0], 0.34, 0.9, [0, 2, 4]),  # attention wants three, and three may stay
        ([1.0, 2.0, 3.0, 4.0], 0.5, 1.0, [2, 3]),  # no place is left for an even spread
        ([1.0, 2.0, 3.0, 4.0], 0.5, 0.0, [0, 3]),  # nothing but an even spread
        ([1.0, 2.0, 3.0], 1.0, 0.4, [0, 1, 2]),
        ([5.0], 0.1, 0.4, [0]),
        ([0.0, 0.0, 0.0, 0.0], 0.5, 0.4, [0, 1]),
    ],
)
def test_two_stages_by_hand(scores, keep, mass, kept):
    assert kept_positions(torch.tensor(scores), keep, mass).tolist() == kept


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=60), st.floats(0.01, 1), st.floats(0, 1))
def test_as_many_stay_as_were_wanted_each_once(scores, keep, mass):
    kept = kept_positions(torch.tensor(scores), keep, mass).tolist()
    assert len(kept) == int(-(-len(scores) * keep // 1))
    assert kept == sorted(set(kept))
    assert scores.index(max(scores)) in kept or mass == 0
    assert 0 <= kept[0] <= kept[-1] < len(scores)


@pytest.mark.parametrize(("keep", "mass"), [(0, 0.4), (1.1, 0.4), (0.5, -1), (0.5, 2)])
def test_shares_that_are_none_are_refused(keep, mass):
    with pytest.raises(CrossdraftError, match="a share of tokens"):
        kept_positions(torch.ones(3), keep, mass)


def test_a_pruned_prompt_by_hand():
    prompt = Prompt(torch.tensor([1, 98, 98, 97, 5, 98, 7]), {"pixels": torch.ones(1)})
    encoded = {
        "video": SimpleNamespace(pooler_output=torch.tensor([[[1.0], [2.0], [3.0]]])),
        "image": SimpleNamespace(pooler_output=[torch.tensor([[9.0]])]),
    }
    few, features = pruned(prompt, encoded, {"video": 98, "image": 97}, torch.tensor([1, 3]))
    assert few.input_ids.tolist() == [1, 98, 5, 98, 7]
    assert features["video"].pooler_output.tolist() == [[2.0], [3.0]]
    assert features["image"].pooler_output.shape == (0, 1)
    assert encoded["video"].pooler_output.shape == (1, 3, 1)  # the whole clip is still whole


def test_a_decoder_of_another_anatomy_is_named():
    model, _ = ZOO["qwen2_5_vl"]()
    with pytest.raises(CrossdraftError, match="LlamaModel or Qwen2Model"):
        decoder_of(model)
