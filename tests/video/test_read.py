"""Sampling and streaming, with honest headers, lying ones, and files that are cut or damaged."""

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import av
import numpy as np
import pytest
import torch
from av.video.stream import VideoStream
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.video_utils import read_video_pyav

from crossdraft.errors import CrossdraftError
from crossdraft.video import VideoLimits, iter_frames, probe, sample_frames
from crossdraft.video.read import _timed
from crossdraft_lab.scenes.from_video import simulator_frames
from crossdraft_lab.scenes.sensor import SimulatorConfig
from crossdraft_lab.scenes.simulate import simulate
from tests.video.helpers import FPS, FRAMES, HEIGHT, WIDTH, animation, encode, numbers, picture, read_frames

Patch = Callable[[str, int, int], Path]


@pytest.mark.parametrize("count", [1, 2, 5, 8, 23, 24])
def test_frames_are_spread_evenly(clip: Path, count: int) -> None:
    frames, times_s = read_frames(clip, count)
    wanted = np.linspace(0, FRAMES - 1, count, dtype=int)
    assert frames.dtype == torch.uint8
    assert frames.shape == (count, HEIGHT, WIDTH, 3)
    assert times_s.dtype == np.float64
    assert numbers(frames) == wanted.tolist()
    np.testing.assert_allclose(times_s, wanted / FPS, atol=1e-6)


def test_a_short_clip_repeats_frames(tmp_path: Path) -> None:
    path = encode(tmp_path / "short.mp4", "mp4", "h264", map(picture, range(3)))
    frames, times_s = read_frames(path, 8)
    assert numbers(frames) == [0, 0, 0, 0, 1, 1, 1, 2]
    np.testing.assert_allclose(times_s, np.array([0, 0, 0, 0, 1, 1, 1, 2]) / FPS, atol=1e-6)


def test_frames_that_repeat_are_held_once(tmp_path: Path) -> None:
    path = encode(tmp_path / "short.mp4", "mp4", "h264", map(picture, range(3)))
    tracemalloc.start()
    try:
        sample = sample_frames(path, 100_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(sample), len(sample.pixels)) == (100_000, 3)
    assert peak < 20e6  # 100,000 frames are 1.2 GB
    eight = sample_frames(path, 8)
    assert numbers(eight.pixels) == [0, 1, 2]
    assert torch.equal(eight.frames, read_frames(path, 8)[0])


def test_a_clip_is_held_once_and_within_a_limit(clip: Path, patched: Patch) -> None:
    for path in (clip, patched("stts", 12, 5000)):  # the second is decoded twice
        limits = VideoLimits(held=9 * HEIGHT * WIDTH)
        tracemalloc.start()
        try:
            frames = sample_frames(path, 9, limits).frames
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert frames.shape == (9, HEIGHT, WIDTH, 3)
        assert peak < 1.5 * frames.numel() + 100_000
        with pytest.raises(CrossdraftError, match=r"10 frames of .* the limit .* take at most 9 \(num_frames=…\)"):
            sample_frames(path, 10, limits)


def test_streaming_gives_the_same_frames(clip: Path) -> None:
    frames, times_s = read_frames(clip, FRAMES)
    streamed = list(iter_frames(clip))
    np.testing.assert_array_equal(np.stack([frame for _, frame in streamed]), frames)
    np.testing.assert_array_equal([time_s for time_s, _ in streamed], times_s)


@pytest.mark.parametrize("count", [0, -1, 10**9])
def test_an_impossible_number_of_frames(clip: Path, count: int) -> None:
    with pytest.raises(CrossdraftError, match="num_frames"):
        read_frames(clip, count)


# --- headers that lie ---


def test_a_header_that_counts_too_many(patched: Patch) -> None:
    path = patched("stts", 12, 5000)
    assert probe(path).frames == 5000
    sample = sample_frames(path, 5)
    assert numbers(sample.frames) == [0, 5, 11, 17, 23]
    assert sample.notes == (f"{path} is cut off or damaged: only 24 of its 5000 frames can be read.",)


def test_a_header_that_counts_too_few(tmp_path: Path) -> None:
    path = encode(tmp_path / "clip.avi", "avi", "mpeg4", map(picture, range(FRAMES)))
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, content.index(b"strh") + 8 + 32, 5)  # dwLength of the stream
    path.write_bytes(content)
    assert probe(path).frames == 5
    assert numbers(read_frames(path, 5)[0]) == [0, 5, 11, 17, 23]


def test_a_header_without_a_count(tmp_path: Path) -> None:
    path = encode(tmp_path / "clip.m1v", "mpeg1video", "mpeg1video", map(picture, range(FRAMES)))
    assert probe(path).frames == 0
    assert numbers(read_frames(path, 5)[0]) == [0, 5, 11, 17, 23]


def test_no_frames_at_all(patched: Patch) -> None:
    path = patched("stsz", 12, 0)  # the table of sample sizes is empty
    for read in (read_frames, lambda path: list(iter_frames(path))):
        with pytest.raises(CrossdraftError, match=r"Not one frame of .* can be decoded"):
            read(path)


def test_an_endless_table_of_samples(patched: Patch) -> None:
    with pytest.raises(CrossdraftError):
        read_frames(patched("stsz", 12, 2_000_000_000))


def test_a_frame_larger_than_the_header_says_is_never_allocated(tmp_path: Path) -> None:
    path = encode(tmp_path / "bomb.avi", "avi", "mjpeg", map(picture, range(3)))
    content = bytearray(path.read_bytes())
    at = 0
    while (at := content.find(b"\xff\xc0", at + 1)) > 0:  # each picture's own size
        struct.pack_into(">HH", content, at + 5, 65000, 65000)
    path.write_bytes(content)
    with pytest.raises(CrossdraftError, match="Not one frame"):
        read_frames(path)


def test_times_never_stand_still(patched: Patch) -> None:
    times_s = [time_s for time_s, _ in iter_frames(patched("stts", 16, 0))]  # every frame lasts nothing
    assert len(times_s) > 1
    assert np.all(np.diff(times_s) > 0)


def stamped(path: Path, order: list[int]) -> Path:
    """Frames 0, 1, 2 … in turn, of which each carries the stamp that `order` says."""
    with path.open("w+b") as file, av.open(file, "w", format="matroska") as out:
        stream = cast("VideoStream", out.add_stream("mjpeg", rate=FPS))
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, "yuvj420p"
        for index, stamp in enumerate(order):
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture(index), format="rgb24")):
                packet.dts, packet.pts = index, stamp + 8
                out.mux(packet)
    return path


@pytest.mark.parametrize("order", [[0, 1, 3, 2, 4, 6, 5, 7], [0, 3, 2, 4, 1, 7, 6, 8, 5]])
def test_frames_keep_step_where_the_container_keeps_no_order_of_display(tmp_path: Path, order: list[int]) -> None:
    """AVI and some mp4 stamp frames in the order of storage, which B-frames change."""
    found = list(iter_frames(stamped(tmp_path / "a.mkv", order)))
    assert numbers(np.stack([frame for _, frame in found])) == list(range(len(order)))
    times_s = np.array([time_s for time_s, _ in found])
    np.testing.assert_allclose(times_s, np.arange(len(order)) / FPS, atol=2e-3)  # Matroska counts in ms
    greys = list(simulator_frames(iter_frames(tmp_path / "a.mkv")))
    assert simulate(greys, SimulatorConfig(), 0).duration_us > 0


@given(st.lists(st.none() | st.integers(-5, 40), min_size=1, max_size=60))
def test_times_rise_by_a_microsecond_whatever_the_stamps_are(stamps: list[int | None]) -> None:
    frames = [SimpleNamespace(time=stamp and stamp / 24, width=4, height=2) for stamp in stamps]
    found = list(_timed("it", cast("Any", frames), 24.0, VideoLimits()))
    assert [frame for _, frame in found] == frames
    assert np.all(np.diff([round(time_s * 1e6) for time_s, _ in found]) > 0)
    assert found[0][0] == 0


def test_a_last_frame_that_is_missing_is_no_damage(patched: Patch) -> None:
    for claimed, notes in ((24, 0), (25, 0), (26, 1)):
        sample = sample_frames(patched("stts", 12, claimed), 3)
        assert numbers(sample.frames) == [0, 11, 23]
        assert len(sample.notes) == notes


def test_limits_count_what_is_decoded(tmp_path: Path) -> None:
    # A bare stream claims no length, so only counting can stop it.
    path = encode(tmp_path / "clip.m1v", "mpeg1video", "mpeg1video", map(picture, range(FRAMES)))
    assert len(list(iter_frames(path, VideoLimits(frames=FRAMES, seconds=1.0)))) == FRAMES
    seen = []
    with pytest.raises(CrossdraftError, match="more than 10 frames"):
        seen.extend(iter_frames(path, VideoLimits(frames=10)))
    with pytest.raises(CrossdraftError, match=r"longer than 0\.5 seconds"):
        read_frames(path, limits=VideoLimits(seconds=0.5))
    whole = FRAMES * HEIGHT * WIDTH
    assert len(read_frames(path, limits=VideoLimits(decoded=whole))[0]) == 8
    with pytest.raises(CrossdraftError, match="pixels in all its frames"):
        read_frames(path, limits=VideoLimits(decoded=whole - 1))


def test_a_clip_that_changes_its_size(tmp_path: Path) -> None:
    content = b""
    for height in (64, 32):
        part = encode(
            tmp_path / f"{height}.m1v", "mpeg1video", "mpeg1video", (picture(index, height) for index in range(4))
        )
        content += part.read_bytes()
    path = tmp_path / "both.m1v"
    path.write_bytes(content)
    with pytest.raises(CrossdraftError, match="changes size at frame"):
        read_frames(path)


# --- files that are cut or damaged ---


def test_a_cut_file_gives_what_is_left_and_says_so(clip: Path, tmp_path: Path) -> None:
    content = clip.read_bytes()
    path = tmp_path / "cut.mp4"
    path.write_bytes(content[: content.index(b"mdat") + (len(content) - content.index(b"mdat")) * 2 // 3])
    sample = sample_frames(path, 3)
    left = len(list(iter_frames(path)))
    assert 1 < left < FRAMES
    assert numbers(sample.frames) == [0, (left - 1) // 2, left - 1]
    assert sample.times_s[-1] == pytest.approx((left - 1) / FPS)
    assert f"only {left} of its 24 frames" in sample.notes[0]


def test_a_file_cut_in_its_index_cannot_be_read(clip: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.mp4"
    content = clip.read_bytes()
    path.write_bytes(content[: content.index(b"stbl")])
    with pytest.raises(CrossdraftError, match="cut off"):
        read_frames(path)


def test_colours_that_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    """Colours kept as YCgCo, which FFmpeg's scaler does not take in this form; a damaged file may claim it too."""
    path = tmp_path / "ycgco.mp4"
    with path.open("w+b") as file, av.open(file, "w", format="mp4") as out:
        stream = cast("VideoStream", out.add_stream("h264", rate=FPS))
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, "yuv420p"
        stream.codec_context.colorspace = 8
        for index in range(3):
            frame = av.VideoFrame.from_ndarray(picture(index), format="rgb24").reformat(format="yuv420p")
            frame.colorspace = 8
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    for read in (read_frames, lambda path: list(iter_frames(path))):
        with pytest.raises(CrossdraftError, match=r"Frame 0 of .*ycgco.mp4 has colours that .* RGB"):
            read(path)


def readable_or_one_sentence(path: Path) -> None:
    try:
        frames, times_s = read_frames(path, 4)
    except CrossdraftError as error:
        sentence = str(error)
    else:
        assert len(frames) == len(times_s) == 4
        assert np.all(np.isfinite(times_s))
        assert np.all(np.diff(times_s) >= 0)
        return
    assert str(path) in sentence
    assert "\n" not in sentence


def test_cut_anywhere(clip: Path, tmp_path: Path) -> None:
    content, path = clip.read_bytes(), tmp_path / "cut.mp4"
    for length in np.linspace(1, len(content) - 1, 25, dtype=int):
        path.write_bytes(content[:length])
        readable_or_one_sentence(path)


@pytest.mark.parametrize(
    ("container", "codec", "pixels", "size"),
    [
        ("mp4", "libx264", "yuv420p", (60, 90)),
        ("mp4", "libx264", "yuv420p", (480, 640)),
        ("mp4", "libx264", "yuv444p", (61, 91)),
        ("mp4", "libx264", "yuvj420p", (60, 90)),
        ("mp4", "libx264", "yuv420p10le", (60, 90)),
        ("mp4", "libx264", "gray", (60, 90)),
        ("matroska", "libx264", "yuv422p", (60, 90)),
        ("webm", "libvpx-vp9", "yuv420p", (61, 91)),
        ("avi", "mjpeg", "yuvj420p", (61, 91)),
        ("avi", "mpeg4", "yuv420p", (60, 90)),
    ],
)
def test_frames_are_pyav_s_and_those_of_transformers(container, codec, pixels, size, tmp_path):
    colours = np.random.default_rng(0).integers(0, 256, (5, 6, 9, 3), dtype=np.uint8)
    frames = [np.asarray(Image.fromarray(small).resize(size[::-1], Image.Resampling.BICUBIC)) for small in colours]
    path = encode(tmp_path / "clip", container, codec, frames, pixels)
    found = sample_frames(path, len(frames)).frames.numpy()
    with path.open("rb") as file, av.open(file) as opened:
        wanted = list(opened.decode(video=0))
    assert len(wanted) == len(frames)
    for ours, streamed, theirs in zip(found, iter_frames(path), wanted, strict=True):
        assert np.array_equal(ours, theirs.to_ndarray(format="rgb24"))
        assert np.array_equal(ours, np.asarray(theirs.to_image()))
        assert np.array_equal(ours, streamed[1])
    theirs, _ = read_video_pyav(str(path), lambda **_: np.arange(len(frames)))
    assert np.array_equal(found, theirs)


@pytest.fixture(scope="session")
def seeds(clip: Path, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Small valid files to damage."""
    folder = tmp_path_factory.mktemp("seeds")
    kinds = [("matroska", "h264"), ("webm", "libvpx"), ("avi", "mpeg4"), ("avi", "mjpeg"), ("mpeg", "mpeg2video")]
    made = [encode(folder / f"{c}.{k}", k, c, map(picture, range(6))).read_bytes() for k, c in kinds]
    made += [animation(folder / f"a.{kind}", [100] * 6, kind, 16, 24).read_bytes() for kind in ("gif", "webp")]
    return [clip.read_bytes(), *made]


@settings(max_examples=100)
@given(data=st.data())
def test_any_damage_is_survived(
    seeds: list[bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(data.draw(st.sampled_from(seeds)))
    for _ in range(data.draw(st.sampled_from([1, 4, 30]))):
        # Half of the damage goes into the headers, where it hurts most.
        radius = data.draw(st.sampled_from([len(content), min(len(content), 800)]))
        content[data.draw(st.integers(0, radius - 1))] = data.draw(st.integers(0, 255))
    length = data.draw(st.one_of(st.just(len(content)), st.integers(1, len(content))))
    path = tmp_path_factory.getbasetemp() / "damaged.bin"
    path.write_bytes(content[:length])
    readable_or_one_sentence(path)
