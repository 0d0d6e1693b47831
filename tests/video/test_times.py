"""Which frames of a clip are read: by time, which at a constant rate is by number."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.video import container, iter_frames, sample_frames
from crossdraft.video.read import frame_numbers
from tests.video.helpers import FPS, animation, encode, numbers, picture, timed

UNEVEN_MS = [*range(0, 1000, 100), 3000, 5000]  # ten frames in the first second, two in the next four


@pytest.mark.parametrize("ticks", [None, 1000, 600, 90_000])
def test_at_a_constant_rate_frames_are_chosen_by_number(ticks: int | None) -> None:
    """The containers' clocks count in ms (Matroska), 1/600 s (QuickTime) or 1/90,000 s (MPEG)."""
    for fps in (0.5, 1, 8, 10, 12.5, 15, 23.976, 24000 / 1001, 24, 25, 29.97, 30000 / 1001, 30, 50, 60, 120, 240):
        for count in (1, 2, 3, 7, 8, 17, 24, 100, 333, 1009):
            times_s = np.arange(count) / fps
            times_s = times_s if ticks is None else np.round(times_s * ticks) / ticks
            for wanted in (1, 2, 3, 4, 5, 8, 9, 16, 32, 64, 101):
                assert frame_numbers(times_s, wanted) == np.linspace(0, count - 1, wanted, dtype=int).tolist()


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40), st.integers(1, 20))
def test_otherwise_by_the_time_at_which_a_player_shows_them(gaps_ms: list[int], wanted: int) -> None:
    begins = np.concatenate([[0], np.cumsum(gaps_ms)])
    found = frame_numbers(begins / 1000, wanted)
    line = np.arange(len(begins)) * begins[-1] / (len(begins) - 1)
    if (2 * np.abs(begins - line) <= begins[-1] / (len(begins) - 1)).all():
        return
    # In whole numbers: the last frame with begin <= step * span / (wanted - 1).
    steps = [(step, max(wanted - 1, 1)) for step in range(wanted)]
    assert found == [int((begins * of <= step * begins[-1]).sum()) - 1 for step, of in steps]


def test_an_uneven_clip_is_sampled_by_time(tmp_path: Path) -> None:
    for kind, codec in (("mp4", "h264"), ("matroska", "h264"), ("webm", "libvpx")):
        sample = sample_frames(timed(tmp_path / kind, UNEVEN_MS, kind, codec), 6)
        assert numbers(sample.frames) == [0, 9, 9, 10, 10, 11]  # at 0, 1, 2, 3, 4 and 5 s
        np.testing.assert_allclose(sample.times_s, [0, 0.9, 0.9, 3, 3, 5], atol=1e-3)
        assert sample.notes == ()


@pytest.mark.parametrize("count", [1, 3, 17])
@pytest.mark.parametrize(("kind", "codec"), [("mp4", "h264"), ("matroska", "h264"), ("avi", "mpeg4")])
def test_clips_of_few_frames(tmp_path: Path, count: int, kind: str, codec: str) -> None:
    path = encode(tmp_path / "clip", kind, codec, map(picture, range(count)))
    for wanted in (1, 3, 8, 17, 20):
        sample = sample_frames(path, wanted)
        chosen = np.linspace(0, count - 1, wanted, dtype=int)
        assert numbers(sample.frames) == chosen.tolist()
        np.testing.assert_allclose(sample.times_s, chosen / FPS, atol=1e-3)
        assert len(sample.pixels) == len(set(chosen))


def test_no_frame_is_decoded_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the rate: where the header does not state it, packets are counted before they are decoded."""
    decoded = []

    def counted(*opened: object, own=container._decoded) -> Iterator[object]:
        for frame in own(*opened):
            decoded.append(frame.time)
            yield frame

    kinds = [("mp4", "h264"), ("matroska", "h264"), ("webm", "libvpx"), ("avi", "mpeg4"), ("avi", "mjpeg")]
    kinds += [("mpeg", "mpeg2video"), ("mpeg1video", "mpeg1video")]
    clips = [encode(tmp_path / f"{k} {c}", k, c, map(picture, range(13))) for k, c in kinds]
    clips += [timed(tmp_path / f"uneven {kind}", UNEVEN_MS, kind) for kind in ("mp4", "matroska")]
    clips += [animation(tmp_path / "uneven.gif", [100] * 9 + [2000, 100], "gif")]
    monkeypatch.setattr(container, "_decoded", counted)
    for clip in clips:
        decoded.clear()
        sample_frames(clip, 6)
        assert len(decoded) == len(list(iter_frames(clip))), clip
