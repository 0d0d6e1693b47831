"""Bodies: what one may cost before it is known to be wrong, and how much one client may be sending."""

import asyncio
import json
import threading
from itertools import pairwise

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from websockets.sync.client import connect

from crossdraft.serve.bodies import (
    FEW_COMMAS,
    INLINE,
    MOST_MEMBERS,
    MOST_VALUES,
    BodyLimits,
    ValueCounter,
    chat_of,
    parsed,
)
from crossdraft.serve.chat import read_chat
from crossdraft.serve.errors import ApiError
from crossdraft.serve.keys import Client
from crossdraft.serve.schema import MAX_MESSAGES, ChatRequest
from tests.serve.conftest import body
from tests.serve.test_limits import KEY, keyed  # noqa: F401 - a fixture
from tests.serve.test_security import reaches


def hostile(inner: str) -> bytes:
    return f'{{"model":"reference","messages":[{{"role":"user","content":{inner}}}]}}'.encode()


def repeated(one: str, count: int) -> str:
    return ",".join([one] * count)


def members(count: int) -> str:
    return ",".join(f'"{number}":0' for number in range(count))


@pytest.mark.parametrize(
    "sent",
    [
        hostile(f"[{repeated('{}', 80_000)}]"),  # as large as a frame of an edge
        hostile(f"[{repeated('{}', MOST_MEMBERS + 1)}]"),
        hostile('"x","metadata":{"a":[' + repeated(f"[{repeated('1', 1000)}]", 17) + "]}"),
        hostile(f'"x",{members(MOST_MEMBERS + 1)}'),
    ],
)
def test_a_body_of_too_many_values_is_not_validated(sent):
    with pytest.raises(ApiError) as error:
        chat_of(sent)
    assert (error.value.status, error.value.code) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("sent", "most"),
    [
        (hostile(f"[{repeated('{}', 1000)}]"), 2),  # as a text, and as parts
        (hostile(f'[{{"type":"text","text":"x",{members(1000)}}}]'), 1001),
        (f'{{"model":"reference","messages":[{repeated("{}", MAX_MESSAGES)}]}}'.encode(), 2),
        (hostile(f'"x","stop":[{repeated("1", 1000)}]'), 2),
    ],
)
def test_of_a_lists_elements_the_first_that_is_wrong_is_all_that_is_said(sent, most):
    with pytest.raises(ValidationError) as error:
        chat_of(sent)
    assert error.value.error_count() <= most


def test_long_texts_and_whole_conversations_are_taken():
    words = "a, b " * (1 << 17)
    assert chat_of(hostile(json.dumps(words))).messages[0].content == words
    turns = [{"role": "user", "content": [{"type": "text", "text": "x,"}]}] * MAX_MESSAGES
    bias = {str(token): 1.0 for token in range(MOST_MEMBERS)}
    assert len(chat_of(json.dumps({"model": "m", "messages": turns, "logit_bias": bias}).encode()).messages) == 256
    with pytest.raises(ValidationError, match="Invalid JSON"):
        chat_of(b"[" * 5000 + b"," * MOST_VALUES)
    assert MOST_VALUES > 6 * MAX_MESSAGES + MOST_MEMBERS


@given(texts=st.lists(st.text(alphabet=',"\\\\[]{}:x\n'), max_size=20), repeats=st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_what_stands_in_texts_is_no_value(texts, repeats):
    """Quotes, commas, brackets and backslashes in any order; as a message and as names of members."""
    words = "".join(texts) * repeats + "," * MOST_VALUES
    metadata = {f"{number}{text}": text for number, text in enumerate(texts)}
    asked = {"model": "m", "messages": [{"role": "user", "content": words}], "metadata": metadata}
    for ascii_only in (False, True):
        assert chat_of(json.dumps(asked, ensure_ascii=ascii_only).encode()).messages[0].content == words


@given(text=st.text(alphabet='",\\\\x', max_size=40), cuts=st.lists(st.integers(0, 60), max_size=8))
def test_values_are_counted_however_a_body_is_cut(text, cuts):
    sent = json.dumps({"a": text, "b": [text, 1, 2]}).encode()
    counter, edges = ValueCounter(), sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    for begin, end in pairwise(edges):
        counter.push(sent[begin:end])
    assert counter._commas == 3


@pytest.mark.parametrize("count", [MOST_VALUES + 2, 1_000_000])
def test_values_beyond_the_limit_are_refused_before_they_are_parsed(monkeypatch, count):
    monkeypatch.setattr("crossdraft.serve.bodies.from_json", None)
    for inner in (f"[{repeated('1', count)}]", f"[{repeated(json.dumps('a'), count)}]", f"{{{members(count)}}}"):
        with pytest.raises(ApiError) as error:
            chat_of(hostile(f'"x\\\\","metadata":{{"a":{inner}}}'))
        assert error.value.status == 413


def test_a_stream_of_too_many_values_is_refused(server):
    with connect(f"ws{server.url[4:]}/v1/watch") as socket:
        socket.send(f'{{"questions":[{repeated("1", 20_000)}]}}')
        assert json.loads(socket.recv(20))["error"]["code"] == "body_too_large"


@pytest.mark.parametrize(
    ("sent", "code", "says"),
    [
        (b'{"model":"caf\xe9"}', "invalid_encoding", "0xE9 at position 13"),
        ('{"model":"x"}'.encode("utf-16"), "invalid_encoding", "0xFF at position 0"),
        (b'{"a":"\xed\xa0\x80"}', "invalid_encoding", "0xED at position 6"),  # half a surrogate pair
        (b"{bad", "invalid_json", "line 1 column 2"),
        (b'{"model":\n"m",}', "invalid_json", "line 2 column 5"),
        (b"", "invalid_json", "line 1 column 0"),
        (b"{", "invalid_json", "line 1 column 1"),
        (b'{"model":"m"} x', "invalid_json", "line 1 column 15"),
    ],
)
def test_another_encoding_and_broken_json_have_sentences_of_their_own_that_say_where(server, sent, code, says):
    found = httpx.post(f"{server.url}/v1/chat/completions", content=sent)
    assert (found.status_code, found.json()["error"]["code"]) == (400, code)
    assert says in found.json()["error"]["message"]


@pytest.mark.parametrize("text", ["x", "a," * FEW_COMMAS])
def test_a_body_is_parsed_once(monkeypatch, text):
    """Each time holds all answers up, if it is large."""
    parses = []
    monkeypatch.setattr("crossdraft.serve.bodies.from_json", lambda body: parses.append(1) or json.loads(body))
    monkeypatch.setattr(ChatRequest, "model_validate_json", None)
    assert chat_of(hostile(json.dumps(text))).messages[0].content == text
    assert parses == [1]


@pytest.mark.parametrize(
    "sent",
    [
        b'{"model":"m"',
        hostile('"\\ud800"'),
        hostile("null"),
        hostile('[{"type":"text"}]'),
        hostile('"x","name":{}'),
        hostile('"x"').replace(b"reference", b'm","tools":{},"seed":1.5,"logit_bias":[],"n":"1'),
    ],
)
def test_what_is_wrong_is_said_in_words_of_json(sent):
    said = []
    for read in (chat_of, ChatRequest.model_validate_json):
        with pytest.raises(ValidationError) as error:
            read(sent)
        said.append(error.value.errors(include_url=False))
    assert said[0] == said[1]


def test_bodies_that_are_refused_count_as_requests(keyed):  # noqa: F811
    server = keyed(requests_per_minute=3)
    codes = [server.post(asked, headers=KEY).json()["error"]["code"] for asked in ({}, body(model="other"), {}, {})]
    assert codes == ["invalid_value", "model_not_found", "invalid_value", "rate_limit_exceeded"]
    assert server.post(body(max_tokens=1), headers=KEY).status_code == 429
    with pytest.raises(ApiError) as error:  # of an edge's frame nothing else is known
        asyncio.run(read_chat(server.service, b"{}", Client("anna", requests_per_minute=3)))
    assert error.value.status == 429


@pytest.mark.parametrize(("length", "here"), [(INLINE - 200, True), (INLINE, False)])
def test_a_large_body_is_parsed_in_a_thread_and_a_small_one_is_not(length, here):
    threads = []

    def noted(body: bytes):
        threads.append(threading.current_thread())
        return chat_of(body)

    words = "x" * length
    sent = json.dumps({"model": "m", "messages": [{"role": "user", "content": words}]}).encode()
    chat = asyncio.run(parsed(sent, noted))
    assert chat.messages[0].content == words
    assert (threads == [threading.current_thread()]) is here


def test_a_client_sends_a_share_of_all_and_at_least_one_body():
    anna, ben = Client("anna"), Client("ben")
    for most, largest, share in ((400, 10, 100), (400, 150, 150)):
        limits = BodyLimits(most, largest)
        limits.hold(anna, share)
        limits.check(anna)
        limits.hold(anna, 1)
        with pytest.raises(ApiError) as error:
            limits.check(anna)
        assert error.value.status == 429
        limits.hold(ben, 1)
        limits.check(ben)
        limits.hold(Client(), most)  # whoever has no key is told from nobody
        with pytest.raises(ApiError) as error:
            limits.check(Client())
        assert (error.value.status, error.value.code) == (503, "bodies_full")
        for client, size in ((anna, share + 1), (ben, 1), (Client(), most)):
            limits.release(client, size)
        assert limits.held == 0
        limits.check(anna)


def test_a_client_has_no_more_bodies_on_their_way_than_requests(keyed):  # noqa: F811
    """Each could take a minute, and hold as much as a body may."""
    server = keyed(concurrent=1)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: {KEY['Authorization']}\r\n"
    with server.connection() as first:
        first.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        assert reaches(lambda: server.service.bodies.held, 1)
        refused = server.post(body(max_tokens=1), headers=KEY)
        assert (refused.status_code, refused.headers["connection"]) == (429, "close")
        assert "are sending 1" in refused.json()["error"]["message"]
    assert reaches(lambda: server.service.bodies.held, 0)
    assert server.post(body(max_tokens=1), headers=KEY).status_code == 200
