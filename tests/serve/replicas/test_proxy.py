"""The proxy: what passes through it, what it answers itself, what it does about replicas that are lost."""

import json
import time

import httpx
import openai
import pytest
import websockets.sync.client
from prometheus_client.parser import text_string_to_metric_families
from websockets.exceptions import InvalidStatus

from crossdraft.serve.errors import TYPES
from crossdraft.serve.keys import digest_of
from crossdraft.serve.page.static import FILES, HEADERS, page_file
from tests.serve.conftest import body, messages


def text_of(reply: httpx.Response) -> str:
    return reply.json()["choices"][0]["message"]["content"]


def events_of(reply: httpx.Response) -> list:
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def streamed(events: list) -> str:
    chunks = [one for one in events if isinstance(one, dict) and "choices" in one]
    return "".join(one["choices"][0]["delta"].get("content") or "" for one in chunks)


def test_an_answer_is_what_the_server_alone_gives(proxied, server):
    found = proxied()
    wanted = text_of(server.post(body()))
    reply = found.post(body(), headers={"X-Request-Id": "mine-1", "Origin": found.url})
    assert (reply.status_code, text_of(reply), reply.json()["id"]) == (200, wanted, "chatcmpl-mine-1")
    assert reply.headers.get_list("x-request-id") == ["mine-1"]
    assert reply.headers.get_list("content-length") == [str(len(reply.content))]
    with found.client().chat.completions.create(**body(stream=True)) as stream:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == wanted
    assert len(set(found.replicas.sessions)) == 1
    assert all(b"origin" not in dict(scope["headers"]) for scope in found.replicas.scopes)
    page = httpx.get(f"{found.url}/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert httpx.get(f"{found.url}/v1/models").json()["data"][0]["id"] == "reference"


def test_a_file_is_sent_by_the_proxy_itself(proxied):
    """Of one that a replica sent, Ray would hold all that a slow client has not read."""
    found = proxied()
    address, wanted = f"{found.url}/v1/media/content", (found.root / "clip.mp4").read_bytes()
    reply = httpx.get(address, params={"url": "file:clip.mp4"})
    assert (reply.status_code, reply.content) == (200, wanted)
    assert reply.headers["content-security-policy"].startswith("sandbox")
    part = httpx.get(address, params={"url": "file:clip.mp4"}, headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, wanted[10:20])
    for url in ("file:../clip.mp4", "file:nothing.mp4", "/etc/passwd", "file-" + "0" * 32):
        assert httpx.get(address, params={"url": url}).status_code == 404, url
    assert not found.replicas.calls
    assert httpx.get(address).status_code == 400


def test_the_page_is_the_proxys_own(proxied, tmp_path):
    """It is public: what is sent there without a key must reach no replica, nor be held."""
    keys = tmp_path / "keys.yaml"
    keys.write_text(f'- {{name: me, sha256: "{digest_of("mine")}"}}')
    found = proxied(keys_file=keys)
    for path, name in FILES.items():
        reply = httpx.get(found.url + path)
        assert (reply.status_code, reply.content) == (200, page_file(path).body), name
        assert reply.headers["content-security-policy"] == HEADERS["content-security-policy"]
        head = httpx.head(found.url + path)  # as without Ray
        assert (head.status_code, head.content) == (200, b"")
        with found.connection() as connection:
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nx".encode())
            assert connection.recv(4096).startswith(b"HTTP/1.1 405 ")
    assert not found.replicas.calls


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/nothing"), ("PUT", "/v1/chat/completions"), ("GET", "/v1/models")]
)
def test_bodies_are_read_where_a_route_has_one(proxied, method, path):
    found = proxied()
    with found.connection() as connection:
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nx".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 ")
    assert [dict(scope["headers"])[b"content-length"] for scope in found.replicas.scopes] == [b"0"]


def test_what_a_replica_refuses_is_passed_on(proxied):
    found = proxied()
    assert found.post({"model": "other", "messages": messages()}).json()["error"]["code"] == "model_not_found"
    assert found.post({}).status_code == 400
    assert httpx.get(f"{found.url}/nothing").status_code == 404


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [0, 1])  # the head of a response is held back until its first bytes
def test_a_replica_lost_before_the_first_bytes_costs_nothing(proxied, server, stream, after):
    found = proxied()
    found.replicas.lose = [after]
    reply = found.post(body(stream=stream))
    assert reply.status_code == 200
    assert (streamed(events_of(reply)) if stream else text_of(reply)) == text_of(server.post(body()))
    assert found.replicas.calls == {"begun": 2, "ended": 2}
    assert 'proxy_replica_lost_total{outcome="retried"} 1.0' in httpx.get(f"{found.url}/metrics").text


def test_a_request_is_asked_again_once(proxied):
    found = proxied()
    found.replicas.lose = [0, 0]
    reply = found.post(body())
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert reply.json()["error"]["code"] == "replica_lost"
    assert found.replicas.calls["begun"] == 2


def test_a_stream_that_is_lost_ends_with_one_error(proxied, server):
    found = proxied()
    found.replicas.lose = [3, 3]
    reply = found.post(body(stream=True))
    events = events_of(reply)
    assert [one["error"]["code"] for one in events if isinstance(one, dict) and "error" in one] == ["replica_lost"]
    assert events[-1] == "[DONE]"
    assert text_of(server.post(body())).startswith(streamed(events))
    assert streamed(events)
    assert found.replicas.calls["begun"] == 1  # what the client has cannot be taken back
    with pytest.raises(openai.APIError, match="lost; ask again"):
        list(found.client().chat.completions.create(**body(stream=True)))


def test_uploads_edges_and_streams_are_refused_in_one_sentence(proxied):
    found = proxied()
    reply = httpx.post(f"{found.url}/v1/files", files={"file": ("a.mp4", b"x")}, data={"purpose": "user_data"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (501, "uploads_refused")
    assert "send the file as data:" in reply.json()["error"]["message"]
    assert httpx.get(f"{found.url}/v1/files/file-0/content").status_code == 501
    for path, status, says in (
        ("/v1/edge", 501, "Edges are not served"),
        ("/v1/watch", 501, "Streams are not watched"),
        ("/v1/nothing", 404, "no such route"),
    ):
        with pytest.raises(InvalidStatus) as refused:
            websockets.sync.client.connect(f"{found.url.replace('http', 'ws')}{path}", proxy=None)
        error = json.loads(refused.value.response.body)["error"]
        assert (refused.value.response.status_code, error["type"]) == (status, TYPES[status])
        assert says in error["message"]
    assert not found.replicas.calls


def test_keys_and_their_limits_hold_across_replicas(proxied, tmp_path):
    keys = tmp_path / "keys.yaml"
    keys.write_text(f'- {{name: me, sha256: "{digest_of("mine")}", requests_per_minute: 2}}')
    found = proxied(keys_file=keys)
    assert found.post(body()).status_code == 401
    assert httpx.get(f"{found.url}/metrics").status_code == 401
    assert not found.replicas.calls
    mine = {"Authorization": "Bearer mine"}
    statuses = [found.post(body(max_tokens=2, seed=seed), headers=mine).status_code for seed in range(3)]
    assert statuses == [200, 200, 429]
    assert found.replicas.calls["begun"] == 2


def test_bodies_are_bounded_before_a_replica_sees_them(proxied):
    found = proxied(body_bytes=1000)
    assert found.post(body(metadata={"x": "y" * 1000})).status_code == 413
    assert not found.replicas.calls


def test_more_media_than_a_request_may_hold_name_no_session(proxied):
    found = proxied(parts=2)
    assert found.post(body(max_tokens=1)).status_code == 200
    assert found.post(body(messages=messages() * 2)).status_code == 400  # as the replica says
    kept, none = found.replicas.sessions
    assert kept
    assert not none


def test_a_client_that_leaves_ends_its_call(proxied):
    found = proxied()
    with found.connection() as connection:
        content = json.dumps(body(stream=True, max_tokens=400)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content)
        assert connection.recv(100)
    until = time.monotonic() + 20
    while (found.replicas.calls["ended"] < 1 or found.rows()) and time.monotonic() < until:
        time.sleep(0.01)
    assert found.replicas.calls == {"begun": 1, "ended": 1}
    assert (found.proxy.active, found.service.active, found.rows()) == (0, 0, 0)


def test_a_proxy_that_drains_ends_what_runs_and_takes_no_more(proxied):
    found = proxied()
    assert httpx.get(f"{found.url}/ready").json() == {"status": "ready", "replicas": 2}
    asked = body(stream=True, max_tokens=300, min_tokens=300)
    with httpx.stream("POST", f"{found.url}/v1/chat/completions", json=asked, timeout=60) as running:
        lines = running.iter_lines()
        next(lines)
        found.proxy.draining = True
        assert httpx.get(f"{found.url}/ready").status_code == 503
        assert found.post(body()).json()["error"]["code"] == "shutting_down"
        assert httpx.get(f"{found.url}/health").status_code == 200
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert not any('"error"' in line for line in rest)  # what runs is answered whole


def test_metrics_are_those_of_every_replica(proxied):
    found = proxied()
    found.post(body())
    own = {one.name: one for one in text_string_to_metric_families(found.service.metrics.text().decode())}
    text = httpx.get(f"{found.url}/metrics").text
    joined = {one.name: one for one in text_string_to_metric_families(text)}
    assert own.keys() < joined.keys()
    for name in ("crossdraft:generation_tokens", "crossdraft:e2e_request_latency_seconds"):
        assert joined[name].type == own[name].type
        for replica in ("r0", "r1"):
            of_one = [one for one in joined[name].samples if one.labels["replica"] == replica]
            assert [one.value for one in of_one] == [one.value for one in own[name].samples]
    assert len(text.splitlines()) == len(set(text.splitlines()))
