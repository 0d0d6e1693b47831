"""Frames that other clips showed are not encoded again; features have the same bits, answers the same tokens."""

from dataclasses import replace

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from crossdraft.engine.arrivals import VisualFuture
from crossdraft.engine.content import ContentDigests
from crossdraft.engine.decode import Decoder
from crossdraft.engine.frames import FramewiseEncoder, KnownFrames
from crossdraft.engine.prefix_cache import CLIPS, PrefixCache
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from tests.engine.zoo import EOS, ZOO, as_target
from tests.support import ENCODES_CLIPS, encodes_clips

PLENTY = 1 << 30
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


class Memory(dict):
    """Features by digest."""

    def known(self, namespace=""):
        return KnownFrames(namespace, ContentDigests(), self.get)

    def show(self, encode, *seeds):
        found = encode(clip(*seeds), self.known())
        self.update(found.frames)
        return found


@pytest.mark.parametrize("function", [in_pairs, with_its_neighbours, numbered, of_two_at_least])
def test_an_encoder_that_does_not_read_frames_one_by_one_is_found_out(function):
    assert encoder(function)(clip(1, 2, 3, 4), None) is None


def test_other_inputs_and_other_shapes_are_not_read_by_frame():
    encode = FramewiseEncoder("video", by_itself, ("pixel_values_videos", "video_grid_thw"), lambda value: value)
    assert encode(clip(1, 2), None) is not None
    assert encode({**clip(1, 2), "video_grid_thw": torch.tensor([[2, 1, 1]])}, None) is None
    assert encode({"pixel_values_videos": clip(1, 2)["pixel_values_videos"].repeat(2, 1, 1, 1, 1)}, None) is None
    assert encode({"pixel_values_videos": torch.zeros(4, 8)}, None) is None
    assert encode({"pixel_values": torch.zeros(2, 3, 4, 4)}, None) is None


@pytest.mark.parametrize("function", [by_itself, rounding])
def test_a_frames_bits_depend_on_its_pixels_alone(function):
    encode, memory = encoder(function), Memory()
    for seeds in [(1, 2, 3, 4), (2, 3, 4, 5), (4, 5, 6, 7), (5, 6, 7, 8), (7, 7, 9, 7), (9, 1, 2, 3)]:
        found = memory.show(encode, *seeds)
        alone = encoder(function)(clip(*seeds), None)
        rows = found["video"].pooler_output
        assert torch.equal(rows, alone["video"].pooler_output)
        assert torch.equal(rows, torch.cat([function(**clip(seed), return_dict=True).pooler_output for seed in seeds]))


def test_counts_of_what_is_encoded():
    encode, memory = encoder(by_itself), Memory()
    found = [memory.show(encode, *seeds) for seeds in [(1, 2, 3, 4), (3, 4, 5, 6), (6, 6, 7, 7), (4, 5, 6, 7)]]
    assert [(one.count, one.fresh) for one in found] == [(4, 4), (4, 2), (4, 1), (4, 0)]


def test_frames_are_encoded_at_once_where_that_has_been_found_exact_and_else_one_by_one():
    exact, inexact = Counted(by_itself), Counted(rounding)
    for counted in (exact, inexact):
        encode = encoder(counted)
        for seeds in [(1, 2, 3), (4, 5, 6), (7, 8, 9)]:
            encode(clip(*seeds), None)
    tried, first = [2, 1, 1], [1, 1, 1, 3]
    assert exact.sizes == tried + first + [3, 3]
    assert inexact.sizes == tried + first + [1, 1, 1] * 2


def test_another_namespace_knows_nothing():
    encode, memory = encoder(by_itself), Memory()
    memory.show(encode, 1, 2)
    assert encode(clip(1, 2), memory.known("another")).fresh == 2


def arriving(count):
    """Features of `count` frames are wanted; and what has come."""
    arrivals, come = VisualFuture((count,)), []
    arrivals.on_frame(come.append)
    return arrivals, come


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


def test_of_frames_that_were_shown_before_the_features_come_at_once():
    """A window of a stream: 0 and 2 of it are known, 4 is new, and encoded before the others."""
    counted, memory = Counted(by_itself), Memory()
    encode = encoder(counted)
    memory.show(encode, 1, 2, 3, 4, 5)
    counted.sizes.clear()
    arrivals, come = arriving(3)
    seen = []
    arrivals.on_frame(lambda frame: seen.append(len(counted.sizes)))
    found = encode(clip(3, 9, 5, 8, 7), memory.known(), arrivals)
    assert (found.count, found.fresh) == (5, 3)
    assert [frame.number for frame in come] == [0, 2, 4]
    assert seen == [0, 0, 1]
    rows = found["video"].pooler_output
    assert torch.equal(rows, encoder(by_itself)(clip(3, 9, 5, 8, 7), None)["video"].pooler_output)
    assert all(torch.equal(frame.rows, rows[frame.number]) for frame in come)


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
def test_which_models_read_frames_one_by_one(name):
    model, prompt = ZOO[name]()
    target, by_frame = as_target(model, prompt), replace(prompt, by_frame=True)
    found, whole = target.encode_frames(by_frame), target.encode(prompt)
    assert (found is not None) == (name in FRAMEWISE and ENCODES_CLIPS)
    if found is not None:
        rows, expected = target.visual_features(found), target.visual_features(whole)
        assert rows.shape == expected.shape
        assert torch.allclose(rows, expected, atol=1e-9)
        assert torch.equal(rows, target.visual_features(target.encode(by_frame)))
        assert target.encode_frames(prompt) is None


class Stream:
    """Windows of a stream of noise, as requests to a model of the zoo."""

    def __init__(self, name):
        model, self.prompt = ZOO[name]()
        self.target = Target(model, self._prepare, str, [EOS])
        ((self.name, pixels),) = [one for one in self.prompt.features.items() if one[0].startswith("pixel_values")]
        self.lead, (self.length, *shape) = pixels.shape[:-4], pixels.shape[-4:]
        self.frames = torch.randn(40, *shape, generator=torch.Generator().manual_seed(0))

    def _prepare(self, request):
        features = {**self.prompt.features, self.name: request.inputs[self.name]}
        return Prompt(request.inputs["input_ids"][0], features, by_frame=request.reuse != "clip")

    def window(self, start, reuse="frames", tail=(), **more):
        ids = torch.cat([self.prompt.input_ids, torch.tensor(tail, dtype=torch.long)])
        pixels = self.frames[start : start + self.length].reshape(*self.lead, self.length, *self.frames.shape[1:])
        inputs = {"input_ids": ids[None], self.name: pixels}
        return Request("x", inputs=inputs, max_new_tokens=8, reuse=reuse, **more)

    def answers(self, requests, prefixes=None):
        decoder = Decoder(self.target, prefixes=prefixes)
        return [decoder.generate([request])[0] for request in requests]

    def features(self, request, prefixes):
        known = prefixes.lookup(self.target, self.target.prepare(request), prefixes.identify(request))
        return self.target.visual_features(known.encode())


@encodes_clips
@pytest.mark.parametrize("name", sorted(FRAMEWISE))
def test_overlapping_windows_are_answered_as_if_each_were_alone(name):
    stream, prefixes = Stream(name), PrefixCache(PLENTY)
    requests = [stream.window(start) for start in range(0, 12, 2)]
    found = stream.answers(requests, prefixes)
    assert [one.tokens for one in found] == [one.tokens for one in stream.answers(requests)]
    assert [one.stats.frames_encoded for one in found] == [stream.length] + [2] * 5
    assert [one.stats.frames_reused for one in found] == [0] + [stream.length - 2] * 5
    assert [one.stats.cached_tokens for one in found] == [0] * 6  # keys and values are not kept
    for request in requests:
        fresh, again = stream.features(request, PrefixCache(0)), stream.features(request, prefixes)
        assert torch.equal(fresh, again)


class Careless(ContentDigests):
    """Planted: a frame is told by its shape, not by its pixels."""

    def of(self, *values):
        return super().of(*(value.shape if isinstance(value, torch.Tensor) else value for value in values))


@encodes_clips
def test_a_key_that_leaves_out_the_content_is_noticed():
    stream, prefixes = Stream("video_llava"), PrefixCache(PLENTY)
    prefixes._digests = Careless()
    first, second = stream.window(0), stream.window(20)
    stream.features(first, prefixes)
    assert not torch.equal(stream.features(second, prefixes), stream.features(second, PrefixCache(0)))


@encodes_clips
def test_several_questions_about_a_window_read_it_once_and_its_frames_are_kept():
    stream, prefixes = Stream("video_llava"), PrefixCache(PLENTY)
    requests = [stream.window(start, "both", tail) for start in (0, 2, 4) for tail in ((8, 9), (8, 10))]
    found = stream.answers(requests, prefixes)
    assert [one.tokens for one in found] == [one.tokens for one in stream.answers(requests)]
    length = stream.length
    assert [one.stats.frames_encoded for one in found] == [length, None, 2, None, 2, None]
    assert [one.stats.cached_tokens > 0 for one in found] == [False, True] * 3


def test_of_a_model_that_does_not_read_frames_one_by_one_nothing_changes():
    model, prompt = ZOO["qwen2_5_vl"]()
    target, prefixes = as_target(model, replace(prompt, by_frame=True)), PrefixCache(PLENTY)
    decoder = Decoder(target, prefixes=prefixes)
    answer = decoder.generate([Request("x", inputs={}, max_new_tokens=4, reuse="frames")])[0]
    assert (answer.stats.frames_encoded, answer.stats.frames_reused, prefixes.nbytes) == (None, None, 0)
    alone = Decoder(as_target(model, prompt)).generate([Request("x", max_new_tokens=4)])[0]
    assert answer.tokens == alone.tokens


@encodes_clips
def test_memory_is_bounded_by_clips_and_by_the_budget():
    stream = Stream("video_llava")
    one = stream.features(stream.window(0), PrefixCache(0)).nbytes // stream.length
    plenty = PrefixCache(PLENTY)
    for start in range(CLIPS + 8):
        stream.features(stream.window(start), plenty)
        assert plenty.nbytes == one * (min(start, CLIPS - 1) + stream.length)
    little = PrefixCache(4 * one + 1)
    requests = [stream.window(start) for start in range(6)]
    assert [a.tokens for a in stream.answers(requests, little)] == [a.tokens for a in stream.answers(requests)]
    assert little.nbytes == 4 * one
    little.clear()
    assert little.nbytes == 0
    for start in range(CLIPS + 2):
        stream.features(stream.window(start), little)
    assert little.nbytes == 4 * one


def test_kept_features_hold_no_memory_but_their_own():
    stream, prefixes = Stream("video_llava"), PrefixCache(PLENTY)
    stream.features(stream.window(0), prefixes)
    for kept in prefixes._features.values():
        (features,) = kept.encoded.values()
        assert features.untyped_storage().nbytes() == features.nbytes


@encodes_clips
def test_a_request_of_nobody_keeps_nothing():
    stream, prefixes = Stream("video_llava"), PrefixCache(PLENTY)
    (found,) = stream.answers([stream.window(0, namespace=None)], prefixes)
    assert (found.stats.frames_encoded, prefixes.nbytes) == (stream.length, 0)


def test_an_unknown_reuse_is_refused():
    with pytest.raises(CrossdraftError, match="reuse"):
        Request("x", reuse="all")
