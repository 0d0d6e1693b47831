"""`/v1/completions`: texts continued as they stand, beside Hugging Face's own `generate`."""

import httpx
import openai
import pytest
import torch

from tests.serve.conftest import body

PROMPT = "USER: What is ahead? ASSISTANT: A van"


def expected(server, prompt: str, tokens: int) -> tuple[list[int], str]:
    """What `generate` adds to the tokenizer's own ids of a text, and its text, spaces in front included."""
    target = server.engine.target
    ids = target.text.tokenizer(prompt, return_tensors="pt")["input_ids"]
    settings = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0, "eos_token_id": sorted(target.eos)}
    out = target.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **settings)[0].tolist()
    new = out[ids.shape[1] :]
    return new, target.decode(out)[len(target.decode(ids[0].tolist())) :]


def create(server, prompt=PROMPT, **fields):
    return server.client().completions.create(model="reference", prompt=prompt, **{"max_tokens": 12, **fields})


def post(server, **fields) -> httpx.Response:
    asked = {"model": "reference", "prompt": PROMPT, "max_tokens": 4, **fields}
    return httpx.post(f"{server.url}/v1/completions", json=asked, timeout=60)


def test_a_text_is_continued_as_generate_does(server):
    ids, text = expected(server, PROMPT, 12)
    found = create(server)
    assert found.choices[0].text == text
    assert text.startswith(" ")  # which a chat's answer would not have
    assert (found.object, found.id[:5], found.choices[0].finish_reason) == ("text_completion", "cmpl-", "length")
    assert found.usage.completion_tokens == len(ids) == 12
    tokenizer = server.engine.target.text.tokenizer
    assert found.usage.prompt_tokens == len(tokenizer(PROMPT)["input_ids"])
    templated = server.client().chat.completions.create(
        model="reference", messages=[{"role": "user", "content": PROMPT}], max_tokens=12
    )
    assert templated.choices[0].message.content != text.strip()


def test_sixteen_tokens_where_no_length_is_named(server):
    assert httpx.post(f"{server.url}/v1/completions", json={"model": "reference", "prompt": PROMPT}, timeout=60).json()[
        "usage"
    ]["completion_tokens"] == len(expected(server, PROMPT, 16)[0])


def test_a_stream_is_the_completion_piece_by_piece(server):
    chunks = list(create(server, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == expected(server, PROMPT, 12)[1]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage.completion_tokens == 12
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_have_a_choice_each(server, stream):
    prompts = [PROMPT, "USER: Is it dark? ASSISTANT:"]
    texts = ["", ""]
    if stream:
        for chunk in create(server, prompts, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
    else:
        found = create(server, prompts)
        texts = [choice.text for choice in found.choices]
        assert [choice.index for choice in found.choices] == [0, 1]
        tokenizer = server.engine.target.text.tokenizer
        assert found.usage.prompt_tokens == sum(len(tokenizer(one)["input_ids"]) for one in prompts)
        assert found.usage.completion_tokens == 24
    assert texts == [expected(server, one, 12)[1] for one in prompts]


def test_several_sampled_completions_of_each_prompt(server):
    asked = {"temperature": 2.0, "seed": 3}
    found = create(server, [PROMPT, PROMPT + " is"], n=2, **asked).choices
    assert [choice.index for choice in found] == [0, 1, 2, 3]
    assert found[0].text == create(server, **asked).choices[0].text
    assert found[2].text == create(server, PROMPT + " is", **asked).choices[0].text
    assert found[1].text != found[0].text
    assert post(server, n=2, temperature=0).status_code == 400


def test_a_stop_string_and_a_seed(server):
    text = expected(server, PROMPT, 12)[1]
    word = text.split()[2]
    found = create(server, stop=[word])
    assert found.choices[0].text == text[: text.index(word)]
    assert found.choices[0].finish_reason == "stop"


def test_logprobs_are_in_the_older_form(server):
    found = create(server, logprobs=2, max_tokens=6).choices[0]
    tops, ids = found.logprobs, expected(server, PROMPT, 6)[0]
    target = server.engine.target
    assert "".join(tops.tokens) == found.text
    assert tops.tokens == [target.text.bytes_of(token).decode() for token in ids]
    assert tops.text_offset == [sum(map(len, tops.tokens[:at])) for at in range(6)]
    prompt = target.text.tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    logits = target.model(input_ids=torch.cat([prompt, torch.tensor([ids])], 1)).logits[0, prompt.shape[1] - 1 : -1]
    wanted = logits.log_softmax(-1)
    assert tops.token_logprobs == pytest.approx([wanted[at, token].item() for at, token in enumerate(ids)], abs=1e-4)
    for at, top in enumerate(tops.top_logprobs):
        assert sorted(top.values(), reverse=True) == pytest.approx(wanted[at].topk(2).values.tolist(), abs=1e-4)
    assert create(server, logprobs=0, max_tokens=2).choices[0].logprobs.top_logprobs is None
    pieces = [chunk.choices[0].logprobs for chunk in create(server, logprobs=0, max_tokens=6, stream=True)]
    assert [at for piece in pieces if piece for at in piece.text_offset] == tops.text_offset


@pytest.mark.parametrize(
    ("fields", "param", "part"),
    [
        ({"prompt": [1, 2, 3]}, "prompt", "token ids; send the text"),
        ({"prompt": [[1, 2], [3]]}, "prompt", "token ids; send the text"),
        ({"prompt": []}, "prompt", "at least 1"),
        ({"prompt": ["a"] * 17}, "prompt", "at most 16"),
        ({"prompt": ""}, "prompt[0]", "at least 1 character"),
        ({"prompt": ["a", ""]}, "prompt[1]", "at least 1 character"),
        ({"prompt": 7}, "prompt", "array"),
        ({"prompt": "a" * 1_000_000}, "prompt", "maximum context length"),
        ({"prompt": "What is <video>?"}, "prompt", "stands for a picture"),
        ({"prompt": None}, "prompt", "Field required"),
        ({"echo": True}, "echo", "leave it out"),
        ({"suffix": "."}, "suffix", "leave it out"),
        ({"best_of": 2}, "best_of", "leave it out"),
        ({"logprobs": 21}, "logprobs", "20"),
        ({"logprobs": True}, "logprobs", "0 to 20"),
        ({"messages": []}, "messages", "Unrecognized"),
        ({"top_logprobs": 1}, "top_logprobs", "Unrecognized"),
        ({"nonsense": 1}, "nonsense", "Unrecognized"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": 10**6}, "max_tokens", "ask for fewer"),
        ({"temperature": 3}, "temperature", "2"),
        ({"stream_options": {"include_usage": True}}, None, "stream: true"),
        ({"model": "other"}, "model", "no model"),
    ],
)
def test_wrong_requests_are_refused_by_name(server, fields, param, part):
    found = post(server, **fields)
    assert found.status_code == (404 if "model" in fields else 400)
    assert found.json()["error"]["param"] == param
    assert part in found.json()["error"]["message"]


def test_harmless_fields_are_taken(server):
    harmless = {"echo": False, "best_of": 1, "suffix": None, "logprobs": None, "user": "a", "n": None, "seed": None}
    assert post(server, **harmless).status_code == 200


def test_too_many_prompts_for_the_queue_are_refused(server):
    found = post(server, prompt=["a"] * 7)  # of two rows and a queue of four
    assert found.status_code == 400
    assert "at a time" in found.json()["error"]["message"]


def test_the_gate_counts_it_as_any_request(start, tmp_path):
    limited = start(requests_per_minute=2)
    assert [post(limited).status_code for _ in range(3)] == [200, 200, 429]
    with pytest.raises(openai.RateLimitError):
        limited.client().chat.completions.create(**body())
