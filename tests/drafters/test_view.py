"""The target as its own drafter, with fewer frames."""

import numpy as np
import pytest
import torch

from crossdraft.drafters.base import read_prompt
from crossdraft.drafters.view import FewerFrames, sampled, view_of
from crossdraft.engine.arrivals import evenly
from crossdraft.engine.drafter import Budget
from crossdraft.engine.reference import full_forward
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target
from crossdraft.video import read_frames
from crossdraft.video.clip import FrameSampling
from crossdraft.video_prompt import VideoPrompt
from tests.video.test_inputs import CONFIGS, build, spec_for, tokenizer

assert tokenizer  # a fixture: one tokenizer for every family
QUESTION = "What is ahead?"


@pytest.fixture(scope="module")
def target(pair):
    return load_target(str(pair.target), "cpu", "float64")


def view(target, frames):
    return view_of(target, FewerFrames(target.prepare, frames))


@pytest.mark.parametrize("frames", range(1, 9))
def test_a_prompt_of_fewer_frames_is_shorter(target, clip, frames):
    request = Request(QUESTION, str(clip.video))
    whole, part = target.prepare(request), view(target, frames).model.prepare(request)
    assert len(whole) - len(part) == (8 - frames) * 5  # 2 x 2 patches and a class token
    assert part.features["pixel_values_videos"].shape[1] == frames
    (placeholder,) = set(target.traits.visual_ids) & set(part.input_ids.tolist())
    assert part.input_ids.tolist().count(placeholder) == frames * 5


def test_all_frames_are_the_targets_own_prompt(target, clip):
    request = Request(QUESTION, str(clip.video))
    whole, same = target.prepare(request), view(target, 8).model.prepare(request)
    assert torch.equal(whole.input_ids, same.input_ids)
    assert torch.equal(whole.features["pixel_values_videos"], same.features["pixel_values_videos"])


@pytest.mark.parametrize("frames", [1, 3, 8])
def test_it_writes_what_the_model_says_of_that_prompt(target, clip, frames):
    drafter, request = view(target, frames), Request(QUESTION, str(clip.video), max_new_tokens=8)
    (draft,) = drafter.propose(drafter.begin([request]), [Budget(6)])
    prompt, written = drafter.model.prepare(request), ()
    for token in draft.tree.tokens:
        logits = full_forward(drafter.model, prompt, written) + drafter.banned
        assert token == int(logits.argmax())
        written += (token,)
    assert drafter.needs.video
    assert drafter.needs.nothing


def test_the_view_matters(target, clip):
    """The control: another view, other logits after the prompt."""
    request = Request(QUESTION, str(clip.video))
    rows = [read_prompt(view(target, frames).model, request, 1)[2].logits[0] for frames in (1, 2, 8)]
    assert not torch.allclose(rows[0], rows[1])
    assert not torch.allclose(rows[1], rows[2])


def test_the_weights_are_shared(target):
    assert view(target, 2).model.model is target.model


def test_the_model_gets_no_further_hooks(target):
    before = [(len(m._forward_pre_hooks), len(m._forward_hooks)) for m in target.model.modules()]
    view(target, 2)
    assert [(len(m._forward_pre_hooks), len(m._forward_hooks)) for m in target.model.modules()] == before
    assert any(count for count, _ in before)


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_family_takes_one_frame_and_more(kind, tokenizer):
    model = build(kind)
    clip = np.random.default_rng(0).integers(0, 256, (8, 30, 44, 3), dtype=np.uint8)
    request = Request(QUESTION, clip)
    lengths = []
    for frames in (1, 2, 4):
        prepare = FewerFrames(VideoPrompt(model, tokenizer, spec_for(kind)), frames)
        prompt, _, out = read_prompt(Target(model, prepare, str, [1]), request, 1)
        lengths.append(len(prompt))
        torch.testing.assert_close(out.logits[0][0], full_forward(Target(model, prepare, str, [1]), prompt, ()))
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_frames_by_hand(clip):
    assert (evenly(8, 1), evenly(8, 2), evenly(8, 3)) == ([3], [0, 7], [0, 3, 7])
    whole, times = read_frames(clip.video, 8)
    for count in (1, 2, 3, 5):
        of_file, seconds = sampled(str(clip.video), count, FrameSampling(8))
        of_array, positions = sampled(whole.numpy(), count, FrameSampling(8))
        assert torch.equal(of_file, of_array)
        assert seconds.tolist() == times[positions.astype(int)].tolist()


def test_ready_made_inputs_have_no_frames_to_choose_from(target):
    with pytest.raises(CrossdraftError, match="ready-made inputs"):
        view(target, 2).begin([Request(QUESTION, inputs={"input_ids": torch.ones(1, 3)})])


def test_a_question_without_a_clip_is_read_as_text(target):
    assert len(view(target, 2).begin([Request(QUESTION)])) == 1
