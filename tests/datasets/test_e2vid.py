import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, read_events, write_events
from crossdraft_lab.datasets.e2vid import E2vidNetwork, Reconstructor, normalised_voxels, voxel_grid
from tests.events.helpers import made_up


def weights(path, norm=False, transposed=True, encoders=3):
    torch.manual_seed(0)
    network = E2vidNetwork(5, 4, encoders, 2, norm, transposed)
    named = {f"unetrecurrent.{name}": tensor for name, tensor in network.state_dict().items()}
    save_file(named, path)
    return network, named


def test_a_voxel_grid_by_hand():
    # Times 0, 250, 1000 of 1000 µs in 5 bins: bin 0; bin 1; the last bin. Half way between two bins it is shared.
    events = Events.checked([0, 1, 2, 2], [0, 0, 1, 0], [0, 250, 375, 1000], [1, 0, 1, 1], 3, 2)
    grid = voxel_grid(events, 5)
    expected = np.zeros((5, 2, 3))
    expected[0, 0, 0], expected[1, 0, 1], expected[4, 0, 2] = 1, -1, 1
    expected[1, 1, 2] = expected[2, 1, 2] = 0.5
    assert grid == pytest.approx(expected)
    assert voxel_grid(Events.empty(3, 2), 5).sum() == 0


def test_normalised_where_something_is():
    grid = np.array([[[0, 2, 4, 6]]], np.float32)
    assert normalised_voxels(grid)[0, 0].tolist() == pytest.approx([0, -1, 0, 1])
    assert normalised_voxels(np.zeros((1, 2, 2), np.float32)).sum() == 0


@pytest.mark.parametrize(("norm", "transposed", "encoders"), [(False, True, 3), (True, False, 2), (True, True, 3)])
def test_sizes_are_read_off_the_weights(tmp_path, norm, transposed, encoders):
    network, named = weights(tmp_path / "a.safetensors", norm, transposed, encoders)
    loaded = Reconstructor.load(tmp_path / "a.safetensors")
    assert {f"unetrecurrent.{name}" for name in loaded.network.state_dict()} == set(named)
    for name, tensor in loaded.network.state_dict().items():
        assert torch.equal(tensor, network.state_dict()[name])


def test_names_are_those_of_the_release(tmp_path):
    _, named = weights(tmp_path / "a.safetensors", norm=True)
    for name in (
        "head.conv2d.weight", "encoders.0.conv.conv2d.weight", "encoders.2.conv.norm_layer.running_mean",
        "encoders.1.recurrent_block.Gates.bias", "resblocks.1.conv2.weight", "resblocks.0.bn1.weight",
        "decoders.0.transposed_conv2d.weight", "decoders.2.norm_layer.weight", "pred.conv2d.weight",
    ):  # fmt: skip
        assert f"unetrecurrent.{name}" in named


def test_frames_of_any_size_and_with_a_memory(tmp_path):
    weights(tmp_path / "a.safetensors")
    model = Reconstructor.load(tmp_path / "a.safetensors")
    events = made_up(4000, 50, 38)
    windows = [events.slice(start, start + 10_000) for start in range(0, 50_000, 10_000)]
    frames = list(model.frames(windows))
    assert [frame.shape for frame in frames] == [(38, 50, 3)] * 5
    again = list(model.frames(windows))
    assert all(np.array_equal(a, b) for a, b in zip(frames, again, strict=True)), "each call starts anew"
    alone = next(model.frames([windows[-1]]))
    assert not np.array_equal(alone, frames[-1]), "the frames before are remembered"


def test_what_is_no_such_file(tmp_path):
    save_file({"x": torch.zeros(2)}, tmp_path / "other.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"x" * 100)
    (tmp_path / "e2vid.pth.tar").write_bytes(b"x")
    for name in ("other.safetensors", "broken.safetensors", "gone.safetensors", "e2vid.pth.tar"):
        with pytest.raises(CrossdraftError, match=r"E2VID|must be \.safetensors") as caught:
            Reconstructor.load(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_a_recording_becomes_a_video(tmp_path):
    from crossdraft.video import sample_frames
    from crossdraft_lab.datasets.catalogue import open_dataset
    from crossdraft_lab.datasets.recorded import ClipPlan

    weights(tmp_path / "a.safetensors")
    (tmp_path / "data").mkdir()
    write_events(tmp_path / "data" / "boxes.txt", made_up(2000, 48, 32, 0, 450_000))
    plan = ClipPlan(tmp_path / "out", 0.2, questions=("What is it?",), weights=tmp_path / "a.safetensors")
    found = list(open_dataset(tmp_path / "data", "e2vid", plan).samples("boxes"))
    assert len(found) == 2
    assert read_events(found[1].events).t0 >= 200_000
    frames = sample_frames(found[0].video, 4).frames
    assert frames.shape == (4, 32, 48, 3)
    assert int((frames.max(-1).values - frames.min(-1).values).max()) < 12, "grey"


def test_the_weights_are_loaded_once_for_all_clips(tmp_path, monkeypatch):
    from crossdraft_lab.datasets.catalogue import open_dataset
    from crossdraft_lab.datasets.recorded import ClipPlan

    weights(tmp_path / "a.safetensors")
    (tmp_path / "data").mkdir()
    write_events(tmp_path / "data" / "boxes.txt", made_up(2000, 48, 32, 0, 450_000))
    loaded, load = [], Reconstructor.load
    monkeypatch.setattr(Reconstructor, "load", lambda path: (loaded.append(path), load(path))[1])
    plan = ClipPlan(tmp_path / "out", 0.2, questions=("What is it?",), weights=tmp_path / "a.safetensors")
    assert len(list(open_dataset(tmp_path / "data", "e2vid", plan).samples("boxes"))) == 2
    assert loaded == [tmp_path / "a.safetensors"]
