"""The lean path against the model's own forward: the same bits, wherever both may be asked."""

import pytest
import torch

from crossdraft.engine.lean import find_lean
from tests.engine.zoo import ZOO, as_target

LEAN = ("video_llava", "llava_next_video", "llava_onevision", "eventgpt")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LEAN)
@torch.inference_mode()
def test_logits_and_hidden_states_are_the_models_own_to_the_bit(name, dtype):
    model = ZOO[name]()[0].to(dtype)
    lean, target = find_lean(model), as_target(model, ZOO[name]()[1])
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])
    cache = target.new_cache()
    cache.add_row(64)
    cache.open_window(slice(0, 1), ids.shape[1])
    logits, states = lean(ids, torch.arange(ids.shape[1])[None], None, cache, 3)
    own = model(input_ids=ids, use_cache=False, output_hidden_states=True, logits_to_keep=3)
    assert torch.equal(logits, own.logits)
    assert all(torch.equal(mine, its) for mine, its in zip(states, own.hidden_states, strict=True))


@pytest.mark.parametrize("name", sorted(set(ZOO) - set(LEAN)))
def test_other_anatomies_keep_their_own_forward(name):
    assert find_lean(ZOO[name]()[0]) is None
