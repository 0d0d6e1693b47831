"""The training loop: its schedule, and that stopping changes nothing."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from crossdraft.errors import CrossdraftError
from crossdraft.train.loop import Stage, learning_rate, load_weights, optimise
from crossdraft.train.recipe import Optim


def optim(steps: int) -> Optim:
    return Optim(steps=steps, decay_steps=0, warmup_steps=2, learning_rate=0.05, clips=3, checkpoint_every=2)


def fresh() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def train(folder: Path, steps: int, spoil: Callable[[int], float] = lambda step: 1.0) -> list[float]:
    """Logged losses of a run; `spoil` multiplies the loss of a step."""
    model = fresh()

    def loss_of(step: int) -> tuple[torch.Tensor, dict[str, float]]:
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
        return (model(x) - x.sum(1, keepdim=True)).square().mean() * spoil(step), {"seen": 3.0}

    optimise(Stage(folder, "fit", optim(steps)), model, loss_of)
    return [json.loads(line)["loss"] for line in (folder / "fit.log.jsonl").read_text().splitlines()]


def test_a_resumed_run_repeats_the_losses_of_an_unbroken_one(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 8)
    train(tmp_path / "broken", 4)
    assert train(tmp_path / "broken", 8) == whole


def test_a_log_line_that_was_cut_off_is_taken_again(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 8)
    train(tmp_path / "broken", 4)
    with (tmp_path / "broken" / "fit.log.jsonl").open("a") as log:
        log.write('{"step": 5, "sec')
    assert train(tmp_path / "broken", 8) == whole


def test_without_its_log_a_run_goes_on(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 8)
    train(tmp_path / "broken", 4)
    (tmp_path / "broken" / "fit.log.jsonl").unlink()
    assert train(tmp_path / "broken", 8) == whole[4:]


def test_what_was_logged_before_the_first_checkpoint_is_forgotten_with_it(tmp_path: Path) -> None:
    whole = train(tmp_path, 4)
    (tmp_path / "fit.ckpt").unlink()
    assert train(tmp_path, 4) == whole


def test_a_log_damaged_within_is_told(tmp_path: Path) -> None:
    train(tmp_path, 4)
    with (tmp_path / "fit.log.jsonl").open("a") as log:
        log.write('{"step": 5, "sec{"step": 5}\n')
    with pytest.raises(CrossdraftError, match=r"fit\.log\.jsonl is damaged; remove it"):
        train(tmp_path, 8)


@pytest.mark.parametrize("spoilt", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, spoilt: float
) -> None:
    """Checkpoints come every two steps: step 6 (index 5) must not overwrite that of step 4."""
    whole = train(tmp_path / "whole", 8)
    with pytest.raises(CrossdraftError, match=r"^Step 6 of broken/fit has loss (nan|inf) .*learning_rate"):
        train(tmp_path / "broken", 8, lambda step: spoilt if step == 5 else 1.0)
    assert train(tmp_path / "broken", 8) == whole


def test_a_gradient_that_is_no_number_stops_too(tmp_path: Path) -> None:
    """The root of nothing is a number, its slope is none."""
    model = fresh()

    def loss_of(step: int) -> tuple[torch.Tensor, dict[str, float]]:
        return (model(torch.ones(1, 4)) * 0).sqrt().sum(), {}

    with pytest.raises(
        CrossdraftError, match=r"Step 1 .* has loss 0.0 and a gradient of length nan; nothing is"
    ):
        optimise(Stage(tmp_path, "fit", optim(4)), model, loss_of)
    assert torch.equal(model.weight, fresh().weight)


def test_it_learns(tmp_path: Path) -> None:
    losses = train(tmp_path, 60)
    assert sum(losses[-10:]) < 0.1 * sum(losses[:10])


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    assert train(tmp_path, 4) == train(tmp_path, 4)


def test_a_later_phase_can_take_the_weights_alone(tmp_path: Path) -> None:
    train(tmp_path, 4)
    other = fresh()
    load_weights(Stage(tmp_path, "fit", optim(4)), other)
    assert not torch.equal(other.weight, fresh().weight)


@pytest.mark.parametrize(("step", "rate"), [(0, 0.25), (1, 0.5), (5, 0.5), (8, 0.25), (9, 0.125), (10, 0.0)])
def test_the_schedule_warms_up_holds_and_decays(step: int, rate: float) -> None:
    schedule = Optim(steps=10, decay_steps=4, warmup_steps=2, learning_rate=0.5, clips=1)
    assert learning_rate(schedule, step) == pytest.approx(rate)
