"""A stream that has nothing to say yet: comments keep it through proxies, which close what is silent."""

import asyncio
import json
import shutil
import subprocess
import threading
import time
from contextlib import asynccontextmanager, suppress

import httpx
import openai
import pytest

from crossdraft.engine.loop import DecodeLoop
from crossdraft.serve import sse
from crossdraft.serve.sockets import bound_socket
from tests.serve.conftest import body
from tests.serve.test_security import reaches

NGINX = shutil.which("nginx")
WAITING = sse.SILENT.decode().strip()


@pytest.fixture
def held(monkeypatch):
    """Every pass of the engine waits until the event is set."""
    go, run_pass = threading.Event(), DecodeLoop._pass

    def late(loop, rows):
        assert go.wait(100)
        run_pass(loop, rows)

    monkeypatch.setattr(DecodeLoop, "_pass", late)
    yield go
    go.set()


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(sse, "SILENT_S", 0.05)


def lines_of(url: str, then=lambda number: None, **fields) -> tuple[int, list[str]]:
    """A stream's status and lines; `then` is called with the number of comments so far."""
    found = []
    asked = body(stream=True, max_tokens=8, **fields)
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=asked, timeout=100) as stream:
        for line in stream.iter_lines():
            if line:
                found.append(line)
                then(found.count(WAITING))
        return stream.status_code, found


def text_of(lines: list[str]) -> str:
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(one["delta"].get("content", "") for chunk in chunks for one in chunk["choices"])


def set_after(event: threading.Event, count: int):
    return lambda number: event.set() if number >= count else None


def test_comments_come_until_the_first_piece_and_the_answer_is_as_ever(server, held, often):
    status, found = lines_of(server.url, set_after(held, 3))
    first = next(number for number, line in enumerate(found) if line.startswith("data: "))
    assert status == 200
    assert found[:3] == [WAITING] * 3
    assert set(found[:first]) == {WAITING}
    _, plain = lines_of(server.url)
    assert (
        text_of(found) == text_of(plain) == server.post(body(max_tokens=8)).json()["choices"][0]["message"]["content"]
    )
    assert [line for line in found if line.startswith("data: ")][-1] == "data: [DONE]"


def test_openais_client_passes_over_them(server, held, often):
    threading.Timer(0.5, held.set).start()
    chunks = list(
        server.client().chat.completions.create(**body(stream=True, max_tokens=8, n=2, temperature=1, seed=1))
    )
    assert not any(chunk.choices == [] for chunk in chunks)
    assert sorted(one.finish_reason for chunk in chunks for one in chunk.choices if one.finish_reason) == ["length"] * 2


def test_a_refusal_keeps_its_status_if_it_comes_at_once_and_is_an_event_if_it_comes_later(
    server, held, often, monkeypatch
):
    late = threading.Thread(target=lambda: server.post(body(max_tokens=1)))
    late.start()
    assert reaches(lambda: server.service.limits.active, 1)
    time.sleep(0.2)  # the loop's thread is held in a pass
    long = [{"role": "user", "content": "a car " * 4000}]
    status, found = lines_of(server.url, set_after(held, 1), messages=long)
    late.join(60)
    assert (status, found[0]) == (200, WAITING)
    assert json.loads(found[-2][6:])["error"]["code"] == "context_length_exceeded"
    assert found[-1] == "data: [DONE]"
    monkeypatch.setattr(sse, "SILENT_S", 10.0)
    with pytest.raises(openai.BadRequestError, match="context"):
        server.client().chat.completions.create(**body(stream=True, messages=long))
    assert server.post(body(stream=True, model="other")).status_code == 404
    assert server.post(body(stream=True, max_tokens=10**6)).status_code == 400


def test_they_come_while_the_media_are_loaded(server, often, monkeypatch):
    go, loaded = threading.Event(), server.service.media.loaded

    @asynccontextmanager
    async def late(*given):
        while not go.is_set():
            await asyncio.sleep(0.01)
        async with loaded(*given) as media:
            yield media

    monkeypatch.setattr(server.service.media, "loaded", late)
    status, found = lines_of(server.url, set_after(go, 2))
    assert (status, found[:2]) == (200, [WAITING] * 2)
    assert text_of(found)


def test_a_client_that_leaves_in_the_silence_is_counted_and_leaves_nothing(server, held, often):
    with (
        httpx.Client(timeout=60) as client,
        client.stream("POST", f"{server.url}/v1/chat/completions", json=body(stream=True)) as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines) == WAITING
        assert server.service.limits.active == 1
    assert reaches(lambda: server.service.limits.active, 0)
    held.set()
    assert reaches(server.rows, 0)


class Proxy(threading.Thread):
    """A proxy on loopback that closes a connection if its server sends nothing for `seconds`."""

    def __init__(self, port: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self._to, self._seconds = port, seconds
        self._socket = bound_socket("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def run(self) -> None:
        with suppress(TimeoutError):  # its time is over
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._pass_on, sock=self._socket)
        async with asyncio.timeout(60):
            await server.serve_forever()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._to)

        async def up() -> None:
            while data := await reader.read(1 << 16):
                up_writer.write(data)

        sending = asyncio.ensure_future(up())
        try:
            while data := await asyncio.wait_for(up_reader.read(1 << 16), self._seconds):
                writer.write(data)
                await writer.drain()
        except TimeoutError:
            writer.transport.abort()
        finally:
            sending.cancel()
            up_writer.close()
            writer.close()


@pytest.mark.parametrize("interval", [0.1, 10.0])
def test_a_proxy_keeps_a_stream_that_bears_comments_and_no_other(server, held, monkeypatch, interval):
    monkeypatch.setattr(sse, "SILENT_S", interval)
    proxy = Proxy(server.address[1], 0.5)
    proxy.start()
    threading.Timer(0.9, held.set).start()
    if interval < 0.5:
        status, found = lines_of(proxy.url)
        assert status == 200
        assert found.count(WAITING) > 4
        assert text_of(found)
    else:
        with pytest.raises(httpx.TransportError):
            lines_of(proxy.url)


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None, reason="nginx is not installed; on Debian: apt install nginx-light")
def test_a_real_nginx_with_its_own_time_outs_keeps_a_stream_for_70_seconds(server, held, tmp_path):
    port = free_port()
    (tmp_path / "nginx.conf").write_text(CONFIG.format(folder=tmp_path, port=port, to=server.address[1]))
    command = [str(NGINX), "-c", str(tmp_path / "nginx.conf"), "-p", str(tmp_path), "-g", "daemon off;"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as nginx:
        try:
            assert reaches(lambda: answers(port), wanted=True)
            threading.Timer(70, held.set).start()
            began = time.monotonic()
            status, found = lines_of(f"http://127.0.0.1:{port}")
            assert time.monotonic() - began > 69
        finally:
            nginx.terminate()
    assert status == 200
    assert found.count(WAITING) in (6, 7)
    assert found[-1] == "data: [DONE]"
    assert text_of(found)


CONFIG = """
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{to}; }}
  }}
}}
"""


def free_port() -> int:
    with bound_socket("127.0.0.1", 0) as found:
        return found.getsockname()[1]


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=1).status_code == 200
    except httpx.HTTPError:
        return False
