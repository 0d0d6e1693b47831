"""Several answers to one request (`n`), asked for with OpenAI's own client."""

import json

import httpx
import openai
import pytest

from crossdraft import Request, Sampling
from crossdraft.engine.noise import seed_of
from tests.serve.conftest import QUESTION, body, messages
from tests.serve.test_security import reaches

DRAWN = {"temperature": 2.0, "seed": 7}


def alone(server, seed: int, question: str = QUESTION, **more) -> list:
    """What the target alone says under a seed: text, ids, log-probabilities."""
    sampling = Sampling(temperature=2.0, seed=seed, **more.pop("sampling", {}))
    video = str(server.root / "clip.mp4")
    request = Request(question, video, max_new_tokens=24, sampling=sampling, namespace=None, **more)
    return server.engine.alone(request)


def test_answer_i_draws_by_the_seed_and_i_and_the_first_is_that_of_one(server):
    found = server.client().chat.completions.create(**body(n=4, **DRAWN))
    texts = [choice.message.content for choice in found.choices]
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    assert texts == [alone(server, seed_of(7, number)).text for number in range(4)]
    assert len(set(texts)) == 4
    assert server.client().chat.completions.create(**body(**DRAWN)).choices[0].message.content == texts[0]


def test_without_a_seed_all_differ(server):
    asked = body(n=8, temperature=2.0, max_tokens=24)
    roomy = {**asked, "n": 6}  # as many as the queue and the rows hold
    found = server.client().chat.completions.create(**roomy)
    assert len({choice.message.content for choice in found.choices}) == 6
    refused = server.post(asked)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "8 answers are asked for, and 6 run at a time here; ask for fewer."


def test_usage_counts_all_answers_and_the_prompt_once(server):
    asked = body(n=3, max_tokens=100, **DRAWN)
    found = server.client().chat.completions.create(**asked)
    one = server.client().chat.completions.create(**body(**DRAWN, max_tokens=100))
    assert found.usage.prompt_tokens == one.usage.prompt_tokens
    lengths = [len(alone_to_the_end(server, seed_of(7, number)).tokens) for number in range(3)]
    assert found.usage.completion_tokens == sum(lengths)


def alone_to_the_end(server, seed: int):
    video, sampling = str(server.root / "clip.mp4"), Sampling(temperature=2.0, seed=seed)
    return server.engine.alone(Request(QUESTION, video, max_new_tokens=100, sampling=sampling, namespace=None))


def streamed(server, **fields):
    """The chunks of a stream by choice, and those without one."""
    chunks = list(server.client().chat.completions.create(**body(stream=True, **fields)))
    by_choice: dict[int, list] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            by_choice.setdefault(choice.index, []).append(choice)
    return by_choice, [chunk for chunk in chunks if not chunk.choices], chunks


def test_streams_interleave_and_each_ends_with_its_own_reason(server):
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    asked = {"n": 3, "max_tokens": 24, "stop": [alone(server, 7).text[-12:-6]], "logprobs": True, **DRAWN}
    found, rest, chunks = streamed(server, **asked, **options)
    whole = server.client().chat.completions.create(**body(**asked))
    assert sorted(found) == [0, 1, 2]
    for number, choice in enumerate(whole.choices):
        parts = found[number]
        assert parts[0].delta.role == "assistant"
        assert "".join(part.delta.content or "" for part in parts) == choice.message.content
        reasons = [part.finish_reason for part in parts]
        assert reasons[-1] == choice.finish_reason
        assert set(reasons[:-1]) == {None}
        said = [one.token for part in parts if part.logprobs for one in part.logprobs.content]
        assert said == [one.token for one in choice.logprobs.content]
    assert {choice.finish_reason for choice in whole.choices} == {"stop", "length"}
    assert rest[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert rest[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    order = [choice.index for chunk in chunks for choice in chunk.choices if choice.delta.content]
    assert order != sorted(order)  # two rows share the passes: none waits for another one's end
    last = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
    assert last == sorted(last)


def test_each_answer_keeps_its_own_penalties_and_structure(server):
    fields = {"presence_penalty": 1.5, "frequency_penalty": 1.0, "repetition_penalty": 1.3}
    asked = body(n=3, **DRAWN, presence_penalty=1.5, frequency_penalty=1.0, extra_body={"repetition_penalty": 1.3})
    found = server.client().chat.completions.create(**asked)
    wanted = [alone(server, seed_of(7, number), sampling=fields).text for number in range(3)]
    assert [choice.message.content for choice in found.choices] == wanted
    shaped = body(n=3, **DRAWN, extra_body={"structured_outputs": {"regex": "[a-z]{4} [0-9]{3}"}}, max_tokens=24)
    texts = [one.message.content for one in server.client().chat.completions.create(**shaped).choices]
    assert all(len(text) == 8 and text[:4].islower() and text[5:].isdigit() for text in texts)
    assert len(set(texts)) > 1


@pytest.mark.parametrize("stream", [False, True])
def test_greedy_ones_are_refused_but_where_the_checkpoint_samples(server, stream, monkeypatch):
    for fields in ({}, {"temperature": 0}):
        found = server.post(body(n=2, stream=stream, **fields))
        assert found.status_code == 400
        assert "greedy ones are equal" in found.json()["error"]["message"]
    assert server.post(body(n=1, stream=stream)).status_code == 200
    defaults = server.engine.target.defaults
    sampled = type(defaults)(Sampling(temperature=2.0), eos=defaults.eos)
    monkeypatch.setattr(server.engine.target, "defaults", sampled)
    assert server.post(body(n=2, stream=stream)).status_code == 200


def test_they_count_against_the_limits(start, held_rounds):
    server = start()
    data = json.dumps(body(n=5, stream=True, **DRAWN)).encode()
    with server.connection() as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        assert reaches(lambda: server.service.limits.active, 5)
        assert server.post(body(n=2, **DRAWN)).status_code == 503
    held_rounds.go.set()
    assert reaches(lambda: server.service.limits.active, 0)  # whoever leaves ends all of them
    assert reaches(server.rows, 0)


@pytest.mark.parametrize("n", [0, 9, 1.5, True])
def test_a_wrong_number_is_refused(server, n):
    with pytest.raises(openai.BadRequestError, match="n: "):
        server.client().chat.completions.create(**body(n=n, **DRAWN))


def test_where_one_answer_is_written_several_are_refused(server):
    asked = {"model": "reference", "messages": messages(), "n": 2, "temperature": 1}
    found = httpx.post(f"{server.url}/page/alone", json=asked, timeout=60)
    assert (found.status_code, found.json()["error"]["param"]) == (400, "n")
