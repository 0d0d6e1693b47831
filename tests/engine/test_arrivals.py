"""Frames on their way: who listens gets each of them once, and a drafter reads the first ones without a gap."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from crossdraft.engine.arrivals import ArrivedFeatures, FrameFeatures, VisualFuture
from crossdraft.engine.drafter import Needs

ROWS = torch.arange(8 * 2 * 3.0).view(16, 3)  # of 8 frames, two rows each


def frame(number, total=8):
    return FrameFeatures(number, total, ROWS[2 * number : 2 * number + 2])


def test_who_listens_gets_earlier_and_later_frames_once_each():
    features, early, late = VisualFuture((3,)), [], []
    features.on_frame(early.append)
    with ThreadPoolExecutor(1) as encoder:
        encoder.submit(features.add_frame, frame(0)).result()
    features.on_frame(late.append)
    assert not features.all_frames
    features.add_frame(frame(3))
    features.add_frame(frame(7))
    assert [one.number for one in early] == [one.number for one in late] == [0, 3, 7]
    assert features.all_frames
    assert not VisualFuture((3,)).all_frames


def test_what_several_drafters_want_is_wanted_once():
    needs = Needs.of_all([Needs(visual_frames=(4,)), Needs(visual=True), Needs(visual_frames=(3,))])
    assert (needs.visual, needs.visual_frames) == (True, (3, 4))
    assert VisualFuture(needs.visual_frames).wanted(8) == [0, 3, 7, 2, 4]


def test_frames_are_read_in_order_and_without_a_gap():
    features = ArrivedFeatures()
    counts = []
    for number in (7, 0, 3):
        features.add_frame(frame(number))
        counts.append(len(features.first(3, 2)))
    assert counts == [0, 1, 3]
    assert torch.equal(torch.cat(features.first(3, 2)), ROWS.view(8, 2, 3)[[0, 3, 7]].flatten(0, 1))
    assert [len(features.first(count, 2)) for count in (2, 4)] == [2, 1]  # of 0, 2, 4, 7 the first alone is here


def test_all_at_once_is_what_the_frames_are():
    features = ArrivedFeatures()
    features.end(ROWS)
    assert torch.equal(torch.cat(features.first(3, 2)), ROWS.view(8, 2, 3)[[0, 3, 7]].flatten(0, 1))
    assert features.first(3, 5)[0] is ROWS  # no frames of five rows: the network says so


@pytest.mark.parametrize("number", [None, 0])
def test_what_will_not_come_is_not_there(number):
    features = ArrivedFeatures()
    if number is not None:
        features.add_frame(frame(number))
    features.end(None)
    assert features.ended
    assert len(features.first(3, 2)) == (number is not None)
