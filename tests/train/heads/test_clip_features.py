"""Event features of captured clips: the model's own, encoded once, whatever order the steps come in."""

from dataclasses import replace

import pytest
import torch

from crossdraft.drafters.event.load import load_drafter
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.capture.sources import PromptedClip, SceneSource
from crossdraft_lab.train.heads.batches import EpochSampler
from crossdraft_lab.train.heads.clip_features import ClipFeatures, FeatureCache, clip_events, event_features
from tests.support import tiny_clip, tiny_pair


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return tiny_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def model(pair):
    return load_drafter(str(pair.event), "cpu", "float32", packed=False).model


class Listed:
    """Clips of a list, as far as a cache encoded."""

    def __init__(self, *events) -> None:
        self.events = [None if path is None else str(path) for path in events]

    def __len__(self) -> int:
        return len(self.events)

    def read(self, index):
        return PromptedClip(f"clip-{index}", "clip.mp4", ("what?",), self.events[index])


def test_every_epoch_takes_every_clip_once():
    sampler = EpochSampler(7, seed=3)
    epochs = [[sampler.numbers(step, 2) for step in range(3 * epoch, 3 * epoch + 3)] for epoch in range(2)]
    for epoch in epochs:
        walked = [clip for clips in epoch for clip in clips]
        assert len(walked) == len(set(walked)) == 6
    assert epochs[0] != epochs[1]
    assert sampler.numbers(4, 2) == EpochSampler(7, seed=3).numbers(4, 2)
    assert sorted(sampler.numbers(0, 99)) == list(range(7))


@torch.inference_mode()
def test_features_are_the_models_own_even_where_training_is_coarse(model, clip, tmp_path):
    cache = event_features(model, Listed(clip.events, clip.events), 0, tmp_path, "me")
    own = model.encode(model.prepare(Request("another question?", events=str(clip.events))))
    with torch.autocast("cpu", torch.bfloat16):
        visual = cache.visual(0, [1, 0])
    assert visual.dtype == torch.float32
    assert torch.allclose(visual, own["video"].pooler_output.expand(2, -1, -1), atol=1e-6)


def test_a_clip_is_encoded_once_and_not_again_after_an_interruption(model, clip, tmp_path, monkeypatch):
    source, encoded = Listed(clip.events, clip.events), []
    encode = FeatureCache._encoded
    monkeypatch.setattr(FeatureCache, "_encoded", lambda cache, clip: encoded.append(clip) or encode(cache, clip))
    monkeypatch.setattr("crossdraft_lab.train.heads.clip_features.WRITE_EVERY", 2)
    cache = event_features(model, source, 0, tmp_path, "me")
    first = cache.visual(0, [0])
    assert not cache.file.exists()
    both = cache.visual(1, [0, 1, 0])
    assert encoded == [0, 1]
    assert torch.equal(both[0], first[0])
    again = event_features(model, source, 0, tmp_path, "me")
    assert torch.equal(again.visual(2, [1, 0]), both[[1, 0]])
    assert encoded == [0, 1]
    others = event_features(model, source, 0, tmp_path, "another model, or other clips")
    others.visual(0, [0])
    assert encoded == [0, 1, 0]


def test_features_in_another_precision_are_others(pair, tmp_path):
    models = [load_drafter(str(pair.event), "cpu", dtype, packed=False).model for dtype in ("float32", "bfloat16")]
    files = {event_features(model, Listed(), 0, tmp_path, "me").file for model in models}
    assert len(files) == 2


def test_where_nothing_can_be_written_nothing_is_kept(model, clip, tmp_path, monkeypatch):
    monkeypatch.setattr("crossdraft_lab.train.heads.clip_features.WRITE_EVERY", 1)
    (tmp_path / "full").write_bytes(b"")  # a file where a folder is needed
    cache = event_features(model, Listed(clip.events), 0, tmp_path / "full", "me")
    assert torch.equal(cache.visual(0, [0]), cache.visual(1, [0]))


def test_a_damaged_file_is_encoded_again(model, clip, tmp_path):
    file = event_features(model, Listed(clip.events), 0, tmp_path, "me").file
    file.parent.mkdir()
    file.write_bytes(b"nothing of the kind")
    assert event_features(model, Listed(clip.events), 0, tmp_path, "me").cached == {}


def test_a_clip_without_events_is_named_before_any_is_encoded(model, clip, tmp_path):
    with pytest.raises(CrossdraftError, match="clip-2 of the capture has no events"):
        event_features(model, Listed(clip.events, clip.events, None), 0, tmp_path, "me")


def test_scenes_are_those_that_were_captured():
    source = SceneSource(clips=3)
    later = replace(source, clips=2, first=1)
    streams = [clip_events(source, 1), clip_events(later, 0), clip_events(source, 0)]
    assert len(streams[0]) == len(streams[1]) != len(streams[2])
    assert (streams[0].t == streams[1].t).all()


def test_a_blind_head_gets_no_features():
    assert ClipFeatures(5, 0).visual(0, [1, 2]).numel() == 0


def test_clips_of_other_sizes_are_refused(model, tmp_path):
    """Clip 1 has a frame less than clip 0."""
    cache = FeatureCache("kind", lambda clip: torch.zeros(3 - clip, 5), model, Listed(None, None), 0, tmp_path, "me")
    with pytest.raises(CrossdraftError, match=r"Clip 1 of the capture has features of the shape \(2, 5\), .* \(3, 5\)"):
        cache.visual(0, [0, 1])
