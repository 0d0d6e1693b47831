"""A capture is compared with the model alone, and what does not belong is found."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.capture.check import check_sample
from crossdraft_lab.train.capture.recorder import FeatureRecorder
from crossdraft_lab.train.capture.run import capture
from crossdraft_lab.train.capture.store import CaptureStore
from tests.train.capture.helpers import FixedSource, some_clips, zoo_plan, zoo_target

SOURCE = FixedSource(some_clips(3))


@pytest.fixture(params=["video_llava", "qwen2_5_vl"])
def captured(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    plan = zoo_plan(SOURCE, zoo_target(request.param), shard_clips=3)
    capture(tmp_path, plan, plan.resume(tmp_path), FeatureRecorder(plan.target, plan.spec), lambda: None)
    return tmp_path, request.param


def change(folder: Path, name: str, row: int, column: int | None, value: float) -> None:
    """Change one number of the shard, and nothing of its size."""
    path = folder / "shard-00000.safetensors"
    tensors = load_file(path)
    if column is None:
        tensors[name][row] = int(value)
    else:
        tensors[name][row, column] += value
    save_file(tensors, path)


def test_a_capture_passes_its_own_check(captured: tuple[Path, str]) -> None:
    folder, name = captured
    found = check_sample(CaptureStore.open(folder), zoo_target(name), SOURCE, count=9)
    assert found.right
    assert (found.answers, found.differing) == (9, 0)
    assert 0 < found.error <= 2**-8  # half a unit in the last place of bfloat16, as a share of the whole
    assert check_sample(CaptureStore.open(folder), zoo_target(name), SOURCE, count=2).answers == 2


@pytest.mark.parametrize("name", ["hidden.1", "hidden.3", "piece.0"])
def test_a_feature_that_is_off_is_found(captured: tuple[Path, str], name: str) -> None:
    folder, model = captured
    change(folder, name, 4, 1, 20.0)
    with pytest.raises(CrossdraftError, match=r"is not the target's: .* 0 differ"):
        check_sample(CaptureStore.open(folder), zoo_target(model), SOURCE, count=9)


def test_a_token_that_is_not_the_targets_is_found(captured: tuple[Path, str]) -> None:
    folder, model = captured
    store = CaptureStore.open(folder)
    last = len(store.answer(0).tokens) - 1
    wrong = (int(next(store.answer_tokens())[-1]) + 1) % 90
    change(folder, "tokens", last, None, wrong)
    with pytest.raises(CrossdraftError, match=r" 1 differ"):
        check_sample(CaptureStore.open(folder), zoo_target(model), SOURCE, count=9)


def test_another_prompt_is_found(captured: tuple[Path, str]) -> None:
    folder, model = captured
    with pytest.raises(CrossdraftError, match="is not the target's"):
        check_sample(CaptureStore.open(folder), zoo_target(model), FixedSource(some_clips(4)[1:]), count=9)


def test_an_empty_capture_has_nothing_to_check(tmp_path: Path) -> None:
    plan = zoo_plan(SOURCE)
    plan.index().write(tmp_path)
    with pytest.raises(CrossdraftError, match="holds no answers yet"):
        check_sample(CaptureStore.open(tmp_path), plan.target, SOURCE)
