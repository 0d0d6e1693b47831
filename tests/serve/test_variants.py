"""Harmless variants that clients send: each gives the answer that the plain request gives."""

import httpx
import openai
import pytest

from crossdraft import Request, __version__
from tests.serve.conftest import QUESTION, body, content, messages

PLAIN = {"max_tokens": 8}


def said(server, **fields) -> str:
    found = server.client().chat.completions.create(**body(**PLAIN | fields))
    return found.choices[0].message.content


@pytest.fixture(scope="module")
def plain(server) -> str:
    return said(server)


def test_null_is_absent(server, plain):
    names = ("stream", "stream_options", "max_completion_tokens", "temperature", "seed", "stop", "logprobs", "n")
    names += ("crossdraft", "media_io_kwargs", "logit_bias", "tools", "tool_choice", "response_format", "metadata")
    found = server.post(body(**PLAIN, **dict.fromkeys(names)))
    assert found.json()["choices"][0]["message"]["content"] == plain
    shown = content()
    shown[0]["video_url"] |= dict.fromkeys(("num_frames", "fps"))
    shown[1]["event_url"] |= dict.fromkeys(("clock", "windows", "start_s", "format"))
    asked = [{"role": "user", "content": shown, "name": None, "tool_calls": None}]
    assert server.post(body(**PLAIN, messages=asked)).json()["choices"][0]["message"]["content"] == plain
    streamed = body(**PLAIN, stream=True, stream_options={"include_usage": None})
    assert server.post(streamed).text.endswith("data: [DONE]\n\n")


def test_null_does_not_stand_for_what_must_be_there(server):
    for fields in ({"messages": None}, {"model": None}, {"messages": [{"role": "user", "content": None}]}):
        assert server.post(body(**fields)).status_code == 400
    assert server.post(body(unknown=None)).json()["error"]["param"] == "unknown"


def test_an_answer_without_content_and_with_its_reasoning_is_an_empty_turn(server):
    later = {"role": "user", "content": "Is it near?"}
    found = [
        said(server, messages=[*messages(), {"role": "assistant", **turn}, later])
        for turn in (
            {"content": ""},
            {"content": None},
            {"content": None, "reasoning_content": "A car is seen.", "reasoning": "A car."},
            {"content": "", "parsed": {"side": "left"}},
            {"content": "", "reasoning_content": None, "provider_specific_fields": {"refusal": None}},
        )
    ]
    assert len(set(found)) == 1
    assert server.post(body(messages=[{"role": "assistant", "content": None}])).status_code == 400


def test_messages_of_the_system_in_front_are_joined(server):
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Name colours."}]},
        {"role": "system", "content": "Name cars."},
        {"role": "user", "content": QUESTION},
    ]
    joined = [{"role": "system", "content": "Be brief.\n\nName colours.\n\nName cars."}, turns[-1]]
    alone = server.engine.alone(Request(messages=joined, max_new_tokens=8))
    assert said(server, messages=turns) == alone.text
    fewer = Request(messages=[turns[0], turns[3]], max_new_tokens=8)
    assert server.engine.alone(fewer).stats.prompt_tokens < alone.stats.prompt_tokens
    with pytest.raises(openai.BadRequestError, match=r"messages\[2\] is of the system, after others"):
        said(server, messages=[turns[0], turns[3], turns[2], turns[3]])


def test_a_seed_of_minus_one_is_none(server, plain):
    assert said(server, seed=-1) == plain
    found = {said(server, seed=-1, temperature=2.0, max_tokens=24) for _ in range(16)}
    assert len(found) > 1
    with pytest.raises(openai.BadRequestError, match="seed"):
        said(server, seed=-2)


def test_each_chunk_may_have_the_usage_so_far(server):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(server.client().chat.completions.create(**body(stream=True, stream_options=options)))
    *texts, end, last = chunks[1:]
    counts = [chunk.usage.completion_tokens for chunk in texts]
    assert counts == sorted(counts)
    assert 0 < counts[0] < counts[-1] == end.usage.completion_tokens == last.usage.completion_tokens == 24
    assert {chunk.usage.prompt_tokens for chunk in [*texts, end]} == {last.usage.prompt_tokens}
    assert end.usage.total_tokens == last.usage.total_tokens
    without = server.client().chat.completions.create(**body(stream=True, stream_options={"include_usage": True}))
    assert [chunk.usage is not None for chunk in without][:-1] == [False] * (len(chunks) - 1)


def test_placeholders_in_words_lock_no_conversation(server):
    """Beside a picture they may be meant for it, so they are refused there."""
    turns = [
        {"role": "system", "content": "Say <image> for a picture."},
        *messages(),
        {"role": "assistant", "content": "LLaVA's prompts hold <image> or <video>."},
        {"role": "user", "content": "Why <video>?"},
    ]
    found = server.client().chat.completions.create(**body(messages=turns, max_tokens=8))
    other = [
        turn | {"content": turn["content"].replace("<", "[")} for turn in turns if isinstance(turn["content"], str)
    ]
    without = server.client().chat.completions.create(**body(messages=[other[0], turns[1], *other[1:]], max_tokens=8))
    assert found.usage.completion_tokens == 8
    assert abs(found.usage.prompt_tokens - without.usage.prompt_tokens) < 50  # a clip's tokens are more
    assert server.post(body(messages=messages("Why <image>?"), max_tokens=2)).status_code == 400


def test_other_ends_of_an_answer_are_those_of_generate(server, drafted_for):
    """Drafted trees hold tokens behind an end: they must not come, and behind one that is ignored they must."""
    target, client = server.engine.target, server.client().chat.completions
    prompt = target.prepare(Request(QUESTION, str(server.root / "clip.mp4")))

    def ids(length: int, ends: list[int]) -> list[int]:
        settings = {"max_new_tokens": length, "do_sample": False, "pad_token_id": 0, "eos_token_id": ends or None}
        out = target.model.generate(input_ids=prompt.input_ids[None], **dict(prompt.features), **settings)
        return out[0, len(prompt) :].tolist()

    def answered(length: int, **fields) -> tuple[str, int, str]:
        found = client.create(**body(max_tokens=length, extra_body=fields))
        return found.choices[0].message.content, found.usage.completion_tokens, found.choices[0].finish_reason

    def expected(found: list[int], reason: str) -> tuple[str, int, str]:
        return target.decode(found).strip(), len(found), reason

    whole = ids(60, sorted(target.eos))
    assert whole[-1] in target.eos
    for end in (whole[3], whole[7], whole[-3]):
        cut = ids(60, [*target.eos, end])
        assert cut == whole[: whole.index(end) + 1]
        assert answered(60, stop_token_ids=[end]) == expected(cut, "stop")
    later = ids(60, [])
    assert len(later) == 60 > len(whole)
    assert answered(60, ignore_eos=True) == expected(later, "length")
    assert answered(60, ignore_eos=True, stop_token_ids=[whole[-1]]) == expected(whole, "stop")
    with pytest.raises(openai.BadRequestError, match="stop_token_ids"):
        answered(4, stop_token_ids=[-1])


NEUTRAL = {
    "reasoning_effort": "low",
    "verbosity": "low",
    "skip_special_tokens": True,
    "add_generation_prompt": True,
    "continue_final_message": False,
    "chat_template_kwargs": {"enable_thinking": False},  # which the reference pair's template does not read
}


def test_neutral_values_of_vllms_fields_are_taken(server, plain):
    assert said(server, extra_body=NEUTRAL) == plain
    found = server.post(body(skip_special_tokens=False)).json()["error"]
    assert (found["param"], found["code"]) == ("skip_special_tokens", "unsupported_value")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_has_begun_goes_on_as_it_would_have(server, stream):
    whole = said(server, max_tokens=16)
    begun, begins = whole[: whole.index(" ", 8)], {"continue_final_message": True, "add_generation_prompt": False}
    turns = [*messages(), {"role": "assistant", "content": begun}]
    asked = body(messages=turns, max_tokens=8, stream=stream, extra_body=begins)
    found = server.client().chat.completions.create(**asked)
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in found)
    else:
        text = found.choices[0].message.content
    assert text.startswith(" ")
    assert len(text) > 8
    assert (begun + text).startswith(whole) or whole.startswith(begun + text)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"continue_final_message": True}, "end with a message of the assistant"),
        ({"add_generation_prompt": False}, "and only there"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "and only there"),
        ({"messages": [{"role": "assistant", "content": ""}], "continue_final_message": True}, "holds text"),
        ({"messages": [{"role": "assistant", "content": "A"}]}, "end with the user's"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs sets 'tokenize'"),
        ({"chat_template_kwargs": {"messages": "x"}}, "'messages'"),
        ({"chat_template_kwargs": {"tools": []}}, "'tools'"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "'bos_token'"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "'add_generation_prompt'"),
        ({"chat_template_kwargs": {"a b": 1}}, "'a b'"),
        ({"chat_template_kwargs": {"a": [1]}}, "chat_template_kwargs: a is [1]"),
        ({"chat_template_kwargs": {"a": "x" * 1025}}, "at most 1,024 characters"),
        ({"chat_template_kwargs": {f"a{number}": 1 for number in range(17)}}, "at most 16"),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
    ],
)
def test_values_that_are_not_for_a_template_are_refused(server, fields, part):
    for stream in (False, True):
        found = server.post(body(**{"stream": stream, **fields}))
        assert found.status_code == 400
        assert part in found.json()["error"]["message"]


def test_a_prompt_may_hold_any_number_of_commas(server):
    table = "1,2," * 20_000
    found = server.post(body(messages=messages(table))).json()["error"]
    assert found["code"] == "context_length_exceeded"  # not the body's size


def test_the_version_has_its_route(server):
    assert httpx.get(f"{server.url}/version").json() == {"version": __version__}
