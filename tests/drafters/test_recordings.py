"""An EventGPT that reads whole recordings: its tokens are those of the plain encoder, where it leaves nothing out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from crossdraft.drafters import recordings
from crossdraft.drafters.event.load import load_drafter
from crossdraft.drafters.recordings import PIXELS, RecordingEncoder, RecordingPrompt
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.errors import CrossdraftError
from crossdraft.events import Excerpt, adaptive_windows, eventgpt_frames, write_events
from crossdraft.load import load_target
from crossdraft.methods import build_spec, read_spec
from crossdraft.models.eventgpt import EventGPTProcessor
from crossdraft.records import DrafterContext
from crossdraft.video.preprocess import preprocess
from tests.events.helpers import made_up

LONG = made_up(6_000, 28, 28, span_us=5_000_000)


@pytest.fixture(scope="module")
def plain(pair):
    """The tiny EventGPT: 5 frames of 2 x 2 patches."""
    return load_drafter(str(pair.event), "cpu", "float32", packed=False).model


@pytest.fixture(scope="module")
def processor(pair) -> EventGPTProcessor:
    return EventGPTProcessor.from_pretrained(pair.event)


def reading(plain, processor, slices: int) -> Any:
    prompt = RecordingPrompt(processor, slices)
    return plain.reading(prompt, RecordingEncoder(plain, prompt))


def tokens(target, events: object) -> torch.Tensor:
    return target.encode(target.prepare(Request("Why?", events=events)))["video"].pooler_output


def test_as_many_slices_as_frames_are_the_model_s_own_tokens(plain, processor):
    target = reading(plain, processor, 5)
    prompt = target.prepare(Request("Why?", events=LONG))
    assert prompt.features[PIXELS].shape == (1, 5, 3, 28, 28)
    with torch.inference_mode():
        own = plain.model.base_model.get_video_features(prompt.features[PIXELS]).pooler_output
    assert torch.allclose(tokens(target, LONG), own, atol=1e-5)


def test_more_slices_are_merged_by_hand(plain, processor):
    """Ten frames: temporal token i is the mean of those of frames 2i and 2i + 1, a spatial one of all ten."""
    target = reading(plain, processor, 10)
    windows = [LONG.take(rows) for rows in adaptive_windows(LONG, 10, 500_000)]
    frames = [preprocess(torch.from_numpy(eventgpt_frames(one, 1)), processor.frame_spec) for one in windows]
    inner = plain.model.base_model
    with torch.inference_mode():
        projected = inner.multi_modal_projector(inner.vision_tower(torch.cat(frames)).last_hidden_state)
        temporal = [(projected[2 * i].mean(0) + projected[2 * i + 1].mean(0)) / 2 for i in range(5)]
        expected = inner.event_adaptor(torch.cat([torch.stack(temporal), projected.mean(0)]))
    assert torch.allclose(tokens(target, LONG)[0], expected, atol=1e-5)


@pytest.mark.parametrize(("window_us", "longest"), [(1_000_000, 500_000), (50_000, 25_000), (None, 500_000)])
def test_windows_are_no_longer_than_half_of_what_the_model_was_trained_on(processor, window_us, longest):
    options = replace(processor.options, window_us=window_us)
    prompt = RecordingPrompt(EventGPTProcessor(processor.config, processor.tokenizer, options), 5)
    assert prompt.longest_us == longest


def test_a_recording_is_read_whole_however_it_comes(plain, processor, tmp_path):
    write_events(tmp_path / "a.h5", LONG)
    target, found = reading(plain, processor, 5), tokens(reading(plain, processor, 5), LONG)
    for given in (tmp_path / "a.h5", str(tmp_path / "a.h5"), Excerpt(tmp_path / "a.h5")):
        assert torch.equal(tokens(target, given), found)
    assert not torch.allclose(found, tokens(target, LONG.slice(4_000_000, 1 << 60)), atol=1e-3)


def test_only_the_newest_of_very_many_events_are_read(plain, processor, monkeypatch):
    monkeypatch.setattr(recordings, "MOST_EVENTS", 1_000)
    target = reading(plain, processor, 5)
    assert torch.equal(tokens(target, LONG), tokens(target, LONG.take(slice(5_000, None))))


def test_a_spec_asks_for_it_and_drafts_are_lossless(pair):
    target = load_target(str(pair.target), "cpu", "float32", packed=False)
    context = DrafterContext(str(pair.target), "cpu", "float32", target.vocab_size, packed=False)
    drafter = build_spec(read_spec(f"event:dir={pair.event},slices=10"), context)
    request = Request("Why?", torch.zeros(8, 28, 28, 3, dtype=torch.uint8).numpy(), LONG, max_new_tokens=16)
    alone = DecodeLoop(target).generate([request])[0]
    drafted = DecodeLoop(target, DraftRunner(drafter, "before"), adaptive=False).generate([request])[0]
    assert drafted.tokens == alone.tokens
    assert drafted.stats.drafted


@pytest.mark.parametrize(("slices", "part"), [(7, "a multiple of that, not 7"), (0, "not 0")])
def test_what_cannot_be_merged_is_refused(processor, slices, part):
    with pytest.raises(CrossdraftError, match=part):
        RecordingPrompt(processor, slices)


def test_a_request_needs_a_recording(plain, processor):
    with pytest.raises(CrossdraftError, match="reads an event recording"):
        reading(plain, processor, 5).prepare(Request("Why?"))
    with pytest.raises(CrossdraftError, match="lays its own windows"):
        reading(plain, processor, 5).prepare(Request("Why?", events=Excerpt(Path("a.h5"), windows=2)))
    with pytest.raises(CrossdraftError, match="blind model"):
        blind = replace(processor.options, blind=True)
        RecordingPrompt(EventGPTProcessor(processor.config, processor.tokenizer, blind), 5)
