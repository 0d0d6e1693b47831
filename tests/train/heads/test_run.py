"""A head from recipe to folder: by several ranks, as it ships, with its target's sizes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from crossdraft.heads.files import load_head, stored_weights
from crossdraft_lab.train.heads.run import head_config, training_config
from tests.train.core.two import run_two
from tests.train.heads.counting import CountingTask, run_of, train, train_rank
from tests.train.heads.small import shared_weights

HOW = {
    "ddp": {"optim": {"parallel": "ddp", "ema": 0.9}},
    "fsdp": {"optim": {"parallel": "fsdp", "ema": 0.9, "accumulate": 2}},
    "fsdp-watching": {"optim": {"parallel": "fsdp", "watch": "tau"}},
}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    run_two(train_rank, folder, *HOW.items())
    return folder


@pytest.mark.parametrize("how", HOW)
def test_two_ranks_save_the_head_that_one_process_saves(how, two, tmp_path):
    figures = train(tmp_path, **HOW[how])
    ours, theirs = (stored_weights(folder / "head") for folder in (tmp_path, two / how))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.allclose(value.float(), theirs[name].float(), rtol=1e-2, atol=2e-4), name
    recorded = json.loads((two / how / "head" / "provenance.json").read_text())["figures"]
    assert recorded["parameters"] == figures["parameters"] == sum(value.numel() for value in ours.values())
    assert recorded["kept_back"] == pytest.approx(figures["kept_back"], abs=0.1)


def test_a_head_is_measured_with_the_very_weights_that_are_loaded(tmp_path):
    """Its scales make the difference: what is stored is not what is computed with."""
    train(tmp_path)
    loaded = load_head(tmp_path / "head", shared_weights()).state_dict()
    measured_figures = torch.load(tmp_path / "head" / "measured.pt", weights_only=True)
    assert loaded.keys() == measured_figures.keys()
    assert all(torch.equal(value, measured_figures[name]) for name, value in loaded.items())


def test_positions_are_the_targets_unless_the_recipe_says_otherwise(tmp_path):
    run = run_of(tmp_path)
    task = CountingTask(run.recipe, context=9000)
    assert head_config(run.recipe, task).max_positions == 9000
    short = head_config(run.recipe, run.task)
    assert short.max_positions == 2048  # room to spare: a draft may reach beyond the context
    explicit = run.recipe.model_copy(update={"config": {**run.recipe.config, "max_positions": 77}})
    assert head_config(explicit, task).max_positions == 77
    medusa = run.recipe.model_copy(update={"network": "medusa", "config": {}})
    assert not hasattr(head_config(medusa, task), "max_positions")


def test_what_decides_the_weights_is_in_the_config_and_nothing_else_is(tmp_path):
    run = run_of(tmp_path)
    config = head_config(run.recipe, run.task)
    ours = training_config(run, config)

    def changed(**more) -> bool:
        other = run_of(tmp_path, **more)
        return training_config(other, head_config(other.recipe, other.task)) != ours

    what = ({"seed": 1}, {"noise": 0.2}, {"step_weight": 0.5}, {"optim": {"steps": 7}}, {"loss": {"kl": 1.0}})
    assert all(changed(**more) for more in (*what, {"optim": {"schedule": "cosine"}}))
    how = ({"watch": "tau", "patience": 2}, {"checkpoint_every": 1}, {"accumulate": 2}, {"parallel": "fsdp"})
    assert not any(changed(optim=more) for more in how)
    assert not changed(measure={"pairs": 1})
    assert training_config(replace(run, source={"numbers": False}), config) != ours
    other = replace(run, task=CountingTask(run.recipe, fingerprint="cd" * 32))
    assert training_config(other, config) != ours
