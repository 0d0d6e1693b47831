"""Vision layers whose output nobody reads: nothing that is read changes."""

import pickle

import pytest
import torch
from transformers import PreTrainedModel

from crossdraft.engine.encoded import visual_rows
from crossdraft.engine.fast import unused_layers as unread
from crossdraft.engine.fast.unused_layers import pass_unread
from crossdraft.engine.prompt import Prompt
from crossdraft.load import load_target
from tests.engine.zoo import VISION, llava_next_video, llava_onevision, qwen2_5_vl, video_llava

DEPTH = VISION["num_hidden_layers"]


@torch.inference_mode()
def seen(model: PreTrainedModel, prompt: Prompt, layer: int | list[int]) -> torch.Tensor:
    model.config.vision_feature_layer = layer
    features = model.base_model.get_video_features(prompt.features["pixel_values_videos"])
    return visual_rows(features)


def blind(model: PreTrainedModel, index: int) -> None:
    """Layer `index` of each vision encoder makes NaN of whatever it is given."""
    for name in unread.ENCODERS:
        encoder = getattr(model.base_model, name, None)
        if encoder is not None:
            for weight in encoder.encoder.layers[index].parameters():
                weight.data.fill_(float("nan"))


@pytest.mark.parametrize("build", [video_llava, llava_next_video, llava_onevision])
@pytest.mark.parametrize("layer", [-2, -3, 1, 2])
def test_features_stay_the_same_to_the_bit_and_layers_behind_them_do_not_run(build, layer):
    model, prompt = build()
    before = seen(model, prompt, layer)
    names = list(model.state_dict())
    encoders = sum(hasattr(model.base_model, name) for name in unread.ENCODERS)
    read = layer if layer >= 0 else DEPTH + 1 + layer
    assert pass_unread(model) == encoders * (DEPTH - read)
    assert list(model.state_dict()) == names
    for index in range(read, DEPTH):
        blind(model, index)
    assert torch.equal(seen(model, prompt, layer), before)


@pytest.mark.parametrize("build", [video_llava, llava_onevision])
def test_a_layer_that_is_read_runs(build):
    model, prompt = build()
    seen(model, prompt, -1)
    assert pass_unread(model) == 0
    blind(model, DEPTH - 1)
    assert seen(model, prompt, -1).isnan().any()


def test_of_several_layers_the_last_one_counts():
    assert unread._layers_read(24, [-2]) == 23
    assert unread._layers_read(24, [-2, -5, 7]) == 23
    assert unread._layers_read(24, [0, 5]) == 5
    assert unread._layers_read(24, [-1, 3]) == 24


def idle(model: PreTrainedModel) -> list[torch.nn.Module]:
    return [module for module in model.modules() if module.forward is unread._hand_on]


def test_a_model_that_names_no_layer_stays_as_it_is():
    model, _ = qwen2_5_vl()
    assert pass_unread(model) == 0
    assert not idle(model)


def test_a_tower_that_does_not_say_how_deep_it_is_stays_as_it_is():
    model, _ = video_llava()
    for name in ("video_tower", "image_tower"):
        getattr(model.base_model, name).config = object()
    assert pass_unread(model) == 0


def test_the_model_is_still_one_that_can_be_saved_whole():
    model, prompt = video_llava()
    assert pass_unread(model) == 2
    back = pickle.loads(pickle.dumps(model))  # once it has run, hooks of transformers forbid that
    assert len(idle(back)) == 2
    assert torch.equal(seen(back, prompt, -2), seen(model, prompt, -2))


def test_one_layer_too_many_would_be_seen(monkeypatch):
    model, prompt = video_llava()
    before = seen(model, prompt, -2)
    monkeypatch.setattr(unread, "_layers_read", lambda depth, wanted: DEPTH - 2)
    assert pass_unread(model) == 4
    assert not torch.equal(seen(model, prompt, -2), before)


def test_a_target_is_loaded_so_unless_it_is_to_stay_plain(pair):
    lean, plain = (load_target(str(pair.target), "cpu", "float32", packed=packed) for packed in (True, False))
    encoders = sum(hasattr(lean.model.base_model, name) for name in unread.ENCODERS)
    assert len(idle(lean.model)) == encoders
    assert not idle(plain.model)
