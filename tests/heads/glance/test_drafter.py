"""An event drafter that glances at the clip: which frames it sees, and that it has the last word."""

from dataclasses import replace

import pytest
import torch

from crossdraft.drafters.base import read_prompt
from crossdraft.drafters.combine.cascade import CascadeDrafter
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Prompt, Target, visual_rows
from crossdraft.errors import CrossdraftError
from crossdraft.heads.event_medusa.drafter import DrafterMedusaDrafter, shared_weights_of
from crossdraft.heads.event_medusa.network import DrafterMedusa, DrafterMedusaConfig
from crossdraft.heads.glance.frame_encoder import FrameEncoder, fewer_frames
from crossdraft.heads.glance.network import Glance, GlanceConfig
from crossdraft.load import load_drafter, load_target

IDS = tuple(range(40, 300))


@pytest.fixture(scope="module")
def target(pair):
    return load_target(str(pair.target), "cpu", "float64", packed=False)


@pytest.fixture(scope="module")
def event(pair):
    return load_drafter(str(pair.event), "cpu", "float64", packed=False).model


@pytest.fixture
def asked(clip):
    return Request("What is ahead?", str(clip.video), str(clip.events), max_new_tokens=16)


def glancer(event, target, frames: int = 3, awake: float = 0.5) -> FrameEncoder:
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
            weight.add_(torch.randn_like(weight), alpha=awake)
    return FrameEncoder(glance.double(), target)


@pytest.mark.parametrize(("count", "chosen"), [(1, [3]), (2, [0, 7]), (3, [0, 3, 7]), (8, list(range(8)))])
def test_frames_are_evenly_spread(target, asked, count, chosen):
    whole = target.prepare(asked)
    few = fewer_frames(whole, count).features["pixel_values_videos"]
    assert torch.equal(few, whole.features["pixel_values_videos"][:, chosen])


def test_a_frame_looks_the_same_whatever_others_are_looked_at(target, asked):
    """So that what was captured of eight frames is what is seen of three."""
    whole = target.prepare(asked)
    every = visual_rows(target.encode(whole)["video"]).view(8, 5, -1)
    few = visual_rows(target.encode(fewer_frames(whole, 3))["video"]).view(3, 5, -1)
    assert torch.allclose(few, every[[0, 3, 7]], atol=1e-12)


@pytest.mark.parametrize("features", [{}, {"pixel_values_videos": torch.zeros(4, 8)}])
def test_a_target_that_sees_no_frames_is_refused(features):
    with pytest.raises(CrossdraftError, match="sees a clip frame by frame"):
        fewer_frames(Prompt(torch.tensor([1]), features), 3)


@torch.inference_mode()
def test_with_the_targets_features_it_drafts_what_it_drafts_beside_the_target(event, target, asked):
    beside = glancer(event, target)
    apart = FrameEncoder(beside.glance)
    drafter = IndependentDrafter(event, glance=apart)
    assert (drafter.needs.visual, drafter.needs.video, drafter.needs.nothing) == (True, False, True)
    features = target.visual_features(target.encode(target.prepare(asked)))
    for own, given in zip(beside.look(asked), apart.look(seeing(asked, features)), strict=True):
        assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(own, given, strict=True))
    assert told(drafter, seeing(asked, features)) == told(IndependentDrafter(event, glance=beside), asked)


def seeing(request, features):
    """The request as a drafter's own process has it."""
    return replace(request, visual_features=lambda: features)


def test_features_that_are_no_frames_of_that_size_are_refused(event, target, asked):
    drafter = IndependentDrafter(event, glance=FrameEncoder(glancer(event, target).glance))
    for request, said in (
        (asked, "needs the target's visual features"),
        (seeing(asked, torch.zeros(41, 32)), "3 frames of 5 features, 15 x 32 in all; got 41 x 32"),
        (seeing(asked, torch.zeros(40, 8)), "got 15 x 8"),
    ):
        with pytest.raises(CrossdraftError, match=said):
            drafter.begin([request])


@torch.inference_mode()
def test_it_has_the_last_word_at_every_place(event, target, asked):
    """Word for word the argmax of the glance over the event model's features, in the draft and behind a verdict."""
    look = glancer(event, target)
    drafter = IndependentDrafter(event, [45], glance=look)
    assert drafter.needs.video
    assert drafter.needs.nothing
    (state,) = drafter.begin([asked])
    (draft,) = drafter.propose([state], [Budget(6)])
    drafter.commit([state], [VerifyOutput((0, 1), (*draft.tree.tokens[:2], 77))])
    (after,) = drafter.propose([state], [Budget(4)])
    prompt, seen = event.prepare(asked), look.look(asked)
    pixels = prompt.features["pixel_values_videos"].double()

    def says(written):
        ids = torch.tensor([[*prompt.input_ids.tolist(), *written]])
        hidden = event.model.model(input_ids=ids, pixel_values_videos=pixels).last_hidden_state[:, -1:]
        scores = look.glance.logits(hidden, seen)[0, 0]
        scores[IDS.index(45)] = float("-inf")
        return IDS[int(scores.argmax())]

    text: list[int] = []
    for token in draft.tree.tokens:
        assert token == says(text)
        text.append(token)
    text = [*text[:2], 77]
    for token in after.tree.tokens:
        assert token == says(text)
        text.append(token)
    (plain,) = IndependentDrafter(event, [45]).propose(IndependentDrafter(event, [45]).begin([asked]), [Budget(6)])
    assert plain.tree.tokens != draft.tree.tokens


@torch.inference_mode()
def test_what_it_draws_is_drawn_from_what_it_says(event, target, clip):
    warm = Request(
        "What is ahead?", str(clip.video), str(clip.events), max_new_tokens=8, sampling=Sampling(temperature=1.0)
    )
    look = glancer(event, target)
    drafter = IndependentDrafter(event, glance=look)
    (draft,) = drafter.propose(drafter.begin([warm]), [Budget(5)])
    prompt, seen = event.prepare(warm), look.look(warm)
    for place, law in enumerate(draft.tree.dists):
        ids = torch.tensor([[*prompt.input_ids.tolist(), *draft.tree.tokens[:place]]])
        pixels = prompt.features["pixel_values_videos"].double()
        hidden = event.model.model(input_ids=ids, pixel_values_videos=pixels).last_hidden_state[:, -1:]
        expected = torch.zeros_like(law)
        expected[list(IDS)] = look.glance.logits(hidden, seen)[0, 0].softmax(-1).to(law)
        assert torch.allclose(law, expected, atol=1e-6)


def told(drafter, asked) -> list[tuple[int, ...]]:
    """Its drafts: the first, one on a fork of it that is told another word, and the one behind that word itself."""
    (state,) = drafter.begin([asked])
    (first,) = drafter.propose([state], [Budget(8)])
    news = VerifyOutput((0, 1), (*first.tree.tokens[:2], 77))
    (fork,) = drafter.fork([state])
    drafter.commit([fork], [news])
    (forked,) = drafter.propose([fork], [Budget(6)])
    drafter.commit([state], [news])
    return [first.tree.tokens, forked.tree.tokens, drafter.propose([state], [Budget(6)])[0].tree.tokens]


@torch.inference_mode()
def test_heads_that_foresee_and_cheaper_readers_change_no_word(event, target, asked):
    """With and without heads, and with another drafter that writes for it, it drafts what it says word by word."""
    look, shared = glancer(event, target), shared_weights_of(event)
    heads = DrafterMedusa(
        DrafterMedusaConfig(hidden_size=32, vocab_size=event.vocab_size, num_layers=2, draft_ids=IDS, width=8), shared
    ).double()
    alone = told(IndependentDrafter(event, glance=look), asked)
    assert alone[1] == alone[2]
    assert told(DrafterMedusaDrafter(event, heads, glance=look), asked) == alone
    overseen = CascadeDrafter(IndependentDrafter(event, glance=look), IndependentDrafter(event), ahead=3)
    assert told(overseen, asked) == alone


def test_a_model_whose_vision_cannot_be_had_alone_is_refused(event, target):
    old = Target(target.model, target.prepare, target.decode, tuple(target.eos))
    old.traits = replace(old.traits, takes_encoded=False)
    with pytest.raises(CrossdraftError, match="update transformers"):
        glancer(event, old)


def test_without_a_clip_there_is_nothing_to_glance_at(event, target, clip):
    drafter = IndependentDrafter(event, glance=glancer(event, target))
    with pytest.raises(CrossdraftError, match="The request has no video"):
        drafter.begin([Request("What is ahead?", None, str(clip.events))])


def test_the_model_behind_a_glance_makes_no_words_of_its_own(pair, target, asked):
    """Its logits would be read by nobody; what it feels is what it always felt."""
    plain = load_drafter(str(pair.event), "cpu", "float64", packed=False).model
    drafter = IndependentDrafter(plain, glance=glancer(plain, target))
    silent = drafter.model
    with torch.inference_mode():
        *_, loud = read_prompt(plain, asked, 8, drafter.capture)
        *_, quiet = read_prompt(silent, asked, 8, drafter.capture)
    assert loud.logits[0].shape == (1, plain.vocab_size)
    assert quiet.logits[0].shape == (1, 0)
    assert torch.equal(loud.hidden[0][0], quiet.hidden[0][0])
