"""`/v1/watch`: questions about a replayed and about a pushed stream; what gives way, what is refused, what is left."""

import asyncio
import json
import os
import random
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import cv2
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from crossdraft import Request
from crossdraft.cli.main import main
from crossdraft.events import read_events
from crossdraft.serve.budget import MediaShare
from crossdraft.serve.errors import ApiError
from crossdraft.serve.keys import KeyRecord, append_key, digest_of, new_key
from crossdraft.serve.live import LiveSource
from crossdraft.streams import EventBuffer, SlidingWindows, Watch, Windowing
from crossdraft.streams.messages import ROUTE, SCHEMA, PushedEvents, PushedFrame, StreamEnd
from crossdraft.video import iter_frames
from tests.forked import interrupt, start_command
from tests.serve.conftest import QUESTION, body
from tests.serve.test_metrics import finished

EVERY_S, WINDOW_S, FRAMES, TOKENS = 0.125, 0.5, 4, 8


def asked(**more) -> dict[str, object]:
    timing = {"every_ms": 1e3 * EVERY_S, "window_ms": 1e3 * WINDOW_S, "frames": FRAMES}
    return {"model": "reference", "questions": [QUESTION], "max_tokens": TOKENS, **timing, **more}


REPLAY = {"video_url": "file:clip.mp4", "event_url": {"url": "file:clip.h5"}}


@contextmanager
def connected(running, first=None, **more):
    address = f"ws://{running.address[0]}:{running.address[1]}{ROUTE}"
    with connect(address, compression=None, proxy=None, max_size=None, **more) as socket:
        if first is not None:
            socket.send(first if isinstance(first, str | bytes) else json.dumps(first))
        yield socket


def received(socket) -> list[dict]:
    """All that comes until the server closes, without heartbeats."""
    found = []
    while True:
        try:
            found.append(json.loads(socket.recv(30)))
        except ConnectionClosed:
            return [one for one in found if one["type"] != "heartbeat"]


def png(pixels: np.ndarray) -> bytes:
    return cv2.imencode(".png", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))[1].tobytes()


@pytest.fixture(scope="module")
def stream(media_root):
    """The clip as messages: events, frame, events, frame …"""
    events, found, before = read_events(media_root / "clip.h5"), [], 0
    for time_s, pixels in iter_frames(media_root / "clip.mp4"):
        part = events.slice(before, before := round(time_s * 1e6))
        if len(part):
            found.append(PushedEvents(part.t, part.x, part.y, part.p))
        found.append(PushedFrame(time_s, png(pixels)))
    return (events.width, events.height), [*found, StreamEnd(time_s + 1 / 24)]


@pytest.fixture(scope="module")
def windows(media_root):
    """The windows of the clip with their events, and what the engine says of each by itself."""
    events = read_events(media_root / "clip.h5")
    buffer, before = EventBuffer(WINDOW_S), 0
    sliding, found = SlidingWindows(Windowing(EVERY_S, WINDOW_S, FRAMES), buffer), []
    for time_s, pixels in iter_frames(media_root / "clip.mp4"):
        buffer.add(events.slice(before, before := round(time_s * 1e6)))
        found += sliding.add_frame(time_s, pixels)
    return found + sliding.finish(time_s + 1 / 24)


@pytest.fixture(scope="module")
def alone(runner, windows):
    made = [Request(QUESTION, one.frames, one.events, max_new_tokens=TOKENS, namespace="test") for one in windows]
    return [list(runner.engine.generate(one).tokens) for one in made]


def answers(messages) -> dict[int, list[int]]:
    return {one["window"]: one["answers"][0]["tokens"] for one in messages if one["type"] == "window"}


def idle(running) -> bool:
    """Whether nothing of a stream is left, at once or soon."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        threads = [one for one in threading.enumerate() if one.name.startswith(("watch", "replay"))]
        left = running.service.streams, running.service.limits.active, running.rows(), len(threads)
        if left == (0, 0, 0, 0) and running.service.media.budget.held == 0 and running.service.media.files.spooled == 0:
            return True
        time.sleep(0.02)
    return False


def push(socket, stream, pause_s=0.0) -> None:
    for message in stream:
        socket.send(SCHEMA.encode(message))
        if isinstance(message, PushedFrame):
            time.sleep(pause_s)


def test_a_replayed_streams_answers_are_the_engines_own(server, windows, alone):
    with connected(server, asked(replay=REPLAY | {"speed": 0.5}, pieces=True)) as socket:
        started, *found, summary = received(socket)
        assert socket.close_code == 1000
    assert started == {"type": "started", "frames": FRAMES}
    assert summary["type"] == "summary"
    said = answers(found)
    assert len(said) > 1
    assert all(tokens == alone[number] for number, tokens in said.items())
    assert summary["windows_due"] == summary["windows_answered"] + summary["windows_dropped"] == len(windows)
    first = next(one for one in found if one["type"] == "window")
    pieces = [one["text"] for one in found if one["type"] == "piece" and one["window"] == first["window"]]
    assert "".join(pieces) == first["answers"][0]["text"]
    assert idle(server)


def test_of_a_long_recording_one_window_after_another_is_decoded(server, windows, alone, media_root, monkeypatch):
    decode, parts = server.service.decoder.events, []
    monkeypatch.setattr("crossdraft.serve.recordings.MOST_WHOLE", 1000)

    def noted(part, *more):
        parts.append((part.start_us, part.end_us))
        return decode(part, *more)

    monkeypatch.setattr(server.service.decoder, "events", noted)
    replay = REPLAY | {"speed": 0.5, "event_url": {"url": "file:clip.h5", "format": "dsec"}}  # which is not known yet
    with connected(server, asked(replay=replay)) as socket:
        *found, _ = received(socket)
    said = answers(found)
    assert len(said) > 1
    assert all(tokens == alone[number] for number, tokens in said.items())
    first, *decoded = parts
    assert first == (None, None)
    spans = [(round(one.start_s * 1e6), round(one.end_s * 1e6)) for one in windows]
    assert decoded == [spans[number] for number in said]
    assert idle(server)


def test_a_pushed_streams_answers_are_the_engines_own(server, stream, windows, alone, monkeypatch):
    sensor, messages = stream
    requests, whole = [], server.engine.astream
    monkeypatch.setattr(server.engine, "astream", lambda one, **more: (requests.append(one), whole(one, **more))[1])
    with connected(server, asked(sensor=sensor)) as socket:
        assert json.loads(socket.recv(30))["type"] == "started"
        push(socket, messages, 0.05)
        *found, summary = received(socket)
    assert summary["pushed"] == {
        "frame": sum(isinstance(one, PushedFrame) for one in messages),
        "events": sum(isinstance(one, PushedEvents) for one in messages),
        "end": 1,
    }
    said = answers(found)
    assert len(said) > 1
    assert said == {number: alone[number] for number in said}
    for number, request in zip(said, requests, strict=True):  # the drafter saw the same, too
        assert np.array_equal(request.video.frames, windows[number].frames)
        for column in "txyp":
            assert np.array_equal(getattr(request.events, column), getattr(windows[number].events, column))
        assert len(request.events) > 100
    assert idle(server)


def test_a_changed_answer_says_so(server):
    """A clip, then a quite different one."""
    red, noise = np.zeros((64, 64, 3), np.uint8), np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    red[..., 0] = 255
    with connected(server, asked(window_ms=200, every_ms=1000, frames=1, max_tokens=16)) as socket:
        push(socket, [PushedFrame(0.2, png(red))])
        found = [json.loads(socket.recv(30))]
        while found[-1]["type"] != "window":
            found.append(json.loads(socket.recv(30)))
        push(socket, [PushedFrame(1.2, png(noise)), StreamEnd(1.2)])
        found += received(socket)
    first, second = (one["answers"][0] for one in found if one["type"] == "window")
    assert first["changed"] is False
    assert second["changed"] == (second["text"] != first["text"])
    assert second["before"] == first["text"]
    assert found[-1]["changes"] == second["changed"] == 1


@pytest.fixture
def go(server, monkeypatch):
    """The target is slow: it begins once this is set."""
    found, whole = threading.Event(), server.engine.astream

    class Late:
        def __init__(self, stream):
            self.stream, self.answer = stream, None

        async def __aiter__(self):
            await asyncio.to_thread(found.wait, 10)
            async for piece in self.stream:
                yield piece
            self.answer = self.stream.answer

    monkeypatch.setattr(server.engine, "astream", lambda *given, **more: Late(whole(*given, **more)))
    return found


def test_of_the_windows_that_fall_due_while_one_is_answered_the_latest_is_next(server, go):
    pixels = png(np.zeros((32, 32, 3), np.uint8))
    with connected(server, asked(window_ms=100, every_ms=100, frames=1)) as socket:
        push(socket, [PushedFrame(number / 10, pixels) for number in range(1, 10)], 0.05)
        time.sleep(0.2)
        push(socket, [StreamEnd(0.9)])
        time.sleep(0.2)
        go.set()
        *found, summary = received(socket)
    assert list(answers(found)) == [0, 8]
    assert (summary["windows_due"], summary["windows_answered"], summary["windows_dropped"]) == (9, 2, 7)
    assert idle(server)


def test_frames_that_come_faster_than_they_are_decoded_give_way_and_are_counted(server, monkeypatch):
    slow = server.service.media.frame

    async def frame(*given):
        await asyncio.sleep(0.05)
        return await slow(*given)

    monkeypatch.setattr(server.service.media, "frame", frame)
    pixels = png(np.zeros((32, 32, 3), np.uint8))
    with connected(server, asked(window_ms=1000, every_ms=1000, frames=1)) as socket:
        push(socket, [PushedFrame(number / 100, pixels) for number in range(1, 201)])
        push(socket, [StreamEnd(2.0)])
        *found, summary = received(socket)
    assert summary["pushed"]["frame"] == 200
    assert summary["pushed"]["frame_dropped"] > 150
    assert [one for one in found if one["type"] == "window"][-1]["end_s"] == 2.0
    assert idle(server)


def frame(time_s=0.1, side=16) -> bytes:
    return SCHEMA.encode(PushedFrame(time_s, png(np.zeros((side, side, 3), np.uint8))))


def events(times, x=0, p=1) -> bytes:
    n = len(times)
    columns = np.full(n, x, np.uint16), np.zeros(n, np.uint16), np.full(n, p, np.uint8)
    return SCHEMA.encode(PushedEvents(np.asarray(times, np.int64), *columns))


def packed(*values) -> bytes:
    import msgpack

    return msgpack.packb(list(values))


def bomb() -> bytes:
    """A PNG whose header says 60,000 x 60,000 pixels."""
    import struct
    import zlib

    head = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    body = b"IDAT" + zlib.compress(bytes(1000))
    parts = [struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in (head, body)]
    return SCHEMA.encode(PushedFrame(0.1, b"\x89PNG\r\n\x1a\n" + b"".join(parts)))


HOSTILE = {
    "text": (["hello"], "no binary one"),
    "no msgpack": ([b"\x00\x01"], "no msgpack array"),
    "another version": ([packed(9, "frame", 0.1, b"x")], "version 9"),
    "another kind": ([packed(1, "commit", 1)], "no frame of the kind"),
    "a field too few": ([packed(1, "frame", 0.1)], "has 2 fields"),
    "no number": ([packed(1, "frame", float("nan"), b"x")], "no finite number"),
    "before the beginning": ([frame(-1.0)], "-1 s"),
    "backwards": ([frame(0.2), frame(0.1)], "0.1 s"),
    "the same time": ([frame(0.2), frame(0.2)], "send frames by time"),
    "far ahead": ([frame(1e12)], "at most 60 s"),
    "another size": ([frame(0.1), frame(0.2, side=32)], "keep one size"),
    "no image": ([SCHEMA.encode(PushedFrame(0.1, b"junk" * 9))], "not an image"),
    "a bomb": ([bomb()], "above the limit"),
    "a path": ([SCHEMA.encode(PushedFrame(0.1, b"/etc/passwd"))], "not an image"),
    "events backwards": ([events([5, 4])], "out of order"),
    "events backwards later": ([events([5]), events([4])], "out of order"),
    "events outside": ([events([5], x=900)], "outside"),
    "no polarity": ([events([5], p=7)], "polarity"),
    "columns that differ": ([packed(1, "events", bytes(8), b"", b"", b"")], "differ in length"),
    "half a number": ([packed(1, "events", bytes(7), b"", b"", b"")], "numbers of 8 bytes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_stream_is_refused_with_one_sentence(server, name):
    messages, words = HOSTILE[name]
    with connected(server, asked(sensor=[64, 64])) as socket:
        for message in messages:
            socket.send(message)
        *_, last = received(socket)
    assert last["type"] == "error", last
    assert words in last["error"]["message"]
    assert not set(re.findall(r"/\w+", last["error"]["message"])) - {"/1"}  # no path
    assert socket.close_code == 1008
    assert idle(server)


def test_what_comes_after_the_end_is_refused(server):
    """Not over the network, where the stream may be over before it comes."""
    media, watch = server.service.media, Watch(lambda *_: None, [Request(QUESTION)])
    share = MediaShare(media.budget)
    source = LiveSource(media, Windowing(EVERY_S, WINDOW_S, FRAMES), watch, share, None)
    source.push(StreamEnd(0.0))
    for late in (PushedFrame(0.1, b"x"), StreamEnd(0.2)):
        with pytest.raises(ApiError, match="after the end of the stream; connect anew"):
            source.push(late)
    assert source.counts == {"end": 1}
    share.close()


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("{", "no JSON"),
        (b"\x00", "no JSON text"),
        ("[]", "object"),
        ("x" * 200_000, "no JSON text of at most"),
        (asked(model="other"), "no model 'other'"),
        (asked(questions=[]), "questions"),
        (asked(questions=["What?"] * 9), "questions"),
        (asked(questions=[" "]), "empty"),
        (asked(every_ms=0), "every_ms"),
        (asked(frames=10_000), "frames"),
        (asked(max_tokens=10**9), "at most"),
        (asked(max_tokens=True), "true is no number"),
        (asked(fps=3), "fps"),
        (asked(sensor=[0, 5]), "sensor"),
        (asked(replay={"video_url": "file:../../etc/passwd"}), "no such file"),
        (asked(replay={"video_url": "http://127.0.0.1/x.mp4"}), "fetches nothing"),
        (asked(replay={"video_url": "file:clip.h5"}), "replay.video_url"),
        (asked(replay=REPLAY | {"speed": float("inf")}), "speed"),
        (asked(replay=REPLAY, window_ms=60_000), "a window is 60 s long"),
    ],
)
def test_a_first_message_without_sense_is_refused_with_one_sentence(server, first, words):
    with connected(server, first) as socket:
        *_, last = received(socket)
    assert last["type"] == "error", last
    assert words in last["error"]["message"]
    assert socket.close_code == 1008
    assert idle(server)


def test_a_message_that_is_too_long_ends_the_connection(server):
    with connected(server, asked()) as socket, pytest.raises(ConnectionClosed):
        socket.send(bytes(9 << 20))
        while True:
            socket.recv(30)
    assert idle(server)


def test_mutated_messages_never_break_the_server(server, stream):
    """A thousand, each in place of one of the stream's own; a connection takes them until it refuses one."""
    rng, sent, errors = random.Random(5), 0, 0
    good = [SCHEMA.encode(one) for one in stream[1][:8]]
    while sent < 1000:
        with connected(server, asked(sensor=stream[0])) as socket:
            try:
                for _ in range(50):
                    data = bytearray(rng.choice(good))
                    for _ in range(rng.randint(1, 4)):
                        data[rng.randrange(min(len(data), rng.choice((12, 10**9))))] = rng.randrange(256)
                    sent += 1
                    socket.send(bytes(data))
                    socket.recv(0.002) if rng.random() < 0.2 else None
            except (ConnectionClosed, TimeoutError):
                pass
            if rng.random() < 0.5:
                socket.close()
                continue
            with_end = [one for one in _rest(socket) if one["type"] == "error"]
            errors += len(with_end)
            assert all(one["error"]["type"] != "server_error" for one in with_end), with_end
    assert errors
    assert server.post(body(max_tokens=2)).status_code == 200
    assert idle(server)


def _rest(socket) -> list[dict]:
    found = []
    try:
        socket.send(SCHEMA.encode(StreamEnd(0.0)))
        while True:
            found.append(json.loads(socket.recv(5)))
    except (ConnectionClosed, TimeoutError):
        return found


def test_who_floods_is_cut_off(start):
    running = start(stream_messages=20)
    with connected(running, asked(sensor=[64, 64])) as socket:
        for number in range(100):
            try:
                socket.send(events([number]))
            except ConnectionClosed:
                break
        *_, last = received(socket)
    assert last["error"]["code"] == "too_many_messages"
    assert idle(running)


def test_streams_are_bounded_and_chat_goes_on_meanwhile(start, alone):
    running = start(streams=2)
    with connected(running, asked(replay=REPLAY)) as one, connected(running, asked(replay=REPLAY)) as two:
        for socket in (one, two):
            assert json.loads(socket.recv(30))["type"] == "started"
        with pytest.raises(InvalidStatus) as error:
            connected(running).__enter__()
        assert error.value.response.status_code == 503
        answer = running.post(body())
        assert answer.status_code == 200
        found = [received(one), received(two)]
    for messages in found:
        assert messages[-1]["type"] == "summary"
        said = answers(messages)
        assert said
        assert all(tokens == alone[number] for number, tokens in said.items())
    again = running.post(body())
    assert again.json()["choices"][0]["message"] == answer.json()["choices"][0]["message"]
    assert idle(running)


@pytest.mark.parametrize("replay", [True, False])
def test_of_a_client_that_is_gone_nothing_is_left(server, stream, replay, monkeypatch):
    """The question that is being answered ends within a round, and is counted; those behind it are not asked."""
    before = finished(server).get("abort", 0)
    requests, whole = [], server.engine.astream
    monkeypatch.setattr(server.engine, "astream", lambda one, **more: (requests.append(one), whole(one, **more))[1])
    sensor, messages = stream
    more = {"replay": REPLAY} if replay else {"sensor": sensor}
    with connected(server, asked(max_tokens=500, questions=[QUESTION] * 8, **more)) as socket:
        if not replay:
            push(socket, messages[:-1])
        while not requests or not server.rows():
            time.sleep(0.001)
        socket.socket.close()  # without a word
    assert idle(server)
    assert len(requests) < 8
    assert finished(server)["abort"] == before + 1


def test_a_server_that_shuts_down_ends_streams_with_their_summary(start):
    running = start()
    with connected(running, asked(replay=REPLAY | {"speed": 0.02})) as socket:
        assert json.loads(socket.recv(30))["type"] == "started"
        running.service.draining = True
        *_, last = received(socket)
        assert (last["type"], last["windows_due"]) == ("summary", 0)  # the first would be in 25 s
        assert socket.close_code == 1001
        with pytest.raises(InvalidStatus) as error:
            connected(running).__enter__()
        assert error.value.response.status_code == 503
    assert idle(running)


def test_a_server_that_shuts_down_answers_of_a_live_stream_the_window_that_waits(start, go):
    """However much the client goes on to push."""
    running = start()
    pixels = png(np.zeros((32, 32, 3), np.uint8))

    def windows_due(count, beats=1):
        while beats:
            found = json.loads(socket.recv(30))
            beats -= found["type"] == "heartbeat" and found["windows"]["due"] == count

    with connected(running, asked(window_ms=100, every_ms=100, frames=1)) as socket:
        push(socket, [PushedFrame(0.1, pixels)])
        windows_due(1)
        push(socket, [PushedFrame(0.2, pixels)])
        windows_due(2)
        running.service.draining = True
        windows_due(2, beats=2)  # the server has seen it
        push(socket, [PushedFrame(number / 10, pixels) for number in range(3, 10)])
        windows_due(2)
        go.set()
        *found, summary = received(socket)
        assert socket.close_code == 1001
    assert list(answers(found)) == [0, 1]
    assert (summary["type"], summary["windows_due"], summary["windows_answered"]) == ("summary", 2, 2)
    assert idle(running)


def test_a_heartbeat_says_how_it_goes(server):
    with connected(server, asked(sensor=[64, 64])) as socket:
        socket.send(frame())
        found = [json.loads(socket.recv(30)) for _ in range(2)]
    assert found[1] == {
        "type": "heartbeat", "windows": {"due": 0, "answered": 0, "dropped": 0}, "pushed": {"frame": 1},
    }  # fmt: skip
    assert idle(server)


def test_a_stream_needs_a_key_and_counts_as_one_request_of_it(start, tmp_path):
    key = new_key()
    append_key(tmp_path / "keys.yaml", KeyRecord(name="anna", sha256=digest_of(key)))
    running = start(keys_file=tmp_path / "keys.yaml", concurrent=1)
    with pytest.raises(InvalidStatus) as error:
        connected(running).__enter__()
    assert error.value.response.status_code == 401
    headers = {"Authorization": f"Bearer {key}"}
    with connected(running, asked(replay=REPLAY | {"speed": 0.1}), additional_headers=headers) as socket:
        assert json.loads(socket.recv(30))["type"] == "started"
        assert running.post(body(), headers=headers).status_code == 429
        socket.send(SCHEMA.encode(StreamEnd(0.0)))
        assert received(socket)[-1]["type"] == "summary"
    assert running.post(body(), headers=headers).status_code == 200


def test_who_says_nothing_is_hung_up_on(start):
    with connected(start(header_seconds=0.3)) as socket, pytest.raises(ConnectionClosed):
        socket.recv(30)


@pytest.fixture
def command(media_root, capsys):
    """Runs `crossdraft watch --server`; its status, standard output and standard error."""

    def run(running, *arguments) -> tuple[int, str, str]:
        files = ["--video", str(media_root / "clip.mp4"), "--events", str(media_root / "clip.h5")]
        windows = ["--every", "125ms", "--window", "500ms", "--frames", str(FRAMES), "--max-new-tokens", str(TOKENS)]
        at = f"ws://{running.address[0]}:{running.address[1]}"
        status = main(["watch", *files, *windows, "--server", at, "--ask", QUESTION, *arguments])
        return status, *capsys.readouterr()

    return run


def test_the_command_pushes_a_clip_and_prints_the_engines_own_answers(server, command, alone):
    status, shown, errors = command(server, "--json", "--windows", "3")
    assert (status, errors) == (0, "")
    *found, last = map(json.loads, shown.splitlines())
    assert last["summary"]["windows_due"] == 3
    assert found
    assert all(one["answers"][0]["tokens"] == alone[one["window"]] for one in found)
    assert idle(server)


def test_the_command_says_that_a_clip_is_shorter_than_a_window(server, command):
    status, shown, errors = command(server, "--window", "5s", "--speed", "9")
    assert (status, shown) == (2, "")
    assert "and a window is 5 s long; give a longer clip or shorter windows." in errors
    assert idle(server)


def test_the_command_writes_lines_for_people(server, command):
    status, shown, _ = command(server, "--seconds", "1")
    assert status == 0
    assert shown.startswith("    0.5")
    assert " windows in " in shown
    assert idle(server)


def test_ctrl_c_ends_the_command_with_the_summary(server, media_root):
    at = f"ws://{server.address[0]}:{server.address[1]}"
    windows = ["--every", "125ms", "--window", "125ms", "--speed", "0.05", "--max-new-tokens", "4"]
    command = ["watch", "--server", at, "--video", str(media_root / "clip.mp4"), "--ask", QUESTION, *windows]
    (ours, theirs), (complaints, errors) = os.pipe(), os.pipe()
    process, shown = start_command(command, [0, theirs, errors]), b""
    while not shown.startswith(b"    0.12 s ") and (part := os.read(ours, 1)):
        shown += part  # an answer has begun
    interrupt(process)
    with open(ours, "rb") as stream, open(complaints, "rb") as said:
        rest = stream.read()
        process.join(30)
        assert (process.exitcode, said.read()) == (0, b"")
    assert b"1 answered" in rest
    assert idle(server)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--target", "reference", "--drafter", "none"), "--drafter is the server's to choose"),
        (("--frame-format", "gif"), "--frame-format 'gif'"),
        (("--max-new-tokens", "100000"), "at most 1024 tokens"),
        (("--key", "none", "--cert", "no.pem"), "without TLS"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_sentence(server, command, arguments, sentence):
    status, shown, errors = command(server, *arguments)
    assert (status, shown, errors.count("\n")) == (2, "", 1)
    assert sentence in errors


def test_the_command_says_that_nobody_is_there(server, command):
    gone = replace(server, address=("127.0.0.1", 9))
    status, _, errors = command(gone)
    assert (status, errors.count("\n")) == (2, 1)
    assert "cannot be reached" in errors


def test_windows_that_were_never_made_are_counted():
    watch = Watch(lambda request, on_piece: pytest.fail("nobody asks"), [Request("What?")])
    watch.count_dropped(3)
    assert (watch.summary.due, watch.summary.dropped, watch.summary.unfinished) == (3, 3, 0)
