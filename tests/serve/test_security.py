"""What a stranger may try over the network. SECURITY.md lists it."""

import base64
import json
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress

import httpx
import pytest

from crossdraft.serve.app import ROUTERS
from crossdraft.serve.gate import PUBLIC
from crossdraft.serve.keys import KeyRecord, append_key, digest_of
from tests.serve.conftest import body, messages

HEAD = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"


def closed(connection: socket.socket, seconds: float = 10) -> bytes:
    """What comes until the other side hangs up; a timeout if it does not."""
    connection.settimeout(seconds)
    found = b""
    try:
        while part := connection.recv(4096):
            found += part
    except ConnectionResetError:
        pass
    return found


def reaches(value: Callable[[], int], wanted: int, seconds: float = 10) -> bool:
    """Whether a number of the server's comes to that in time."""
    until = time.monotonic() + seconds
    while value() != wanted and time.monotonic() < until:
        time.sleep(0.01)
    return value() == wanted


def test_every_route_but_the_public_ones_wants_a_key(start, tmp_path):
    append_key(tmp_path / "keys.yaml", KeyRecord(name="anna", sha256=digest_of("secret")))
    server = start(keys_file=tmp_path / "keys.yaml")
    every = [route for router in ROUTERS for route in router.routes]
    routes = [(route.path, method) for route in every for method in getattr(route, "methods", ())]  # no WebSocket
    assert len(routes) >= 11
    for path, method in [*routes, ("/nothing", "GET"), ("/v1/chat/completions/", "POST"), ("//health", "GET")]:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "secret"},
            {"Authorization": "Basic x"},
        ):
            found = httpx.request(method, server.url + re.sub(r"{.*?}", "x", path), headers=headers)
            assert (found.status_code == 401) == (path not in PUBLIC), path
    assert server.client("secret").chat.completions.create(**body(max_tokens=1)).choices
    assert httpx.get(f"{server.url}/v1/models", headers={"Authorization": "bearer secret"}).status_code == 200


def test_limits_of_a_key(start, tmp_path):
    record = KeyRecord(name="anna", sha256=digest_of("secret"), requests_per_minute=2, max_new_tokens=4)
    (tmp_path / "keys.yaml").write_text(json.dumps([record.model_dump()]))
    server = start(keys_file=tmp_path / "keys.yaml")
    key = {"headers": {"Authorization": "Bearer secret"}}
    assert server.post(body(max_tokens=5), **key).status_code == 400
    assert server.post(body(max_tokens=4), **key).status_code == 200
    found = server.post(body(max_tokens=1), **key)
    assert found.status_code == 429
    assert 0 < int(found.headers["retry-after"]) <= 60


def test_uploads_of_one_key_are_not_anothers(start, tmp_path):
    for name in ("anna", "ben"):
        append_key(tmp_path / "keys.yaml", KeyRecord(name=name, sha256=digest_of(name)))
    server = start(keys_file=tmp_path / "keys.yaml")
    found = server.client("anna").files.create(file=("clip.mp4", b"x"), purpose="user_data").id
    ben = {"Authorization": "Bearer ben"}
    for path in (f"/v1/files/{found}", f"/v1/files/{found}/content", f"/v1/media/content?url={found}"):
        assert httpx.get(server.url + path, headers=ben).status_code == 404
    assert httpx.delete(f"{server.url}/v1/files/{found}", headers=ben).status_code == 404
    assert server.post(body(messages=messages(video=found)), headers=ben).status_code == 404


def test_what_is_kept_of_one_keys_prompts_helps_no_other(start, tmp_path):
    for name in ("carla", "dora"):
        append_key(tmp_path / "keys.yaml", KeyRecord(name=name, sha256=digest_of(name)))
    server = start(keys_file=tmp_path / "keys.yaml")
    asked = body(max_tokens=1)
    cached = [
        server.client(name).chat.completions.create(**asked).usage.prompt_tokens_details.cached_tokens
        for name in ("carla", "carla", "dora")
    ]
    assert cached[0] == cached[2] == 0 < cached[1]


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "multipart/form-data; boundary=b"])
def test_a_page_of_another_origin_cannot_make_a_browser_ask(server, kind):
    """What a browser sends without a preflight, and with it."""
    for path in ("/v1/chat/completions", "/v1/files"):
        for origin in ("https://evil.test", "null", f"http://127.0.0.1:{server.address[1] + 1}"):
            headers = {"Origin": origin, "Content-Type": kind}
            found = httpx.post(server.url + path, content=json.dumps(body()), headers=headers)
            assert (found.status_code, found.json()["error"]["code"]) == (403, "origin_refused")
    assert server.post(body(max_tokens=1), headers={"Origin": server.url}).status_code == 200


def test_a_page_whose_name_leads_to_loopback_cannot_either(server, start):
    """DNS rebinding: for the browser it is the same origin, but the name is not ours."""
    evil = {"Host": "evil.test", "Origin": "http://evil.test"}
    assert server.post(body(), headers=evil).json()["error"]["code"] == "host_refused"
    named = start(allowed_hosts="Box.test")
    assert named.post(body(max_tokens=1), headers={"Host": "box.test:80"}).status_code == 200
    assert server.post(body(max_tokens=1), headers={"Host": f"localhost:{server.address[1]}"}).status_code == 200


def test_nor_one_whose_name_leads_to_a_server_that_is_open_to_all(start):
    server = start(host="0.0.0.0", open_to_all=True)
    evil = {"Host": "evil.test", "Origin": "http://evil.test"}
    assert server.post(body(), headers=evil).json()["error"]["code"] == "host_refused"
    for host in ("127.0.0.2", "[::1]:80", "192.168.1.5:8000", "localhost"):  # no name server answers for these
        assert httpx.get(f"{server.url}/v1/models", headers={"Host": host}).status_code == 200, host


def test_hosts_that_are_listed_are_all_there_are_with_keys_too(start, tmp_path):
    append_key(tmp_path / "keys.yaml", KeyRecord(name="anna", sha256=digest_of("secret")))
    asked = {"Host": "other.test", "Authorization": "Bearer secret"}
    named = start(keys_file=tmp_path / "keys.yaml", allowed_hosts="box.test")
    assert httpx.get(f"{named.url}/v1/models", headers=asked).status_code == 403
    unnamed = start(keys_file=tmp_path / "keys.yaml")
    assert httpx.get(f"{unnamed.url}/v1/models", headers=asked).status_code == 200


@pytest.mark.parametrize(
    "header", ["Host: [", "Host: localhost\r\nOrigin: http://[", "Host: localhost\r\nOrigin: //[x"]
)
def test_hosts_and_origins_that_are_no_addresses_are_refused(server, header):
    with server.connection() as connection:
        connection.sendall(f"GET /health HTTP/1.1\r\n{header}\r\nConnection: close\r\n\r\n".encode())
        assert closed(connection).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("values", [b'"content":[%s]', b'"content":"x","metadata":{"a":[%s]}'])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/page/alone"])
def test_bodies_of_very_many_values_are_refused_at_once(server, values, path):
    """A complaint about each would cost a kilobyte and microseconds: 2 MiB stopped all for seconds."""
    many = b'{"model":"reference","messages":[{"role":"user",' + values % b",".join([b"[]"] * (1 << 19)) + b"}]}"
    began = time.process_time()
    with server.connection() as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(many)}\r\n\r\n".encode())
        connection.sendall(many[: 1 << 17])
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
    assert time.process_time() - began < 1


def test_a_client_that_leaves_within_its_body_is_no_failure(server, caplog):
    caplog.set_level("INFO", "crossdraft.serve")
    with server.connection() as connection:
        connection.sendall(HEAD.encode() + b"Content-Length: 100\r\n\r\n{")
    until = time.monotonic() + 10
    said: list[str] = []  # of another test's last request, too, if that is noted only now
    while not said and time.monotonic() < until:
        time.sleep(0.01)
        said = [record.getMessage() for record in caplog.records if "/v1/chat/completions" in record.getMessage()]
    assert said == ["POST /v1/chat/completions 499"]


def test_no_page_of_another_origin_may_ask(server, start):
    origin = {"Origin": "https://evil.test", "Access-Control-Request-Method": "POST"}
    found = httpx.options(f"{server.url}/v1/chat/completions", headers=origin)
    assert "access-control-allow-origin" not in found.headers
    allowed = start(cors_origins="https://good.test")
    assert "access-control-allow-origin" not in httpx.get(f"{allowed.url}/health", headers=origin).headers
    found = httpx.get(f"{allowed.url}/health", headers={"Origin": "https://good.test"})
    assert found.headers["access-control-allow-origin"] == "https://good.test"


def test_a_page_may_ask_by_openais_client(start):
    """It says in many headers what it is, and asks again when `Retry-After` says so."""
    server, origin = start(cors_origins="https://good.test"), {"Origin": "https://good.test"}
    named = {"authorization", "content-type", "user-agent", "x-stainless-arch", "x-stainless-retry-count"}
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": ",".join(sorted(named))}
    found = httpx.options(f"{server.url}/v1/chat/completions", headers=origin | wanted)
    assert found.status_code == 200
    assert named <= {name.strip() for name in found.headers["access-control-allow-headers"].split(",")}
    exposed = httpx.get(f"{server.url}/health", headers=origin).headers["access-control-expose-headers"]
    assert {name.strip() for name in exposed.split(",")} == {"x-request-id", "retry-after"}


def test_every_page_may_ask_with_a_key_if_that_is_said(start, tmp_path):
    append_key(tmp_path / "keys.yaml", KeyRecord(name="anna", sha256=digest_of("secret")))
    server = start(keys_file=tmp_path / "keys.yaml", cors_origins="*")
    page = {"Origin": "https://any.test"}
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    assert httpx.options(f"{server.url}/v1/chat/completions", headers=page | wanted).status_code == 200
    found = server.post(body(max_tokens=1), headers=page | {"Authorization": "Bearer secret"})
    assert (found.status_code, found.headers["access-control-allow-origin"]) == (200, "*")
    assert "access-control-allow-credentials" not in found.headers
    assert server.post(body(), headers=page).status_code == 401


def test_bodies_are_bounded_whatever_they_say_of_themselves(server):
    most = server.service.settings.body_bytes
    big = b'{"model": "' + b"x" * most + b'"}'
    assert server.post({"model": "x" * most}).status_code == 413
    chunks = (big[i : i + 65536] for i in range(0, len(big), 65536))
    try:
        found = httpx.post(f"{server.url}/v1/chat/completions", content=chunks, timeout=20)
    except httpx.WriteError:  # it hung up in the midst
        pass
    else:
        assert found.status_code == 413
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_bodies_of_all_requests_together_are_bounded(start):
    server = start(bodies_bytes=100_000)
    head = f"{HEAD}Content-Length: 60000\r\n\r\n".encode() + b" " * 59_000
    with server.connection() as first, server.connection() as second:
        first.sendall(head)
        assert reaches(lambda: server.service.bodies.held, 59_000)
        second.sendall(head)
        assert b" 503 " in closed(second)
        first.sendall(b" " * 1000)
        assert b" 400 " in first.recv(4096)  # no JSON, but read
    assert reaches(lambda: server.service.bodies.held, 0)  # a moment after the answer was sent
    assert server.post(body(max_tokens=1)).status_code == 200


def test_deep_and_odd_json_is_refused(server):
    for text in ("[" * 100_000, '{"model":' * 50_000, "", "null", "[]", '"x"', "\x00", '{"model": NaN}', b"\xff\xfe"):
        found = httpx.post(f"{server.url}/v1/chat/completions", content=text)
        assert found.status_code in (400, 413), text[:20]
        assert found.json()["error"]["type"] == "invalid_request_error"


def test_slow_heads_are_hung_up_on(server):
    """Slow-loris: a byte now and then, and never the end."""
    began = time.monotonic()
    with server.connection() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        try:
            for _ in range(60):
                connection.sendall(b"X-A: b\r\n")
                time.sleep(0.05)
        except OSError:
            pass
        closed(connection)
    with server.connection() as connection:
        closed(connection)  # says nothing at all
    assert time.monotonic() - began < 15


def test_slow_heads_on_a_connection_that_was_used_are_too(server):
    with server.connection() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in connection.recv(4096)
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        closed(connection)


def test_slow_bodies_are_hung_up_on(server):
    with server.connection() as connection:
        connection.sendall(f"{HEAD}Content-Length: 100000\r\n\r\n{{".encode())
        assert b" 408 " in closed(connection)


@pytest.mark.parametrize(
    "head",
    [
        "GET /health HTTP/1.1\r\nHost: localhost\r\n" + "".join(f"X-{i}: {'y' * 100}\r\n" for i in range(1000)),
        "GET /" + "a" * 100_000 + " HTTP/1.1\r\nHost: localhost\r\n",
        "GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n",
        "GET /health HTTP/1.1\r\nHost: localhost\r\nBad Header: y\r\n",
        f"{HEAD}Content-Length: 5\r\nContent-Length: 6\r\n",
        f"{HEAD}Content-Length: -5\r\n",
        f"{HEAD}Content-Length: 0x5\r\n",
        f"{HEAD}Transfer-Encoding: chunked, identity\r\n",
        f"{HEAD}Transfer-Encoding: xchunked\r\n",
        "\x16\x03\x01\x02\x00\x01",
    ],
)
def test_broken_heads_are_refused(server, head):
    with server.connection() as connection:
        with suppress(OSError):
            connection.sendall(f"{head}\r\n\r\n".encode("latin-1"))
        found = closed(connection)
    assert not found or re.match(rb"HTTP/1.1 (4\d\d|501) ", found), found[:100]
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_length_and_chunks_together_smuggle_nothing(server):
    """The body is read by its chunks, what follows is not taken for a second request of somebody else."""
    with server.connection() as connection:
        sent = f"{HEAD}Content-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\nX: y"
        connection.sendall(sent.encode())
        found = closed(connection)
    assert found.count(b"HTTP/1.1 ") <= 1
    assert b"crossdraft:" not in found


@pytest.mark.parametrize("given", ["a\r\nSet-Cookie: x", "x" * 129, "ü", "a b", ""])
def test_a_request_id_is_plain_or_our_own(server, given):
    headers = {"X-Request-Id": given.replace("\r\n", "\\r\\n").encode("utf-8")}
    found = httpx.get(f"{server.url}/health", headers=headers)
    assert re.fullmatch(r"[0-9a-f]{32}", found.headers["x-request-id"])
    assert httpx.get(f"{server.url}/health", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"


@pytest.mark.parametrize("path", ["/v1/files/../../etc/passwd", "/v1/files/%2e%2e%2fx/content", "/v1/models/%00"])
def test_paths_lead_nowhere(server, path):
    with server.connection() as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert b" 404 " in closed(connection)


def test_a_zip_bomb_is_no_recording(server, tmp_path):
    import zipfile

    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("events.txt", "w") as member:
        member.write(b"640 480\n")
        for _ in range(64):
            member.write(b" " * (1 << 20))
    url = "data:application/zip;base64," + base64.b64encode(path.read_bytes()).decode()
    named = {"type": "event_url", "event_url": {"url": url, "format": "e2vid"}}
    parts = [named, {"type": "text", "text": "What is ahead?"}]
    began = time.monotonic()
    found = server.post({"model": "reference", "messages": [{"role": "user", "content": parts}], "max_tokens": 1})
    assert found.status_code == 400
    message = found.json()["error"]["message"]
    assert re.match(
        r"messages\[0\]\.content\[0\] unpacks from [\d,]+ to 67,108,872 bytes, more than 1000 times", message
    )
    assert time.monotonic() - began < 30


def test_too_many_parts_and_frames_are_refused(server):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    found = server.post(body(messages=[{"role": "user", "content": [image] * 17}]))
    assert "more than 16" in found.json()["error"]["message"]
    shots = "data:video/jpeg;base64," + ",".join(["AAAA"] * 769)
    assert "768" in server.post(body(messages=messages(video=shots))).json()["error"]["message"]


def test_nothing_is_fetched_unless_it_is_allowed(server):
    for url in ("http://127.0.0.1/x", "https://example.com/x.mp4", "HTTP://example.com/x"):
        found = server.post(body(messages=messages(video=url)))
        assert (found.status_code, found.json()["error"]["code"]) == (400, "address_refused")


@pytest.mark.parametrize(
    ("charset", "name"), [("undefined", b"a"), ("unicode_escape", rb"a\ud800.mp4"), ("utf-7", b"a+2AA-"), ("x", b"a")]
)
def test_the_charset_of_an_upload_is_not_the_clients_to_choose(server, charset, name):
    """Names of half a surrogate pair made every later list of files fail."""
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\nx\r\n--b--\r\n' % name
    kind = {"Content-Type": f"multipart/form-data; boundary=b; charset={charset}"}
    found = httpx.post(f"{server.url}/v1/files", content=part, headers=kind)
    assert (found.status_code, "charset" in found.json()["error"]["message"]) == (400, True)
    assert httpx.get(f"{server.url}/v1/files").status_code == 200
    kind = {"Content-Type": "Multipart/Form-Data; boundary=b; charset=UTF-8"}
    kept = httpx.post(f"{server.url}/v1/files", content=part, headers=kind).json()
    server.client().files.delete(kept["id"])


def test_what_a_stranger_sent_is_played_by_no_browser_as_a_page(server):
    client = server.client()
    found = client.files.create(file=("page.html", b"<script>alert(1)</script>"), purpose="user_data").id
    headers = httpx.get(f"{server.url}/v1/files/{found}/content").headers
    assert headers["content-type"] == "application/octet-stream"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"].startswith("sandbox")
    client.files.delete(found)


def test_more_connections_than_allowed_are_answered_503(start):
    server = start(connections=8)
    held = [server.connection() for _ in range(12)]
    try:
        refused = httpx.get(f"{server.url}/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "connections_full")
        assert {"retry-after", "x-request-id"} <= refused.headers.keys()
        assert refused.headers["connection"] == "close"
        assert httpx.get(f"{server.url}/health").status_code == 200, "whoever looks after it sees that it is alive"
    finally:
        for one in held:
            one.close()
    assert reaches(lambda: httpx.get(f"{server.url}/v1/models").status_code, 200, 5)
    assert 'status="503"' in httpx.get(f"{server.url}/metrics").text
