"""Pruning by events: counts and choice by hand, what a target then reads, and drafts that it verifies."""

import numpy as np
import pytest
import torch

import crossdraft as cd
from crossdraft.compressions import compressed
from crossdraft.engine.encoded import visual_rows
from crossdraft.engine.loop import DecodeLoop
from crossdraft.errors import CrossdraftError
from crossdraft.events.excerpt import Excerpt
from crossdraft.events.stream import Events
from crossdraft.load import load_target
from crossdraft.video.spec import FrameSpec
from crossdraft_lab.compression.eventprune import chosen_tokens, event_counts, shares_below
from tests.engine.zoo import ZOO, as_target
from tests.support import encodes_clips

FRAMES, TOKENS = 8, 5  # of a clip, and of each of them: a class token and 2 x 2 patches
SQUARE = FrameSpec(4, (4, 4))  # of a sensor of 8 x 4 pixels the middle half is seen


def recording(*rows, width=8, height=4):
    """Events (x, y, t), all brighter."""
    x, y, t = np.array(rows).T
    return Events.checked(x, y, t, np.ones(len(rows)), width, height)


# Three frames, at 0, 500 and 1000 µs. Columns 2 and 3 are the left patches, 4 and 5 the right ones, the others are cut.
BY_HAND = (
    (2, 0, 0), (3, 1, 100), (5, 3, 200),  # the first frame: two at the top left, one at the bottom right
    (1, 0, 300), (6, 3, 400), (4, 0, 600),  # the second: two that are cut, one at the top right
    (2, 3, 800), (2, 2, 900), (3, 3, 1000),  # the third: three at the bottom left
)  # fmt: skip
COUNTS = [[2, 0, 0, 1], [0, 1, 0, 0], [0, 0, 3, 0]]


def test_the_events_of_each_patch_by_hand():
    events = recording(*BY_HAND)
    assert event_counts([events], (0, 1000), 3, SQUARE, 2).tolist() == COUNTS
    pieces = [events.take(slice(0, 4)), events.take(slice(4, None))]
    assert event_counts(pieces, (0, 1000), 3, SQUARE, 2).tolist() == COUNTS
    assert event_counts([events], (0, 1000), 1, SQUARE, 2).tolist() == [[2, 1, 3, 1]]
    assert event_counts([], (0, 0), 2, SQUARE, 2).tolist() == [[0] * 4] * 2


def test_rows_taken_for_columns_would_be_noticed():
    """The planted bug: the sensor lies on its side."""
    turned = recording(*((y, x, t) for x, y, t in BY_HAND), width=4, height=8)
    assert event_counts([turned], (0, 1000), 3, SQUARE, 2).tolist() != COUNTS


def test_a_frame_without_a_crop_is_seen_whole():
    found = event_counts([recording(*BY_HAND)], (0, 1000), 1, FrameSpec((4, 4), None), 2)
    assert found.tolist() == [[3, 1, 3, 2]]


@pytest.mark.parametrize(
    ("kept", "floor", "places"),
    [
        # Of 3 x (1 + 4) tokens the class tokens are 0, 5, 10; the patches with 3, 2 and 1 events are 13, 1 and 4.
        (2, 0.0, [0, 1, 5, 10, 13]),
        (4, 0.0, [0, 1, 4, 5, 7, 10, 13]),
        # Two of four by events. Of the other ten patches, 2 3 4 6 7 8 9 11 12 14, two: 4 and 11.
        (4, 0.5, [0, 1, 4, 5, 10, 11, 13]),
        (12, 0.25, list(range(15))),
        (2, 1.0, [0, 4, 5, 10, 12]),  # of all twelve, 1 2 3 4 …: the fourth and the tenth
    ],
)
def test_the_choice_by_hand(kept, floor, places):
    assert chosen_tokens(torch.tensor(COUNTS), kept, floor).tolist() == places


def test_ranks_share_what_is_equal():
    assert shares_below(torch.tensor(COUNTS)).mul(12).round().tolist() == [[10, 0, 0, 8], [0, 8, 0, 0], [0, 0, 11, 0]]


@pytest.fixture(scope="module")
def loaded(pair):
    return load_target(str(pair.target), "cpu", "float64", packed=False)


def corner(frame, row, column):
    """Ten events of a 64 x 64 sensor in one patch of a frame, and one at each end of a second."""
    t = np.full(10, frame * 1_000_000 // 7)
    x, y = np.full(10, 10 + 40 * column), np.full(10, 10 + 40 * row)
    order = np.argsort(t := np.concatenate([[0], t, [1_000_000]]), kind="stable")
    x, y = np.concatenate([[0], x, [0]]), np.concatenate([[0], y, [0]])
    return Events.checked(x[order], y[order], t[order], np.ones(12), 64, 64)


@encodes_clips
def test_a_target_reads_what_events_chose_at_its_own_places(loaded, clip):
    """Eight of 32 patches are left: that with ten events, two with one, and the first five of those without."""
    made = compressed(loaded, "eventprune:keep=0.4,floor=0,attention=0")
    question = cd.Request("What is ahead?", str(clip.video), corner(5, 1, 0))
    whole, prompt = loaded.prepare(question), made.prepare(question)
    assert len(whole) - len(prompt) == FRAMES * (TOKENS - 2)
    encoded = made.encode(prompt)
    places = encoded["video"].places.tolist()
    patches = [place for place in places if place % TOKENS]
    assert len(places) == 2 * FRAMES
    assert patches == [1, 2, 3, 4, 6, 7, 5 * TOKENS + 1 + 2, 7 * TOKENS + 1]
    full = visual_rows(loaded.encode(whole)["video"])
    assert torch.allclose(visual_rows(encoded["video"]), full[places], atol=1e-9)
    first = whole.input_ids.tolist().index(prompt.input_ids[made._last_visual(prompt) - 1])
    (front, text), delta = made.chunks(prompt, encoded)
    assert front.positions[first:].tolist() == [first + place for place in places]
    assert (text.positions[-1], delta) == (len(whole) - 1, len(whole) - len(prompt))


@encodes_clips
def test_attention_is_what_ranks_without_events(loaded, clip):
    """The weight of the class token's attention decides whether events are looked at."""
    spec = "eventprune:keep=0.6,floor=0,attention={}"
    places = {}
    for weight in (0, 0.5, 1):
        made = compressed(loaded, spec.format(weight))
        for frame in (2, 6):
            question = cd.Request("What is ahead?", str(clip.video), corner(frame, 1, 1))
            found = made.encode(made.prepare(question))["video"].places
            places[weight, frame] = [place for place in found.tolist() if place % TOKENS]
    assert places[1, 2] == places[1, 6]
    assert places[0, 2] != places[0, 6]
    assert places[0.5, 2] not in (places[0, 2], places[1, 2])


@encodes_clips
def test_drafts_are_verified_by_the_pruned_target(pair, clip):
    """An answer is that of the pruned target alone, from a file, an excerpt of it, and events in memory."""
    spec = "eventprune:keep=0.6,floor=0.25,attention=0.5"
    options = cd.Options(device="cpu", dtype="float64", lossy_prefill=spec, placement="inline", adaptive=False)
    question = cd.Request("What is ahead?", str(clip.video), str(clip.events), max_new_tokens=16)
    excerpt = Excerpt(clip.events)
    asked = [
        question,
        *(cd.Request("What is ahead?", str(clip.video), one, max_new_tokens=16) for one in (excerpt, excerpt.read())),
    ]
    with cd.Engine.load(str(pair.target), str(pair.event), options) as engine:
        answers, alone = [engine.generate(one) for one in asked], engine.alone(question)
    with cd.Engine.load(str(pair.target), None, cd.Options(device="cpu", dtype="float64")) as engine:
        whole = engine.generate(question)
    assert {one.tokens for one in answers} == {alone.tokens}
    assert alone.tokens != whole.tokens
    assert all(one.stats.tau > 1 for one in answers)
    assert (alone.stats.lossless, alone.stats.lossy_prefill) == (False, spec)
    assert f"Lossy: the target reads its clip compressed ({spec})." in alone.other_notes
    assert {one.stats.cached_tokens for one in answers} == {0}, "another recording would choose other tokens"


@encodes_clips
def test_with_everything_left_it_says_what_the_target_says(loaded, clip):
    question = cd.Request("What is ahead?", str(clip.video), str(clip.events), max_new_tokens=12)
    own, all_of_it = (
        DecodeLoop(one, None).generate([question])[0] for one in (loaded, compressed(loaded, "eventprune:keep=1"))
    )
    assert own.tokens == all_of_it.tokens


@encodes_clips
@pytest.mark.parametrize("events", [None, np.zeros((5, 8, 8, 3), np.uint8)])
def test_a_request_without_a_recording_is_refused(loaded, clip, events):
    with pytest.raises(CrossdraftError, match="chooses by events, and the request has no recording"):
        compressed(loaded, "eventprune:keep=0.6").prepare(cd.Request("What?", str(clip.video), events))


@encodes_clips
def test_what_the_reader_of_a_recording_notes_is_said(loaded, clip):
    made = compressed(loaded, "eventprune:keep=0.6")
    asked = [cd.Request("What?", str(clip.video), one) for one in (corner(2, 0, 0), corner(2, 0, 0).noting(["A gap."]))]
    assert ["A gap." in made.prepare(one).notes for one in asked] == [False, True]


@encodes_clips
def test_a_still_recording_and_a_text_are_read(loaded, clip):
    made = compressed(loaded, "eventprune:keep=0.6")
    still = cd.Request("What?", str(clip.video), Events.empty(64, 64), max_new_tokens=4)
    text = cd.Request(messages=[{"role": "user", "content": "What?"}], max_new_tokens=4)
    answers = [DecodeLoop(made, None).generate([one])[0] for one in (still, text)]
    assert [one.stats.lossless for one in answers] == [False, True]


@pytest.mark.parametrize(
    ("spec", "model", "part"),
    [
        ("eventprune:keep=0.3", "video_llava", r"keep=0.3 leaves 1; eventprune takes two or more"),
        ("eventprune:keep=0", "video_llava", "a number above 0 and at most 1"),
        ("eventprune:floor=2", "video_llava", "a number from 0 to 1"),
        ("eventprune", "qwen2_5_vl", "no grid of patches"),
        ("eventprune", "llava_onevision", "frames crossdraft prepares itself"),
    ],
)
def test_what_cannot_be_is_refused(spec, model, part, pair):
    target = (
        load_target(str(pair.target), "cpu", "float64", packed=False)
        if model == "video_llava"
        else as_target(*ZOO[model]())
    )
    with pytest.raises(CrossdraftError, match=part):
        compressed(target, spec)
