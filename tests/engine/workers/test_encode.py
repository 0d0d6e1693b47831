"""Frames spread over threads on core groups: the same features, to the bit; what cannot be spread is refused."""

import os
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import crossdraft as cd
from crossdraft.engine.encoded import visual_rows
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.workers import encode
from crossdraft.engine.workers.encode import SpreadEncoder, find_join, frame_count, frame_span, shares
from crossdraft.engine.workers.groups import DeviceGroup
from crossdraft.load import load_target
from tests.engine.zoo import ZOO, as_target
from tests.support import encodes_clips

CORES = sorted(os.sched_getaffinity(0))
GROUPS = [DeviceGroup("cpu", (core,)) for core in CORES[:2]]
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="needs two CPU cores")
IMAGES = ("internvl", "smolvlm", "gemma3")  # they read a clip as a row of images
SPREADABLE = ("video_llava", "llava_next_video", "llava_onevision", "qwen2_5_vl", "glm4v")


@pytest.mark.parametrize("name", SPREADABLE)
def test_spread_features_are_those_of_one_thread(name):
    model, prompt = ZOO[name]()
    target = as_target(model, prompt)
    if not target.traits.takes_encoded:
        pytest.skip("this transformers reads features with the prompt")
    before = visual_rows(target.encode(prompt)["video"])
    target.spread_encoder(GROUPS, prompt)
    try:
        torch.testing.assert_close(visual_rows(target.encode(prompt)["video"]), before, rtol=1e-12, atol=1e-12)
        one = Prompt(prompt.input_ids, frame_span(prompt.features, 0, 1))  # a single frame is not divided
        spread = target.encode(one)["video"]
    finally:
        target.encode_at_home()
    torch.testing.assert_close(visual_rows(spread), visual_rows(target.encode(one)["video"]), rtol=1e-12, atol=1e-12)
    assert torch.equal(visual_rows(target.encode(prompt)["video"]), before)


@encodes_clips
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_layers_give_the_same_features_to_the_bit(pair, clips, dtype):
    target = load_target(str(pair.target), "cpu", dtype)
    prompt = target.prepare(cd.Request("?", clips[0]))
    before = visual_rows(target.encode(prompt)["video"])
    target.spread_encoder(GROUPS, prompt)
    try:
        assert torch.equal(visual_rows(target.encode(prompt)["video"]), before)
    finally:
        target.encode_at_home()
    assert torch.equal(visual_rows(target.encode(prompt)["video"]), before)


def test_an_encoder_that_mixes_frames_is_refused():
    model, prompt = ZOO["eventgpt"]()
    with pytest.raises(cd.CrossdraftError, match=r"does not read each frame by itself.*leave out encode_devices"):
        as_target(model, prompt).spread_encoder(GROUPS, prompt)


@pytest.mark.parametrize("name", IMAGES)
def test_clips_that_are_read_as_images_are_refused(name):
    model, prompt = ZOO[name]()
    with pytest.raises(cd.CrossdraftError, match="encode_devices"):
        as_target(model, prompt).spread_encoder(GROUPS, prompt)


@encodes_clips
def test_features_for_several_layers_are_refused():
    model, prompt = ZOO["qwen3_vl"]()
    with pytest.raises(cd.CrossdraftError, match=r"several decoder layers .DeepStack.*leave out encode_devices"):
        as_target(model, prompt).spread_encoder(GROUPS, prompt)


@encodes_clips
def test_groups_of_another_kind_of_device_are_refused():
    model, prompt = ZOO["video_llava"]()
    with pytest.raises(cd.CrossdraftError, match="names cuda:0, but the target is on cpu"):
        as_target(model, prompt).spread_encoder([DeviceGroup("cuda:0"), DeviceGroup("cuda:1")], prompt)


def test_a_gpu_that_is_not_there_is_one_sentence():
    base = SimpleNamespace(get_video_features=None)
    model = SimpleNamespace(base_model=base, device=torch.device("cuda", 0))
    with pytest.raises(cd.CrossdraftError, match="encode_devices is 'cuda:77', which cannot be used here; choose cpu"):
        SpreadEncoder(model, [DeviceGroup("cuda:77")], {})


def test_shares_are_joined_in_their_order_and_a_wrong_order_is_noticed():
    rows = torch.randn(4, 3, 2)
    assert find_join(rows, (rows[:2], rows[2:]), listed=False) is not None
    assert find_join(rows, (rows[2:], rows[:2]), listed=False) is None
    last = torch.cat([rows[:2].reshape(1, 6, 2), torch.ones(1, 1, 2)], 1)  # each part ends with a row of its own
    second = torch.cat([rows[2:].reshape(1, 6, 2), torch.ones(1, 1, 2)], 1)
    whole = torch.cat([rows.reshape(1, 12, 2), torch.ones(1, 1, 2)], 1)
    join = find_join(whole, (last, second), listed=False)
    assert join is not None
    assert (join.dim, join.tail) == (1, 1)


def test_spans_of_patches_follow_their_grid():
    inputs = {"pixel_values_videos": torch.arange(24.0).view(12, 2), "video_grid_thw": torch.tensor([[3, 2, 2]])}
    assert frame_count(inputs) == 3
    part = frame_span(inputs, 1, 3)
    assert part["video_grid_thw"].tolist() == [[2, 2, 2]]
    assert torch.equal(part["pixel_values_videos"], inputs["pixel_values_videos"][4:])
    assert shares(3, (1, 1, 1, 1)) == [(0, 1), (1, 2), (2, 3)]


@pytest.fixture
def clips():
    rng = np.random.default_rng(3)
    return [rng.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8) for _ in range(3)]


@encodes_clips
def test_answers_are_identical_and_an_error_in_a_share_is_that_requests(pair, clips, monkeypatch):
    asked = [cd.Request("what is the car doing?", clip, max_new_tokens=16) for clip in clips]
    where = ",".join(map(str, GROUPS))
    options = cd.Options(placement="inline", device="cpu", dtype="float32")
    with cd.Engine.load(str(pair.target), None, options) as engine:
        alone = [engine.generate(request).tokens for request in asked]
    with cd.Engine.load(str(pair.target), "memory", replace(options, encode_devices=where)) as engine:
        assert engine.generate(asked[0]).tokens == alone[0]
        with monkeypatch.context() as patch:
            patch.setattr(engine.target.spread._sites[1], "_encode", lambda inputs: 1 / 0)
            with pytest.raises(cd.CrossdraftError, match="ZeroDivisionError"):
                engine.generate(asked[1])
        assert [engine.generate(request).tokens for request in asked[1:]] == alone[1:]


@encodes_clips
def test_each_share_is_encoded_on_its_cores(pair, clips, monkeypatch):
    seen = {}
    whole = encode.FeatureFunction.pooled

    def pooled(self, inputs):
        seen[tuple(os.sched_getaffinity(0))] = frame_count(inputs)
        return whole(self, inputs)

    monkeypatch.setattr(encode.FeatureFunction, "pooled", pooled)
    options = cd.Options(placement="inline", device="cpu", encode_devices=",".join(map(str, GROUPS)))
    with cd.Engine.load(str(pair.target), None, options) as engine:
        seen.clear()
        engine.generate(cd.Request("?", clips[0], max_new_tokens=1))
    frames = len(clips[0])
    assert seen == {group.cores: frames // 2 for group in GROUPS}


@encodes_clips
def test_threads_end_with_the_engine(pair):
    options = cd.Options(placement="inline", device="cpu", encode_devices=",".join(map(str, GROUPS)))
    before = threading.active_count()
    with cd.Engine.load(str(pair.target), None, options):
        assert sum(thread.name.startswith("encode-") for thread in threading.enumerate()) == 2
    assert threading.active_count() == before


@encodes_clips
def test_a_planted_bug_in_the_joining_is_noticed_at_load(pair, monkeypatch):
    monkeypatch.setattr(encode, "frame_span", lambda inputs, start, stop: frame_span(inputs, 0, stop - start))
    with pytest.raises(cd.CrossdraftError, match="does not read each frame by itself"):
        cd.Engine.load(str(pair.target), None, cd.Options(encode_devices=",".join(map(str, GROUPS)), device="cpu"))
