"""A checkpoint that cannot be resumed from, or is another training's, is refused with a sentence."""

from pathlib import Path

import pytest
import torch
from torch import nn

from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.core.checkpoint import (
    config_fingerprint,
    read_checkpoint,
    read_weights,
    require_same_config,
    restore_optimiser,
    restore_tensors,
    restore_weights,
    write_checkpoint,
)
from crossdraft_lab.train.core.dist import Distributed, full_batch
from crossdraft_lab.train.core.trainer import AveragedWeights, Stage, Trainer
from tests.train.core import learner


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "fit.ckpt", state_of(nn.Linear(3, 2)))
    return tmp_path / "fit.ckpt"


def state_of(model: nn.Module) -> dict[str, object]:
    optimiser = torch.optim.AdamW(model.parameters())
    return {"modules": model.state_dict(), "optimiser": optimiser.state_dict(), "step": 7, "spent": 1.5}


def test_what_was_written_is_read(written: Path) -> None:
    state = read_checkpoint(written)
    assert (state["step"], state["spent"], state["modules"]["weight"].shape) == (7, 1.5, (2, 3))


@pytest.mark.parametrize("kept", [0, 10, 600, -10], ids=["nothing", "head", "half", "all but the end"])
def test_a_damaged_file_is_refused(written: Path, kept: int) -> None:
    written.write_bytes(written.read_bytes()[:kept])
    with pytest.raises(CrossdraftError, match=r"fit\.ckpt is damaged; remove it"):
        read_checkpoint(written)


def test_a_file_of_words_and_one_of_other_tensors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "words.ckpt").write_text("so many words")
    with pytest.raises(CrossdraftError, match="is damaged"):
        read_checkpoint(tmp_path / "words.ckpt")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.ckpt")
    with pytest.raises(CrossdraftError, match="is none of a training stage"):
        read_checkpoint(tmp_path / "other.ckpt")


@pytest.mark.parametrize("other", [nn.Linear(3, 4), nn.Sequential(nn.Linear(3, 2))], ids=["shape", "names"])
def test_weights_of_another_network_are_refused(written: Path, other: nn.Module) -> None:
    with pytest.raises(CrossdraftError, match="of another network than the recipe's; choose another --out"):
        restore_weights(other, read_checkpoint(written)["modules"], written)


def test_moments_of_other_parameters_are_refused(written: Path) -> None:
    frozen = torch.optim.AdamW([nn.Linear(3, 2).weight])
    with pytest.raises(CrossdraftError, match="of another network"):
        restore_optimiser(frozen, read_checkpoint(written)["optimiser"], written)


def test_averages_of_other_parameters_are_refused(written: Path) -> None:
    values = read_checkpoint(written)["modules"]
    for other in (nn.Linear(3, 4), nn.Sequential(nn.Linear(3, 2))):
        with pytest.raises(CrossdraftError, match="of another network"):
            restore_tensors(AveragedWeights(other, 0.9).values, values, written)


def test_weights_alone_are_no_checkpoint_but_a_checkpoint_has_weights(written: Path, tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    write_checkpoint(tmp_path / "best.ckpt", {"modules": model.state_dict(), "step": 4})
    assert torch.equal(read_weights(tmp_path / "best.ckpt")["weight"], model.weight)
    with pytest.raises(CrossdraftError, match="is none of a training stage"):
        read_checkpoint(tmp_path / "best.ckpt")
    assert read_weights(written).keys() == {"weight", "bias"}


def test_ranks_behind_the_first_write_nothing(tmp_path: Path) -> None:
    second, model = Distributed(rank=1), nn.Linear(3, 2)
    write_checkpoint(tmp_path / "fit.ckpt", state_of(model), second)
    assert list(tmp_path.iterdir()) == []


OURS = {"network": "eagle", "target": "ab" * 32, "config": {"heads": 2, "ids": (3, 4)}, "seed": 0}


def run_as(folder: Path, identity, steps: int = 2) -> None:
    head = learner.fresh()
    loss_of = full_batch(lambda step: (head.mix(torch.ones(1, 12)).square().sum(), {}))
    Trainer(Stage(folder, "train", learner.settings(steps=steps), identity), head, loss_of).run()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"network": "eagle3"}, "its network is eagle, not eagle3; choose another --out, or delete it."),
        ({"target": "cd" * 32}, "its target is abababababab…, not cdcdcdcdcdcd…"),
        ({"config": {"heads": 4, "ids": (3,)}, "seed": 1}, "its config.heads is 2, not 4"),
        ({"config": {"heads": 2, "ids": (3, 5)}}, r"its config.ids is \[3, 4\], not \[3, 5\]"),
        ({"config": {"heads": 2, "ids": (3, 4), "kv": 1}}, "its config.kv is left out, not 1"),
        ({"config": {"heads": 2}}, r"its config.ids is \[3, 4\], not left out"),
    ],
)
@pytest.mark.parametrize("steps", [2, 4])
def test_the_first_setting_that_differs_is_named(tmp_path, change, sentence, steps):
    run_as(tmp_path, OURS)
    before = (tmp_path / "train.ckpt").read_bytes()
    with pytest.raises(CrossdraftError, match=rf"train\.ckpt is of another training: {sentence}"):
        run_as(tmp_path, OURS | change, steps)
    assert (tmp_path / "train.ckpt").read_bytes() == before


def test_the_same_training_resumes(tmp_path):
    run_as(tmp_path, OURS)
    run_as(tmp_path, OURS, 4)
    assert len((tmp_path / "train.log.jsonl").read_text().splitlines()) == 4


def test_a_checkpoint_without_is_believed_and_a_stage_without_asks_nothing(tmp_path):
    run_as(tmp_path, None)
    run_as(tmp_path, OURS, 4)
    with pytest.raises(CrossdraftError, match="its seed is 0, not 1"):  # from here on it is known whose it is
        run_as(tmp_path, OURS | {"seed": 1}, 6)
    run_as(tmp_path, None, 6)


def test_an_identity_is_compared_as_a_checkpoint_gives_it_back():
    assert config_fingerprint(OURS)["config"] == {"heads": 2, "ids": [3, 4]}
    require_same_config(config_fingerprint(OURS), OURS, Path("x"))


def test_into_how_many_passes_a_step_is_cut_decides_nothing():
    """Where a training says so; checkpoints of earlier versions name it."""
    kept, ours = {"optim": {"accumulate": 4, "parallel": "ddp", "steps": 9}}, {"optim": {"steps": 9}}
    require_same_config(kept, ours, Path("x"))
    require_same_config(ours, ours, Path("x"))
    with pytest.raises(CrossdraftError, match=r"its optim\.accumulate is 4, not 1"):
        require_same_config(kept, {"optim": {"accumulate": 1, "steps": 9}}, Path("x"))
    with pytest.raises(CrossdraftError, match=r"its optim\.steps is 9, not 8"):
        require_same_config(kept, {"optim": {"steps": 8}}, Path("x"))
