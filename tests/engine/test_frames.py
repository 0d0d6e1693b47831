"""Frames that a drafter wants first are encoded by themselves where the features keep their bits."""

from dataclasses import replace

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from crossdraft.engine.arrivals import VisualFuture
from crossdraft.engine.frames import FramewiseEncoder
from crossdraft.engine.target import Target
from tests.engine.zoo import EOS, ZOO, as_target
from tests.support import ENCODES_CLIPS

LISTED = {"video_llava", "llava_next_video", "llava_onevision"}  # those that read `pixel_values_videos`
FRAMEWISE = {*LISTED, "gemma3", "internvl", "smolvlm"}  # the others read a clip as a row of images


def pooled(rows):
    return BaseModelOutputWithPooling(pooler_output=rows)


def by_itself(pixel_values_videos, return_dict):
    """Two rows of a frame: its mean, and its largest value."""
    frames = pixel_values_videos[0].flatten(1)
    return pooled(torch.stack([frames.mean(1), frames.amax(1)], 1)[..., None])


def rounding(pixel_values_videos, return_dict):
    """As kernels do: the last bits depend on how many frames there are."""
    rows = by_itself(pixel_values_videos, return_dict).pooler_output
    return pooled(rows * (1 + 2.0**-22 * (len(rows) - 1)))


def in_pairs(pixel_values_videos, return_dict):
    rows = by_itself(pixel_values_videos, return_dict).pooler_output
    return pooled(rows.unflatten(0, (-1, 2)).mean(1) if len(rows) > 1 else rows)


def with_its_neighbours(pixel_values_videos, return_dict):
    rows = by_itself(pixel_values_videos, return_dict).pooler_output
    return pooled(rows - rows.mean(0))


def numbered(pixel_values_videos, return_dict):
    rows = by_itself(pixel_values_videos, return_dict).pooler_output
    return pooled(rows + 0.01 * torch.arange(len(rows)).view(-1, 1, 1))


def of_two_at_least(pixel_values_videos, return_dict):
    if pixel_values_videos.shape[1] < 2:
        raise ValueError("too few frames")
    return by_itself(pixel_values_videos, return_dict)


class Counted:
    """An encoder that notes how many frames it is given at once."""

    def __init__(self, function):
        self.function, self.sizes = function, []

    def __call__(self, pixel_values_videos, return_dict):
        self.sizes.append(pixel_values_videos.shape[1])
        return self.function(pixel_values_videos, return_dict)


def encoder(function):
    return FramewiseEncoder("video", function, ("pixel_values_videos",), lambda value: value)


def clip(*seeds):
    frames = [torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return {"pixel_values_videos": torch.stack(frames)[None]}


def arriving(count):
    """Features of `count` frames are wanted; and what has come."""
    arrivals, come = VisualFuture((count,)), []
    arrivals.on_frame(come.append)
    return arrivals, come


def test_other_inputs_and_other_shapes_are_not_read_by_frame():
    """What may be is found out at the next occasion; what may not leaves nothing to find out."""
    encode = FramewiseEncoder("video", by_itself, ("pixel_values_videos", "video_grid_thw"), lambda value: value)
    for others in (
        {**clip(1, 2), "video_grid_thw": torch.tensor([[2, 1, 1]])},
        {"pixel_values_videos": clip(1, 2)["pixel_values_videos"].repeat(2, 1, 1, 1, 1)},
        {"pixel_values_videos": torch.zeros(4, 8)},
        {"pixel_values": torch.zeros(2, 3, 4, 4)},
    ):
        assert encode.in_parts(others, arriving(1)[0]) is None
        assert not encode.try_parts()
    assert encode.in_parts(clip(1, 2), arriving(1)[0]) is None
    assert encode.try_parts()
    assert encode.in_parts(clip(1, 2), arriving(1)[0]) is not None


def test_a_clip_is_encoded_in_parts_where_that_has_been_found_exact():
    """Wanted are the frames 0, 2 and 4 of five: these one by one, then the others at once."""
    exact, inexact = Counted(by_itself), Counted(rounding)
    for counted in (exact, inexact):
        encode = encoder(counted)
        arrivals, come = arriving(3)
        assert encode.in_parts(clip(1, 2, 3, 4, 5), arrivals) is None  # it is not known yet, and nobody is to wait
        assert counted.sizes == []
        encode.try_parts()
        counted.sizes.clear()
        found = encode.in_parts(clip(1, 2, 3, 4, 5), arrivals)
        whole = counted.function(**clip(1, 2, 3, 4, 5), return_dict=True).pooler_output
        if counted is inexact:
            assert (found, come, counted.sizes) == (None, [], [])
            continue
        assert counted.sizes == [1, 1, 1, 2]
        assert torch.equal(found["video"].pooler_output, whole)
        assert [(frame.number, frame.total) for frame in come] == [(0, 5), (2, 5), (4, 5)]
        assert all(torch.equal(frame.rows, whole[frame.number]) for frame in come)


def test_each_frame_comes_before_the_next_is_encoded():
    seen = []

    def slow(pixel_values_videos, return_dict):
        seen.append(len(come))
        return by_itself(pixel_values_videos, return_dict)

    encode = encoder(slow)
    arrivals, come = arriving(2)
    encode.in_parts(clip(1, 2, 3, 4), arrivals)
    encode.try_parts()
    seen.clear()
    encode.in_parts(clip(1, 2, 3, 4), arrivals)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("function", [in_pairs, with_its_neighbours, numbered, of_two_at_least])
def test_an_encoder_that_mixes_frames_is_never_read_in_parts(function):
    encode = encoder(function)
    arrivals, come = arriving(3)
    for _ in range(2):
        assert encode.in_parts(clip(1, 2, 3, 4), arrivals) is None
        encode.try_parts()
    assert not come


def test_another_number_of_frames_wanted_or_of_threads_is_tried_by_itself():
    encode, threads = encoder(by_itself), torch.get_num_threads()
    encode.in_parts(clip(1, 2, 3), arriving(2)[0])
    encode.try_parts()
    assert encode.in_parts(clip(1, 2, 3), arriving(1)[0]) is None
    assert encode.in_parts(clip(1, 2, 3, 4), arriving(2)[0]) is None
    torch.set_num_threads(threads + 1)
    try:
        assert encode.in_parts(clip(1, 2, 3), arriving(2)[0]) is None
    finally:
        torch.set_num_threads(threads)
    assert encode.in_parts(clip(1, 2, 3), arriving(2)[0]) is not None
    assert [encode.try_parts() for _ in range(4)] == [True] * 3 + [False]  # one at a time: a loop waits for it
    assert torch.get_num_threads() == threads
    assert encode.in_parts(clip(1, 2, 3, 4), arriving(2)[0]) is not None


def test_a_trial_that_fails_costs_nothing_but_the_parts(caplog):
    def full(pixel_values_videos, return_dict):
        if pixel_values_videos.shape[1] == 5:
            raise torch.OutOfMemoryError("no memory")
        return by_itself(pixel_values_videos, return_dict)

    encode, threads = encoder(full), torch.get_num_threads()
    for frames in (5, 4):
        encode.in_parts(clip(*range(frames)), arriving(2)[0])
    assert encode.try_parts()
    assert "no memory" in caplog.text
    assert encode.in_parts(clip(*range(5)), arriving(2)[0]) is None
    assert encode.try_parts()
    assert encode.in_parts(clip(*range(4)), arriving(2)[0]) is not None
    assert not encode.try_parts()  # nor is the other one tried again
    assert torch.get_num_threads() == threads


class Growing(dict):
    """Of which another thread asks for one clip more while somebody goes through them."""

    def items(self):
        for item in super().items():
            self.setdefault(len(self))
            yield item


def test_another_thread_may_ask_for_a_clip_while_one_is_looked_for():
    encode = encoder(by_itself)
    for frames in (3, 4):
        encode.in_parts(clip(*range(frames)), arriving(2)[0])
    assert encode.try_parts()
    encode._splits = Growing(encode._splits)
    assert encode.try_parts()
    assert encode.in_parts(clip(*range(4)), arriving(2)[0]) is not None


@pytest.mark.parametrize("name", sorted(ZOO))
def test_in_parts_or_whole_a_model_gives_the_same_bits(name):
    model, prompt = ZOO[name]()
    target = as_target(model, prompt)
    arrivals, come = arriving(2)
    assert target.encode_in_parts(prompt, arrivals) is None
    target.try_parts()
    found = target.encode_in_parts(prompt, arrivals)
    if name not in FRAMEWISE:
        assert (found, come) == (None, [])
        return
    if found is not None:  # else its bits differ on this machine
        rows = target.visual_features(found)
        assert torch.equal(rows, target.visual_features(target.encode(prompt)))
        parts = rows.unflatten(0, (come[0].total, -1))
        assert all(torch.equal(frame.rows, parts[frame.number]) for frame in come)
        assert arrivals.all_frames


def test_targets_of_other_features_are_not_read_in_parts():
    class Doubled(Target):
        def encode(self, prompt):
            return super().encode(prompt)

    model, prompt = ZOO["video_llava"]()
    target = Doubled(model, lambda request: prompt, str, [EOS])
    for _ in range(2):
        assert target.encode_in_parts(prompt, VisualFuture((2,))) is None
        target.try_parts()
    assert as_target(model, prompt).encode_in_parts(replace(prompt, features={}), VisualFuture((2,))) is None


@pytest.mark.parametrize("name", sorted(ZOO))
@torch.inference_mode()
def test_which_models_read_frames_one_by_one(name):
    model, prompt = ZOO[name]()
    clips = [(encode, encode._clip(prompt.features)) for encode in as_target(model, prompt)._frames]
    joins = [encode._join(pixels) for encode, pixels in clips if pixels is not None]
    assert any(joins) == (name in FRAMEWISE and ENCODES_CLIPS)
