"""Addresses of live sources: what each form means, and one sentence for what is none or not allowed."""

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.streams.live.address import LiveAddress, is_live, live_address


@pytest.mark.parametrize(
    ("of", "text", "found"),
    [
        ("events", "live:tcp://127.0.0.1:7777", LiveAddress("tcp", "127.0.0.1", 7777)),
        ("events", "live:unix:/run/dv.sock", LiveAddress("unix", path="/run/dv.sock")),
        ("events", "live:evt:-", LiveAddress("evt:-")),
        ("events", "live:evt:tcp://[::1]:9", LiveAddress("evt:tcp", "::1", 9)),
        ("events", "live:evt:unix:raw.sock", LiveAddress("evt:unix", path="raw.sock")),
        ("events", "live:dv", LiveAddress("dv")),
        ("events", "live:tcp:/127.0.0.1:7777", LiveAddress("tcp", "127.0.0.1", 7777)),  # as a `Path` has it
        ("video", "live:udp://localhost:1234", LiveAddress("udp", "localhost", 1234)),
        ("video", "live:tcp://Cam.lan:1234", LiveAddress("tcp", "cam.lan", 1234)),
        ("video", "live:rtsp://cam.lan/a//b", LiveAddress("rtsp", "cam.lan", 554, "rtsp://cam.lan/a//b")),
        ("video", "live:v4l2:/dev/video0", LiveAddress("v4l2", path="/dev/video0")),
    ],
)  # fmt: skip
def test_each_form_is_read(of, text, found):
    assert is_live(text)
    address = live_address(text, of, ("CAM.lan",))
    assert address == found
    assert live_address(str(address), of, ("cam.lan",)).kind == found.kind


@pytest.mark.parametrize(
    ("of", "text", "sentence"),
    [
        ("events", "live:", "is no address of live events; write live:tcp://HOST:PORT"),
        ("events", "live:udp://127.0.0.1:1", "is no address of live events"),
        ("video", "live:evt:-", "is no address of live video; write live:udp://HOST:PORT"),
        ("video", "clip.mp4", "is no address of live video"),
        ("events", "live:unix:", "is no address of live events"),
        ("events", "live:unix:a\0b", "is no address of live events"),
        ("events", "live:tcp://127.0.0.1", "names no host and port"),
        ("events", "live:tcp://127.0.0.1:0", "names no host and port"),
        ("events", "live:tcp://127.0.0.1:99999", "names no host and port"),
        ("events", "live:tcp://me@127.0.0.1:9", "names no host and port"),
        ("events", "live:tcp://[::1:9", "names no host and port"),
        ("video", "live:udp://127.0.0.1:9/x?listen", "names no host and port"),
        ("events", "live:tcp://10.0.0.9:7", "of the host 10.0.0.9, which is not allowed; say --live-host 10.0.0.9."),
        ("events", "live:tcp://127.0.0.1.nip.io:7", "of the host 127.0.0.1.nip.io, which is not allowed"),
        ("video", "live:udp://0.0.0.0:7", "of the host 0.0.0.0, which is not allowed"),
    ],
)  # fmt: skip
def test_anything_else_is_one_sentence(of, text, sentence):
    with pytest.raises(CrossdraftError) as caught:
        live_address(text, of, ("cam.lan",))
    assert sentence in str(caught.value)
    assert str(caught.value).count("\n") == 0


def test_a_password_is_never_shown():
    text = "live:rtsp://me:secret@cam.lan:8554/stream"
    found = live_address(text, "video", ("cam.lan",))
    assert "secret" in found.path
    assert str(found) == "live:rtsp://cam.lan:8554/stream"
    for of in ("video", "events"):
        with pytest.raises(CrossdraftError) as caught:
            live_address(text, of)
        assert "secret" not in str(caught.value)
