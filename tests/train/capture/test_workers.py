"""A capture by several workers is that of one, whoever captures which shard, and in which order they are finished."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target
from crossdraft_lab.train.capture.plan import CapturedTarget, CapturePlan, capture_spec
from crossdraft_lab.train.capture.recorder import FeatureRecorder
from crossdraft_lab.train.capture.run import capture
from crossdraft_lab.train.capture.sources import SceneSource
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.capture.workers import CapturedShard, ShardRecorder, ShardTask, capture_by, tasks_of


@pytest.fixture(scope="module")
def plan() -> CapturePlan:
    target = load_target("reference", "cpu")
    info = CapturedTarget.of("reference", target)
    spec = capture_spec(info.depth, max_new_tokens=12)
    return CapturePlan(target, info, SceneSource(clips=5, prompts=2), spec, batch=2, workers=0, shard_clips=2)


@pytest.fixture(scope="module")
def workers(plan: CapturePlan) -> list[ShardRecorder]:
    return [ShardRecorder(plan.info, plan.source, plan.spec, plan.batch, "cpu") for _ in range(2)]


@dataclass
class InOrder:
    """Workers that finish the tasks in this order, in turns; and no more than these."""

    workers: Sequence[ShardRecorder]
    order: Sequence[int]
    asked: Sequence[ShardTask] = ()

    def capture(self, tasks: Sequence[ShardTask]) -> Iterator[CapturedShard]:
        self.asked = tasks
        for turn, number in enumerate(self.order):
            yield self.workers[turn % len(self.workers)].capture(next(t for t in tasks if t.number == number))


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


def test_the_shards_are_those_of_one_process_to_the_last_bit(plan, workers, tmp_path):
    alone = FeatureRecorder(plan.target, plan.spec, plan.batch, learns=False)
    one, wanted = capture(tmp_path / "one", plan, plan.resume(tmp_path / "one"), alone, lambda: None)
    many, ticks = tmp_path / "many", []
    index, report = capture_by(InOrder(workers, (2, 0, 1)), many, plan, plan.resume(many), lambda: ticks.append(1))
    assert shards(many) == shards(tmp_path / "one")
    assert len(shards(many)) == 3
    assert index.shards == one.shards
    assert (report.clips, report.answers, report.tokens, report.bytes) == (
        wanted.clips, wanted.answers, wanted.tokens, wanted.bytes,
    )  # fmt: skip
    assert len(ticks) == 5
    CaptureStore.open(many).check()


def test_the_answers_are_those_of_a_capture_that_learns(plan, workers, tmp_path):
    learning = FeatureRecorder(plan.target, plan.spec, plan.batch)
    capture(tmp_path / "one", plan, plan.resume(tmp_path / "one"), learning, lambda: None)
    capture_by(InOrder(workers, (0, 1, 2)), tmp_path / "many", plan, plan.index(), lambda: None)
    one, many = (CaptureStore.open(tmp_path / name).answer_tokens() for name in ("one", "many"))
    assert [tokens.tolist() for tokens in one] == [tokens.tolist() for tokens in many]


def test_an_interrupted_one_goes_on_behind_its_last_whole_row_of_shards(plan, workers, tmp_path):
    first, _ = capture_by(InOrder(workers, (0, 2)), tmp_path, plan, plan.resume(tmp_path), lambda: None)
    assert [shard.file for shard in first.shards] == ["shard-00000.safetensors"]
    assert len(CaptureStore.open(tmp_path)) == 4  # 2 clips: the third shard is there, and not named yet
    found = InOrder(workers, (1, 2))
    index, report = capture_by(found, tmp_path, plan, plan.resume(tmp_path), lambda: None)
    assert found.asked == [ShardTask(1, 2, 2), ShardTask(2, 4, 1)]
    assert (index.done, report.clips) == (5, 3)
    assert not tasks_of(plan, plan.resume(tmp_path))


def test_a_worker_with_another_target_is_refused(plan):
    other = replace(plan.info, sha256="0" * 64)
    with pytest.raises(CrossdraftError, match="another target at 'reference'"):
        ShardRecorder(other, plan.source, plan.spec, plan.batch, "cpu")
