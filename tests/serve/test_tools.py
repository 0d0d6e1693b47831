"""Tools over HTTP, by OpenAI's own client: definitions, choices, calls whole and streamed, and their results."""

import json
import shutil

import openai
import pytest
from openai.types.responses import Response
from transformers import AutoTokenizer

from crossdraft import Engine, Options, Request, Sampling, Tools
from tests.serve.conftest import Runner, settings
from tests.structure.calls import TEMPLATE
from tests.structure.test_tools import BOUNDED

NAMED = {"type": "function", "function": {"name": "stop"}}
ASKED = [{"role": "user", "content": "what?"}]


@pytest.fixture(scope="module")
def tools_server(pair, tmp_path_factory):
    """A tiny target whose chat template writes tools."""
    folder = tmp_path_factory.mktemp("tools") / "target"
    shutil.copytree(pair.target, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    with Engine.load(str(folder), "ngram", Options(max_batch=2)) as engine:
        runner = Runner(engine, folder)
        started = runner.start(settings(target=str(folder), drafter="ngram", placement="inline"))
        yield started[0]
        runner.stop(*started)


def create(server, **fields):
    given = {"model": "target", "messages": ASKED, "tools": BOUNDED, "max_tokens": 160} | fields
    return server.client().chat.completions.create(**given)


def alone(server, tools, messages=ASKED, **more):
    return server.engine.alone(Request(messages=messages, tools=tools, max_new_tokens=160, **more))


def calls_of(answer):
    return [(call.name, json.loads(call.arguments)) for call in answer.tool_calls]


@pytest.mark.parametrize(
    ("choice", "tools"),
    [("required", Tools(BOUNDED, "required", parallel=False)), (NAMED, Tools(BOUNDED, only="stop", parallel=False))],
)
def test_a_call_that_must_come(tools_server, choice, tools):
    found = create(tools_server, tool_choice=choice, parallel_tool_calls=False).choices[0]
    assert found.finish_reason == "tool_calls"
    assert found.message.content is None
    (call,) = found.message.tool_calls
    assert call.type == "function"
    assert call.id.isalnum()
    wanted = alone(tools_server, tools)
    assert [(call.function.name, json.loads(call.function.arguments))] == calls_of(wanted)
    assert choice == "required" or call.function.name == "stop"


def streamed(server, **fields):
    """The deltas of a stream, and what a client makes of them."""
    text, calls, reason = "", [], None
    for chunk in create(server, stream=True, **fields):
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        for delta in choice.delta.tool_calls or ():
            if delta.index == len(calls):
                assert delta.id
                assert delta.type == "function"
                assert delta.function.name
                assert delta.function.arguments == ""
                calls.append([delta.function.name, ""])
            else:
                calls[delta.index][1] += delta.function.arguments
        reason = choice.finish_reason or reason
    return text, [(name, json.loads(arguments)) for name, arguments in calls], reason


def test_streamed_deltas_are_the_whole_answer(tools_server):
    """Several calls: a bias keeps the answer from its end, until its length ends it."""
    eos = tools_server.engine.target.eos
    more = {"tool_choice": "required", "logit_bias": {str(token): -100 for token in eos}, "max_tokens": 300}
    whole = create(tools_server, **more).choices[0]
    text, calls, reason = streamed(tools_server, **more)
    assert len(calls) > 1
    assert calls == [(one.function.name, json.loads(one.function.arguments)) for one in whole.message.tool_calls]
    assert (text, reason) == (whole.message.content or "", "length")
    text, calls, reason = streamed(tools_server, tool_choice="required", parallel_tool_calls=False)
    assert (text, len(calls), reason) == ("", 1, "tool_calls")


def test_answers_that_are_no_calls_are_text(tools_server):
    """`auto` changes the prompt alone; `none` does not even that, nor does an empty list."""
    free = create(tools_server).choices[0]
    assert free.message.content == alone(tools_server, Tools(BOUNDED)).text
    assert free.message.tool_calls is None
    assert free.finish_reason in ("stop", "length")
    plain = alone(tools_server, None).text
    for fields in ({"tool_choice": "none"}, {"tools": []}, {"tools": [], "tool_choice": "auto"}):
        assert create(tools_server, **fields).choices[0].message.content == plain
    assert streamed(tools_server)[0] == free.message.content


def test_a_loop_of_calls_and_results(tools_server):
    """An answer's message is sent back as it came, with the result; the template writes both."""
    first = create(tools_server, tool_choice="required", parallel_tool_calls=False).choices[0].message
    (call,) = first.tool_calls
    for content in ("12 km/h", [{"type": "text", "text": "12 km/h"}]):
        result = {"role": "tool", "tool_call_id": call.id, "content": content}
        turns = [*ASKED, first.to_dict(), result]
        found = create(tools_server, messages=turns).choices[0].message.content
        assert found == alone(tools_server, Tools(BOUNDED), turns).text
    assert found != create(tools_server).choices[0].message.content


def test_sampled_answers_each_have_their_calls(tools_server):
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 1.0, "seed": 3, "n": 2}
    found = create(tools_server, **fields).choices
    sampling = Sampling(temperature=1.0, seed=3)
    wanted = alone(tools_server, Tools(BOUNDED, "required", parallel=False), sampling=sampling)
    assert all(len(choice.message.tool_calls) == 1 for choice in found)
    call = found[0].message.tool_calls[0].function
    assert [(call.name, json.loads(call.arguments))] == calls_of(wanted)


def function(**more):
    return {"type": "function", "function": {"name": "f"} | more}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"tools": [function()] * 2}, "different names"),
        ({"tools": [function(name=f"f{i}") for i in range(129)]}, "at most 128"),
        ({"tools": [function(name="get weather")]}, "1 to 64 of a-zA-Z0-9_-"),
        ({"tools": [function(description="x" * 300_000)]}, "262,144 are the limit"),
        ({"tools": [{"type": "function"}]}, "One of the tools is not"),
        ({"tools": [], "tool_choice": "required"}, "there are no tools"),
        ({"tools": [], "tool_choice": NAMED}, "there are no tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "go"}}}, "Unknown tool 'go'"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "which no call would have"),
        (
            {"tools": [function(parameters={"properties": {"a": {"if": {}}}})], "tool_choice": "required"},
            "Unimplemented",
        ),
        ({"messages": [*ASKED, {"role": "tool", "tool_call_id": "a", "content": "x"}]}, "tool_call_id"),
        ({"messages": [*ASKED, {"role": "assistant", "tool_calls": [{"id": "a"}]}, *ASKED]}, "is no call of a tool"),
    ],
)
def test_bad_tools_are_refused_with_a_status(tools_server, fields, part, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        create(tools_server, **fields, stream=stream)
    assert part in caught.value.message


def test_a_target_without_tools_says_so(server):
    fields = {"model": server.service.settings.model, "max_tokens": 4, "tools": BOUNDED, "messages": ASKED}
    with pytest.raises(openai.BadRequestError, match="chat template of target does not write tools"):
        server.client().chat.completions.create(**fields)


FLAT = [{"type": "function", **one["function"]} for one in BOUNDED]


def test_a_responses_calls_are_items_and_their_results_go_on(tools_server):
    """By `/v1/responses`: the call is the chat's, whole and by OpenAI's stream, and the next response knows it."""
    client, given = tools_server.client(), {"model": "target", "input": "what?", "max_output_tokens": 160}
    must = {"tools": FLAT, "tool_choice": {"type": "function", "name": "stop"}, "parallel_tool_calls": False}
    first = client.responses.create(**given, **must)
    Response.model_validate(first.to_dict())  # whole by the type, which the client itself does not check
    (call,) = first.output
    wanted = create(tools_server, tool_choice=NAMED, parallel_tool_calls=False).choices[0].message.tool_calls[0]
    assert (call.type, call.name, call.arguments) == ("function_call", "stop", wanted.function.arguments)
    assert first.status == "completed"
    assert first.tool_choice.name == "stop"
    with client.responses.stream(**given, **must) as events:
        kinds = [event.type.removeprefix("response.") for event in events]
        (again,) = events.get_final_response().output
    assert again.arguments == call.arguments
    assert kinds == [
        "created", "in_progress", "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "it stands"}
    then = client.responses.create(
        model="target", input=[result], previous_response_id=first.id, tools=FLAT, max_output_tokens=9
    )
    function = {"name": call.name, "arguments": call.arguments}
    said = {"role": "assistant", "tool_calls": [{"id": call.call_id, "type": "function", "function": function}]}
    turns = [*ASKED, said, {"role": "tool", "tool_call_id": call.call_id, "content": "it stands"}]
    same = create(tools_server, messages=turns, max_tokens=9).choices[0].message.content
    assert then.output_text == same
    inline = [{"role": "user", "content": "what?"}, call.model_dump(exclude_none=True), result]
    assert client.responses.create(model="target", input=inline, tools=FLAT, max_output_tokens=9).output_text == same
