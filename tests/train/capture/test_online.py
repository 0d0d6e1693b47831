"""Lessons without a store are those with one, and a step sees what it sees whatever came before."""

from pathlib import Path

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.train.capture.online import Online
from crossdraft.train.capture.plan import begun
from crossdraft.train.capture.recorder import Alone, Scribe
from crossdraft.train.capture.run import capture
from crossdraft.train.capture.store import Store
from tests.train.capture.given import WANTED, Given, some_clips, zoo_plan, zoo_target

SOURCE = Given(some_clips(3))


def online(keep: int = 8, *, single: bool = False) -> Online:
    target = zoo_target()
    if single:
        target.model.float()
    return Online(target, SOURCE, (1, -1), (0,), top_k=2, max_new_tokens=WANTED.max_new_tokens, batch=4, keep=keep)


def same(a: TrainBatch, b: TrainBatch) -> bool:
    pairs = [(a.tokens, b.tokens), (a.starts, b.starts), (a.lengths, b.lengths), (a.visual_ids, b.visual_ids)]
    pairs += [(a.hidden[layer], b.hidden[layer]) for layer in (1, 3)] + [(a.visual[0], b.visual[0])]
    return all(x is not None and y is not None and torch.equal(x, y) for x, y in pairs)


def test_a_lesson_is_the_stores(tmp_path: Path) -> None:
    plan = zoo_plan(SOURCE)
    writer = Alone(Scribe(plan.target, plan.wanted, learns=False))
    capture(tmp_path, plan, begun(tmp_path, plan), writer, lambda _: None)
    store, live = Store.open(tmp_path), online()
    for step, indices in ((0, [0, 1, 2, 3]), (1, [4, 5, 6, 7]), (2, [8, 0, 1, 2])):
        assert same(live.lesson(step, 4), store.lesson(indices, (1, 3), (0,)))
        assert torch.equal(live.top(step, 4).ids, store.top(indices).ids)
        assert torch.equal(live.top(step, 4).logits, store.top(indices).logits)


def test_a_step_depends_on_nothing_but_the_step_to_the_last_bit() -> None:
    """In float32, where passes of other shapes round otherwise: nothing may be drafted from what came before."""
    walked, jumped = online(keep=1, single=True), online(keep=1, single=True)
    lessons = [(walked.lesson(step, 4), walked.top(step, 4)) for step in range(4)]
    for step in (3, 1, 0, 2):
        lesson, top = lessons[step]
        assert same(jumped.lesson(step, 4), lesson)
        assert torch.equal(jumped.top(step, 4).logits, top.logits)


def test_a_clip_in_memory_is_not_asked_about_again(monkeypatch: pytest.MonkeyPatch) -> None:
    live, written = online(keep=2), []
    write = live._scribe.write
    monkeypatch.setattr(live._scribe, "write", lambda clips: written.append(clips[0].name) or write(clips))
    for step in (0, 1, 0, 2, 0, 1):  # of three answers: a step is a clip
        live.lesson(step, 3)
    assert written == ["clip 0", "clip 1", "clip 2", "clip 1"]


def test_a_layer_outside_the_model_is_refused() -> None:
    with pytest.raises(CrossdraftError, match="Layer 4 is outside the target"):
        Online(zoo_target(), SOURCE, (4,))
