"""More frames than a context holds: refused before they are preprocessed, with the number that would fit."""

import json
import shutil
import tracemalloc
from functools import cache

import numpy as np
import pytest
import torch

import crossdraft as cd
from crossdraft.engine import content
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.load import load_target
from crossdraft.video import sample_frames
from tests.support import CONTEXT, FRAMES

PER_FRAME = 5  # 2 x 2 patches and a class token


@pytest.fixture(scope="module")
def target(pair):
    return load_target(str(pair.target), "cpu")


def array(count: int) -> np.ndarray:
    return np.zeros((count, 28, 28, 3), np.uint8)


def test_the_default_is_eight_frames(target, clip):
    found = target.prepare(cd.Request("why?", clip.video))
    assert found.features["pixel_values_videos"].shape[1] == FRAMES


def test_the_checkpoint_s_own_number_is_taken(pair, clip, tmp_path):
    folder = tmp_path / "t"
    shutil.copytree(pair.target, folder)
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_frames": 3}))
    for options, count in (({}, 3), ({"num_frames": 5}, 5), ({"fps": 6}, 6)):
        prompt = load_target(str(folder), "cpu", **options).prepare(cd.Request("why?", clip.video))
        assert prompt.features["pixel_values_videos"].shape[1] == count


def test_too_many_frames_name_the_number_that_fits(target):
    with pytest.raises(cd.CrossdraftError, match=r"1000 frames are 5000 tokens.*num_frames=….*video\[::"):
        target.prepare(cd.Request("why?", array(1000)))
    text = len(target.prepare(cd.Request("why?", array(2)))) - 2 * PER_FRAME
    most = (CONTEXT - text - 1) // PER_FRAME
    assert len(target.prepare(cd.Request("why?", array(most)))) < CONTEXT
    with pytest.raises(cd.CrossdraftError, match=rf"give at most {most} frames"):
        target.prepare(cd.Request("why?", array(most + 1)))


def test_a_thousand_frames_are_not_preprocessed_to_find_out(target, monkeypatch):
    from crossdraft.video import inputs

    seen = []
    monkeypatch.setattr(
        inputs, "preprocess", lambda frames, spec, own=inputs.preprocess: seen.append(len(frames)) or own(frames, spec)
    )
    with pytest.raises(cd.CrossdraftError, match="give at most"):
        target.prepare(cd.Request("why?", array(1000)))
    assert sum(seen) == 2


def test_a_question_that_fills_the_context_is_said_so(target):
    with pytest.raises(cd.CrossdraftError, match="ask a shorter question"):
        target.prepare(cd.Request("why? " * 400, array(8)))


def test_frames_of_a_short_clip_are_counted_before_they_are_repeated(pair, clip):
    """A hundred thousand frames of a clip of a few are refused as soon as its own have been read."""
    target = load_target(str(pair.target), "cpu", num_frames=100_000)
    tracemalloc.start()
    try:
        with pytest.raises(cd.CrossdraftError, match=r"100000 frames are 500000 tokens.*give at most"):
            target.prepare(cd.Request("why?", clip.video))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20e6


def test_frames_that_repeat_are_read_like_an_array_of_them(pair, clip):
    many = load_target(str(pair.target), "cpu", num_frames=40)
    sample = sample_frames(clip.video, 40)
    assert len(sample.pixels) < 40
    found = many.prepare(cd.Request("why?", clip.video))
    given = many.prepare(cd.Request("why?", sample.frames))
    assert torch.equal(found.input_ids, given.input_ids)
    assert torch.equal(found.features["pixel_values_videos"], given.features["pixel_values_videos"])


def test_a_clip_that_is_written_over_before_it_is_read_is_not_remembered(pair, clip, tmp_path):
    """A digest names the bytes that were hashed: the next request of these must not get the other clip's ids."""
    path, prefixes = tmp_path / "clip.mp4", PrefixCache(1 << 30)
    shutil.copy(clip.video, path)
    target = load_target(str(pair.target), "cpu")
    request = prefixes.identify(cd.Request("why?", path))
    path.write_bytes(path.read_bytes() + b"\0")
    target.prepare(request)
    assert not target.prepare._clips
    target.prepare(prefixes.identify(cd.Request("why?", path)))
    assert len(target.prepare._clips) == 1


def test_a_fresh_clip_is_hashed_when_it_is_identified_and_when_it_was_read(pair, clip, tmp_path, monkeypatch):
    path, hashed = tmp_path / "clip.mp4", []
    shutil.copy(clip.video, path)
    real = content.file_digest
    monkeypatch.setattr(content, "file_digest", lambda path: hashed.append(path) or real(path))
    decoder = DecodeLoop(load_target(str(pair.target), "cpu"), prefixes=PrefixCache(1 << 30))
    first, again = (decoder.generate([cd.Request("why?", path, max_new_tokens=3)])[0] for _ in range(2))
    assert again.stats.cached_tokens > first.stats.cached_tokens
    assert len(hashed) <= 4


def test_a_clip_that_changes_before_its_pixels_are_read_again_is_not_kept(pair, clip, tmp_path, monkeypatch):
    """One clip is read, and found to be what was hashed, before the other one's pixels are read at last."""
    path, other, prefixes = tmp_path / "a.mp4", tmp_path / "b.mp4", PrefixCache(1 << 30)
    shutil.copy(clip.video, path)
    other.write_bytes(path.read_bytes() + b"\0")
    target = load_target(str(pair.target), "cpu")
    monkeypatch.setattr(content, "_version", cache(content._version))  # as if within one tick of the clock
    target.prepare(prefixes.identify(cd.Request("why?", path)))  # its ids are known from now on, not its pixels
    request = prefixes.identify(cd.Request("why?", [path, other]))
    prompt = target.prepare(request)
    assert request.content.unchanged
    path.write_bytes(path.read_bytes() + b"\0\0")
    dict(prompt.items[0].features)
    assert not request.content.unchanged
