"""Decoding a video while it comes: bit by bit, damaged, or not a video."""

import random
from fractions import Fraction

import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.video import VideoLimits
from crossdraft.video.live import LiveDecoder, LiveInput
from tests.streams.live.sending import FPS, Sender, frames, number, transport


class Bits:
    """A file that gives at most one packet of MPEG-TS at a time, and counts what was read of it."""

    def __init__(self, data: bytes) -> None:
        self._data, self.read_bytes = data, 0

    def read(self, size: int) -> bytes:
        data = self._data[self.read_bytes : self.read_bytes + min(size, 188)]
        self.read_bytes += len(data)
        return data


def decoded(data: bytes, **more) -> tuple[LiveDecoder, list[tuple[float, np.ndarray]]]:
    decoder = LiveDecoder(LiveInput("the test", Bits(data)), **more)
    found = list(decoder)
    decoder.close()
    return decoder, found


def test_all_frames_come_with_their_times():
    decoder, found = decoded(transport(frames(20)))
    assert [number(pixels) for _, pixels in found] == list(range(20))
    times = np.array([time_s for time_s, _ in found])
    assert np.allclose(times - times[0], np.arange(20) / FPS, atol=2e-3)
    assert (decoder.damaged, found[0][1].shape) == (0, (48, 64, 3))


def test_a_frame_is_there_once_the_second_one_after_it_has_begun():
    """FFmpeg's reader of MPEG-TS needs as much to know where a frame ends; the decoder holds nothing back."""
    written, ends = bytearray(), []
    sender = Sender(written.extend)
    for ms, pixels in frames(60):
        sender.frame(pixels, ms)
        ends.append(len(written))
    sender.end()
    file = Bits(bytes(written))
    decoder = LiveDecoder(LiveInput("the test", file))
    late = [file.read_bytes - ends[index] for index, _ in enumerate(decoder)]
    decoder.close()
    assert len(late) == 60
    assert max(late[30:59]) <= ends[1] - ends[0] + 10 * 188


@pytest.mark.parametrize("seed", range(3))
def test_what_is_damaged_is_left_out(seed):
    data, draw = bytearray(transport(frames(40))), random.Random(seed)
    for at in (len(data) // 4, len(data) // 2):
        data[at : at + 600] = draw.randbytes(draw.randrange(900))
    _, found = decoded(bytes(data))
    times = [time_s for time_s, _ in found]
    assert 15 <= len(found) <= 40
    assert times == sorted(set(times))


def test_a_picture_with_a_fault_is_left_out_and_counted():
    pictures = [np.random.default_rng(index).integers(0, 256, (48, 64, 3), np.uint8) for index in range(20)]
    data = bytearray(transport((round(1000 * index / FPS), one) for index, one in enumerate(pictures)))
    for packet in range(20, 80, 15):
        data[188 * packet + 100 : 188 * packet + 140] = b"\xff" * 40
    decoder, found = decoded(bytes(data))
    assert len(found) == 20 - decoder.damaged < 20


def test_a_stream_that_is_joined_in_the_middle_begins_with_its_next_whole_picture():
    data = transport(frames(20))
    _, found = decoded(data[len(data) // 2 // 188 * 188 :])
    assert 4 <= len(found) <= 12
    assert number(found[-1][1]) == 19


@pytest.mark.parametrize("data", [b"", b"no video" * 400, random.Random(0).randbytes(20_000), b"G" * 4000])
def test_what_is_no_video_has_one_sentence(data):
    with pytest.raises(CrossdraftError, match=r"^The camera (cannot be opened as live video: .+|sends no video .+)\.$"):
        LiveDecoder(LiveInput("The camera", Bits(data)))


def test_pixels_that_are_not_square_become_so_with_a_note():
    decoder, found = decoded(transport(frames(4), aspect=Fraction(2, 1)))
    assert {pixels.shape for _, pixels in found} == {(48, 128, 3)}
    assert "the test is shown at 128x48, in square pixels" in decoder.notes[0]


def test_frames_beyond_the_limit_are_not_decoded():
    data = transport(frames(6))
    try:
        decoder, found = decoded(data, limits=VideoLimits(pixels=64 * 47))
    except CrossdraftError:
        return
    assert (found, decoder.damaged > 0) == ([], True)


def test_a_device_that_is_not_there_has_one_sentence():
    with pytest.raises(CrossdraftError, match=r"/dev/video9999 cannot be opened as live video: No such file"):
        LiveDecoder(LiveInput.device("/dev/video9999"))
    for path in ("/etc/passwd", "/dev/video10000"):
        with pytest.raises(CrossdraftError, match=f"{path} is no capture device"):
            LiveInput.device(path)


def test_the_address_of_a_camera_is_made_from_checked_parts():
    made = LiveInput.rtsp("It", "rtsp://me:pass%40word@camera:554/h264/ch1?sub=1&x=2", "camera", 8554)
    assert made.file == "rtsp://me:pass%40word@camera:8554/h264/ch1?sub=1&x=2"
    assert made.options["protocol_whitelist"] == "rtsp,rtp,tcp"
    assert "word" not in repr(made)


@pytest.mark.parametrize(
    "url",
    [
        r"rtsp://camera\@else.test/",
        "rtsp://camera/ file",
        "rtsp://a@b@camera/",
        "rtsp://camera/#@else.test",
        "rtsp://x[@camera/",
    ],
)
def test_letters_that_ffmpeg_could_read_differently_are_refused(url):
    with pytest.raises((CrossdraftError, ValueError)):
        LiveInput.rtsp("It", url, "camera", 554)
