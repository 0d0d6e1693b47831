"""Which captured features a glance learns from."""

from types import SimpleNamespace

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.heads.glance.network import GlanceConfig
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.train.capture.shard import CapturedAnswer
from crossdraft.train.heads.event_data import GlanceAnswers, firsts_of

FRAME, TEXT = 9, 1  # ids: of a visual feature, of a word in front of them
EACH = 2  # questions about a clip


class Captured:
    """Answers 10 and 11 are about clip 0, 20 and 21 about clip 1; feature i of a clip is [i, clip]."""

    folder = "here"

    def __init__(self, frames: int, patches: int) -> None:
        self.count = frames * patches

    def answer(self, index, visual_layers):
        assert visual_layers == (0,)
        clip = index // 10 - 1
        features = torch.tensor([[-1.0, -1.0], *([float(i), float(clip)] for i in range(self.count))])
        ids = torch.tensor([TEXT, *[FRAME] * self.count])
        return CapturedAnswer(torch.zeros(0, dtype=torch.long), 0, {}, ids, {0: features})


def answers(frames: int = 4, patches: int = 3, looked_at: int = 2, wanted_patches: int = 3) -> GlanceAnswers:
    config = GlanceConfig(
        hidden_size=8, vocab_size=20, num_layers=2, draft_ids=(1,), tower="x", visual_size=2, patches=wanted_patches,
        frames=looked_at, heads=2,
    )  # fmt: skip
    rows = torch.zeros(2 * EACH, 5, dtype=torch.long)
    lesson = TrainBatch(rows, {2: torch.randn(2 * EACH, 5, 8)}, torch.full((4,), 2), torch.full((4,), 5))
    behind = SimpleNamespace(
        lesson=lambda step: lesson, clips=2, look=SimpleNamespace(clips=lambda step, count: [1, 0])
    )
    return GlanceAnswers(behind, Captured(frames, patches), {0: 10, 1: 20}, {FRAME}, config)


def test_the_frames_looked_at_are_spread_over_the_clip_and_text_is_left_out():
    assert answers().seen(0)[:, 0].tolist() == [0, 1, 2, 9, 10, 11]  # the first frame and the last
    assert answers(looked_at=3).seen(1).tolist() == [[i, 1] for i in (0, 1, 2, 3, 4, 5, 9, 10, 11)]


def test_every_question_is_asked_before_its_own_clip():
    found = answers().lesson(0)
    assert found.visual[0].shape == (4, 6, 2)
    assert found.visual[0][:, 0, 1].tolist() == [1, 1, 0, 0]


def test_another_number_of_features_a_frame_is_refused():
    with pytest.raises(CrossdraftError, match=r"has 12 visual features, not a multiple of .* patches=5"):
        answers(wanted_patches=5).seen(0)


def test_a_capture_without_clips_is_refused():
    with pytest.raises(CrossdraftError, match="capture here has no visual features"):
        answers(frames=0).seen(0)


def test_the_first_answer_about_each_clip():
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert firsts_of(range(5), places.__getitem__) == {0: 0, 1: 2}
