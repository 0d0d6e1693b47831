"""Cached clips are what inference would see, whole or absent, and coloured as event frames are."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.events import eventgpt_frames
from crossdraft.video import sample_frames
from crossdraft.video.preprocess import preprocess
from crossdraft.video.spec import FrameSpec
from crossdraft_lab import scenes
from crossdraft_lab.train.reference import clips
from crossdraft_lab.train.reference.batches import (
    BatchSpec,
    attribute_labels,
    augment_question,
    blank_pixels,
    draw_questions,
    question_words,
)
from crossdraft_lab.train.reference.clips import (
    PALETTE,
    ClipCache,
    augment_frames,
    render_clips,
    render_events,
    render_rgb,
    sample_times,
    to_pixels,
)
from crossdraft_lab.train.reference.recipe import Jitter


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClipCache:
    monkeypatch.setattr(clips, "CHUNK", 2)
    cache = ClipCache(tmp_path, size=48, video_frames=4, timeout_s=0.0)
    render_clips(cache, [("rgb", "train", 3)], workers=1)
    return cache


def test_chunks_hold_the_scenes_of_the_split_in_order(cache: ClipCache) -> None:
    assert cache.missing("rgb", "train", 4) == []
    assert cache.missing("rgb", "train", 5) == [2]
    read = cache.read("rgb", "train", [3, 0])
    assert np.array_equal(read[0], render_rgb(scenes.split_seeds("train")[3], cache))
    assert read.shape == (2, 4, 48, 48, 3)


def test_clips_of_another_recipe_are_not_used(cache: ClipCache) -> None:
    for other in (replace(cache, size=56), replace(cache, video_frames=8)):
        assert other.missing("rgb", "train", 4) == [0, 1]
    other = replace(cache, event_frames=3)
    assert other.path("events", "train", 0) != cache.path("events", "train", 0)
    assert other.path("rgb", "train", 0) == cache.path("rgb", "train", 0)


def test_a_chunk_that_never_appears_is_an_error(cache: ClipCache) -> None:
    with pytest.raises(CrossdraftError, match="run the stage 'cache' first"):
        cache.read("rgb", "validation", [0])


def test_a_cached_clip_is_what_the_target_sees_of_the_mp4(tmp_path: Path) -> None:
    """Up to the codec: the same eight moments, the same resize."""
    clip = scenes.write_clip(scenes.make_scene(11), tmp_path)
    sample = sample_frames(clip.video, 8)
    frames, times = sample.frames, sample.times_s
    np.testing.assert_allclose(times, sample_times(8), atol=1e-3)
    pixels = preprocess(frames, FrameSpec(size=112, crop=(112, 112)))
    cached = to_pixels(torch.from_numpy(render_rgb(11, ClipCache(tmp_path)))[None])[0]
    assert (pixels - cached).abs().mean() < 0.12


def test_palette_indices_give_the_event_frames_back(tmp_path: Path) -> None:
    frames = eventgpt_frames(scenes.simulate_events(scenes.make_scene(5)), 5)
    assert np.array_equal(PALETTE[render_events(5, ClipCache(tmp_path))], frames)


def test_steps_cycle_through_the_pool_and_phases_continue_where_the_last_stopped(cache: ClipCache) -> None:
    spec = BatchSpec(cache, "rgb", 3, Jitter(), seed=0)
    assert [spec.clips(step, 2) for step in range(3)] == [[0, 1], [2, 0], [1, 2]]
    assert BatchSpec(cache, "rgb", 3, Jitter(), seed=0, first=2).clips(0, 2) == [2, 0]
    assert torch.equal(spec.pixels(0, [1]), to_pixels(cache.read("rgb", "train", [1])))


def test_a_blind_batch_is_the_same_white_frame_for_all(cache: ClipCache) -> None:
    blind = BatchSpec(cache, "events", 3, Jitter(), seed=0, blank=True).pixels(0, [0, 1, 2])
    assert torch.equal(blind, blank_pixels(cache))
    assert blind.shape[:2] == (1, 5)
    assert blind.flatten(3).std(-1).max() == 0


def test_jitter_is_seeded_and_stays_8_bit() -> None:
    frames = torch.full((4, 2, 16, 16, 3), 250, dtype=torch.uint8)

    def shaken(seed: int) -> torch.Tensor:
        jitter = Jitter(noise=6, brightness=0.1, drop=0.3, shift=2)
        return augment_frames(frames, jitter, torch.Generator().manual_seed(seed))

    assert shaken(0).dtype == torch.uint8
    assert torch.equal(shaken(0), shaken(0))
    assert not torch.equal(shaken(0), shaken(1))
    assert torch.equal(augment_frames(frames, Jitter(), torch.Generator()), frames)


def test_a_shift_moves_the_picture_and_repeats_its_border() -> None:
    frames = torch.arange(16, dtype=torch.uint8).view(1, 1, 1, 16, 1).expand(1, 1, 16, 16, 3).contiguous()
    moved = augment_frames(frames, Jitter(shift=3), torch.Generator().manual_seed(0))[0, 0, 0, :, 0]
    offset = int(moved[8]) - 8
    assert moved.tolist() == [min(max(column + offset, 0), 15) for column in range(16)]


def test_questions_are_drawn_by_seed_without_repeating_a_kind() -> None:
    first = draw_questions("train", 7, 8, np.random.default_rng([0, 1]))
    assert first == draw_questions("train", 7, 8, np.random.default_rng([0, 1]))
    assert len({qa.kind for qa in first}) == 8
    assert len(draw_questions("train", 7, 20, np.random.default_rng(0))) == 20


def test_held_out_wordings_are_never_drawn_for_training() -> None:
    held = {wording for kind in scenes.KINDS for wording in scenes.wordings(kind, held_out=True)}
    drawn = {qa.question for clip in range(40) for qa in draw_questions("train", clip, 8, np.random.default_rng(clip))}
    assert not held & drawn


def test_labels_are_the_scenes_attributes() -> None:
    row = attribute_labels([9])[0].tolist()
    scene = scenes.make_scene(scenes.split_seeds("train")[9])
    values = [choices[index] for index, choices in zip(row, scenes.ATTRIBUTES.values(), strict=True)]
    assert dict(zip(scenes.ATTRIBUTES, values, strict=True)) == scenes.attributes(scene)


def test_word_dropout_drops_and_replaces_words_but_never_all() -> None:
    question, words = "Can you tell in which direction everyone moves?", question_words()
    augmented = [augment_question(question, 0.9, words, np.random.default_rng(seed)) for seed in range(60)]
    assert augment_question(question, 0.0, words, np.random.default_rng(0)) == question
    assert all(augmented)
    assert len(set(augmented)) > 30
    assert {word for text in augmented for word in text.split()} <= {*words, *question.split()}
