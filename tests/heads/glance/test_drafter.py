"""An event drafter that glances at the clip: which frames it sees, and that it has the last word."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from crossdraft.drafters.base import read_prompt
from crossdraft.drafters.event.load import load_drafter
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.encoded import visual_rows
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.event_medusa.drafter import DrafterMedusaDrafter, shared_weights_of
from crossdraft.heads.event_medusa.network import DrafterMedusa, DrafterMedusaConfig
from crossdraft.heads.glance.frame_encoder import FrameEncoder, fewer_frames
from crossdraft.heads.glance.network import Glance, GlanceConfig
from crossdraft.load import load_target
from tests.support import encodes_clips

IDS = tuple(range(40, 300))


@pytest.fixture(scope="module")
def target(pair):
    return load_target(str(pair.target), "cpu", "float64", packed=False)


@pytest.fixture(scope="module")
def event(pair):
    return load_drafter(str(pair.event), "cpu", "float64", packed=False).model


@pytest.fixture
def question(clip):
    return Request("What is ahead?", str(clip.video), str(clip.events), max_new_tokens=16)


def frame_encoder(event, target, frames: int = 3, noise: float = 0.5) -> FrameEncoder:
    shared = shared_weights_of(event)
    config = GlanceConfig(
        hidden_size=shared.embeddings.shape[1],
        vocab_size=event.vocab_size,
        num_layers=event.text_config.num_hidden_layers,
        draft_ids=IDS,
        tower="x",
        visual_size=target.text_config.hidden_size,
        patches=5,
        frames=frames,
        heads=2,
    )
    torch.manual_seed(2)
    glance = Glance(config, shared)
    with torch.no_grad():
        for weight in glance.parameters():
            weight.add_(torch.randn_like(weight), alpha=noise)
    return FrameEncoder(glance.double(), target)


@pytest.mark.parametrize(("count", "chosen"), [(1, [3]), (2, [0, 7]), (3, [0, 3, 7]), (8, list(range(8)))])
def test_frames_are_evenly_spread(target, question, count, chosen):
    whole = target.prepare(question)
    few = fewer_frames(whole, count).features["pixel_values_videos"]
    assert torch.equal(few, whole.features["pixel_values_videos"][:, chosen])


@encodes_clips
def test_features_of_a_frame_do_not_depend_on_the_other_frames(target, question):
    """So that features captured of eight frames are those of three."""
    whole = target.prepare(question)
    every = visual_rows(target.encode(whole)["video"]).view(8, 5, -1)
    few = visual_rows(target.encode(fewer_frames(whole, 3))["video"]).view(3, 5, -1)
    assert torch.allclose(few, every[[0, 3, 7]], atol=1e-12)


@pytest.mark.parametrize("features", [{"pixel_values": torch.zeros(4, 8)}, {"pixel_values_videos": torch.zeros(4, 8)}])
def test_a_target_that_sees_no_frames_is_refused(features):
    with pytest.raises(CrossdraftError, match="encodes a clip frame by frame"):
        fewer_frames(Prompt(torch.tensor([1]), features), 3)


@encodes_clips
@torch.inference_mode()
def test_with_the_targets_features_drafts_are_those_in_the_targets_process(event, target, question):
    inline = frame_encoder(event, target)
    remote = FrameEncoder(inline.glance)
    drafter = IndependentDrafter(event, glance=remote)
    assert (drafter.needs.visual, drafter.needs.video, drafter.needs.nothing) == (True, False, True)
    features = target.visual_features(target.encode(target.prepare(question)))
    for own, given in zip(inline.encode(question), remote.encode(with_features(question, features)), strict=True):
        assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(own, given, strict=True))
    assert drafts_of(drafter, with_features(question, features)) == drafts_of(
        IndependentDrafter(event, glance=inline), question
    )


@encodes_clips
@pytest.mark.parametrize("kind", ["two clips", "image and clip", "conversation", "system"])
@torch.inference_mode()
def test_whatever_is_shown_the_same_is_drafted_in_both_processes(event, target, question, kind):
    clip, image = question.video, np.full((16, 16, 3), 90, np.uint8)
    shown = {"role": "user", "content": [{"type": "video", "video": clip}, {"type": "text", "text": "What is it?"}]}
    asked = {
        "two clips": replace(question, video=[clip, clip]),
        "image and clip": replace(question, image=image),
        "conversation": Request(
            messages=[shown, {"role": "assistant", "content": "A car."}, shown], events=question.events
        ),
        "system": replace(question, system="Be brief."),
    }[kind]
    inline = frame_encoder(event, target)
    remote = FrameEncoder(inline.glance)
    features = target.visual_features(target.encode(target.prepare(asked)))
    given = with_features(asked, features)
    assert drafts_of(IndependentDrafter(event, glance=remote), given) == drafts_of(
        IndependentDrafter(event, glance=inline), asked
    )


def with_features(request, features):
    """The request as a drafter's own process has it."""
    return replace(request, visual_features=lambda: features)


@encodes_clips
def test_features_that_are_no_frames_of_that_size_are_refused(event, target, question):
    drafter = IndependentDrafter(event, glance=FrameEncoder(frame_encoder(event, target).glance))
    for request, message in (
        (question, "needs the target's visual features"),
        (with_features(question, torch.zeros(41, 32)), "3 frames of 5 features, 15 x 32 in all; got 41 x 32"),
        (with_features(question, torch.zeros(40, 8)), "got 15 x 8"),
    ):
        with pytest.raises(CrossdraftError, match=message):
            drafter.begin([request])


@encodes_clips
@torch.inference_mode()
def test_every_token_is_the_argmax_of_the_glance(event, target, question):
    """Of the glance over the event model's features, in a first draft and after a verification."""
    encoder = frame_encoder(event, target)
    drafter = IndependentDrafter(event, [45], glance=encoder)
    assert drafter.needs.video
    assert drafter.needs.nothing
    (state,) = drafter.begin([question])
    (draft,) = drafter.propose([state], [Budget(6)])
    drafter.commit([state], [VerifyOutput((0, 1), (*draft.tree.tokens[:2], 77))])
    (after,) = drafter.propose([state], [Budget(4)])
    prompt, visual = event.prepare(question), encoder.encode(question)
    pixels = prompt.features["pixel_values_videos"].double()

    def argmax_behind(written):
        ids = torch.tensor([[*prompt.input_ids.tolist(), *written]])
        hidden = event.model.model(input_ids=ids, pixel_values_videos=pixels).last_hidden_state[:, -1:]
        scores = encoder.glance.logits(hidden, visual)[0, 0]
        scores[IDS.index(45)] = float("-inf")
        return IDS[int(scores.argmax())]

    text: list[int] = []
    for token in draft.tree.tokens:
        assert token == argmax_behind(text)
        text.append(token)
    text = [*text[:2], 77]
    for token in after.tree.tokens:
        assert token == argmax_behind(text)
        text.append(token)
    (plain,) = IndependentDrafter(event, [45]).propose(IndependentDrafter(event, [45]).begin([question]), [Budget(6)])
    assert plain.tree.tokens != draft.tree.tokens


@encodes_clips
@torch.inference_mode()
def test_sampled_drafts_report_their_distributions(event, target, clip):
    warm = Request(
        "What is ahead?", str(clip.video), str(clip.events), max_new_tokens=8, sampling=Sampling(temperature=1.0)
    )
    encoder = frame_encoder(event, target)
    drafter = IndependentDrafter(event, glance=encoder)
    (draft,) = drafter.propose(drafter.begin([warm]), [Budget(5)])
    prompt, visual = event.prepare(warm), encoder.encode(warm)
    for depth, dist in enumerate(draft.tree.dists):
        ids = torch.tensor([[*prompt.input_ids.tolist(), *draft.tree.tokens[:depth]]])
        pixels = prompt.features["pixel_values_videos"].double()
        hidden = event.model.model(input_ids=ids, pixel_values_videos=pixels).last_hidden_state[:, -1:]
        expected = torch.zeros_like(dist)
        expected[list(IDS)] = encoder.glance.logits(hidden, visual)[0, 0].softmax(-1).to(dist)
        assert torch.allclose(dist, expected, atol=1e-6)


def drafts_of(drafter, question) -> list[tuple[int, ...]]:
    """Its drafts: the first, the next of a fork after a verification, and its own after the same."""
    (state,) = drafter.begin([question])
    (first,) = drafter.propose([state], [Budget(8)])
    output = VerifyOutput((0, 1), (*first.tree.tokens[:2], 77))
    (fork,) = drafter.fork([state])
    drafter.commit([fork], [output])
    (forked,) = drafter.propose([fork], [Budget(6)])
    drafter.commit([state], [output])
    return [first.tree.tokens, forked.tree.tokens, drafter.propose([state], [Budget(6)])[0].tree.tokens]


@encodes_clips
@torch.inference_mode()
def test_medusa_heads_change_no_token(event, target, question):
    """With and without heads every token is the argmax of the glance."""
    encoder, shared = frame_encoder(event, target), shared_weights_of(event)
    heads = DrafterMedusa(
        DrafterMedusaConfig(hidden_size=32, vocab_size=event.vocab_size, num_layers=2, draft_ids=IDS, width=8), shared
    ).double()
    alone = drafts_of(IndependentDrafter(event, glance=encoder), question)
    assert alone[1] == alone[2]
    assert drafts_of(DrafterMedusaDrafter(event, heads, glance=encoder), question) == alone


def test_a_model_whose_vision_cannot_be_had_alone_is_refused(event, target):
    old = Target(target.model, target.prepare, target.decode, tuple(target.eos))
    old.traits = replace(old.traits, takes_encoded=False)
    with pytest.raises(CrossdraftError, match="update transformers"):
        frame_encoder(event, old)


@encodes_clips
def test_a_request_without_a_clip_is_refused(event, target, clip):
    drafter = IndependentDrafter(event, glance=frame_encoder(event, target))
    with pytest.raises(CrossdraftError, match="The request has no video"):
        drafter.begin([Request("What is ahead?", None, str(clip.events))])


@encodes_clips
def test_the_model_behind_a_glance_computes_no_logits(pair, target, question):
    """Only its features are read; they are unchanged."""
    plain = load_drafter(str(pair.event), "cpu", "float64", packed=False).model
    drafter = IndependentDrafter(plain, glance=frame_encoder(plain, target))
    silent = drafter.model
    with torch.inference_mode():
        *_, loud = read_prompt(plain, question, 8, drafter.capture)
        *_, quiet = read_prompt(silent, question, 8, drafter.capture)
    assert loud.logits[0].shape == (1, plain.vocab_size)
    assert quiet.logits[0].shape == (1, 0)
    assert torch.equal(loud.hidden[0][0], quiet.hidden[0][0])
