"""The training loop: stopping changes nothing, nor does cutting a step into passes."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft_lab.train.core.checkpoint import read_checkpoint, restore_tensors
from crossdraft_lab.train.core.dist import MicroBatch, full_batch
from crossdraft_lab.train.core.recipe import Optim
from crossdraft_lab.train.core.trainer import AveragedWeights, EarlyStop, Stage, Trainer, load_weights, watched_figure
from tests.train.core.learner import TinyHead, entries, learn, logged, loss_for, settings


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
        return (model(x) - x.sum(1, keepdim=True)).square().mean() * spoil(step), {"figure": 3.0}

    Trainer(Stage(folder, "fit", optim(steps)), model, full_batch(loss_of)).run()
    return [json.loads(line)["loss"] for line in (folder / "fit.log.jsonl").read_text().splitlines()]


def test_a_resumed_run_repeats_the_losses_of_an_unbroken_one(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 8)
    train(tmp_path / "broken", 4)
    assert train(tmp_path / "broken", 8) == whole


def test_a_checkpoint_whose_weights_other_answers_chose_is_refused(tmp_path: Path) -> None:
    """Not one that does not say what chose them, as earlier versions wrote it."""

    def run(name: str, capture: str | None) -> None:
        head = TinyHead()
        chosen_by = None if capture is None else {"validation": {"capture": capture, "answers": 4}}
        stage = Stage(tmp_path / name, "head", settings(watch="tau"), {"seed": 0}, chosen_by)
        Trainer(stage, head, loss_for(head), check=lambda step: {"tau": 1.0 + step}).run()

    run("now", "first")
    run("now", "first")
    with pytest.raises(CrossdraftError, match=r"its validation\.capture is first, not second"):
        run("now", "second")
    run("earlier", None)
    run("earlier", "second")


def test_a_log_line_that_was_cut_off_is_taken_again(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 8)
    train(tmp_path / "broken", 4)
    with (tmp_path / "broken" / "fit.log.jsonl").open("a") as log:
        log.write('{"step": 5, "sec')
    assert train(tmp_path / "broken", 8) == whole


def test_without_its_log_a_run_resumes(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 8)
    train(tmp_path / "broken", 4)
    (tmp_path / "broken" / "fit.log.jsonl").unlink()
    assert train(tmp_path / "broken", 8) == whole[4:]


def test_what_was_logged_before_the_first_checkpoint_is_dropped(tmp_path: Path) -> None:
    whole = train(tmp_path, 4)
    (tmp_path / "fit.ckpt").unlink()
    assert train(tmp_path, 4) == whole


def test_a_log_damaged_within_is_refused(tmp_path: Path) -> None:
    train(tmp_path, 4)
    with (tmp_path / "fit.log.jsonl").open("a") as log:
        log.write('{"step": 5, "sec{"step": 5}\n')
    with pytest.raises(CrossdraftError, match=r"fit\.log\.jsonl is damaged; remove it"):
        train(tmp_path, 8)


@pytest.mark.parametrize("spoilt", [float("nan"), float("inf")])
def test_a_loss_of_nan_stops_and_keeps_the_last_good_checkpoint(tmp_path: Path, spoilt: float) -> None:
    """Checkpoints come every two steps: step 6 (index 5) must not overwrite that of step 4."""
    whole = train(tmp_path / "whole", 8)
    with pytest.raises(CrossdraftError, match=r"^Step 6 of broken/fit diverged: loss (nan|inf), .*learning_rate"):
        train(tmp_path / "broken", 8, lambda step: spoilt if step == 5 else 1.0)
    assert train(tmp_path / "broken", 8) == whole


def test_a_gradient_of_nan_stops_too(tmp_path: Path) -> None:
    """The root of nothing is a number, its slope is none."""
    model = fresh()

    def loss_of(step: int) -> tuple[torch.Tensor, dict[str, float]]:
        return (model(torch.ones(1, 4)) * 0).sqrt().sum(), {}

    with pytest.raises(CrossdraftError, match=r"Step 1 .* diverged: loss 0.0, gradient norm nan; there is no"):
        Trainer(Stage(tmp_path, "fit", optim(4)), model, full_batch(loss_of)).run()
    assert torch.equal(model.weight, fresh().weight)


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    losses = train(tmp_path, 60)
    assert sum(losses[-10:]) < 0.1 * sum(losses[:10])


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    assert train(tmp_path, 4) == train(tmp_path, 4)


def test_a_later_phase_can_take_the_weights_alone(tmp_path: Path) -> None:
    train(tmp_path, 4)
    other = fresh()
    load_weights(Stage(tmp_path, "fit", optim(4)), other)
    assert not torch.equal(other.weight, fresh().weight)


EVERYTHING = {"ema": 0.9, "watch": "-loss", "patience": 3, "accumulate": 2, "schedule": "constant"}


def same(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("passes", [2, 4])
def test_micro_batches_have_the_losses_of_one_large_batch(tmp_path: Path, passes: int) -> None:
    """The answers differ in length and the gradient is clipped: a mean of means would show."""
    once, cut = learn(tmp_path / "once", settings()), learn(tmp_path / "cut", settings(accumulate=passes))
    for a, b in zip(logged(tmp_path / "once"), logged(tmp_path / "cut"), strict=True):
        assert a.keys() == b.keys()
        for name in ("loss", "norm", "places", "tau"):
            assert a[name] == pytest.approx(b[name], abs=2e-5), name
    for a, b in zip(once.parameters(), cut.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


class Interrupted(Exception):
    pass


class DroppingHead(TinyHead):
    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        return [replace(g, logits=nn.functional.dropout(g.logits, 0.2, self.training)) for g in super().forward(batch)]


@pytest.mark.parametrize("at", ["step 2", "step 5", "check 2", "check 4"])
def test_wherever_it_is_interrupted_it_resumes_exactly(tmp_path: Path, at: str) -> None:
    """Averaged weights, passes, counters and the dropout's chance; a checkpoint every two steps, each with a check."""

    def run(folder: Path, stop: str = "") -> nn.Module:
        torch.manual_seed(0)
        head = DroppingHead()
        loss_fn = loss_for(head)

        def loss_of(step: int, share: MicroBatch) -> tuple[torch.Tensor, dict[str, float]]:
            if stop == f"step {step}" and share.index == 1:
                raise Interrupted
            return loss_fn(step, share)

        def check(step: int) -> dict[str, float]:
            if stop == f"check {step}":
                raise Interrupted
            with torch.no_grad():
                return {"loss": float(loss_fn(1000, MicroBatch())[0])}

        torch.rand(hash(folder) % 7)  # what else draws chance must not matter
        Trainer(Stage(folder, "head", settings(**EVERYTHING)), head, loss_of, check=check).run()
        return head

    ends = run(tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(tmp_path / "broken", at)
    assert same(run(tmp_path / "broken"), ends)
    whole, broken = (
        [{k: v for k, v in entry.items() if k != "seconds"} for entry in entries(tmp_path / name)]
        for name in ("whole", "broken")
    )
    assert whole == broken
    states = [read_checkpoint(tmp_path / name / "head.ckpt") for name in ("whole", "broken")]
    assert states[0]["standing"] == states[1]["standing"]
    for name, value in states[0]["average"].items():
        assert torch.equal(value, states[1]["average"][name])


def test_a_checkpoint_has_the_keys_of_earlier_versions(tmp_path: Path) -> None:
    """Files written before the classes had their present names are read by these keys."""
    stage = Stage(tmp_path, "fit", optim(2).model_copy(update={"ema": 0.9}), config={"seed": 0})
    model = fresh()
    Trainer(stage, model, full_batch(lambda step: (model(torch.ones(1, 4)).square().sum(), {}))).run()
    state = read_checkpoint(stage.checkpoint)
    assert set(state) == {"modules", "optimiser", "step", "spent", "standing", "identity", "average"}
    assert set(state["standing"]) == {"best", "best_step", "missed", "checked"}


def test_averaged_weights_are_checked_given_and_loaded(tmp_path: Path) -> None:
    stage, model = Stage(tmp_path, "fit", optim(4).model_copy(update={"ema": 0.9})), fresh()
    checked = []

    def check(step: int) -> None:
        assert not model.training
        checked.append(model.weight.clone())

    Trainer(stage, model, full_batch(lambda step: (model(torch.ones(1, 4)).square().sum(), {})), check=check).run()
    state = read_checkpoint(stage.checkpoint)
    assert torch.equal(checked[-1], state["average"]["weight"])
    assert torch.equal(model.weight, state["average"]["weight"])
    assert not torch.equal(model.weight, state["modules"]["weight"])
    other = fresh()
    load_weights(stage, other)
    assert same(other, model)


def stopped(folder: Path, figures: list[float], **changes: object) -> tuple[nn.Module, list[int], dict[str, float]]:
    """A run whose checks find these figures, one after the other; what it gives, and the steps it took."""
    model, steps = fresh(), []
    settings = {
        "steps": 20,
        "clips": 1,
        "warmup_steps": 0,
        "learning_rate": 0.05,
        "checkpoint_every": 2,
        "watch": "tau",
    }

    def loss_of(step: int) -> tuple[torch.Tensor, dict[str, float]]:
        steps.append(step)
        return model(torch.ones(1, 4)).square().sum(), {}

    def check(step: int) -> dict[str, float]:
        return {"tau": figures[step // 2 - 1]}

    stage = Stage(folder, "fit", Optim.model_validate(settings | changes))
    return model, steps, Trainer(stage, model, full_batch(loss_of), check=check).run()


def test_it_stops_early_and_gives_the_best(tmp_path: Path) -> None:
    model, steps, closing = stopped(tmp_path, [1.0, 3.0, 2.0, 3.0, 9.0], patience=2)
    assert steps == list(range(8))
    assert (closing["steps"], closing["best_step"], closing["best"]) == (8, 4, 3.0)
    at_four = stopped(tmp_path / "short", [1.0, 3.0], steps=4)[0]
    assert same(model, at_four)
    again, taken, _ = stopped(tmp_path, [], patience=2)
    assert taken == []
    assert same(again, model)
    loaded = fresh()
    load_weights(Stage(tmp_path, "fit", optim(20).model_copy(update={"watch": "tau"})), loaded)
    assert same(loaded, model)


def test_the_best_of_a_run_that_ends_by_itself_is_given_too(tmp_path: Path) -> None:
    model, _, closing = stopped(tmp_path, [1.0, 3.0, 2.0], steps=6)
    assert closing["best_step"] == 4
    assert same(model, stopped(tmp_path / "short", [1.0, 3.0], steps=4)[0])
    assert not same(model, stopped(tmp_path / "last", [1.0, 3.0, 4.0], steps=6)[0])


def test_a_figure_that_cannot_be_watched_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CrossdraftError, match=r"no figure 'tua', .* did you mean 'tau'"):
        stopped(tmp_path, [1.0], watch="tua")
    assert [path.name for path in tmp_path.glob("fit*")] == ["fit.log.jsonl"]
    assert not (tmp_path / "fit.log.jsonl").read_text()  # it was refused before the first step
    with pytest.raises(CrossdraftError, match=r"optim\.watch names 'tau', but this training has no checks"):
        Trainer(
            Stage(tmp_path, "fit", settings(watch="tau")), fresh(), full_batch(lambda step: (torch.zeros(1), {}))
        ).run()


def test_a_batch_that_ruins_the_loss_is_named(tmp_path: Path) -> None:
    model = fresh()

    def loss_of(step: int) -> tuple[torch.Tensor, dict[str, float]]:
        return model(torch.ones(1, 4)).sum() * (float("nan") if step == 2 else 1.0), {}

    with pytest.raises(CrossdraftError, match=r"^Step 3 of .*/fit, on answers 2, 12, diverged: loss nan"):
        Trainer(
            Stage(tmp_path, "fit", optim(4)),
            model,
            full_batch(loss_of),
            describe=lambda step: f"answers {step}, 1{step}",
        ).run()
    assert read_checkpoint(tmp_path / "fit.ckpt")["step"] == 2


@pytest.mark.parametrize("able", [True, False], ids=["a processor that has it", "one that has not"])
def test_bf16_is_for_products_and_weights_stay_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, able: bool
) -> None:
    monkeypatch.setattr("crossdraft_lab.train.core.trainer.has_bf16", lambda: able)
    model, observed = fresh(), []

    def loss_of(step: int) -> tuple[torch.Tensor, dict[str, float]]:
        out = model(torch.ones(1, 4))
        observed.append(out.dtype)
        return out.float().square().sum(), {}

    Trainer(Stage(tmp_path, "fit", settings(steps=1, bf16=True)), model, full_batch(loss_of)).run()
    Trainer(Stage(tmp_path, "fit", settings(steps=2)), model, full_batch(loss_of)).run()
    assert observed == [torch.bfloat16 if able else torch.float32, torch.float32]
    assert model.weight.dtype == torch.float32
    assert not torch.equal(model.weight, fresh().weight)


def test_checks_are_logged_between_the_steps(tmp_path: Path) -> None:
    learn(tmp_path, settings())
    assert [entry["step"] for entry in entries(tmp_path) if "check" in entry] == [2, 4, 6]
    assert len(logged(tmp_path)) == 6


def test_every_micro_batch_has_a_seed_of_its_own_and_the_same_one_again(tmp_path: Path) -> None:
    def drawn(folder: Path) -> list[float]:
        model, observed = fresh(), []

        def loss_of(step: int, share: MicroBatch) -> tuple[torch.Tensor, dict[str, float]]:
            observed.append(float(torch.rand(())))
            return model(torch.ones(1, 4)).sum(), {}

        Trainer(Stage(folder, "fit", settings(steps=3, accumulate=2)), model, loss_of).run()
        return observed

    first = drawn(tmp_path / "first")
    torch.rand(3)
    assert drawn(tmp_path / "second") == first
    assert len(set(first)) == 6


@pytest.fixture
def weights() -> nn.Linear:
    linear = nn.Linear(1, 1)
    nn.init.constant_(linear.weight, 1.0)
    linear.bias.requires_grad_(False)
    return linear


def test_the_average_by_hand(weights):
    """Decays of 1/10, then 2/11 would come; 0.15 is the most allowed."""
    average = AveragedWeights(weights, 0.15)
    nn.init.constant_(weights.weight, 2.0)
    average.update(0)
    assert average.values["weight"].item() == pytest.approx(0.1 * 1 + 0.9 * 2)
    nn.init.constant_(weights.weight, 4.0)
    average.update(1)
    assert average.values["weight"].item() == pytest.approx(0.15 * 1.9 + 0.85 * 4)
    assert weights.weight.item() == 4.0


def test_what_is_not_trained_has_no_average(weights):
    assert set(AveragedWeights(weights, 0.9).values) == {"weight"}


def test_averages_replace_the_weights_within_the_block(weights):
    average = AveragedWeights(weights, 0.9)
    nn.init.constant_(weights.weight, 2.0)
    with pytest.raises(RuntimeError, match="on the way"), average.swapped_in():
        assert weights.weight.item() == 1.0
        raise RuntimeError("on the way")
    assert weights.weight.item() == 2.0
    average.copy_to_weights()
    assert weights.weight.item() == 1.0


def test_the_average_resumes_from_kept_values(weights):
    average = AveragedWeights(weights, 0.9)
    restore_tensors(average.values, {"weight": torch.tensor([[7.0]]), "bias": torch.zeros(1)}, Path("x"))
    assert average.values["weight"].item() == 7.0
    assert weights.weight.item() == 1.0


def test_the_best_is_kept_and_the_misses_are_counted_anew():
    stop = EarlyStop()
    observed = []
    for step, value in [(2, 1.0), (4, 0.5), (6, 1.0), (8, 1.5), (10, math.nan)]:
        stop = stop.after(step, value)
        observed.append((stop.best, stop.best_step, stop.missed, stop.checked))
    assert observed == [(1.0, 2, 0, 2), (1.0, 2, 1, 4), (1.0, 2, 2, 6), (1.5, 8, 0, 8), (1.5, 8, 1, 10)]


@pytest.mark.parametrize(("missed", "patience", "over"), [(1, 2, False), (2, 2, True), (3, 2, True), (9, 0, False)])
def test_patience_ends(missed, patience, over):
    assert EarlyStop(missed=missed).should_stop(patience) is over


def test_a_minus_negates_a_figure():
    assert watched_figure({"tau": 2.5}, "tau") == 2.5
    assert watched_figure({"loss": 2.5}, "-loss") == -2.5


def test_a_figure_that_nothing_measures_is_refused():
    with pytest.raises(CrossdraftError, match=r"no figure 'taw', which optim\.watch names; did you mean 'tau'"):
        watched_figure({"tau": 1.0, "loss": 2.0}, "taw")
