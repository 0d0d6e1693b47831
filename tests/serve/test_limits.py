"""How much a client may ask, of every route that costs something; and what is counted and logged of what is refused."""

import json
import logging
import re
import time
from contextlib import ExitStack

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from crossdraft.serve.errors import LEFT_OUT
from crossdraft.serve.keys import Client, KeyRecord, digest_of
from crossdraft.serve.logs import JsonLines, TextLines
from tests.serve.conftest import body
from tests.serve.test_security import reaches

KEY = {"Authorization": "Bearer secret"}
PICTURE = {"url": "file:clip.h5", "seconds": "2", "frames": "8"}


@pytest.fixture
def keyed(start, tmp_path):
    """Starts a server whose one key has limits."""

    def begin(**limits):
        record = KeyRecord(name="anna", sha256=digest_of("secret"), **limits)
        (tmp_path / "keys.yaml").write_text(json.dumps([record.model_dump()]))
        return start(keys_file=tmp_path / "keys.yaml")

    return begin


def upload(server) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/files", files={"file": ("a.mp4", b"x")}, headers=KEY, timeout=60)


def picture(server, **more) -> httpx.Response:
    return httpx.get(f"{server.url}/page/events.png", params=PICTURE, timeout=60, **more)


def test_requests_of_a_minute_are_those_of_all_kinds(keyed):
    server = keyed(requests_per_minute=3)
    assert server.post(body(max_tokens=1), headers=KEY).status_code == 200
    assert upload(server).status_code == 200
    assert picture(server, headers=KEY).status_code == 200
    for refused in (server.post(body(max_tokens=1), headers=KEY), upload(server), picture(server, headers=KEY)):
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 0 < int(refused.headers["retry-after"]) <= 60


def test_uploads_and_pictures_at_a_time_are_bounded(keyed):
    server = keyed(concurrent=1)
    with server.service.others.admitted(Client("anna")):
        assert upload(server).status_code == 429
        assert picture(server, headers=KEY).status_code == 429
        assert server.post(body(max_tokens=1), headers=KEY).status_code == 200  # beside a page's picture
    others = [server.service.others.admitted(Client(str(number))) for number in range(6)]
    for one in others:
        one.__enter__()
    assert (upload(server).status_code, picture(server, headers=KEY).status_code) == (503, 503)
    for one in others:
        one.__exit__(None, None, None)
    assert upload(server).status_code == 200


def test_lists_of_the_media_folder_at_a_time_are_bounded(keyed):
    server = keyed(concurrent=1)
    address = f"{server.url}/v1/media"
    with server.service.others.admitted(Client("anna")):
        assert httpx.get(address, headers=KEY).status_code == 429
    assert {one["name"] for one in httpx.get(address, headers=KEY).json()["data"]} >= {"clip.mp4", "clip.h5"}


def test_uploads_that_are_slow_to_come_keep_nobody_waiting(start):
    server = start()
    head = "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    most = server.service.settings.engine.max_batch + server.service.settings.engine.max_queue
    with ExitStack() as held:
        for _ in range(most):
            held.enter_context(server.connection()).sendall(f"{head}Content-Length: 1000\r\n\r\n-".encode())
        assert reaches(lambda: server.service.bodies.held, most)
        assert (upload(server).status_code, picture(server).status_code) == (200, 200)


def test_a_picture_that_nobody_waits_for_is_not_drawn(start):
    server = start(decode_workers=1)
    decoder = server.service.decoder
    worker = decoder._idle.get()  # so that whatever is asked waits
    with server.connection() as connection:
        connection.sendall(b"GET /page/events.png?url=file:clip.h5&frames=8 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert reaches(lambda: server.service.others.active, 1)
    left = reaches(lambda: server.service.others.active, 0, 5)
    decoder._idle.put(worker)
    assert left


def failures(server) -> dict[str, float]:
    """Requests that were refused or failed, by status."""
    lines = httpx.get(f"{server.url}/metrics", headers=KEY).text.splitlines()
    found = [line for line in lines if line.startswith("crossdraft:request_failure_total{")]
    return {line.partition('status="')[2].partition('"')[0]: float(line.split()[-1]) for line in found}


def test_every_refusal_is_counted_by_its_status(keyed):
    server = keyed(requests_per_minute=2)  # a body that is refused is one of them
    assert server.post(body()).status_code == 401
    assert server.post(body(n=2), headers=KEY).status_code == 400
    assert httpx.get(f"{server.url}/nothing", headers=KEY).status_code == 404
    assert server.post(body(max_tokens=1), headers=KEY).status_code == 200
    assert server.post(body(max_tokens=1), headers=KEY).status_code == 429
    length = server.service.settings.body_bytes + 1
    with server.connection() as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: {KEY['Authorization']}\r\n"
        connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
    with server.service.limits.admitted(Client("other")):  # it ends once nothing runs
        server.service.draining = True
        assert server.post(body(), headers=KEY).status_code == 503
        found = failures(server)
    assert found == dict.fromkeys(("401", "400", "404", "429", "413", "503"), 1.0)


def test_a_websocket_that_is_refused_is_answered_counted_and_logged_like_any_request(start, caplog):
    server = start(streams=0)
    at, found = server.url.replace("http", "ws"), {}
    caplog.set_level("INFO", "crossdraft.serve")
    for path in ("/v1/edge", "/v1/watch", "/v1/nothing"):
        with pytest.raises(InvalidStatus) as refused:
            connect(at + path, additional_headers={"X-Request-Id": "mine"}, proxy=None)
        reply = refused.value.response
        found[path] = reply.status_code
        assert reply.headers["x-request-id"] == "mine"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "message" in json.loads(reply.body)["error"]
    assert found == {"/v1/edge": 404, "/v1/watch": 503, "/v1/nothing": 404}
    assert failures(server) == {"404": 2.0, "503": 1.0}
    said = [record.getMessage() for record in caplog.records if "WEBSOCKET" in record.getMessage()]
    assert said == [f"WEBSOCKET {path} {status}" for path, status in found.items()]


@pytest.mark.parametrize("path", ["/v1/edge", "/v1/watch"])
def test_a_websocket_that_fails_before_it_is_taken_is_answered_counted_and_logged_too(start, caplog, monkeypatch, path):
    def fails(*given):
        raise RuntimeError("planted")

    server = start(drafter="edge")
    caplog.set_level("INFO", "crossdraft.serve")
    monkeypatch.setattr("crossdraft.serve.watch.WatchConnection.__init__", fails)
    monkeypatch.setattr("crossdraft.serve.edge_sessions.EdgeSessions.connected", fails)
    with pytest.raises(InvalidStatus) as refused:
        connect(server.url.replace("http", "ws") + path, proxy=None)
    assert json.loads(refused.value.response.body)["error"]["code"] == "internal_error"
    assert failures(server) == {"500": 1.0}
    said = [record.getMessage() for record in caplog.records if "WEBSOCKET" in record.getMessage()]
    assert said == [f"WEBSOCKET {path} 500"]
    assert [str(one.exc_info[1]) for one in caplog.records if one.exc_info] == ["planted"]


def test_a_websocket_that_is_taken_has_an_id_too(server):
    with connect(f"{server.url.replace('http', 'ws')}/v1/watch", proxy=None) as socket:
        assert re.fullmatch("[0-9a-f]{32}", socket.response.headers["x-request-id"])


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b'{"model":"reference","messages":[],"fps":2}', {"param": "messages", "code": "invalid_value"}),
        (b'{"model":"reference","messages":[{"role":"user","content":"x"}],"seed":-2}', {"param": "seed"}),
        (b"{bad", {"code": "invalid_json"}),
        (b"\xff", {"code": "invalid_encoding"}),
    ],
)
def test_the_log_says_why_a_request_is_refused_and_of_whom(server, caplog, sent, said):
    caplog.set_level("INFO", "crossdraft.serve")
    found = httpx.post(f"{server.url}/v1/chat/completions", content=sent)

    def refused():  # an earlier test's connection may end only now
        return [one.facts for one in caplog.records if "reason" in getattr(one, "facts", ())]

    assert reaches(lambda: len(refused()), 1)
    (facts,) = refused()
    assert facts["reason"] == found.json()["error"]["message"]
    assert facts["client"] == "127.0.0.1"
    assert facts.items() >= said.items()


def test_the_log_says_why_other_refusals_were_too_and_holds_no_key(keyed, caplog):
    server = keyed(requests_per_minute=1)
    caplog.set_level("INFO", "crossdraft.serve")
    httpx.get(f"{server.url}/nothing", headers=KEY)
    httpx.get(f"{server.url}/metrics", headers={"Authorization": "Bearer wrong-key"})
    httpx.get(f"{server.url}/v1/files?limit=x", headers=KEY)
    assert reaches(lambda: sum("facts" in vars(one) for one in caplog.records), 3)
    facts = [one.facts for one in caplog.records if "facts" in vars(one)]
    assert [one["client"] for one in facts] == ["anna", "127.0.0.1", "anna"]
    assert [one.get("code") for one in facts] == [None, "invalid_api_key", "invalid_value"]
    assert all(one["reason"].endswith(".") for one in facts)
    assert "secret" not in str(facts)
    assert "wrong-key" not in str(facts)


def test_a_line_of_the_log_has_a_date_and_no_fact_can_be_forged():
    facts = {"client": "anna", "reason": 'There is no "x" client=eve\n2026 info GET\u2028'}
    record = logging.makeLogRecord({"msg": "POST /", "levelname": "INFO", "created": 0.0, "facts": facts})
    line = TextLines().format(record)
    assert re.match(r"19(69|70)-\d\d-\d\d \d\d:\d\d:\d\d info POST / client=anna reason=", line)
    assert line.count('"') == 2
    assert line.endswith('"')
    assert len(line.splitlines()) == len(JsonLines().format(record).splitlines()) == 1


@pytest.mark.parametrize("path", sorted(LEFT_OUT))
def test_a_route_that_is_left_out_says_so_and_what_to_use(server, path):
    for method, asked in (("GET", path), ("POST", path), ("GET", f"{path}/x")):
        found = httpx.request(method, server.url + asked)
        if asked.count("/") > path.count("/") and path.count("/") < 2:
            continue  # /docs/x is just no route
        assert (found.status_code, found.json()["error"]["code"]) == (404, "route_left_out")
        assert f"leaves {path} out on purpose: " in found.json()["error"]["message"]


def test_the_log_has_a_path_as_it_was_sent(server, caplog):
    """Decoded it may hold line breaks, colours of a terminal, and letters that look like others."""
    caplog.set_level("INFO", "crossdraft.serve")
    httpx.get(f"{server.url}/v1/models/a%0Ab%1b%5b2J%E2%80%AEc")
    said, until = list[str](), time.monotonic() + 10
    while not said and time.monotonic() < until:
        time.sleep(0.01)
        lines = [record.getMessage() for record in caplog.records]
        said = [line for line in lines if line.startswith("GET")]  # a WebSocket of a test before may end now
    assert said == ["GET /v1/models/a%0Ab%1B%5B2J%E2%80%AEc 404"]


def test_what_a_client_called_things_is_repeated_in_part(server):
    """Else an error is as long as a request, and so is the log of whoever writes errors down."""
    fields = {f"{number:02d}" + "x" * 100_000: 1 for number in range(20)}
    found = server.post(body(**fields)).json()["error"]
    assert found["message"].count("x…") == 5
    assert found["message"].startswith("Unrecognized request arguments: 00xx")
    assert len(found["message"]) < 500
    assert len(found["param"]) == 64
    said = server.post(body(max_new_tokens=3)).json()["error"]["message"]
    assert said == "Unrecognized request argument: max_new_tokens; say max_tokens."
    said = server.post(body(guided_json={})).json()["error"]["message"]
    assert said == "Unrecognized request argument: guided_json; say structured_outputs.json."
    long = "y" * 100_000
    odd = {"role": "user", "content": [{"type": long}]}
    for change in ({"model": long}, {"messages": [odd]}, {"logit_bias": {long: 1}}, {"stop": [long, ""]}):
        assert len(server.post(body(**change)).text) < 2000, change.keys()
    assert len(httpx.get(f"{server.url}/v1/models/{long[:10_000]}").text) < 500
    assert "argument: fps; leave it out" in server.post(body(fps=2)).text
