"""The whole recipe at micro size: every stage runs, resumes, and the shipped folders load."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, VideoLlavaForConditionalGeneration

from crossdraft.errors import CrossdraftError
from crossdraft.models.eventgpt import EventGPTForConditionalGeneration
from crossdraft.train.answers import read_answers
from crossdraft.train.recipe import load_recipe
from crossdraft.train.reference import MODELS, STAGES, Reference, run_stages
from crossdraft.train.ship import run_ship

MICRO = Path(__file__).parent / "micro.yaml"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, module_chunk: None) -> Reference:
    run = Reference(load_recipe(MICRO), tmp_path_factory.mktemp("run"))
    run_stages(run, STAGES[:-1])
    return run


@pytest.fixture(scope="module")
def module_chunk() -> Iterator[None]:
    """Chunks of two clips: a micro run renders no more than it looks at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crossdraft.train.clips.CHUNK", 2)
        yield


def losses(run: Reference, name: str, stage: str) -> list[float]:
    lines = (run.out / name / f"{stage}.log.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_every_stage_leaves_its_artifact_and_provenance(finished: Reference) -> None:
    for name in MODELS:
        record = json.loads((finished.out / name / "model" / "provenance.json").read_text())
        assert {"argv", "recipe", "versions", "data", "figures"} <= set(record)
    assert len(read_answers(finished.out / "answers" / "answers.jsonl")) == 8
    figures = json.loads((finished.out / "evaluation.json").read_text())
    assert 0 <= figures["target"]["held_out_wordings"]["facts_right"]["all"] <= 1
    assert figures["event"]["train_wordings"]["tau_8"] >= 1


def test_shipped_folders_load_and_carry_cards(finished: Reference, tmp_path: Path) -> None:
    run_ship(finished, tmp_path)
    target = VideoLlavaForConditionalGeneration.from_pretrained(tmp_path / "target")
    assert target.dtype == torch.bfloat16
    tower, copy = target.model.video_tower.state_dict(), target.model.image_tower.state_dict()
    assert all(torch.equal(tower[key], copy[key]) for key in tower)
    for name in ("event", "blind"):
        EventGPTForConditionalGeneration.from_pretrained(tmp_path / name)
    for name in MODELS:
        assert len(AutoTokenizer.from_pretrained(tmp_path / name)) == 512
        assert "held-out wordings" in (tmp_path / name / "README.md").read_text()
        assert json.loads((tmp_path / name / "preprocessor_config.json").read_text())["resample"] == 3


def test_a_resumed_run_repeats_the_losses(finished: Reference, tmp_path: Path) -> None:
    """Stop halfway, resume: the same losses as the run that never stopped (phases: test_loop.py)."""

    def run_to(folder: Path, steps: int) -> Reference:
        overrides = ["target.sight.optim.decay_steps=0", f"target.sight.optim.steps={steps}"]
        run = Reference(load_recipe(MICRO, overrides), folder)
        for shared in ("cache", "tokenizer"):
            if not (folder / shared).exists():
                folder.mkdir(exist_ok=True)
                (folder / shared).symlink_to(finished.out / shared)
        run_stages(run, ["target-sight"])
        return run

    run_to(tmp_path / "broken", 2)
    broken, whole = run_to(tmp_path / "broken", 4), run_to(tmp_path / "whole", 4)
    assert losses(broken, "target", "sight") == losses(whole, "target", "sight")
    assert len(losses(whole, "target", "sight")) == 4


def test_stages_out_of_order_say_what_to_run_first(tmp_path: Path) -> None:
    run = Reference(load_recipe(MICRO), tmp_path)
    with pytest.raises(CrossdraftError, match="run the stage 'tokenizer' first"):
        run_stages(run, ["target-sight"])
    with pytest.raises(CrossdraftError, match="run the stage 'target' first"):
        run_stages(run, ["answers"])
    with pytest.raises(CrossdraftError, match="Unknown stage 'targe'"):
        run_stages(run, ["targe"])
