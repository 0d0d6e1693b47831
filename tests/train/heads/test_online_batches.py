"""Batches without a capture are those with one, and a step sees what it sees whatever came before."""

from pathlib import Path

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft_lab.train.capture.recorder import FeatureRecorder
from crossdraft_lab.train.capture.run import capture
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.dist import MicroBatch
from crossdraft_lab.train.heads.batches import OnlineBatches
from tests.train.capture.helpers import SPEC, FixedSource, some_clips, zoo_plan, zoo_target

SOURCE = FixedSource(some_clips(3))


def online(keep: int = 8, *, single: bool = False) -> OnlineBatches:
    target = zoo_target()
    if single:
        target.model.float()
    return OnlineBatches(target, SOURCE, (1, -1), (0,), max_new_tokens=SPEC.max_new_tokens, batch=4, keep=keep)


def same(a: TrainBatch, b: TrainBatch) -> bool:
    pairs = [(a.tokens, b.tokens), (a.starts, b.starts), (a.lengths, b.lengths), (a.visual_ids, b.visual_ids)]
    pairs += [(a.hidden[layer], b.hidden[layer]) for layer in (1, 3)] + [(a.visual[0], b.visual[0])]
    return all(x is not None and y is not None and torch.equal(x, y) for x, y in pairs)


def test_a_batch_is_the_stores(tmp_path: Path) -> None:
    plan = zoo_plan(SOURCE)
    recorder = FeatureRecorder(plan.target, plan.spec, batch=4, learns=False)
    capture(tmp_path, plan, plan.resume(tmp_path), recorder, lambda: None)
    store, live = CaptureStore.open(tmp_path), online()
    for step, indices in ((0, [0, 1, 2, 3]), (1, [4, 5, 6, 7]), (2, [8, 0, 1, 2])):
        assert same(live.batch(step, 4), store.batch(indices, (1, 3), (0,)))


def test_a_step_depends_on_nothing_but_the_step_to_the_last_bit() -> None:
    """In float32, where passes of other shapes round otherwise: nothing may be drafted from what came before."""
    ordered, shuffled = online(keep=1, single=True), online(keep=1, single=True)
    batches = [ordered.batch(step, 4) for step in range(4)]
    for step in (3, 1, 0, 2):
        assert same(shuffled.batch(step, 4), batches[step])


def rows(batch: TrainBatch) -> list[list[int]]:
    return [row[: int(length)].tolist() for row, length in zip(batch.tokens, batch.lengths, strict=True)]


def test_a_micro_batch_is_a_part_of_the_step() -> None:
    live = online()
    whole, halves = live.batch(1, 4), [live.batch(1, 4, MicroBatch(index, 2)) for index in (0, 1)]
    assert rows(halves[0]) + rows(halves[1]) == rows(whole)
    assert live.describe(1, 4) == "answers 4 to 7 of the cycle through its clips"


def test_a_clip_in_memory_is_not_recorded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    live, written = online(keep=2), []
    record = live.recorder.record
    monkeypatch.setattr(live.recorder, "record", lambda clips: written.append(clips[0].name) or record(clips))
    for step in (0, 1, 0, 2, 0, 1):  # of three answers: a step is a clip
        live.batch(step, 3)
    assert written == ["clip 0", "clip 1", "clip 2", "clip 1"]


def test_a_layer_outside_the_model_is_refused() -> None:
    with pytest.raises(CrossdraftError, match="Layer 4 is outside the target"):
        OnlineBatches(zoo_target(), SOURCE, (4,))
