"""`/v1/responses`, by OpenAI's own client and by hand: bodies, the order of events, the store."""

import json
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx
import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from crossdraft import Request, Structure
from crossdraft.engine.request import Origin, Piece
from crossdraft.messages import ToolCall
from crossdraft.serve import response_store
from crossdraft.serve.answering import SILENCE, Answering
from crossdraft.serve.errors import ApiError
from crossdraft.serve.gate import RequestInfo
from crossdraft.serve.keys import append_key, new_key, new_record
from crossdraft.serve.response_items import ResponseRequest
from crossdraft.serve.response_store import ResponseStore, StoredResponse
from crossdraft.serve.responses import ResponseForm
from tests.serve.conftest import QUESTION, content


def shown(question: str = QUESTION) -> list[dict]:
    """The parts of a message: a clip and its recording as in chats, and a text as in responses."""
    return [*content(question)[:2], {"type": "input_text", "text": question}]


def items(*questions: str) -> list[dict]:
    return [{"role": "user", "content": shown(question)} for question in questions or (QUESTION,)]


def create(server, given=None, **fields):
    asked = {"model": "reference", "max_output_tokens": 12, **fields}
    return server.client().responses.create(input=items() if given is None else given, **asked)


def post(server, key: str = "none", **fields) -> httpx.Response:
    asked = {"model": "reference", "input": QUESTION, "max_output_tokens": 4, **fields}
    return httpx.post(f"{server.url}/v1/responses", json=asked, headers=bearer(key), timeout=60)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def chat(server, messages, **fields):
    return server.client().chat.completions.create(model="reference", messages=messages, max_tokens=12, **fields)


def test_a_response_is_the_chats_answer(server):
    found = create(server, instructions="Be brief.")
    said = chat(server, [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content()}])
    assert found.output_text == said.choices[0].message.content
    assert (found.object, found.id[:5], found.instructions) == ("response", "resp_", "Be brief.")
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert [item.type for item in found.output] == ["message"]
    assert (found.usage.input_tokens, found.usage.output_tokens) == (said.usage.prompt_tokens, 12)
    assert found.usage.total_tokens == found.usage.input_tokens + 12
    whole = create(server, max_output_tokens=100)
    assert (whole.status, whole.incomplete_details, whole.error) == ("completed", None, None)
    assert (whole.tools, whole.tool_choice, whole.text.format.type) == ([], "auto", "text")


def test_a_text_is_input_too(server):
    found = post(server, max_output_tokens=12).json()
    alone = server.engine.alone(Request(messages=[{"role": "user", "content": QUESTION}], max_new_tokens=12))
    item = found["output"][0]
    assert item == {
        "id": item["id"], "type": "message", "status": "incomplete", "role": "assistant",
        "content": [{"type": "output_text", "text": alone.text, "annotations": [], "logprobs": []}],
    }  # fmt: skip


ORDER = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
ENDS = ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"]


def test_a_streams_events_come_in_openais_order(server):
    whole = create(server, top_logprobs=2)
    events = list(create(server, top_logprobs=2, stream=True))
    kinds = [event.type for event in events]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert kinds == [*ORDER, *["response.output_text.delta"] * len(deltas), *ENDS]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in deltas) == whole.output_text == events[-4].text
    assert events[0].response.status == events[1].response.status == "in_progress"
    assert events[2].item.status == "in_progress"
    assert {event.item_id for event in [*deltas, *events[-4:-2]]} == {events[2].item.id}
    last = events[-1].response.to_dict()
    assert events[-2].item == events[-1].response.output[0]
    same = whole.to_dict()
    for one in (last, same):  # all but what is new each time
        assert one.pop("id")
        assert one.pop("created_at")
        assert one["output"][0].pop("id")
        one["usage"].pop("input_tokens_details")
    assert last == same
    tokens = [token for event in deltas for token in event.logprobs]
    assert len(tokens) == len(last["output"][0]["content"][0]["logprobs"]) == 12
    assert all(len(token.top_logprobs) == 2 for token in tokens)


def test_a_streams_lines_name_their_events(server):
    """And are whole, by the types of OpenAI's client, which itself checks nothing."""
    lines = [line for line in post(server, stream=True).text.splitlines() if line]
    assert lines[0] == "event: response.created"
    for event, data in zip(lines[::2], lines[1::2], strict=True):
        assert json.loads(data.removeprefix("data: "))["type"] == event.removeprefix("event: ")
        TypeAdapter(ResponseStreamEvent).validate_json(data.removeprefix("data: "))
    assert lines[-2] == "event: response.incomplete"


def test_the_stream_helper_of_openais_client_gathers_the_response(server):
    with server.client().responses.stream(model="reference", input=items(), max_output_tokens=100) as stream:
        found = stream.get_final_response()
    assert found.output_text == create(server, max_output_tokens=100).output_text


class Scene(BaseModel):
    """What a client parses an answer into."""

    red: bool


def test_structured_text_is_parsed(server):
    schema = Structure.json({"enum": [1, 2]})
    form = {"type": "json_schema", "name": "number", "schema": {"enum": [1, 2]}, "strict": True}
    found = create(server, text={"format": form})
    video = str(server.root / "clip.mp4")
    assert found.output_text == server.engine.alone(Request(QUESTION, video, structure=schema)).text
    blanks = server.engine.target.text.tokenizer
    blank = {token: -100 for token in range(len(blanks)) if not blanks.decode([token]).strip()}
    parsed = server.client().responses.parse(
        model="reference", input=items(), max_output_tokens=64, text_format=Scene, extra_body={"logit_bias": blank}
    )
    assert isinstance(parsed.output_parsed, Scene)


def test_a_conversation_goes_on_from_a_stored_response(server):
    first = create(server, instructions="Be brief.")
    later = create(server, "Is it near?", previous_response_id=first.id, instructions="Be kind.")
    turns = [
        {"role": "system", "content": "Be kind."},  # the earlier instructions held for the earlier answer
        {"role": "user", "content": content()},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "Is it near?"},
    ]
    wanted = chat(server, turns)
    assert later.output_text == wanted.choices[0].message.content
    assert later.usage.input_tokens == wanted.usage.prompt_tokens
    assert later.previous_response_id == first.id
    by_hand = [*items(), *first.to_dict()["output"], {"role": "user", "content": "Is it near?"}]
    assert create(server, by_hand, instructions="Be kind.").output_text == later.output_text
    third = create(server, "Is it red?", previous_response_id=later.id)
    turns = [*turns[1:], {"role": "assistant", "content": later.output_text}, {"role": "user", "content": "Is it red?"}]
    assert third.output_text == chat(server, turns).choices[0].message.content


def test_images_and_uploads(server):
    clip = server.client().files.create(file=Path(server.root / "clip.mp4"), purpose="user_data").id
    parts = [{"type": "input_file", "file_id": clip}, {"type": "input_text", "text": QUESTION}]
    found = create(server, [{"role": "user", "content": parts}])
    wanted = chat(server, [{"role": "user", "content": [content()[0], {"type": "text", "text": QUESTION}]}])
    assert found.output_text == wanted.choices[0].message.content
    for part in ({"image_url": f"{clip}"}, {"file_id": clip}):  # a clip by its id; as an image it is none
        parts[0] = {"type": "input_image", "detail": "auto", **part}
        status = post(server, input=[{"role": "user", "content": parts}]).status_code
        assert status == (200 if "file_id" in part else 400)


def test_reasoning_is_not_read(server):
    given = [*items(), {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}]
    assert create(server, given).output_text == create(server).output_text


@pytest.fixture
def keyed(start, tmp_path):
    """A server with the keys of two clients."""
    file, keys = tmp_path / "keys.yaml", [new_key(), new_key()]
    for name, key in zip(("anna", "bert"), keys, strict=True):
        append_key(file, new_record(name, key))
    return start(keys_file=file), *keys


def test_a_response_is_its_clients_own_and_can_be_deleted(keyed):
    server, anna, bert = keyed
    found = post(server, anna).json()
    url = f"{server.url}/v1/responses/{found['id']}"
    assert httpx.get(url, headers=bearer(anna)).json() == found
    for refused in (httpx.get(url, headers=bearer(bert)), httpx.delete(url, headers=bearer(bert))):
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "response_not_found")
    refused = post(server, bert, previous_response_id=found["id"])
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "previous_response_not_found")
    assert refused.json()["error"]["param"] == "previous_response_id"
    assert httpx.delete(url, headers=bearer(anna)).json() == {
        "id": found["id"], "object": "response", "deleted": True,
    }  # fmt: skip
    assert httpx.get(url, headers=bearer(anna)).status_code == 404


def test_what_is_not_to_be_stored_is_not(server):
    found = create(server, store=False)
    with pytest.raises(openai.NotFoundError):
        server.client().responses.retrieve(found.id)
    kept = create(server)
    assert server.client().responses.retrieve(kept.id).output_text == kept.output_text
    server.client().responses.delete(kept.id)
    with pytest.raises(openai.NotFoundError):
        server.client().responses.retrieve(kept.id)


def kept(store: ResponseStore, owner: str) -> list[str]:
    names = []
    for name in "abcdef":
        with suppress(ApiError):
            names.append(store.get(name, owner).body.decode())
    return names


def put(store: ResponseStore, owner: str, name: str, size: int) -> None:
    store.put(owner, name, StoredResponse(name.encode(), b"x" * (size - 1)))


def test_the_store_is_bounded_for_each_client(monkeypatch):
    monkeypatch.setattr(response_store, "MOST_BYTES", 1000)
    monkeypatch.setattr(response_store, "MOST_RESPONSES", 4)
    store = ResponseStore()
    put(store, "bert", "a", 900)
    for name in "abcde":
        put(store, "anna", name, 1)
    assert kept(store, "anna") == ["b", "c", "d", "e"]  # four of the least size
    store.get("b", "anna")
    put(store, "anna", "f", 600)
    assert kept(store, "anna") == ["b", "f"]  # the least recently used ones went
    put(store, "anna", "a", 1001)
    assert kept(store, "anna") == ["b", "f"]  # one that alone is too large is not stored
    assert kept(store, "bert") == ["a"]


def test_the_store_is_bounded_over_all_clients(monkeypatch):
    monkeypatch.setattr(response_store, "MOST_BYTES", 1000)
    monkeypatch.setattr(response_store, "MOST_OF_ALL", 2000)
    store = ResponseStore()
    for at in range(100):
        put(store, f"client{at}", "a", 700)
    held = [at for at in range(100) if kept(store, f"client{at}")]
    assert held == [98, 99]
    store.delete("a", "client99")
    put(store, "anna", "a", 700)
    assert [kept(store, name) for name in ("client98", "anna")] == [["a"], ["a"]]


def test_what_is_stored_is_counted_byte_by_byte(server, monkeypatch):
    """The conversation is kept as JSON: as objects, parts of a letter each would hold many times what counts."""
    stored, put = [], ResponseStore.put
    monkeypatch.setattr(
        ResponseStore, "put", lambda self, owner, found, one: (stored.append(one), put(self, owner, found, one))
    )
    asked = [{"role": "user", "content": [{"type": "input_text", "text": "a"}] * 100}]
    first = post(server, input=asked, max_output_tokens=1).json()
    post(server, input=asked, max_output_tokens=1, previous_response_id=first["id"])
    assert [len(json.loads(one.messages)) for one in stored] == [2, 4]
    assert all(len(one.body) + len(one.messages) <= one.size for one in stored)


def test_a_conversation_has_no_more_values_than_a_body(server):
    empty = [{"type": "input_text", "text": ""}] * 999
    many, name = [{"role": "user", "content": [{"type": "input_text", "text": "a"}, *empty]}] * 2, None
    for _ in range(2):
        found = post(server, input=many, max_output_tokens=1, previous_response_id=name)
        assert found.status_code == 200, found.text
        name = found.json()["id"]
    found = post(server, input=many, max_output_tokens=1, previous_response_id=name)
    assert (found.status_code, found.json()["error"]["code"]) == (413, "body_too_large")


def test_two_threads_go_on_with_conversations_of_their_own(server):
    texts: dict[str, list[str]] = {}

    def talk(question: str) -> None:
        said, before = [], None
        for asked in (items(question), "Is it near?", "Is it red?"):
            found = create(server, asked, previous_response_id=before)
            said.append(found.output_text)
            before = found.id
        texts[question] = said

    questions = (QUESTION, "Is it dark?")
    for question in questions:
        talk(question)
    alone = dict(texts)
    threads = [threading.Thread(target=talk, args=(question,)) for question in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert texts == alone


@pytest.mark.parametrize(
    ("fields", "param", "part"),
    [
        ({"input": None}, "input", "Field required"),
        ({"input": []}, "input", "at least 1"),
        ({"input": [{"role": "user", "content": [{"type": "text"}]}]}, "input[0].content[0]", "input_text"),
        ({"input": [{"role": "user", "content": "a", "foo": 1}]}, "input[0].foo", "Unrecognized"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0]", "item_reference"),
        ({"input": [{"role": "robot", "content": "a"}]}, "input[0].role", "user"),
        ({"input": [{"role": "user", "content": ""}]}, None, "empty"),
        ({"input": [{"role": "user", "content": "a"}] * 257}, "input", "256"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
        ({"max_output_tokens": "many"}, "max_output_tokens", "valid integer"),
        ({"max_output_tokens": True}, "max_output_tokens", "true is no number"),
        ({"max_output_tokens": 10**6}, "max_output_tokens", "ask for fewer"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input", "no such file"),
        ({"input": "a car " * 4000}, "input", "context"),
        ({"max_tokens": 4}, "max_tokens", "Unrecognized"),
        ({"messages": []}, "messages", "Unrecognized"),
        ({"nonsense": 1}, "nonsense", "Unrecognized"),
        ({"truncation": "auto"}, "truncation", "leave it out"),
        ({"background": True}, "background", "leave it out"),
        ({"include": ["file_search_call.results"]}, "include[0]", "logprobs"),
        ({"conversation": "conv_1"}, "conversation", "Unrecognized"),
        ({"response_format": {"type": "text"}}, "response_format", "Unrecognized"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "json_schema"),
        ({"text": {"format": "json"}}, "text.format", "object"),
        ({"text": {"fromat": {"type": "text"}}}, "text.fromat", "Unrecognized"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "none"}, None, "One of the tools is not"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "nonsense"}}}}, None, "Invalid type"),
        ({"previous_response_id": "resp_none"}, "previous_response_id", "no such response"),
        ({"temperature": 3}, "temperature", "2"),
        ({"model": "other"}, "model", "no model"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_requests_are_refused_by_name(server, fields, param, part, stream):
    found = post(server, **fields, stream=stream)
    assert found.status_code == (404 if part in ("no model", "no such file") else 400)
    assert found.json()["error"]["param"] == param
    assert part in found.json()["error"]["message"]


@pytest.mark.parametrize("pieces", [0, 1])
def test_an_error_in_a_stream_is_raised_by_openais_client_and_ends_the_response(server, monkeypatch, pieces):
    """After a comment, and after the first piece."""
    news, asked = Answering._next, Counter()

    async def failing(answering):
        asked[answering] += 1
        if asked[answering] > 1:
            raise RuntimeError("failed")
        return await news(answering) if pieces else SILENCE

    monkeypatch.setattr(Answering, "_next", failing)
    events = [json.loads(line[6:]) for line in post(server, stream=True).text.splitlines() if line[:6] == "data: "]
    kinds, shown = [event["type"] for event in events], [*ORDER[2:], "response.output_text.delta"] * pieces
    assert kinds == ["response.created", "response.in_progress", *shown, "error", "response.failed"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-2]["error"]["type"] == "server_error"
    assert (events[-1]["response"]["status"], events[-1]["response"]["error"]["code"]) == ("failed", "server_error")
    with pytest.raises(openai.APIError, match=events[-2]["message"][:20]):
        list(create(server, stream=True))


def test_tokens_whose_text_comes_later_keep_their_logprobs(server):
    """Half a character has no text; a call's tokens belong to no message."""
    fields = {"model": "reference", "input": QUESTION, "top_logprobs": 0}
    form = ResponseForm(server.service, ResponseRequest.model_validate(fields), RequestInfo("a"))
    for tokens, text, calls in (((5, 6), "", ()), ((7,), "é", ()), ((8,), "", ()), ((9,), "", (ToolCall("f", "{}"),))):
        form.piece(0, Piece(tokens, text, Origin.TARGET, "a", (-1.0,) * len(tokens), None, 9, calls))
    assert len(form._output[0]["content"][0]["logprobs"]) == 3


def test_harmless_fields_are_taken(server):
    harmless = {
        "reasoning": {"effort": "low"}, "include": [], "truncation": "disabled", "metadata": {"a": "b"}, "user": "a",
        "service_tier": "auto", "background": False, "parallel_tool_calls": True, "tools": [], "tool_choice": "auto",
        "text": {"format": {"type": "text"}, "verbosity": "low"}, "store": True, "stream_options": None,
        "prompt_cache_key": "a", "safety_identifier": "a", "prompt_cache_retention": "24h", "seed": 1, "top_k": 1,
    }  # fmt: skip
    found = post(server, **harmless, input=[{"type": None, "role": "user", "content": "a"}])
    assert found.status_code == 200, found.text
    assert (found.json()["metadata"], found.json()["user"]) == ({"a": "b"}, "a")
