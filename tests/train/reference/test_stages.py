"""The whole recipe at micro size: every stage runs, resumes, and the shipped folders load."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, VideoLlavaForConditionalGeneration

from crossdraft.errors import CrossdraftError
from crossdraft.models.eventgpt import EventGPTForConditionalGeneration
from crossdraft_lab.train.reference.answers import append_answers, read_answers
from crossdraft_lab.train.reference.recipe import load_recipe
from crossdraft_lab.train.reference.run import MODELS, ReferenceRun
from crossdraft_lab.train.reference.ship import run_ship
from crossdraft_lab.train.reference.stages import STAGES, run_stages

MICRO = Path(__file__).parent / "micro.yaml"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, module_chunk: None) -> ReferenceRun:
    run = ReferenceRun(load_recipe(MICRO), tmp_path_factory.mktemp("run"))
    run_stages(run, STAGES[:-1])
    return run


@pytest.fixture(scope="module")
def module_chunk() -> Iterator[None]:
    """Chunks of two clips: a micro run renders no more than it looks at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crossdraft_lab.train.reference.clips.CHUNK", 2)
        yield


def losses(run: ReferenceRun, name: str, stage: str) -> list[float]:
    lines = (run.out / name / f"{stage}.log.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def copy_of(finished: ReferenceRun, out: Path, *parts: str, overrides: tuple[str, ...] = ()) -> ReferenceRun:
    """A run of its own in `out` that has copies of some parts of the finished one."""
    out.mkdir(exist_ok=True)
    for part in parts:
        shutil.copytree(finished.out / part, out / part)
    return ReferenceRun(load_recipe(MICRO, overrides), out)


def test_every_stage_leaves_its_artifact_and_provenance(finished: ReferenceRun) -> None:
    for name in MODELS:
        record = json.loads((finished.out / name / "model" / "provenance.json").read_text())
        assert {"argv", "recipe", "versions", "data", "figures"} <= set(record)
        assert record["data"]["clips"] == (6 if name == "target" else 4)
    assert len(read_answers(finished.answers)) == 8
    assert finished.answers.with_suffix(".provenance.json").is_file()
    figures = json.loads((finished.out / "evaluation.json").read_text())
    assert 0 <= figures["target"]["held_out_wordings"]["facts_right"]["all"] <= 1
    found = figures["event"]["train_wordings"]  # a round ends at a wrong token: there are as many as those, or more
    assert 1 <= found["tau_8"] <= found["tau_16"] <= 1 / (1 - found["top1"]) + 1e-3


def test_shipped_folders_load_and_have_cards(finished: ReferenceRun, tmp_path: Path) -> None:
    run_ship(finished, tmp_path)
    target = VideoLlavaForConditionalGeneration.from_pretrained(tmp_path / "target")
    assert target.dtype == torch.bfloat16
    tower, copy = target.model.video_tower.state_dict(), target.model.image_tower.state_dict()
    assert all(torch.equal(tower[key], copy[key]) for key in tower)
    for name in ("event", "blind", "foreign"):
        EventGPTForConditionalGeneration.from_pretrained(tmp_path / name)
    for name in MODELS:
        assert len(AutoTokenizer.from_pretrained(tmp_path / name)) == 512
        assert "held-out wordings" in (tmp_path / name / "README.md").read_text()
        assert json.loads((tmp_path / name / "preprocessor_config.json").read_text())["resample"] == 3


def test_a_resumed_run_repeats_the_losses(finished: ReferenceRun, tmp_path: Path) -> None:
    """Stop halfway, resume: the same losses as the run that never stopped (checks and phases: core/test_trainer.py)."""

    def run_to(folder: Path, steps: int) -> ReferenceRun:
        overrides = ["target.sight.optim.decay_steps=0", f"target.sight.optim.steps={steps}"]
        run = ReferenceRun(load_recipe(MICRO, overrides), folder)
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
    run = ReferenceRun(load_recipe(MICRO), tmp_path)
    with pytest.raises(CrossdraftError, match="run the stage 'tokenizer' first"):
        run_stages(run, ["target-sight"])
    with pytest.raises(CrossdraftError, match="run the stage 'target' first"):
        run_stages(run, ["answers"])
    with pytest.raises(CrossdraftError, match="Unknown stage 'targe'"):
        run_stages(run, ["targe"])


def test_a_model_counts_as_trained_once_its_weights_are_there(tmp_path: Path) -> None:
    (tmp_path / "target" / "model").mkdir(parents=True)
    (tmp_path / "target" / "model" / "config.json").write_text("{}")
    with pytest.raises(CrossdraftError, match="run the stage 'target' first"):
        ReferenceRun(load_recipe(MICRO), tmp_path).trained("target")


def test_a_tokenizer_of_another_size_is_refused(finished: ReferenceRun, tmp_path: Path) -> None:
    run = copy_of(finished, tmp_path, "tokenizer", overrides=("tokenizer.vocab_size=600",))
    for stage in ("tokenizer", "target-sight"):
        with pytest.raises(CrossdraftError, match="has 512 ids where the recipe asks for 600; choose another"):
            run_stages(run, [stage])


def test_drafters_wait_for_every_answer_of_this_target(finished: ReferenceRun, tmp_path: Path) -> None:
    run = copy_of(finished, tmp_path, "tokenizer", "target", "answers")
    answers = run.target_answers()
    run.answers.unlink()
    append_answers(run.answers, answers[:5])  # two clips of four, and half a third
    with pytest.raises(CrossdraftError, match=r"about 2 of 4 clips; run the stage 'answers' to its end"):
        run_stages(run, ["event"])
    append_answers(run.answers, answers[5:])
    (run.out / "target" / "model" / "model.safetensors").write_bytes(b"another target's weights")
    with pytest.raises(CrossdraftError, match="about 0 of 4 clips"):
        run_stages(run, ["event"])


@pytest.mark.parametrize("kept", [1, 4, 5, 8])
def test_answers_that_were_cut_off_anywhere_are_completed(finished: ReferenceRun, tmp_path: Path, kept: int) -> None:
    """Two answers a clip, two clips a batch: lines 5 and 6 are of a batch that was not finished."""
    run = copy_of(finished, tmp_path, "cache", "tokenizer", "target", "answers")
    whole = run.answers.read_text()
    lines = whole.splitlines(keepends=True)
    run.answers.write_text("".join(lines[:kept]) + (lines[kept][:9] if kept < 8 else ""))
    run_stages(run, ["answers"])
    assert run.answers.read_text() == whole


def test_answers_to_other_questions_are_refused(finished: ReferenceRun, tmp_path: Path) -> None:
    run = copy_of(finished, tmp_path, "tokenizer", "target", "answers", overrides=("seed=1",))
    with pytest.raises(CrossdraftError, match="answers other questions than the recipe's"):
        run_stages(run, ["answers"])
    run.answers.write_text('{"clip": 0}\n')
    with pytest.raises(CrossdraftError, match=r"The answers .* are damaged"):
        run_stages(run, ["answers"])


def test_a_sight_checkpoint_of_another_shape_is_refused(finished: ReferenceRun, tmp_path: Path) -> None:
    run = copy_of(finished, tmp_path, "tokenizer", "target", overrides=("target.vision.intermediate_size=48",))
    (run.out / "target" / "train-1.ckpt").unlink()
    with pytest.raises(CrossdraftError, match=r"sight\.ckpt is of another network than the recipe's"):
        run_stages(run, ["target"])


def test_what_was_measured_on_other_weights_does_not_ship(finished: ReferenceRun, tmp_path: Path) -> None:
    run = copy_of(finished, tmp_path / "run", "tokenizer", "answers", *MODELS)
    shutil.copy(finished.out / "evaluation.json", run.out)
    weights = run.out / "event" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(CrossdraftError, match=r"other weights of 'event'; run the stage 'evaluate' again"):
        run_ship(run, tmp_path / "shipped")
    assert not (tmp_path / "shipped").exists()


def test_a_foreign_model_that_was_measured_against_another_target_does_not_ship(
    finished: ReferenceRun, tmp_path: Path
) -> None:
    run = copy_of(finished, tmp_path / "run", "tokenizer", "answers", "foreign", *MODELS)
    shutil.copy(finished.out / "evaluation.json", run.out)
    record = run.out / "foreign" / "model" / "provenance.json"
    record.write_text(record.read_text().replace(run.weights_sha256("target"), "0" * 64))
    with pytest.raises(CrossdraftError, match="against another 'target'; run the stage 'foreign' again"):
        run_ship(run, tmp_path / "shipped")
    assert not (tmp_path / "shipped").exists()


def test_models_over_the_limit_leave_what_was_shipped_before(
    finished: ReferenceRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shipped" / "target").mkdir(parents=True)
    (tmp_path / "shipped" / "target" / "model.safetensors").write_bytes(b"before")
    monkeypatch.setattr("crossdraft_lab.train.reference.ship.LIMIT_MB", 0.01)
    with pytest.raises(CrossdraftError, match="more than 0; make the shapes smaller"):
        run_ship(finished, tmp_path / "shipped")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["model.safetensors"]
    monkeypatch.setattr("crossdraft_lab.train.reference.ship.LIMIT_MB", 48)
    run_ship(finished, tmp_path / "shipped")
    assert (tmp_path / "shipped" / "target" / "model.safetensors").read_bytes() != b"before"
    assert {path.name for path in tmp_path.iterdir()} == {"shipped"}
