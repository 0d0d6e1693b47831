"""Live frames on loopback: from a muxer that sends MPEG-TS, from ffmpeg, and from an RTSP camera."""

import random
import shutil
import socket
import subprocess
import threading
import time
from contextlib import closing, contextmanager

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.streams import SlidingWindows, Windowing
from crossdraft.streams.live.address import LiveAddress, live_address
from crossdraft.streams.live.frames import LiveFrames
from crossdraft.streams.live.incoming import IncomingBytes
from tests.streams.live.sending import RtspServer, connected, frames, number, picture, transport

WAIT_S = 30.0  # that a loaded machine may take


def live_frames(kind: str, **more) -> LiveFrames:
    return LiveFrames(LiveAddress(kind, "127.0.0.1", 0), **more)


@contextmanager
def started(found: LiveFrames):
    """Run the reader without waiting for a first frame."""
    found.reader._thread.start()
    try:
        yield found
    finally:
        found.close()


def taken(found: LiveFrames, until: int, wait_s: float = WAIT_S):
    """Frames as they come, up to one whose picture is `until`."""
    frames, end = [], time.monotonic() + wait_s
    while time.monotonic() < end:
        frame = found.take(0.1)
        if frame is not None:
            frames.append(frame)
            if number(frame.pixels) == until:
                return frames
    raise AssertionError(f"frame {until} did not come, but {[number(one.pixels) for one in frames]}")


def test_datagrams_of_another_origin_are_ignored_until_a_sender_is_waited_for_anew():
    with (
        closing(IncomingBytes(LiveAddress("udp", "127.0.0.1", 0), WAIT_S, threading.Event())) as found,
        connected("udp", found.port) as first,
        connected("udp", found.port) as second,
    ):
        for send, other in ((first, second), (second, first)):
            send(b"one, two")
            assert found.wait()
            other(b"three")
            send(b"four")
            assert [found.read(5), found.read(99), found.read(99)] == [b"one, ", b"two", b"four"]


@pytest.mark.parametrize("kind", ["udp", "tcp"])
def test_frames_of_a_sender_have_its_times_and_come_back_as_a_new_segment(kind):
    with started(live_frames(kind, keep_s=60.0)) as found:
        assert found.status().state == "waiting"
        with connected(kind, found.port) as send:
            send(transport(frames(12)))
            first = taken(found, 9)
        assert [number(one.pixels) for one in first] == list(range(10))
        assert first[0].time_s == 0.0
        assert found.status().state == "live"
        if kind == "udp":  # see the silent sender
            return
        with connected(kind, found.port) as send:  # another program, whose clock begins anew
            send(transport(frames(6, first=12)))
            again = taken(found, 15)
        assert {one.segment for one in first} != {one.segment for one in again}
        assert len({one.segment for one in again if number(one.pixels) >= 12}) == 1
        times = [one.time_s for one in (*first, *again)]
        assert times == sorted(set(times))
        assert found.status().dropped == 0


def test_a_jump_in_time_and_another_size_begin_a_new_segment():
    with started(live_frames("tcp", keep_s=600.0)) as found, connected("tcp", found.port) as send:
        send(transport([*frames(6), *frames(6, 100_000, 6)]))
        jumped = taken(found, 8)
        segments = [one.segment for one in jumped]
        assert segments == [segments[0]] * 6 + [segments[6]] * 3
        assert segments[0] != segments[6]
        assert jumped[-1].time_s < 60  # the moment of its arrival, not the source's second
        send(transport([(ms, pixels.repeat(2, axis=0)) for ms, pixels in frames(6, first=12)], size=(64, 96)))
        larger = taken(found, 15)
        assert larger[-1].pixels.shape == (96, 64, 3)
        assert larger[-1].segment > segments[-1]


def test_what_is_held_is_bounded_and_not_copied():
    with started(live_frames("tcp", keep_s=60.0, most_bytes=5 * 48 * 64 * 3)) as found:
        with connected("tcp", found.port) as send:
            send(transport(frames(20)))
            _until(lambda: found.status().received >= 18)
            newest = found.newest(60.0)
        assert len(newest) == 5
        assert found.newest(60.0)[-1].pixels is found.take(0).pixels or len(found.newest(60.0)) < 5
        assert found.status().dropped == found.status().received - 5


def test_a_silent_sender_is_no_signal_and_another_is_read(capfd):
    found = live_frames("udp", signal_timeout_s=0.3)
    with started(found), connected("udp", found.port) as first, connected("udp", found.port) as second:
        first(transport(frames(6)))
        taken(found, 3)
        second(b"no video" * 100)  # ignored: there is a sender
        _until(lambda: found.status().state == "no signal")
        assert found.take(0) is None  # what the decoder still held was old
        assert "Traceback" not in capfd.readouterr().err
        end = time.monotonic() + WAIT_S
        while found.status().state != "live":
            assert time.monotonic() < end
            second(transport(frames(8, first=12)))
            time.sleep(0.1)
        taken(found, 17)


@pytest.mark.parametrize("kind", ["udp", "tcp"])
def test_garbage_is_noted_and_the_next_sender_is_read(kind, capfd):
    """The sender of the garbage stays, silent."""
    with started(live_frames(kind, signal_timeout_s=0.3)) as found, connected(kind, found.port) as garbage:
        garbage(random.Random(0).randbytes(40_000))
        _until(lambda: found.status().notes)
        assert "cannot be opened as live video" in found.status().notes[-1]
        end = time.monotonic() + WAIT_S
        with connected(kind, found.port) as send:
            while found.status().state != "live":
                assert time.monotonic() < end
                send(transport(frames(6)))
                time.sleep(0.1)
            taken(found, 3)
    assert "Traceback" not in capfd.readouterr().err  # by PyAV, of what a read raises


def test_an_address_that_is_taken_and_a_source_that_never_comes_have_one_sentence():
    with closing(live_frames("tcp")) as found:
        with pytest.raises(CrossdraftError, match=r"live:tcp://127.0.0.1:\d+ cannot be listened at \(.+\); choose"):
            LiveFrames(LiveAddress("tcp", "127.0.0.1", found.port))
        with pytest.raises(CrossdraftError, match=r"Nothing came from live:tcp://"):
            found.reader.start(0.05)
    with socket.create_server(("127.0.0.1", found.port)):  # it listens no more
        pass


def test_times_are_of_arrival_and_windows_show_one_segment():
    """What arrives when, given by hand: a late frame, a jump in time, a silence, another size."""
    with closing(live_frames("tcp", keep_s=60.0)) as found:
        windows, made, shown = SlidingWindows(Windowing(0.1, 0.2, 2), newest=True), [], []
        came = [(0.1 * index, 0.1 * index) for index in range(5)]  # time stamp, arrival
        came += [(0.5, 0.57), (0.6, 0.6)]
        came += [(90.0 + 0.1 * index, 0.7 + 0.1 * index) for index in range(4)]
        came += [(94.0 + 0.1 * index, 4.7 + 0.1 * index) for index in range(4)]
        for index, (stamp_s, at) in enumerate(came):
            found._take((stamp_s, picture(index), index == 0), 1000.0 + at)
            shown.append(found.take(0))
            if index and shown[-1].segment != shown[-2].segment:
                windows.restart(shown[-1].time_s)
            made += windows.add_frame(shown[-1].time_s, shown[-1].pixels, shown[-1].at)
        found._take((94.4, picture(0, 64), False), 1005.1)
        shown.append(found.take(0))
    assert [one.segment for one in shown] == [1] * 7 + [2] * 4 + [3] * 4 + [4]
    assert [round(one.time_s, 6) for one in shown[4:9]] == [0.4, 0.5, 0.6, 0.7, 0.8]
    assert [round(one.time_s, 6) for one in shown[11:13]] == [4.7, 4.8]
    assert (found.zero_at, found.zero_s, found.to_json()["drift_ppm"]) == (1000.0, 0.0, None)
    numbers = [[number(pixels) for pixels in window.frames] for window in made]
    assert numbers[0] == [1, 2]
    assert [7, 8] not in numbers  # the first of a segment is at no window's beginning yet
    assert all(max(one) < 7 or (min(one) >= 7 and max(one) < 11) or min(one) >= 11 for one in numbers)
    assert any(min(one) >= 11 for one in numbers)


def test_the_newest_frames_are_of_one_segment():
    with closing(live_frames("tcp", keep_s=60.0)) as found:
        for index, (stamp_s, at) in enumerate([(0.0, 0.0), (0.1, 0.1), (50.0, 0.2), (50.1, 0.3)]):
            found._take((stamp_s, picture(index), index == 0), 1000.0 + at)
        assert [number(one.pixels) for one in found.newest(9.0)] == [2, 3]


def test_an_rtsp_camera_is_read_and_its_password_never_shown():
    assert LiveFrames(live_address("live:rtsp://[::1]:9/a", "video"))._source.file == "rtsp://[::1]:9/a"
    camera = RtspServer(frames(20))
    with closing(camera):
        address = live_address(f"live:rtsp://user:secret@127.0.0.1:{camera.port}/main?stream=1", "video")
        found = LiveFrames(address, keep_s=60.0)
        with closing(found):
            found.reader.start(WAIT_S)
            assert number(taken(found, 18)[-1].pixels) == 18
            _until(lambda: found.status().reconnects)  # the server hung up at the end, and is asked again
            assert "secret" not in " ".join((*found.status().notes, str(address), repr(found.status())))
        assert f"DESCRIBE rtsp://127.0.0.1:{camera.port}/main?stream=1 RTSP/1.0" in camera.asked


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
@pytest.mark.parametrize("kind", ["udp", "tcp"])
def test_ffmpeg_pushes_to_the_address(kind):
    with started(live_frames(kind, keep_s=60.0)) as found:
        made = ["-re", "-f", "lavfi", "-i", "testsrc=size=96x64:rate=30:duration=1.5", "-c:v", "mpeg2video", "-g", "5"]
        where = f"{kind}://127.0.0.1:{found.port}"
        subprocess.run(["ffmpeg", "-v", "error", *made, "-f", "mpegts", where], check=True, timeout=WAIT_S)
        _until(lambda: found.status().received >= 30)
        assert found.take(0).pixels.shape == (64, 96, 3)
        assert found.status().dropped == 0


def _until(true) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
