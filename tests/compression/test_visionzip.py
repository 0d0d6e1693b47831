"""VisionZip by hand and against the authors' code, where its tokens stand, and a target that reads them."""

import math
from dataclasses import replace

import pytest
import torch

from crossdraft.compressions import compressed
from crossdraft.drafters.event.load import load_drafter
from crossdraft.engine.encoded import visual_rows
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target, vocabulary_of
from crossdraft_lab.compression.visionzip import VisionZipSettings, class_attention, visionzip_target, zipped
from tests.engine.zoo import VIDEO, ZOO, as_target

REQUEST = Request("xx", max_new_tokens=12)
FRAMES, TOKENS = 8, 5  # of a clip, and of each of them: a class token and 2 x 2 patches

# What the authors' own code (dvlab-research/VisionZip, commit 3151f6d) makes of the noise below, in double precision,
# of two frames of ten tokens: four dominant ones, the class token among them, in order, then three contextual ones.
OF_THE_AUTHORS = (
    ((0.5451871671, 1.3211397827), (0.9022656361, 0.3125245068), (-0.3657679867, -0.0299533818),
     (0.6334818172, 1.7010153260), (1.7998643582, 0.7864375972), (-3.1881278633, -3.3493955120),
     (0.3352344493, 1.1527252254)),
    ((0.3732188026, 0.8449252571), (-1.1496738718, -1.0260463881), (-0.9082801575, -1.4102719113),
     (0.6307264764, -1.4347890084), (-0.6353126211, -0.2282993440), (1.9786800318, 3.1052490343),
     (1.0914795120, -1.0341461768)),
)  # fmt: skip


def noise(shape, number):
    """-2 … 2, the same on every machine."""
    phase = torch.arange(math.prod(shape), dtype=torch.float64) + 0.5 * number
    return (2 * torch.frac(torch.sin(phase * 12.9898) * 43758.5453)).reshape(shape)


def test_a_frame_by_hand():
    """A class token and seven patches, of which 3 and 6 get most attention; two contextual ones are left.

    Of the others, 1 2 4 5 7, every second is one: 1 and 4. The keys of 2 and 7 are like that of 1, that of 5 is like
    that of 4; their lengths do not count. So 1 becomes 1 + (20 + 70) / 2, and 4 becomes 400 + 500.
    """
    states = torch.tensor([0.0, 1, 20, 3, 400, 500, 6, 70])[None, :, None]
    attention = torch.tensor([[9.0, 0.1, 0.0, 0.5, 0.2, 0.1, 0.7, 0.3]])
    right, up = [1.0, 0.1], [0.1, 1.0]
    keys = torch.tensor([[[0.0, 0], right, [9.0, 1], [0, 0], up, [1.0, 9], [0, 0], [0.2, 0.1]]])
    rows, places = zipped(states, attention, keys, dominant=3, contextual=2)
    assert places.tolist() == [[0, 1, 3, 4, 6]]
    assert rows.flatten().tolist() == [0, 1 + 45, 3, 900, 6]


def test_it_is_what_the_authors_code_makes():
    attention, states, keys = noise((2, 2, 10, 10), 0).softmax(-1), noise((2, 10, 2), 1), noise((2, 10, 3), 2)
    rows, places = zipped(states, attention[:, :, 0].sum(1), keys, 4, 3)
    assert places.tolist() == [[0, 1, 2, 4, 5, 7, 9], [0, 1, 2, 4, 5, 7, 8]]
    wanted = torch.tensor(OF_THE_AUTHORS, dtype=torch.float64)
    # theirs has dominant tokens first: those of frame 0 stand at 0, 1, 5, 9, those of frame 1 at 0, 2, 4, 8
    for frame, dominant in enumerate(([0, 1, 5, 9], [0, 2, 4, 8])):
        known = [at in dominant for at in places[frame].tolist()]
        order = sorted(range(7), key=lambda row, known=known: not known[row])
        assert torch.allclose(rows[frame, order], wanted[frame], rtol=0, atol=1e-9)


def test_all_of_a_frame_is_left_as_it_is():
    states, keys = noise((3, 10, 4), 0), noise((3, 10, 2), 1)
    rows, places = zipped(states, noise((3, 10), 2), keys, 6, 4)
    assert torch.equal(rows, states)
    assert places.tolist() == [list(range(10))] * 3


@pytest.mark.parametrize(
    ("keep", "tokens", "counts"),
    [(64 / 576, 577, (54, 10)), (0.25, 50, (10, 2)), (0.6, 5, (2, 1)), (0.4, 5, (1, 1)), (1.0, 50, (42, 8))],
)
def test_how_many_are_left(keep, tokens, counts):
    """Of a large CLIP's frame 54 and 10, as the authors have it."""
    assert VisionZipSettings(keep).counts(tokens) == counts


@pytest.fixture(scope="module")
def plain():
    return as_target(*ZOO["video_llava"]())


def encoder_pass(target, prompt):
    """Hidden states of the vision encoder, and attention as its own eager code returns it."""
    tower = target.model.model.video_tower
    pixels = prompt.features["pixel_values_videos"].flatten(0, 1)
    was = tower.config._attn_implementation
    tower.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            out = tower(pixels, output_hidden_states=True, output_attentions=True)
    finally:
        tower.set_attn_implementation(was)
    return out.hidden_states, out.attentions


def test_attention_is_that_of_the_layer_whose_output_the_projector_reads():
    """The last layer but one of three: hidden state 2 is its output, hidden state 1 its input."""
    target = as_target(*ZOO["video_llava"]())
    hidden, attentions = encoder_pass(target, target.prepare(REQUEST))
    layer = target.model.model.video_tower.encoder.layers[1]
    attention, keys = class_attention(layer, hidden[1])
    assert torch.allclose(attention, attentions[1][:, :, 0].sum(1), atol=1e-6)
    own = layer.self_attn.k_proj(layer.layer_norm1(hidden[1]))
    assert torch.allclose(keys, (own[..., :16] + own[..., 16:]) / 2, atol=1e-6)


def test_a_target_reads_what_is_left_at_its_own_places(plain):
    target = visionzip_target(plain, VisionZipSettings(0.6))  # two dominant, one contextual
    whole, prompt = plain.prepare(REQUEST), target.prepare(REQUEST)
    counts = [int((one.input_ids == VIDEO).sum()) for one in (whole, prompt)]
    assert counts == [FRAMES * TOKENS, FRAMES * 3]
    encoded = target.encode(prompt)
    rows = visual_rows(encoded["video"]).view(FRAMES, 3, -1)
    full = visual_rows(plain.encode(whole)["video"]).view(FRAMES, TOKENS, -1)
    hidden, attentions = encoder_pass(plain, whole)
    places = []
    for frame in range(FRAMES):
        best = int(attentions[1][frame, :, 0, 1:].sum(0).argmax()) + 1
        others = [at for at in range(1, TOKENS) if at != best]
        merged = hidden[2][frame, others[0]] + hidden[2][frame, others[1:]].mean(0)
        context = plain.model.model.multi_modal_projector(merged)
        wanted = {0: full[frame, 0], best: full[frame, best], others[0]: context}
        for row, at in zip(rows[frame], sorted(wanted), strict=True):
            assert torch.allclose(row, wanted[at], atol=1e-5)
        places += [frame * TOKENS + at for at in sorted(wanted)]
    (front, text), delta = target.chunks(prompt, encoded)
    first = prompt.input_ids.tolist().index(VIDEO)
    assert front.positions[first:].tolist() == [first + place for place in places]
    assert text.positions[-1] == len(whole) - 1
    assert delta == len(whole) - len(prompt)


def test_places_of_no_clip_would_be_noticed(plain):
    """The planted bug: tokens stand where they stand before the clip is encoded."""
    target = visionzip_target(plain, VisionZipSettings(0.6))
    prompt = target.prepare(REQUEST)
    encoded = target.encode(prompt)
    right = target.chunks(prompt, encoded)[0][0].positions.tolist()
    del encoded["video"].places
    assert target.chunks(prompt, encoded)[0][0].positions.tolist() != right


def test_with_everything_left_it_says_what_the_target_says(plain):
    own, made = DecodeLoop(plain, None).generate([REQUEST])[0], compressed(plain, "visionzip:keep=1")
    answer = DecodeLoop(made, None).generate([REQUEST])[0]
    assert answer.tokens == own.tokens
    assert answer.other_notes == ("Lossy: the target reads its clip compressed (visionzip:keep=1).",)


def test_features_of_several_layers_are_refused_when_it_is_made():
    model, prompt = ZOO["video_llava"]()
    model.config.vision_feature_layer = [-2, -1]
    with pytest.raises(CrossdraftError, match="reads several layers of its vision encoder"):
        visionzip_target(as_target(model, prompt), VisionZipSettings())


@pytest.fixture(scope="module")
def loaded(pair):
    return load_target(str(pair.target), "cpu", "float64", packed=False)


def test_it_answers_otherwise_and_drafting_for_it_is_lossless(pair, loaded, clip):
    """A prompt whose clip is known already is read the same way, and so is one along which a tree rides."""
    question = Request("What is ahead?", str(clip.video), str(clip.events), max_new_tokens=16)
    own = DecodeLoop(loaded, None).generate([question])[0]
    made = compressed(loaded, "visionzip:keep=0.6")
    answer = DecodeLoop(made, None).generate([question])[0]
    assert answer.tokens != own.tokens
    assert answer.stats.prompt_tokens == own.stats.prompt_tokens - 2 * FRAMES
    prefixes = PrefixCache(1 << 24)
    known = []
    for one in (question, question, replace(question, prompt="What is on the left?")):
        found = DecodeLoop(made, None, prefixes=prefixes).generate([one])[0]
        known.append(found.stats.cached_tokens)
        assert found.tokens == DecodeLoop(made, None).generate([one])[0].tokens
    assert known[0] == 0
    assert min(known[1:]) >= FRAMES * 3
    vocabulary = vocabulary_of(str(pair.target))
    drafter = load_drafter(str(pair.event), "cpu", "float64", sorted(made.reserved), vocabulary, packed=False)
    with_draft = DecodeLoop(made, DraftRunner(drafter, "before")).generate([question])[0]
    assert with_draft.tokens == answer.tokens


def test_what_cannot_be_is_refused(plain):
    with pytest.raises(CrossdraftError, match=r"keep=0.2 leaves 1; VisionZip takes two or more"):
        compressed(plain, "visionzip:keep=0.2")
    with pytest.raises(CrossdraftError, match="a number above 0 and at most 1"):
        compressed(plain, "visionzip:keep=1.5")
    with pytest.raises(CrossdraftError, match="a number above 0 and below 1"):
        compressed(plain, "visionzip:contextual=1")
    with pytest.raises(CrossdraftError, match="such as Video-LLaVA"):
        compressed(as_target(*ZOO["llava_onevision"]()), "visionzip")
    with pytest.raises(CrossdraftError, match="no grid of patches"):
        compressed(as_target(*ZOO["qwen2_5_vl"]()), "visionzip")
