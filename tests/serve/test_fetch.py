"""Fetching by address: nothing inside is reached, whatever a name or a redirect says (SSRF)."""

import asyncio
import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from crossdraft.serve.errors import ApiError
from crossdraft.serve.fetch import Fetcher, is_public
from tests.serve.conftest import body, messages

INSIDE = (
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1",
    "255.255.255.255", "240.0.0.1", "192.0.2.1", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1",
    "fec0::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b:1::a00:1", "2002:7f00:1::",
    "2001:0:4136:e378:8000:63bf:80ff:fffe", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "localhost", "",
)  # fmt: skip


@pytest.mark.parametrize("address", INSIDE)
def test_addresses_inside_are_refused_however_they_are_written(address):
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34", "64:ff9b::5db8:d822"]
)
def test_public_addresses_are_not(address):
    assert is_public(address)


class Files(BaseHTTPRequestHandler):
    """/clip is there; /to?URL redirects; /long never ends; /slow says nothing; /drops a byte now and then."""

    hits: list[str] = []  # noqa: RUF012 - of the one server below

    def do_GET(self):
        self.hits.append(self.path)
        if self.path.startswith("/to?"):
            self.send_response(302)
            self.send_header("Location", self.path[4:])
            self.end_headers()
        elif self.path == "/clip":
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"bytes")
        elif self.path == "/clip.mp4":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(clip[0])
        elif self.path == "/long":
            self.send_response(200)
            self.end_headers()
            for _ in range(100):
                self.wfile.write(b"x" * 1000)
        elif self.path == "/drops":
            self.send_response(200)
            self.end_headers()
            while not release.wait(0.05):
                self.wfile.write(b"x")
        elif self.path == "/slow":
            release.wait(5)
        else:
            self.send_response(404)
            self.end_headers()

    def log_message(self, *_):
        pass


release, clip = threading.Event(), [b""]


@pytest.fixture(scope="module")
def files():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    release.set()
    server.shutdown()


def fetched(tmp_path, url, port, *, addresses=("127.0.0.1",), permitted=lambda _: True, seconds=10, more=()):
    """What is fetched, with a name server that answers `addresses`, one after another."""
    answers, path = iter([*addresses, *addresses[-1:] * 9]), tmp_path / "file"

    async def resolve(host, port):
        return [next(answers)]

    hosts = frozenset({f"files.test:{port}", *more})
    asyncio.run(Fetcher(hosts, 10_000, seconds, resolve, permitted).fetch(url, path, "url"))
    return path.read_bytes()


def test_a_listed_host_is_fetched_from(tmp_path, files):
    assert fetched(tmp_path, f"http://files.test:{files}/clip", files) == b"bytes"
    assert fetched(tmp_path, f"http://files.test:{files}/to?/clip", files) == b"bytes"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/clip", "http://2130706433:{port}/clip", "http://0x7f000001:{port}/clip",
        "http://[::1]:{port}/clip", "http://[::ffff:127.0.0.1]:{port}/clip", "http://localhost:{port}/clip",
        "http://files.test/clip", "http://files.test@127.0.0.1:{port}/clip", "http://user:pw@files.test:{port}/clip",
        "http://other.test:{port}/clip", "http://files.test.other.test:{port}/clip", "ftp://files.test:{port}/clip",
        "http://files.test:{port}/a b", "http://files.test:{port}/a\r\nX: y", "http://files.test:99999/clip", "http://",
        "gopher://files.test:{port}/", "http://files.test:{port}\\@127.0.0.1/clip",
    ],
)  # fmt: skip
def test_any_other_address_is_refused_before_anything_is_sent(tmp_path, files, url):
    before = len(Files.hits)
    with pytest.raises(ApiError):
        fetched(tmp_path, url.format(port=files), files)
    assert len(Files.hits) == before


def test_a_listed_name_that_leads_inside_is_refused(tmp_path, files):
    with pytest.raises(ApiError, match="may not be fetched"):
        fetched(tmp_path, f"http://files.test:{files}/clip", files, permitted=is_public)


def test_each_redirect_is_checked_like_the_first_address(tmp_path, files):
    for there in (
        f"http://127.0.0.1:{files}/clip",
        f"http://other.test:{files}/clip",
        "file:///etc/passwd",
        "//127.1/",
    ):
        before = len(Files.hits)
        with pytest.raises(ApiError):
            fetched(tmp_path, f"http://files.test:{files}/to?{there}", files)
        assert len(Files.hits) == before + 1  # the redirect itself
    loop = f"http://files.test:{files}/to?http://files.test:{files}/to?/clip"
    assert fetched(tmp_path, loop, files) == b"bytes"
    with pytest.raises(ApiError, match="redirects"):
        fetched(tmp_path, f"http://files.test:{files}/to?/to?/to?/to?/to?/clip", files)


def test_a_name_is_resolved_once_for_each_connection(tmp_path, files):
    """DNS rebinding: the second answer is another; the connection goes to the first, which was checked."""
    asked = []

    async def resolve(host, port):
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    path = tmp_path / "file"
    fetcher = Fetcher(frozenset({f"files.test:{files}"}), 100, 5, resolve, lambda one: one == "127.0.0.1")
    asyncio.run(fetcher.fetch(f"http://files.test:{files}/clip", path, "url"))
    assert (asked, path.read_bytes()) == (["files.test"], b"bytes")
    with pytest.raises(ApiError, match="may not be fetched"):  # now it answers another one
        asyncio.run(fetcher.fetch(f"http://files.test:{files}/clip", path, "url"))


def test_one_answer_inside_among_several_refuses_the_name(tmp_path, files):
    async def resolve(host, port):
        return ["93.184.216.34", "127.0.0.1"]

    fetcher = Fetcher(frozenset({f"files.test:{files}"}), 100, 5, resolve)
    with pytest.raises(ApiError, match="may not be fetched"):
        asyncio.run(fetcher.fetch(f"http://files.test:{files}/clip", tmp_path / "file", "url"))


def test_size_and_time_are_bounded(tmp_path, files):
    with pytest.raises(ApiError, match="more than 10,000 bytes"):
        fetched(tmp_path, f"http://files.test:{files}/long", files)
    with pytest.raises(ApiError, match=r"0\.2 s"):
        fetched(tmp_path, f"http://files.test:{files}/slow", files, seconds=0.2)
    with pytest.raises(ApiError, match="404"):
        fetched(tmp_path, f"http://files.test:{files}/none", files)


def test_a_clip_that_is_fetched_is_the_clip(start, server, files):
    """Through the whole server; its file goes with the request."""

    async def resolve(host, port):
        return ["127.0.0.1"]

    clip[0] = (server.root / "clip.mp4").read_bytes()
    remote = start(fetcher=Fetcher(frozenset({f"files.test:{files}"}), 10_000_000, 10, resolve, lambda _: True))
    url = f"http://files.test:{files}/clip.mp4"
    found = remote.client().chat.completions.create(**body(messages=messages(video=url)))
    wanted = server.client().chat.completions.create(**body())
    assert found.choices[0].message.content == wanted.choices[0].message.content
    assert remote.service.media.files.spooled == 0
    refused = remote.post(body(messages=messages(video=f"http://other.test:{files}/clip.mp4")))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "address_refused")


def test_each_address_of_a_name_is_tried_within_the_time(tmp_path, files):
    """The first takes no connection, the second takes it and is silent, the third has the file."""

    async def resolve(host, port):
        return ["127.0.0.9", "127.0.0.8", "127.0.0.1"]

    path = tmp_path / "file"
    silent = socket.create_server(("127.0.0.8", files), backlog=0)
    filling = [socket.socket() for _ in range(3)]  # a full backlog: connecting takes for ever
    for one in filling:
        one.setblocking(False)
        one.connect_ex(("127.0.0.8", files))
    fetcher = Fetcher(frozenset({f"files.test:{files}"}), 100, 2, resolve, lambda _: True)
    asyncio.run(fetcher.fetch(f"http://files.test:{files}/clip", path, "url"))
    for one in (*filling, silent):
        one.close()
    assert path.read_bytes() == b"bytes"

    async def nowhere(host, port):
        return ["127.0.0.9", "127.0.0.8"]

    fetcher = Fetcher(frozenset({f"files.test:{files}"}), 100, 2, nowhere, lambda _: True)
    with pytest.raises(ApiError, match="could not be fetched"):
        asyncio.run(fetcher.fetch(f"http://files.test:{files}/clip", path, "url"))


def test_certificates_are_read_once_and_not_while_others_wait(tmp_path, files, monkeypatch):
    made, make = [], ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", lambda: made.append(True) or make())
    for _ in range(2):  # the other side speaks no TLS
        with pytest.raises(ApiError, match="could not be fetched"):
            fetched(tmp_path, f"https://files.test:{files}/clip", files)
    assert not made
    context = Fetcher(frozenset(), 1, 1).secure
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_drops_are_no_way_around_the_deadline(tmp_path, files):
    began = time.monotonic()
    with pytest.raises(ApiError, match=r"0\.5 s"):
        fetched(tmp_path, f"http://files.test:{files}/drops", files, seconds=0.5)
    assert time.monotonic() - began < 5


def test_what_is_fetched_counts_as_it_comes(start, files):
    async def resolve(host, port):
        return ["127.0.0.1"]

    fetcher = Fetcher(frozenset({f"files.test:{files}"}), 10_000_000, 10, resolve, lambda _: True)
    server = start(fetcher=fetcher, media_bytes=30_000)
    found = server.post(body(messages=messages(video=f"http://files.test:{files}/long")))
    assert (found.status_code, found.json()["error"]["code"]) == (413, "media_too_large")
    assert server.service.media.budget.held == server.service.media.files.spooled == 0
