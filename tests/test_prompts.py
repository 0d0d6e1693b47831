"""What a drafter reads of a recording that it is given as a path, an excerpt, or events in memory."""

from dataclasses import replace

import pytest
import torch

from crossdraft.drafters.event.load import EventPrompt
from crossdraft.engine.content import Content
from crossdraft.engine.request import Request
from crossdraft.events import Excerpt, read_events, write_events
from crossdraft.models.eventgpt import EventGPTProcessor
from tests.events.helpers import made_up

PIXELS = "pixel_values_videos"


@pytest.fixture
def prepare(pair):
    """Of an EventGPT whose window is a second."""
    return EventPrompt(EventGPTProcessor.from_pretrained(pair.event))


def test_a_clip_of_a_second_is_read_whole_however_it_comes(prepare, clip):
    events = read_events(clip.events)
    whole = prepare.processor.pixels(events)[None]
    for given in (clip.events, str(clip.events), events, Excerpt(clip.events), Excerpt(clip.events, 0, 1_000_000)):
        assert torch.equal(prepare(Request("Why?", events=given)).features[PIXELS], whole)


def test_of_a_long_recording_only_the_end_is_read_unless_asked(prepare, tmp_path):
    events = made_up(6000, start_us=10**9, span_us=5_000_000)
    write_events(tmp_path / "a.h5", events)
    pixels = prepare.processor.pixels
    last = pixels(events.slice(int(events.t[-1]) - 999_999, 1 << 60))[None]
    for given in (tmp_path / "a.h5", events, Excerpt(tmp_path / "a.h5")):
        assert torch.equal(prepare(Request("Why?", events=given)).features[PIXELS], last)
    second = Excerpt(tmp_path / "a.h5", 10**9 + 1_000_000, 10**9 + 1_500_000, whole=True)
    part = pixels(events.slice(10**9 + 1_000_000, 10**9 + 1_500_000))[None]
    assert torch.equal(prepare(Request("Why?", events=second)).features[PIXELS], part)
    spread = Excerpt(tmp_path / "a.h5", windows=2)
    found = prepare(Request("Why?", events=spread)).features[PIXELS]
    assert torch.equal(found[0], pixels(spread.read_windows(prepare.processor.window)))
    assert not torch.equal(found, last)


def test_what_the_reader_noted_is_the_prompt_s_note_though_the_features_are_cached(prepare):
    request = Request("Why?", events=made_up(600).noting(["The clock wrapped."]), content=Content(b"1"))
    for one in (request, replace(request, known=True), replace(request, content=None)):
        assert prepare(one).notes == ("The clock wrapped.",)
    assert prepare(replace(request, events=made_up(600), content=Content(b"2"))).notes == ()
