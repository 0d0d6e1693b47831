"""A checkpoint that cannot be gone on from is told in a sentence."""

from pathlib import Path

import pytest
import torch
from torch import nn

from crossdraft.errors import CrossdraftError
from crossdraft.train.core.average import Average
from crossdraft.train.core.checkpoint import (
    read_checkpoint,
    read_weights,
    take_average,
    take_optimiser,
    take_weights,
    write_checkpoint,
    write_weights,
)
from crossdraft.train.core.dist import Ranks


@pytest.fixture
def written(tmp_path: Path) -> Path:
    model = nn.Linear(3, 2)
    write_checkpoint(tmp_path / "fit.ckpt", model, torch.optim.AdamW(model.parameters()), 7, 1.5)
    return tmp_path / "fit.ckpt"


def test_what_was_written_is_read(written: Path) -> None:
    state = read_checkpoint(written)
    assert (state["step"], state["spent"], state["modules"]["weight"].shape) == (7, 1.5, (2, 3))


@pytest.mark.parametrize("kept", [0, 10, 600, -10], ids=["nothing", "head", "half", "all but the end"])
def test_a_damaged_file_is_told(written: Path, kept: int) -> None:
    written.write_bytes(written.read_bytes()[:kept])
    with pytest.raises(CrossdraftError, match=r"fit\.ckpt is damaged; remove it"):
        read_checkpoint(written)


def test_a_file_of_words_and_one_of_other_tensors_are_told(tmp_path: Path) -> None:
    (tmp_path / "words.ckpt").write_text("so many words")
    with pytest.raises(CrossdraftError, match="is damaged"):
        read_checkpoint(tmp_path / "words.ckpt")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.ckpt")
    with pytest.raises(CrossdraftError, match="is none of a training stage"):
        read_checkpoint(tmp_path / "other.ckpt")


@pytest.mark.parametrize("other", [nn.Linear(3, 4), nn.Sequential(nn.Linear(3, 2))], ids=["shape", "names"])
def test_weights_of_another_network_are_told(written: Path, other: nn.Module) -> None:
    with pytest.raises(CrossdraftError, match="of another network than the recipe's; choose another --out"):
        take_weights(other, read_checkpoint(written)["modules"], written)


def test_moments_of_other_parameters_are_told(written: Path) -> None:
    frozen = torch.optim.AdamW([nn.Linear(3, 2).weight])
    with pytest.raises(CrossdraftError, match="of another network"):
        take_optimiser(frozen, read_checkpoint(written)["optimiser"], written)


def test_averages_of_other_parameters_are_told(written: Path) -> None:
    values = read_checkpoint(written)["modules"]
    for other in (nn.Linear(3, 4), nn.Sequential(nn.Linear(3, 2))):
        with pytest.raises(CrossdraftError, match="of another network"):
            take_average(Average(other, 0.9), values, written)


def test_weights_alone_are_no_checkpoint_but_a_checkpoint_has_weights(written: Path, tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    write_weights(tmp_path / "best.ckpt", model, 4)
    assert torch.equal(read_weights(tmp_path / "best.ckpt")["weight"], model.weight)
    with pytest.raises(CrossdraftError, match="is none of a training stage"):
        read_checkpoint(tmp_path / "best.ckpt")
    assert read_weights(written).keys() == {"weight", "bias"}


def test_ranks_behind_the_first_write_nothing(tmp_path: Path) -> None:
    second, model = Ranks(rank=1), nn.Linear(3, 2)
    write_weights(tmp_path / "best.ckpt", model, 4, second)
    write_checkpoint(tmp_path / "fit.ckpt", model, torch.optim.AdamW(model.parameters()), 7, 1.5, ranks=second)
    assert list(tmp_path.iterdir()) == []
