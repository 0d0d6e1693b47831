"""Heads on an event model: its features after the target's words, and the losses that learn from them."""

from types import SimpleNamespace

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.heads.event_medusa.drafter import shared_weights_of
from crossdraft.heads.event_medusa.network import DrafterMedusa, DrafterMedusaConfig
from crossdraft.heads.glance.network import GlanceConfig
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft_lab.objective import Objective
from crossdraft_lab.train.capture.shard import CapturedAnswer
from crossdraft_lab.train.core.dist import MicroBatch
from crossdraft_lab.train.heads.event_task import EventBatches, GlanceBatches, event_head_loss

QUESTIONS = 2


@pytest.fixture
def events(paired) -> EventBatches:
    return EventBatches(paired, paired.features.vlm)


def vlm_of(answers):
    """The event model behind a fixture's answers."""
    return answers.features.vlm.model


class Adapter:
    """What `shared_weights_of` looks at of a target."""

    def __init__(self, model) -> None:
        self.model = model


def ids_of(answers) -> tuple[int, ...]:
    rows = answers.rows(answers.numbers(0))
    return tuple(sorted(set(rows.targets.flatten().tolist()) - {-100}))


def cross(answers, **more) -> DrafterMedusa:
    model = vlm_of(answers)
    config = DrafterMedusaConfig(
        hidden_size=32, vocab_size=model.config.text_config.vocab_size, num_layers=2, draft_ids=ids_of(answers),
        width=32, **more,
    )  # fmt: skip
    torch.manual_seed(0)
    return DrafterMedusa(config, shared_weights_of(Adapter(model))).double()


@torch.no_grad()
def test_a_batch_holds_the_models_own_features(events):
    """Row by row a plain forward over prompt, question and answer."""
    batch, codec, answers, model = events(0), events.answers.codec, events.answers, vlm_of(events.answers)
    pixels = answers.features.spec.pixels(0, [0, 1]).double()
    for row, (question_ids, answer_ids) in enumerate(answers.store.rows):
        assert int(batch.starts[row]) == len(question_ids)
        assert batch.tokens[row, : int(batch.lengths[row])].tolist() == [*question_ids, *answer_ids]
        visual = [model.config.event_token_id] * model.config.event_seq_length
        ids = torch.tensor([[*codec.prefix_ids(), *visual, *question_ids, *answer_ids]])
        out = model(input_ids=ids, pixel_values_videos=pixels[row // QUESTIONS][None], output_hidden_states=True)
        own = out.hidden_states[-1][0, -len(question_ids) - len(answer_ids) :]
        mine = batch.hidden[2][row, : int(batch.lengths[row])]
        assert torch.allclose(mine, own, atol=1e-5)


def learned(head, loss_of, steps=40, rate=3e-3) -> tuple[list[float], dict[str, float]]:
    optimiser = torch.optim.Adam([p for p in head.parameters() if p.requires_grad], rate)
    losses, figures = [], {}
    for _ in range(steps):
        loss, figures = loss_of(0, MicroBatch())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses, figures


@pytest.mark.parametrize("name", ["cross_entropy", "kl"])
def test_cross_heads_learn_the_words_and_leave_the_event_model_alone(events, name):
    model, head = vlm_of(events.answers), cross(events.answers)
    rows = head.lm_head.weight.detach().clone()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    losses, figures = learned(head, event_head_loss(head, events, Objective({name: 1.0}, 0.8), rows), rate=1e-2)
    assert losses[-1] < 0.5 * losses[0]
    if name == "cross_entropy":
        assert figures["tau"] > 3.5
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


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


def glance(frames: int = 4, patches: int = 3, looked_at: int = 2, wanted_patches: int = 3) -> GlanceBatches:
    config = GlanceConfig(
        hidden_size=8, vocab_size=20, num_layers=2, draft_ids=(1,), tower="x", visual_size=2, patches=wanted_patches,
        frames=looked_at, heads=2,
    )  # fmt: skip
    rows = torch.zeros(2 * EACH, 5, dtype=torch.long)
    batch = TrainBatch(rows, {2: torch.randn(2 * EACH, 5, 8)}, torch.full((4,), 2), torch.full((4,), 5))
    answers = SimpleNamespace(
        features=SimpleNamespace(numbers=lambda step, clips: [1, 0]), clips=2, by_clip={0: [10, 11], 1: [20, 21]},
        store=Captured(frames, patches),
    )  # fmt: skip

    class Events:
        def __init__(self) -> None:
            self.answers = answers

        def __call__(self, step: int) -> TrainBatch:
            return batch

    return GlanceBatches(Events(), frozenset({FRAME}), config)


def test_the_frames_read_are_spread_over_the_clip_and_text_is_left_out():
    assert glance().frame_features(0)[:, 0].tolist() == [0, 1, 2, 9, 10, 11]  # the first frame and the last
    assert glance(looked_at=3).frame_features(1).tolist() == [[i, 1] for i in (0, 1, 2, 3, 4, 5, 9, 10, 11)]


def test_frame_features_are_those_of_the_answers_clip():
    found = glance()(0)
    assert found.visual[0].shape == (4, 6, 2)
    assert found.visual[0][:, 0, 1].tolist() == [1, 1, 0, 0]


def test_another_number_of_features_a_frame_is_refused():
    with pytest.raises(CrossdraftError, match=r"has 12 visual features, not a multiple of .* patches=5"):
        glance(wanted_patches=5).frame_features(0)


def test_a_capture_without_clips_is_refused():
    with pytest.raises(CrossdraftError, match="capture here has no visual features"):
        glance(frames=0).frame_features(0)
