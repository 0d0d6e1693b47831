"""A target whose layers are on several devices, or at least with accelerate's hooks: the same tokens."""

import numpy as np
import pytest
from transformers.utils import is_accelerate_available

import crossdraft as cd

needs_accelerate = pytest.mark.skipif(not is_accelerate_available(), reason="accelerate is not installed")
INLINE = {"placement": "inline", "dtype": "float32", "max_batch": 2}
SPLIT = {  # layers on the disk are fetched for each pass, by the hooks that move things between devices
    **dict.fromkeys(("model.video_tower", "model.image_tower", "model.multi_modal_projector", "lm_head"), "cpu"),
    **{f"model.language_model.{name}": "cpu" for name in ("embed_tokens", "norm", "rotary_emb", "layers.0")},
    "model.language_model.layers.1": "disk",
}


@pytest.fixture
def requests_():
    rng = np.random.default_rng(1)
    clips = [rng.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8) for _ in range(3)]
    return [cd.Request("what is the car doing?", clip, max_new_tokens=16) for clip in clips]


def tokens_of(pair, requests_, **options):
    with cd.Engine.load(str(pair.target), "union:memory,ngram", cd.Options(**INLINE, **options)) as engine:
        return [answer.tokens for answer in engine.generate(requests_)]


@needs_accelerate
@pytest.mark.parametrize("device_map", [{"": "cpu"}, SPLIT])
def test_answers_are_those_of_one_device(pair, requests_, device_map):
    assert tokens_of(pair, requests_, device_map=device_map) == tokens_of(pair, requests_, device="cpu")


@needs_accelerate
def test_a_map_that_does_not_fit_is_one_sentence(pair):
    with pytest.raises(cd.CrossdraftError, match=r"device_map=.* does not work here"):
        cd.Engine.load(str(pair.target), None, cd.Options(device_map={"": "abacus"}))


@pytest.mark.skipif(is_accelerate_available(), reason="accelerate is installed")
def test_without_accelerate_one_sentence_says_what_is_lacking(pair):
    with pytest.raises(cd.CrossdraftError, match=r"needs the package accelerate: pip install -e '\.\[gpus\]'"):
        cd.Engine.load(str(pair.target), None, cd.Options(device_map="auto"))


@pytest.mark.parametrize("other", [{"device": "cpu"}, {"quantize": "int8"}])
def test_what_excludes_a_map_is_refused(other):
    with pytest.raises(cd.CrossdraftError, match="and device_map exclude each other"):
        cd.Options(device_map="auto", **other)


def test_unknown_maps_are_refused():
    with pytest.raises(cd.CrossdraftError, match="Unknown device_map 'both'; choose one of auto"):
        cd.Options(device_map="both")
