"""Two ranks learn what one process learns, and take up each other's checkpoints. The ranks are real ones."""

import json
from pathlib import Path

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.core.checkpoint import read_checkpoint
from crossdraft_lab.train.core.dist import (
    SINGLE,
    Distributed,
    MicroBatch,
    MicroLoss,
    full_batch,
    init_distributed,
    merge_losses,
    micro_weight,
)
from crossdraft_lab.train.core.trainer import Stage, load_weights
from tests.train.core.learner import disagreed, fresh, learn, logged, refused, settings, train
from tests.train.core.two import run_two

CHANGES = {"ema": 0.9, "watch": "-loss", "clip_norm": 0.3}
HOW = {"ddp": {}, "fsdp": {"parallel": "fsdp"}}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks left: `ddp` and `fsdp` whole, `*-half` not to the end, `*-taken` begun by one process."""
    folder = tmp_path_factory.mktemp("two")
    trainings = []
    for how, parallel in HOW.items():
        learn(folder / f"{how}-taken", settings(**CHANGES, steps=3, schedule="constant"))
        trainings += [
            (how, CHANGES | parallel | {"schedule": "constant", "accumulate": 2}),
            (f"{how}-half", CHANGES | parallel | {"schedule": "constant", "steps": 3}),
            (f"{how}-taken", CHANGES | parallel | {"schedule": "constant"}),
        ]
    run_two(train, folder, *trainings)
    return folder


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    learn(folder, settings(**CHANGES, schedule="constant"))
    return folder


def assert_same(first: Path, second: Path) -> None:
    ours, theirs = logged(first), logged(second)
    assert len(ours) == len(theirs) == 6
    for a, b in zip(ours, theirs, strict=True):
        for name in ("loss", "norm", "places", "smooth_l1", "soft_cross_entropy", "tau"):
            assert a[name] == pytest.approx(b[name], abs=2e-5), name  # logged with five digits


@pytest.mark.parametrize("how", HOW)
def test_two_ranks_have_the_losses_of_one_process(how, one, two):
    """Answers of different lengths, two passes a step, and a gradient that is clipped: means of means would show."""
    assert_same(one, two / how)
    ours, theirs = (read_checkpoint(folder / "head.ckpt") for folder in (one, two / how))
    for part in ("modules", "average"):
        assert set(ours[part]) == set(theirs[part])
        for name, value in ours[part].items():
            assert (value - theirs[part][name]).abs().max() < 1e-5, name
    assert ours["standing"]["best_step"] == theirs["standing"]["best_step"]


@pytest.mark.parametrize("how", HOW)
def test_one_process_resumes_where_two_ranks_stopped(how, one, two):
    learn(two / f"{how}-half", settings(**CHANGES, schedule="constant"))
    assert_same(one, two / f"{how}-half")


@pytest.mark.parametrize("how", HOW)
def test_two_ranks_resume_where_one_process_stopped(how, one, two):
    assert_same(one, two / f"{how}-taken")


@pytest.mark.parametrize("how", HOW)
def test_what_ranks_learned_loads_into_a_whole_head(how, one, two):
    heads = []
    for folder in (one, two / how):
        heads.append(fresh())
        load_weights(Stage(folder, "head", settings(**CHANGES)), heads[-1])
    for a, b in zip(*(head.parameters() for head in heads), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert not torch.allclose(heads[0].mix.weight, fresh().mix.weight)


def test_what_no_pass_touches_stays_as_it_was(two):
    for how in HOW:
        assert torch.equal(read_checkpoint(two / how / "head.ckpt")["modules"]["idle.weight"], fresh().idle.weight)


def test_the_second_rank_holds_all_weights_or_its_part_of_them_and_writes_nothing(two):
    whole = fresh().mix.weight.numel()
    assert json.loads((two / "ddp" / "held.json").read_text()) == [whole, whole]
    assert json.loads((two / "fsdp" / "held.json").read_text()) == [whole / 2, whole / 2]
    assert {path.name for path in (two / "ddp").iterdir()} == {
        "head.ckpt", "head.best.ckpt", "head.log.jsonl", "held.json"
    }  # fmt: skip
    assert len(logged(two / "ddp")) == 6


def test_ranks_that_share_weights_check_before_the_first_step_and_refuse_a_figure_that_is_not_there(tmp_path):
    run_two(refused, tmp_path, *((how, parallel | {"watch": "tauu"}) for how, parallel in HOW.items()))
    for how in HOW:
        first, second = json.loads((tmp_path / how / "refused.json").read_text())
        assert "no figure 'tauu'" in first
        assert first == second
        assert not (tmp_path / how / "head.ckpt").exists()


def test_what_one_rank_refuses_is_refused_by_all_in_the_same_words(tmp_path):
    run_two(disagreed, tmp_path, *((f"{rank}", {"rank": rank}) for rank in (0, 1, 2)))
    found = [json.loads((tmp_path / f"{rank}" / "refused.json").read_text()) for rank in (0, 1, 2)]
    assert found == [
        ["The part of rank 0 is not finite."] * 2,
        ["The part of rank 1 is not finite."] * 2,
        ["nothing"] * 2,
    ]


def test_clips_that_cannot_be_shared_are_refused(tmp_path):
    with pytest.raises(CrossdraftError, match=r"clips=4 .* among 2 passes of 3 ranks; make it a multiple of 6"):
        learn(tmp_path, settings(accumulate=2), Distributed(0, 3))


def test_a_single_process_waits_for_nobody():
    SINGLE.barrier()
    assert (SINGLE.first, SINGLE.all_gather(3), SINGLE.broadcast("so")) == (True, [3], "so")
    SINGLE.agree(lambda: None)


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_micro_batches_make_up_the_batch(of):
    batch = list(range(6))
    assert [item for index in range(of) for item in MicroBatch(index, of).take(batch)] == batch


def test_a_micro_batch_by_hand():
    assert MicroBatch(1, 2).take("abcd") == "cd"
    assert MicroBatch().take("abcd") == "abcd"


def test_losses_are_weighted_and_loss_positions_are_counted():
    parts = [
        MicroLoss(1.0, 3.0, {"places": 3.0, "tau": 2.0}),
        MicroLoss(5.0, 1.0, {"places": 1.0, "tau": 4.0, "right_3": 0.5}),
    ]
    assert merge_losses(parts) == (2.0, {"places": 4.0, "tau": 2.5, "right_3": 0.5})


def test_one_micro_batch_passes_unchanged():
    assert merge_losses([MicroLoss(0.1, 1.0, {"places": 7.0, "right": 0.3})]) == (0.1, {"places": 7.0, "right": 0.3})


def test_micro_batches_without_loss_positions_cost_nothing():
    assert merge_losses([MicroLoss(0.0, 0.0, {"places": 0.0})] * 2) == (0.0, {"places": 0.0})


def test_a_whole_batch_weighs_one():
    assert micro_weight(MicroBatch(), {"places": 9.0}) == 1.0
    assert micro_weight(MicroBatch(0, 2), {"places": 9.0}) == 9.0
    assert micro_weight(MicroBatch(0, 2), {}) == 1.0


def test_a_training_in_one_piece_says_so():
    loss_of = full_batch(lambda step: (torch.tensor(float(step)), {}))
    assert loss_of(3, MicroBatch())[0] == 3
    with pytest.raises(CrossdraftError, match=r"in one piece; set optim\.accumulate to 1"):
        loss_of(3, MicroBatch(0, 2))


@pytest.mark.parametrize("ranks", ["1", "2"])
@pytest.mark.parametrize("device", ["cuda:77", "foo"])
def test_a_device_that_is_not_there_is_one_sentence(monkeypatch, device, ranks):
    monkeypatch.setenv("WORLD_SIZE", ranks)
    monkeypatch.setenv("LOCAL_RANK", "77")
    with (
        pytest.raises(CrossdraftError, match=f"^device is '{device}', which cannot be used here"),
        init_distributed(device),
    ):
        pass
