"""An engine around a model that the user has loaded: the same answers, and the model stays as it was."""

import pytest
import torch
from transformers import (
    AutoTokenizer,
    CLIPImageProcessorPil,
    CLIPProcessor,
    CLIPVisionConfig,
    CLIPVisionModel,
    VideoLlavaForConditionalGeneration,
)

import crossdraft as cd


@pytest.fixture
def model(pair):
    return VideoLlavaForConditionalGeneration.from_pretrained(pair.target, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer(pair):
    return AutoTokenizer.from_pretrained(pair.target)


@pytest.fixture(scope="module")
def request_(clip):
    return cd.Request("what is the car doing?", str(clip.video), str(clip.events), max_new_tokens=24)


@pytest.fixture(scope="module")
def expected(pair, request_):
    with cd.Engine.load(pair.target, None) as engine:
        return engine.generate(request_).tokens


@pytest.mark.parametrize("drafter", [None, "union:memory,ngram", "event folder"])
def test_it_answers_as_the_folder_does(pair, model, tokenizer, request_, expected, drafter):
    drafter = pair.event if drafter == "event folder" else drafter
    processor = CLIPProcessor(CLIPImageProcessorPil.from_pretrained(pair.target), tokenizer)
    with cd.Engine.from_model(model, processor, drafter) as engine:
        assert engine.generate(request_).tokens == expected
        assert engine.generate(request_).tokens == expected  # with what the drafter has learned


def test_a_tokenizer_is_enough_and_a_drafter_in_a_process_gets_it(model, tokenizer, request_, expected):
    options = cd.Options(placement="process")
    with cd.Engine.from_model(model, tokenizer, "union:memory,ngram", options) as engine:
        assert engine.generate(request_).tokens == expected


@pytest.mark.parametrize("drafter", [None, "union:memory,ngram"])
def test_the_model_is_not_touched(model, tokenizer, request_, drafter):
    kinds = {name: type(module) for name, module in model.named_modules()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    forwards = {name: module.forward.__func__ for name, module in model.named_modules()}
    with cd.Engine.from_model(model, tokenizer, drafter, cd.Options(placement="inline")) as engine:
        engine.generate(request_)
    assert {name: type(module) for name, module in model.named_modules()} == kinds
    assert {name: module.forward.__func__ for name, module in model.named_modules()} == forwards
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_of_two_engines_on_a_model_the_first_that_closes_leaves_the_other_its_hooks(model, tokenizer):
    """By them it lends and takes cores within a pass."""

    def hooks():
        return sum(len(module._forward_pre_hooks) for module in model.modules())

    first = cd.Engine.from_model(model, tokenizer, None)
    count = hooks()
    second = cd.Engine.from_model(model, tokenizer, None)
    assert hooks() == count > 0
    first.close()
    first.close()
    assert hooks() == count
    second.close()
    assert hooks() == 0


def test_it_may_be_packed(model, tokenizer, request_, expected):
    with cd.Engine.from_model(model, tokenizer, None, packed=True) as engine:
        assert engine.generate(request_).tokens == expected


def test_more_frames_of_a_file(model, tokenizer, request_):
    lengths = {}
    for frames in (2, 6):
        with cd.Engine.from_model(model, tokenizer, None, cd.Options(num_frames=frames)) as engine:
            lengths[frames] = len(engine.target.prepare(request_))
    assert lengths[6] - lengths[2] == 4 * 5  # 2 x 2 patches and a class token for each frame


def test_what_does_not_fit_is_one_sentence(pair, model, tokenizer):
    make = cd.Engine.from_model
    with pytest.raises(cd.CrossdraftError, match="loaded Hugging Face model"):
        make(str(pair.target), tokenizer)
    with pytest.raises(cd.CrossdraftError, match="load it as VideoLlavaForConditionalGeneration"):
        make(model.model, tokenizer)
    with pytest.raises(cd.CrossdraftError, match="CLIPVisionModel, which cannot answer"):
        make(CLIPVisionModel(CLIPVisionConfig(hidden_size=8, intermediate_size=8, num_attention_heads=1)), tokenizer)
    with pytest.raises(cd.CrossdraftError, match=r"training mode; call model\.eval"):
        make(model.train(), tokenizer)
    model.eval()
    with pytest.raises(cd.CrossdraftError, match="has no tokenizer"):
        make(model, CLIPImageProcessorPil.from_pretrained(pair.target))
    with pytest.raises(cd.CrossdraftError, match="move a loaded model yourself"):
        make(model, tokenizer, options=cd.Options(device="cpu"))
    model.config.name_or_path = ""
    with pytest.raises(cd.CrossdraftError, match="folder of its target's weights"):
        make(model, tokenizer, "eagle2")
