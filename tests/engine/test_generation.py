"""A checkpoint's generation_config: every field honoured, without effect, or refused by name."""

import json
import math

import pytest
from transformers import GenerationConfig

from crossdraft.engine.generation import HONOURED, REFUSED, WITHOUT_EFFECT, GenerationDefaults, read_defaults, read_file
from crossdraft.engine.request import MAX_NEW_TOKENS, Request
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError


def read(**fields):
    return read_defaults(vars(GenerationConfig()) | fields, "DIR", 50)


def test_every_field_that_transformers_knows_is_known_here():
    public = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert public <= HONOURED | WITHOUT_EFFECT | set(REFUSED)
    assert not HONOURED & WITHOUT_EFFECT
    assert not (HONOURED | WITHOUT_EFFECT) & set(REFUSED)


def test_nothing_said_is_greedy_and_neutral():
    defaults = read()
    assert defaults == GenerationDefaults(Sampling(temperature=0.0))
    request = defaults.resolve(Request("?"))
    assert request.sampling.plain
    assert not request.sampling.contextual
    assert request.stops == ()
    assert (defaults.limit(10, 500), defaults.limit(450, 500)) == (MAX_NEW_TOKENS, 50)


def test_what_qwen_ships_is_read():
    found = read(do_sample=True, temperature=1e-6, top_k=1, top_p=0.001, repetition_penalty=1.05)
    sampling = found.resolve(Request("?")).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1e-6, 1, 0.001)
    assert sampling.repetition_penalty == 1.05
    assert not sampling.contextual


def test_a_checkpoint_that_samples_does_so_from_fifty_tokens_as_generate():
    assert read(do_sample=True).sampling.top_k == 50
    assert read(do_sample=True, top_k=0).sampling.top_k == 0
    assert read(temperature=0.9, top_p=0.6).sampling.greedy  # without do_sample


def test_what_a_request_says_wins_field_by_field():
    defaults = read(
        do_sample=True,
        top_k=7,
        repetition_penalty=1.3,
        max_new_tokens=9,
        stop_strings=["a", "b"],
        max_time=5,
        suppress_tokens=[4],
    )
    plain = defaults.resolve(Request("?"))
    assert (plain.sampling.top_k, plain.stops, plain.max_time) == (7, ("a", "b"), 5.0)
    assert defaults.limit(10, 500) == defaults.most(500) == 9
    found = defaults.resolve(
        Request("?", sampling=Sampling(temperature=0.5, suppress_tokens=()), stop="x", max_time=1.0)
    )
    assert (found.sampling.temperature, found.sampling.top_k, found.sampling.repetition_penalty) == (0.5, 7, 1.3)
    assert found.sampling.suppress_tokens == ()
    assert (found.stops, found.max_time) == (("x",), 1.0)
    assert defaults.resolve(Request("?", sampling=Sampling(temperature=0))).sampling.greedy
    assert defaults.resolve(Request("?", stop=())).stops == ()
    assert defaults.resolve(Request("?", sampling=None)).sampling.top_k == 7  # pyright: ignore[reportArgumentType]


def test_a_seed_is_drawn_where_none_is_said():
    defaults = read(do_sample=True)
    first, second = (defaults.resolve(Request("?")).sampling.seed for _ in range(2))
    assert first is not None
    assert first != second
    assert defaults.resolve(Request("?", sampling=Sampling(seed=3))).sampling.seed == 3
    assert read().resolve(Request("?")).sampling.seed is None  # greedy: nothing is drawn


def test_the_longest_answer():
    assert read(max_length=100).limit(30, 500) == 70
    assert read(max_length=100).limit(30, 90) == 60
    assert read(max_length=100, max_new_tokens=5).limit(30, 500) == 5
    assert read(max_new_tokens=4096).limit(30, 500) == 470  # as far as the context reaches
    with pytest.raises(CrossdraftError, match=r"max_length 20, and the prompt alone has 30 tokens"):
        read(max_length=20).limit(30, 500)


def test_the_end_cannot_be_a_bad_word():
    words = read(bad_words_ids=[[2], [3, 2], [4]], eos_token_id=2)
    assert words.resolve(Request("?")).sampling.bad_words_ids == ((3, 2), (4,))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_beams", 4),
        ("num_return_sequences", 2),
        ("penalty_alpha", 0.6),
        ("dola_layers", "low"),
        ("guidance_scale", 3.0),
        ("watermarking_config", {"bias": 2.0}),
        ("constraints", [[1]]),
        ("force_words_ids", [[1]]),
        ("token_healing", True),
        ("prompt_lookup_num_tokens", 10),
        ("assistant_early_exit", 2),
        ("cache_implementation", "quantized"),
        ("prefill_chunk_size", 64),
        ("num_beam_groups", 2),
        ("use_mtp", True),
    ],
)
def test_what_is_not_done_is_refused_by_name(name, value):
    with pytest.raises(CrossdraftError, match=f"^DIR sets {name} to .* not supported, so remove that field"):
        read(**{name: value})


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_neutral_values_of_what_is_refused_are_fine(name):
    for value in (None, *REFUSED[name][0]):
        assert read(**{name: value}) == read()


def test_a_field_that_only_a_later_version_knows_is_refused_once_transformers_knows_it(monkeypatch):
    assert read(top_z=3) == read()  # generate does not know it either
    known = vars(GenerationConfig()) | {"top_z": None}
    monkeypatch.setattr("crossdraft.engine.generation.GenerationConfig", type("Later", (), dict(known)))
    monkeypatch.setattr("crossdraft.engine.generation.vars", lambda config: known, raising=False)
    with pytest.raises(CrossdraftError, match="sets top_z to 3 in its generation config"):
        read_defaults({"top_z": 3}, "DIR")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eos_token_id", "x"),
        ("eos_token_id", [2, "x"]),
        ("eos_token_id", -1),
        ("eos_token_id", 99),
        ("do_sample", "yes"),
        ("temperature", "hot"),
        ("top_k", 1.5),
        ("top_p", "much"),
        ("min_p", 2.0),
        ("typical_p", 0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", True),
        ("no_repeat_ngram_size", "two"),
        ("bad_words_ids", [5]),
        ("bad_words_ids", [[99]]),
        ("sequence_bias", {"3": 1.0}),
        ("sequence_bias", [[[3], "x"]]),
        ("suppress_tokens", 3),
        ("min_new_tokens", -2),
        ("max_new_tokens", 0),
        ("max_length", "long"),
        ("max_time", 0),
        ("stop_strings", [3]),
        ("stop_strings", [""]),
        ("forced_eos_token_id", 99),
        ("exponential_decay_length_penalty", [2]),
        ("exponential_decay_length_penalty", 2),
        ("renormalize_logits", 1),
    ],
)
def test_an_ill_typed_field_is_one_sentence(name, value):
    shown = "(?i)stop" if name == "stop_strings" else name
    with pytest.raises(CrossdraftError, match=shown) as found:
        read(**{name: value})
    assert str(found.value).startswith("The generation config of DIR cannot be honoured: ")


def test_sampling_at_temperature_zero_is_refused_as_generate_refuses_it():
    with pytest.raises(CrossdraftError, match="do_sample is true and temperature 0"):
        read(do_sample=True, temperature=0.0)


def test_top_p_zero_is_the_likeliest_token_alone():
    assert read(do_sample=True, top_p=0.0).sampling.top_p == math.ulp(0.0)


def test_the_file_must_be_a_json_object(tmp_path):
    assert read_file(tmp_path) == {}
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"top_k": 3}))
    assert read_file(tmp_path) == {"top_k": 3}
    path.write_text("{nonsense")
    with pytest.raises(CrossdraftError, match=r"generation_config.json is not valid JSON"):
        read_file(tmp_path)
    path.write_text("[1]")
    with pytest.raises(CrossdraftError, match="must hold a JSON object"):
        read_file(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ({"stop": ""}, "stop string is empty"),
        ({"stop": ("a", "")}, "stop string is empty"),
        ({"stop": 3}, "stop is 3"),
        ({"stop": [3]}, r"stop is \[3\]"),
        ({"max_new_tokens": 1.5}, "max_new_tokens is 1.5"),
        ({"max_new_tokens": "5"}, "max_new_tokens is '5'"),
        ({"max_new_tokens": 0}, "must be at least 1"),
        ({"max_time": 0.0}, "max_time is 0.0"),
        ({"max_time": "1"}, "max_time is '1'"),
        ({"logprobs": -1}, "logprobs is -1; say True"),
        ({"sampling": 0.7}, "sampling is 0.7"),
        ({"prompt": None}, "prompt is None"),
    ],
)
def test_a_request_that_makes_no_sense_is_one_sentence(wrong, found):
    with pytest.raises(CrossdraftError, match=found):
        Request(**{"prompt": "?", **wrong})


def test_one_string_is_one_stop_string():
    assert Request("?", stop="ahead").stops == ("ahead",)
    assert Request("?", stop=["a", "b"]).stops == ("a", "b")
