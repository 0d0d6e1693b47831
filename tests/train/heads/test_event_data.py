"""Event features of captured clips: the model's own, encoded once, whatever order the steps come in."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from crossdraft.drafters.event.load import load_drafter
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.heads.glance.network import GlanceConfig
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft_lab.train.capture.shard import CapturedAnswer
from crossdraft_lab.train.capture.sources import PromptedClip, SceneSource
from crossdraft_lab.train.heads.event_data import (
    EpochSampler,
    FeatureCache,
    GlanceData,
    NoFeatures,
    clip_events,
    first_answers,
)
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
    cache = FeatureCache(model, Listed(clip.events, clip.events), 0, tmp_path, "me")
    own = model.encode(model.prepare(Request("another question?", events=str(clip.events))))
    with torch.autocast("cpu", torch.bfloat16):
        visual = cache.visual(0, [1, 0])
    assert visual.dtype == torch.float32
    assert torch.allclose(visual, own["video"].pooler_output.expand(2, -1, -1), atol=1e-6)


def test_a_clip_is_encoded_once_and_not_again_after_an_interruption(model, clip, tmp_path, monkeypatch):
    source, encoded = Listed(clip.events, clip.events), []
    encode = FeatureCache._encode
    monkeypatch.setattr(FeatureCache, "_encode", lambda cache, clip: encoded.append(clip) or encode(cache, clip))
    monkeypatch.setattr("crossdraft_lab.train.heads.event_data.WRITE_EVERY", 2)
    cache = FeatureCache(model, source, 0, tmp_path, "me")
    first = cache.visual(0, [0])
    assert not cache.file.exists()
    both = cache.visual(1, [0, 1, 0])
    assert encoded == [0, 1]
    assert torch.equal(both[0], first[0])
    again = FeatureCache(model, source, 0, tmp_path, "me")
    assert torch.equal(again.visual(2, [1, 0]), both[[1, 0]])
    assert encoded == [0, 1]
    others = FeatureCache(model, source, 0, tmp_path, "another model, or other clips")
    others.visual(0, [0])
    assert encoded == [0, 1, 0]


def test_features_in_another_precision_are_others(pair, tmp_path):
    models = [load_drafter(str(pair.event), "cpu", dtype, packed=False).model for dtype in ("float32", "bfloat16")]
    files = {FeatureCache(model, Listed(), 0, tmp_path, "me").file for model in models}
    assert len(files) == 2


def test_where_nothing_can_be_written_nothing_is_kept(model, clip, tmp_path, monkeypatch):
    monkeypatch.setattr("crossdraft_lab.train.heads.event_data.WRITE_EVERY", 1)
    (tmp_path / "full").write_bytes(b"")  # a file where a folder is needed
    cache = FeatureCache(model, Listed(clip.events), 0, tmp_path / "full", "me")
    assert torch.equal(cache.visual(0, [0]), cache.visual(1, [0]))


def test_a_damaged_file_is_encoded_again(model, clip, tmp_path):
    file = FeatureCache(model, Listed(clip.events), 0, tmp_path, "me").file
    file.parent.mkdir()
    file.write_bytes(b"nothing of the kind")
    assert FeatureCache(model, Listed(clip.events), 0, tmp_path, "me").cached == {}


def test_a_clip_without_events_is_named_before_any_is_encoded(model, clip, tmp_path):
    with pytest.raises(CrossdraftError, match="clip-2 of the capture has no events"):
        FeatureCache(model, Listed(clip.events, clip.events, None), 0, tmp_path, "me")


def test_scenes_are_those_that_were_captured():
    source = SceneSource(clips=3)
    later = replace(source, clips=2, first=1)
    streams = [clip_events(source, 1), clip_events(later, 0), clip_events(source, 0)]
    assert len(streams[0]) == len(streams[1]) != len(streams[2])
    assert (streams[0].t == streams[1].t).all()


def test_a_blind_head_gets_no_features():
    assert NoFeatures(5, 0).visual(0, [1, 2]).numel() == 0


FRAME, TEXT = 9, 1  # ids: of a visual feature, of a word in front of them
EACH = 2  # questions about a clip


class Captured:
    """Answers 10 and 11 are about clip 0, 20 and 21 about clip 1; feature i of a clip is [i, clip]."""

    folder = "here"

    def __init__(self, frames: int, patches: int) -> None:
        self.count = frames * patches

    def answer(self, index, visual_layers):
        assert visual_layers == (0,)
        clip = index // 10 - 1
        features = torch.tensor([[-1.0, -1.0], *([float(i), float(clip)] for i in range(self.count))])
        ids = torch.tensor([TEXT, *[FRAME] * self.count])
        return CapturedAnswer(torch.zeros(0, dtype=torch.long), 0, {}, ids, {0: features})


def answers(frames: int = 4, patches: int = 3, looked_at: int = 2, wanted_patches: int = 3) -> GlanceData:
    config = GlanceConfig(
        hidden_size=8, vocab_size=20, num_layers=2, draft_ids=(1,), tower="x", visual_size=2, patches=wanted_patches,
        frames=looked_at, heads=2,
    )  # fmt: skip
    rows = torch.zeros(2 * EACH, 5, dtype=torch.long)
    batch = TrainBatch(rows, {2: torch.randn(2 * EACH, 5, 8)}, torch.full((4,), 2), torch.full((4,), 5))
    behind = SimpleNamespace(batch=lambda step: batch, numbers=lambda step: [1, 0])
    return GlanceData(behind, Captured(frames, patches), {0: 10, 1: 20}, {FRAME}, config)


def test_the_frames_read_are_spread_over_the_clip_and_text_is_left_out():
    assert answers().frame_features(0)[:, 0].tolist() == [0, 1, 2, 9, 10, 11]  # the first frame and the last
    assert answers(looked_at=3).frame_features(1).tolist() == [[i, 1] for i in (0, 1, 2, 3, 4, 5, 9, 10, 11)]


def test_frame_features_are_those_of_the_answers_clip():
    found = answers().batch(0)
    assert found.visual[0].shape == (4, 6, 2)
    assert found.visual[0][:, 0, 1].tolist() == [1, 1, 0, 0]


def test_another_number_of_features_a_frame_is_refused():
    with pytest.raises(CrossdraftError, match=r"has 12 visual features, not a multiple of .* patches=5"):
        answers(wanted_patches=5).frame_features(0)


def test_a_capture_without_clips_is_refused():
    with pytest.raises(CrossdraftError, match="capture here has no visual features"):
        answers(frames=0).frame_features(0)


def test_the_first_answer_about_each_clip():
    clip_prompts = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert first_answers(range(5), clip_prompts.__getitem__) == {0: 0, 1: 2}
