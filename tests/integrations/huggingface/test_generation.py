"""`model.generate(…, custom_generate=FOLDER)` gives what `model.generate(…)` gives, with drafts or without."""

import pytest
import torch
from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPProcessor, VideoLlavaForConditionalGeneration

import crossdraft as cd
from crossdraft.integrations.huggingface import FOLDER
from crossdraft.video import sample_frames
from tests.video.helpers import model_inputs

LONGEST = 24


@pytest.fixture(scope="module")
def model(pair):
    return VideoLlavaForConditionalGeneration.from_pretrained(pair.target, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def processor(pair):
    return CLIPProcessor(CLIPImageProcessorPil.from_pretrained(pair.target), AutoTokenizer.from_pretrained(pair.target))


@pytest.fixture(scope="module")
def inputs(model, processor, clip):
    sample = sample_frames(str(clip.video), 8)
    frames, times = sample.frames, sample.times_s
    return model_inputs(model.config, processor.tokenizer, None, frames, times, "what is the car doing?")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """transformers copies the folder's code before it runs it."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))


@pytest.fixture
def ours(model, inputs):
    def generate(**more):
        return model.generate(**{**inputs, **more}, custom_generate=FOLDER, trust_remote_code=True)

    return generate


@pytest.fixture(scope="module")
def engine(model, processor):
    with cd.Engine.from_model(model, processor) as made:
        yield made


def test_the_tokens_are_those_of_generate(model, inputs, ours, engine):
    expected = model.generate(**inputs, max_new_tokens=LONGEST, do_sample=False)
    for _ in range(2):  # with what the drafter has learned
        assert torch.equal(ours(engine=engine, max_new_tokens=LONGEST, do_sample=False), expected)
    assert torch.equal(ours(engine=engine, do_sample=False), model.generate(**inputs, do_sample=False))
    limited = {"max_length": inputs["input_ids"].shape[1] + 7, "do_sample": False}
    assert torch.equal(ours(engine=engine, **limited), model.generate(**inputs, **limited))


def test_an_event_drafter_for_this_call(pair, clip, processor, model, inputs, ours):
    expected = model.generate(**inputs, max_new_tokens=LONGEST, do_sample=False)
    given = {"processor": processor, "drafter": str(pair.event), "events": str(clip.events)}
    assert torch.equal(ours(max_new_tokens=LONGEST, **given), expected)


def test_the_drafter_is_asked_what_the_model_is(clip, model, processor, ours):
    asked = []

    class Listener(cd.Engine):
        def generate(self, requests):
            asked.append(requests)
            return super().generate(requests)

    with Listener.from_model(model, processor) as made:
        ours(engine=made, max_new_tokens=2, events=str(clip.events))
        ours(engine=made, max_new_tokens=2, question="another?")
    assert [request.prompt for request in asked] == ["what is the car doing?", "another?"]
    assert [request.events for request in asked] == [str(clip.events), None]


def test_settings_of_the_call_are_honoured(model, inputs, ours, engine):
    for more in (
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 12},
        {"suppress_tokens": [300, 301]},
    ):
        settings = {"max_new_tokens": LONGEST, "do_sample": False, **more}
        assert torch.equal(ours(engine=engine, **settings), model.generate(**inputs, **settings)), more


def test_a_sampled_answer_keeps_its_settings(ours, engine, model, inputs):
    """With so little mass kept there is one token to draw, as in greedy decoding."""
    expected = model.generate(**inputs, max_new_tokens=LONGEST, do_sample=False)
    drawn = ours(engine=engine, max_new_tokens=LONGEST, do_sample=True, top_k=1)
    assert torch.equal(drawn, expected)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"num_beams": 3}, "beam search"),
        ({"streamer": object()}, "takes no streamer"),
        ({"stopping_criteria": [object()]}, "takes no stopping_criteria"),
        ({"inputs_embeds": torch.zeros(1, 4, 8)}, "takes no inputs_embeds"),
        ({"negative_prompt_ids": torch.ones(1, 4, dtype=torch.long)}, "takes no negative_prompt_ids"),
        ({"return_dict_in_generate": True}, "returns tokens alone"),
        ({"input_ids": torch.ones(2, 4, dtype=torch.long)}, "one prompt"),
        ({"temprature": 3}, "no argument 'temprature'"),
        ({"eos_token_id": 5}, "checkpoint's own"),
        ({"drafter": "ngram"}, "has its processor and drafter already"),
    ],
)
def test_what_is_not_supported_is_one_sentence(ours, engine, more, why):
    with pytest.raises(cd.CrossdraftError, match=why):
        ours(engine=engine, max_new_tokens=2, **more)


def test_a_mask_is_refused_where_it_hides_something(ours, engine, inputs):
    mask = torch.ones_like(inputs["input_ids"])
    ours(engine=engine, max_new_tokens=2, attention_mask=mask)
    mask[0, 0] = 0
    with pytest.raises(cd.CrossdraftError, match="hides a part of the prompt"):
        ours(engine=engine, max_new_tokens=2, attention_mask=mask)


def test_without_an_engine_a_processor_is_needed_and_another_models_engine_is_refused(pair, ours, processor):
    with pytest.raises(cd.CrossdraftError, match="needs engine="):
        ours(max_new_tokens=2)
    with cd.Engine.load(pair.target, None) as other, pytest.raises(cd.CrossdraftError, match="another model's"):
        ours(engine=other, max_new_tokens=2)


def test_transformers_asks_before_it_runs_the_folder(model, inputs, engine):
    """`trust_remote_code` is the user's to say: the code that runs is ours, of the installed package."""
    with pytest.raises(ValueError, match="trust_remote_code"):
        model.generate(**inputs, max_new_tokens=2, custom_generate=FOLDER, engine=engine, trust_remote_code=False)
