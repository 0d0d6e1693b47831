"""Heads on an event model: its features after the target's words, and the losses that learn from them."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from crossdraft.heads.event_medusa.drafter import shared_weights_of
from crossdraft.heads.event_medusa.network import DrafterMedusa, DrafterMedusaConfig
from crossdraft.heads.fast.network import Fast, FastConfig
from crossdraft.heads.networks.objective import Objective
from crossdraft.models.eventgpt import EventGPTForConditionalGeneration
from crossdraft_lab.train.capture.shard import CapturedAnswer
from crossdraft_lab.train.core.dist import MicroBatch
from crossdraft_lab.train.heads.event_data import EventAnswers, answers_by_clip
from crossdraft_lab.train.heads.event_task import event_head_loss, fast_figures, fast_loss, first_words
from crossdraft_lab.train.reference.batches import BatchSpec, QAPair
from crossdraft_lab.train.reference.clips import ClipCache
from crossdraft_lab.train.reference.models import TrainableEventGPT
from crossdraft_lab.train.reference.recipe import Jitter
from crossdraft_lab.train.reference.tokenizer import EVENT, PromptCodec, load_tokenizer
from tests.support import EVENT_FRAMES, SIDE, tiny_pair

CLIPS, QUESTIONS = 2, 2
TEXTS = (
    ("what is ahead?", "the car in front is turning left"),
    ("which light?", "red light"),
    ("what is the car doing?", "turning left near the red light."),
    ("near what?", "the light"),
)


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> EventAnswers:
    """A tiny event model over two clips of noise."""
    folder = tmp_path_factory.mktemp("events")
    pair = tiny_pair(folder)
    model = EventGPTForConditionalGeneration.from_pretrained(pair.event, attn_implementation="sdpa").double()
    cache = ClipCache(folder / "cache", SIDE, event_frames=EVENT_FRAMES)
    cache.folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 2, (CLIPS, EVENT_FRAMES, SIDE, SIDE), dtype=np.uint8)
    noise[1] *= 2  # the second clip's events are of the other polarity
    np.save(cache.path("events", "train", 0), noise)
    codec = PromptCodec(load_tokenizer(pair.event), EVENT)
    vlm = DoubleDrafter(model)
    spec = BatchFeatures(vlm, BatchSpec(cache, "events", CLIPS, Jitter(), 0))
    pairs = [QAPair(*text, whole=row != 1) for row, text in enumerate(TEXTS)]
    return EventAnswers(vlm, spec, codec, lambda step, clips: pairs, CLIPS)


@dataclass(frozen=True)
class BatchFeatures:
    """Clips as training looks at them, without any adapter."""

    vlm: TrainableEventGPT
    spec: BatchSpec

    def numbers(self, step, count):
        return self.spec.clips(step, count)

    def visual(self, step, clips):
        return self.vlm.visual_tokens(self.vlm.patches(self.spec.pixels(step, clips)))


class DoubleDrafter(TrainableEventGPT):
    """In double precision, so that equal means equal."""

    def patches(self, pixels):
        return TrainableEventGPT.patches(self, pixels.double())


class Adapter:
    """What `shared_weights_of` looks at of a target."""

    def __init__(self, model) -> None:
        self.model = model


def ids_of(answers) -> tuple[int, ...]:
    rows = answers.event_batch(0).rows
    return tuple(sorted(set(rows.targets.flatten().tolist()) - {-100}))


def cross(answers, **more) -> DrafterMedusa:
    model = answers.model.model
    config = DrafterMedusaConfig(
        hidden_size=32, vocab_size=model.config.text_config.vocab_size, num_layers=2, draft_ids=ids_of(answers),
        width=32, **more,
    )  # fmt: skip
    torch.manual_seed(0)
    return DrafterMedusa(config, shared_weights_of(Adapter(model))).double()


def fast(answers, **more) -> Fast:
    model = answers.model.model
    config = FastConfig(
        hidden_size=32, vocab_size=model.config.text_config.vocab_size, num_layers=2, draft_ids=ids_of(answers),
        width=64, steps=6, **more,
    )  # fmt: skip
    torch.manual_seed(0)
    return Fast(config, shared_weights_of(Adapter(model))).double()


@torch.no_grad()
def test_a_batch_holds_the_models_own_features(answers):
    """Row by row a plain forward over prompt, question and answer."""
    batch, codec, model = answers.batch(0), answers.codec, answers.model.model
    pixels = answers.features.spec.pixels(0, [0, 1]).double()
    for row, (question, answer) in enumerate(TEXTS):
        question_ids, answer_ids = codec.question_ids(question), codec.answer_ids(answer, whole=row != 1)
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
def test_cross_heads_learn_the_words_and_leave_the_event_model_alone(answers, name):
    head = cross(answers)
    rows = head.lm_head.weight.detach().clone()
    before = {key: value.clone() for key, value in answers.model.model.state_dict().items()}
    losses, figures = learned(head, event_head_loss(head, answers.batch, Objective({name: 1.0}, 0.8), rows), rate=1e-2)
    assert losses[-1] < 0.5 * losses[0]
    if name == "cross_entropy":
        assert figures["tau"] > 3.5
    assert all(torch.equal(value, before[key]) for key, value in answers.model.model.state_dict().items())


def test_the_fast_head_learns_and_the_blind_one_gives_all_clips_the_same(answers):
    """The same question about both clips, answered differently: only who sees can know both answers."""
    same = [QAPair("what is ahead?", text) for _, text in (TEXTS[0], TEXTS[0], TEXTS[2], TEXTS[2])]
    repeated = EventAnswers(answers.model, answers.features, answers.codec, lambda step, clips: same, CLIPS)
    figures = {}
    for sees in (True, False):
        head = fast(answers, sees=sees)
        _, figures[sees] = learned(head, fast_loss(head, repeated), steps=80, rate=1e-2)
    assert figures[True]["right"] == 1.0
    assert figures[True]["tau"] > 1 + 4
    assert figures[False]["tau"] < figures[True]["tau"]
    assert figures[False]["right"] < 1


def test_first_words_and_figures_by_hand(answers):
    event_batch, codec = answers.event_batch(0), answers.codec
    ids, there = first_words(event_batch, 3)
    assert ids[0].tolist() == codec.answer_ids(TEXTS[0][1])[:3]
    short = codec.answer_ids(TEXTS[1][1], whole=False)
    longer, some = first_words(event_batch, len(short) + 2)
    assert some[1].tolist() == [True] * len(short) + [False] * 2
    assert longer[1, : len(short)].tolist() == short
    assert there.sum(1).tolist() == [3, 2, 3, 3]
    logits = torch.eye(4)[torch.tensor([[0, 1, 2], [3, 1, 2]])]
    known = torch.tensor([[0, 1, 3], [0, 1, -1]])
    figures = fast_figures(logits, known, torch.tensor([[True, True, True], [True, True, False]]))
    assert figures == {"right": pytest.approx(3 / 5), "tau": 2.0}


class Few:
    """A capture of three answers, as far as `answers_by_clip` looks."""

    def __init__(self, answers) -> None:
        self.answers = answers

    def __len__(self) -> int:
        return len(self.answers)

    def answer(self, number):
        return self.answers[number]


def test_captured_answers_are_read_back_as_text(answers):
    batch = answers.batch(0)
    rows = [
        CapturedAnswer(tokens[: int(length)], int(start), {}, tokens[:0])
        for tokens, start, length in zip(batch.tokens, batch.starts, batch.lengths, strict=True)
    ]
    known = answers_by_clip(Few(rows), answers.codec, lambda number: divmod(number, 2))
    pairs = [QAPair(*text, whole=row != 1) for row, text in enumerate(TEXTS)]
    assert known == {0: pairs[:2], 1: pairs[2:]}
