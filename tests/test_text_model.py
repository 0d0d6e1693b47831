"""Text models behind the adapter that was made for models that see: as targets, and as drafters."""

import pytest
import torch
from transformers import AutoModelForCausalLM, MambaConfig, MambaForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import crossdraft as cd
from crossdraft.checkpoints.shrunk import shrunk, shrunk_model
from crossdraft.engine.conformance import PARENTS, check_conformance
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.load import text_folder, text_reader
from crossdraft.text_model import TextPrompt, text_model
from crossdraft.trial import check_class
from tests.drafters.cross_vocab.tokenizers import byte_level

TYPES = (
    "afmoe apertus arcee aria_text bitnet cohere cohere2 cohere2_moe cwm deepseek_v2 deepseek_v3 diffllama "
    "doge ernie4_5 ernie4_5_moe exaone4 exaone_moe flex_olmo gemma gemma2 gemma3_text glm glm4 glm4_moe gpt2 "
    "gpt_bigcode gpt_neox gpt_oss granite granitemoe granitemoeshared helium hy_v3 hyperclovax internlm3 iquestcoder "
    "jais2 jetmoe kolibri1 laguna lfm2 lfm2_moe lfm3 llama longcat_flash mellum minicpm3 minimax_m2 "
    "ministral3 mistral mixtral nanochat nemotron olmo olmo2 olmo3 olmoe opt persimmon phi phi3 "
    "phimoe qwen2 qwen2_moe qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next seed_oss smollm3 "
    "solar_open stablelm starcoder2 youtu"
)  # and recurrent ones: `tests/engine/recurrent`
OFTEN = ("llama", "qwen2", "qwen3", "qwen3_moe", "gemma3_text", "gpt2", "deepseek_v3", "phi3")
UNSAID = {  # what a class's own defaults leave out, and its checkpoints say
    "deepseek_v2": {"num_experts_per_tok": 6},
    "nemotron": {"num_key_value_heads": 8},
    "lfm2": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "lfm2_moe": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
}


def tiny(kind: str):
    """A random model of a type, of its class's own sizes but shrunk."""
    config = CONFIG_MAPPING[kind](**UNSAID.get(kind, {}))
    return shrunk_model(AutoModelForCausalLM, config, torch.float64)


TOKENIZER = byte_level(" car", "USER", " ASSISTANT")


@pytest.mark.parametrize(
    "kind", [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.slow) for kind in TYPES.split()]
)
def test_trees_are_verified_by_every_type_that_loads(kind):
    adapter = text_model(tiny(kind), TextPrompt(TOKENIZER), TOKENIZER.decode, [2])
    prompt = Prompt(torch.tensor([1, 5, 6, 7, 8, 9, 10, 11]))  # longer than a window
    found = check_conformance(adapter, prompt, range(20, 20 + len(PARENTS)))
    assert found.passes(1e-5 * max(1.0, found.wrong_mask)), found


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_what_is_no_decoder_is_tried_and_refused(kind):
    adapter = text_model(tiny(kind), TextPrompt(TOKENIZER), TOKENIZER.decode, [2])
    found = check_conformance(adapter, Prompt(torch.tensor([1, 5, 6, 7])), range(20, 20 + len(PARENTS)))
    assert not found.passes(1e-5 * max(1.0, found.wrong_mask))
    with pytest.raises(CrossdraftError, match="it was tried, and conformance, text: logits differ from the model's"):
        check_class(adapter, {})


def test_a_model_without_a_cache_of_keys_is_refused():
    with torch.device("meta"):
        model = MambaForCausalLM(MambaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1))
    with pytest.raises(CrossdraftError, match="MambaForCausalLM cannot be used: its forward takes no"):
        text_model(model, TextPrompt(TOKENIZER), TOKENIZER.decode, [2])


def test_a_model_that_does_not_say_its_context_is_refused():
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shrunk(CONFIG_MAPPING["llama"]()))
    model.config.__dict__["max_position_embeddings"] = None  # as in a config class that has no such field
    with pytest.raises(CrossdraftError, match="does not say max_position_embeddings"):
        text_model(model, TextPrompt(TOKENIZER), TOKENIZER.decode, [2])


def text_of(prompt: Prompt) -> str:
    return TOKENIZER.decode(prompt.input_ids)


def test_the_plain_prompt():
    assert text_of(TextPrompt(TOKENIZER)(Request("Which {car}?"))) == "USER: Which {car}? ASSISTANT:"


def test_a_chat_template_is_used_where_there_is_one(monkeypatch):
    monkeypatch.setattr(
        TOKENIZER,
        "chat_template",
        "{{ messages[0].content }}|{% if add_generation_prompt %}A:{% endif %}",
        raising=False,
    )
    prepare = TextPrompt(TOKENIZER)
    assert text_of(prepare(Request("Which car?"))) == "Which car?|A:"
    monkeypatch.setattr(TOKENIZER, "chat_template", "{{ raise_exception('no') }}")
    with pytest.raises(CrossdraftError, match="chat template cannot be filled in: no;"):
        prepare(Request("Which car?"))


TURNS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{% if thinking is defined %}[{{ thinking }}]{% endif %}"
)


def test_a_request_s_values_reach_the_chat_template(monkeypatch):
    monkeypatch.setattr(TOKENIZER, "chat_template", TURNS, raising=False)
    prepare = TextPrompt(TOKENIZER)
    assert text_of(prepare(Request("Car?"))) == "<user>Car?</><assistant>"
    for value in (True, 2, "no"):
        found = text_of(prepare(Request("Car?", template_kwargs={"thinking": value})))
        assert found == f"<user>Car?</><assistant>[{value}]"


def test_a_final_message_goes_on_as_transformers_writes_it(monkeypatch):
    monkeypatch.setattr(TOKENIZER, "chat_template", TURNS, raising=False)
    turns = [{"role": "user", "content": "Car?"}, {"role": "assistant", "content": "A car"}]
    request = Request(messages=turns, continue_final_message=True)
    wanted = TOKENIZER.apply_chat_template(turns, tokenize=False, continue_final_message=True)
    assert text_of(TextPrompt(TOKENIZER)(request)) == wanted == "<user>Car?</><assistant>A car"
    assert request.question == "Car?"
    with pytest.raises(CrossdraftError, match="continue_final_message"):
        Request(messages=turns[:1], continue_final_message=True)
    with pytest.raises(CrossdraftError, match="continue_final_message"):
        Request("Car?", continue_final_message=True)
    monkeypatch.setattr(TOKENIZER, "chat_template", None)
    with pytest.raises(CrossdraftError, match="no chat template"):
        TextPrompt(TOKENIZER)(request)


FLOAT32 = cd.Options(device="cpu", dtype="float32", placement="inline", adaptive=False)


@pytest.fixture(scope="module")
def folder() -> str:
    """The reference pair's language model, which may be a target as well."""
    return str(text_folder("text"))


@pytest.fixture(scope="module")
def generated(folder):
    """What transformers' own `generate` says, greedily, to a question's ids."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def run(ids: torch.Tensor) -> tuple[int, ...]:
        return tuple(model.generate(ids[None], max_new_tokens=40, do_sample=False)[0, len(ids) :].tolist())

    return run


@pytest.mark.parametrize("drafter", [None, "union:memory,ngram", "memory", "model:dir={}"])
def test_a_text_model_is_a_target_and_says_what_generate_says(drafter, folder, generated):
    questions = "What is ahead?", "What is the car in front doing?"
    with cd.Engine.load(folder, drafter and drafter.format(folder), FLOAT32) as engine:
        for question in (*questions, *questions):
            request = cd.Request(question, max_new_tokens=40)
            answer = engine.generate(request)
            assert answer.tokens == generated(engine.target.prepare(request).input_ids)
        assert bool(answer.stats.accepted) is bool(drafter)


def test_a_loaded_text_model_is_a_target_too(folder):
    model, request = AutoModelForCausalLM.from_pretrained(folder).eval(), cd.Request("What is ahead?", max_new_tokens=8)
    with cd.Engine.load(folder, None, FLOAT32) as engine, cd.Engine.from_model(model, TOKENIZER, None) as other:
        given = cd.Request(inputs={"input_ids": engine.target.prepare(request).input_ids[None]}, max_new_tokens=8)
        assert other.generate(given).tokens == engine.generate(request).tokens
        assert text_reader(folder, ())(request).result() == tuple(given.inputs["input_ids"][0].tolist())


def test_a_text_model_is_shown_nothing(folder, clip):
    with cd.Engine.load(folder, None, FLOAT32) as engine, pytest.raises(CrossdraftError, match="is a text model, and"):
        engine.generate(cd.Request("What is ahead?", clip.video))
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    for given in ({"num_frames": 4}, {"fps": 2.0}):
        with pytest.raises(CrossdraftError, match=f"{next(iter(given))} is about clips, and the target .* is a text"):
            cd.Engine.load(folder, None, cd.Options(device="cpu", **given))
        with pytest.raises(CrossdraftError, match="LlamaForCausalLM is a text"):
            cd.Engine.from_model(model, TOKENIZER, None, cd.Options(**given))
