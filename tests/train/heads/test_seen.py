"""What an event model sees of captured clips: its own features, looked at once, whatever order the steps come in."""

from dataclasses import replace

import pytest
import torch

from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_drafter
from crossdraft.train.capture.clip import PromptedClip
from crossdraft.train.capture.sources import SceneSource
from crossdraft.train.heads.event_data import Seen, Unseen, Walk, events_of
from tests.support import tiny_clip, tiny_pair


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return tiny_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    pair = tiny_pair(tmp_path_factory.mktemp("pair"))
    return load_drafter(str(pair.event), "cpu", "float32", packed=False).model


class Listed:
    """Clips of a list, as far as a sight looks."""

    def __init__(self, *events) -> None:
        self.events = [None if path is None else str(path) for path in events]

    def __len__(self) -> int:
        return len(self.events)

    def read(self, index):
        return PromptedClip(f"clip-{index}", "clip.mp4", ("what?",), self.events[index])


def test_every_epoch_walks_once_round_all_clips():
    walk = Walk(7, seed=3)
    epochs = [[walk.clips(step, 2) for step in range(3 * epoch, 3 * epoch + 3)] for epoch in range(2)]
    for epoch in epochs:
        walked = [clip for clips in epoch for clip in clips]
        assert len(walked) == len(set(walked)) == 6
    assert epochs[0] != epochs[1]
    assert walk.clips(4, 2) == Walk(7, seed=3).clips(4, 2)
    assert sorted(walk.clips(0, 99)) == list(range(7))


@torch.inference_mode()
def test_features_are_the_models_own_even_where_training_is_coarse(model, clip, tmp_path):
    sight = Seen(model, Listed(clip.events, clip.events), 0, tmp_path / "seen.safetensors", "me")
    own = model.encode(model.prepare(Request("another question?", events=str(clip.events))))
    with torch.autocast("cpu", torch.bfloat16):
        seen = sight.visual(0, [1, 0])
    assert seen.dtype == torch.float32
    assert torch.allclose(seen, own["video"].pooler_output.expand(2, -1, -1), atol=1e-6)


def test_a_clip_is_looked_at_once_and_not_again_after_an_interruption(model, clip, tmp_path, monkeypatch):
    file, source, looks = tmp_path / "seen.safetensors", Listed(clip.events, clip.events), []
    look = Seen._look
    monkeypatch.setattr(Seen, "_look", lambda sight, clip: looks.append(clip) or look(sight, clip))
    monkeypatch.setattr("crossdraft.train.heads.event_data.KEPT_EVERY", 2)
    sight = Seen(model, source, 0, file, "me")
    first = sight.visual(0, [0])
    assert not file.exists()
    both = sight.visual(1, [0, 1, 0])
    assert looks == [0, 1]
    assert torch.equal(both[0], first[0])
    again = Seen(model, source, 0, file, "me")
    assert torch.equal(again.visual(2, [1, 0]), both[[1, 0]])
    assert looks == [0, 1]
    others = Seen(model, source, 0, file, "another model, or other clips")
    others.visual(0, [0])
    assert looks == [0, 1, 0]


def test_a_damaged_file_is_looked_at_again(model, clip, tmp_path):
    file = tmp_path / "seen.safetensors"
    file.write_bytes(b"nothing of the kind")
    assert Seen(model, Listed(clip.events), 0, file, "me").known == {}


def test_a_clip_without_events_is_named_before_any_is_looked_at(model, clip, tmp_path):
    with pytest.raises(CrossdraftError, match="clip-2 of the capture has no events"):
        Seen(model, Listed(clip.events, clip.events, None), 0, tmp_path / "seen.safetensors", "me")


def test_scenes_are_those_that_were_captured():
    source = SceneSource(clips=3)
    later = replace(source, clips=2, first=1)
    streams = [events_of(source, 1), events_of(later, 0), events_of(source, 0)]
    assert len(streams[0]) == len(streams[1]) != len(streams[2])
    assert (streams[0].t == streams[1].t).all()


def test_the_blind_see_nothing():
    assert Unseen(5, 0).visual(0, [1, 2]).numel() == 0
