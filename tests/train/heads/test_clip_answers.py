"""What adapters learn from: both models at the same token of the same answer, and how far a draft along it would go."""

import gc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.models.eventgpt import EventGPTProcessor
from crossdraft_lab.align.networks.base import TARGET
from crossdraft_lab.objective import OUTSIDE, Objective
from crossdraft_lab.train.core.dist import MicroBatch
from crossdraft_lab.train.heads import clip_answers
from crossdraft_lab.train.heads.align_task import TargetHead, alignment_loss, prefix_figures
from crossdraft_lab.train.heads.clip_answers import (
    AlignmentData,
    EventPromptCodec,
    OwnAnswerData,
    drafter_states,
    own_answers,
    train_batch,
)
from crossdraft_lab.train.heads.state_file import StateFile
from crossdraft_lab.train.reference.tokenizer import EVENT, PromptCodec
from tests.train.heads.conftest import WIDTH


def test_a_feature_stands_where_the_same_tokens_have_been_read(paired):
    rows, features = paired.read(paired.numbers(0))
    batch = train_batch(rows, {})
    for row, (question, answer) in enumerate(paired.store.rows):
        length = len(question) + len(answer)
        assert batch.tokens[row, :length].tolist() == [*question, *answer]
        assert (int(batch.starts[row]), int(batch.lengths[row])) == (len(question), length)
        expected = torch.zeros(batch.tokens.shape[1])
        expected[len(question) - 1 : length - 1] = torch.arange(len(question) - 1.0, length - 1)
        assert torch.equal(features[row], expected[:, None].expand(-1, WIDTH))


def test_a_drafter_with_another_prompt_reads_the_same_answer(paired, monkeypatch):
    """Its question may be longer than the target's: features move with the answer, ids stay the target's own."""
    monkeypatch.setattr(type(paired.codec), "question_ids", lambda codec, question: [7] * 40)
    rows, features = paired.read([0])
    own, answer = paired.store.rows[0]
    assert rows.tokens[0, 40 : 40 + len(answer)].tolist() == answer
    assert features[0, 39, 0] == len(own) - 1
    assert features[0, :39].abs().sum() == 0
    assert features[0, 39 + len(answer) - 1, 0] == len(own) + len(answer) - 2


@torch.no_grad()
def test_states_are_the_models_own_and_are_read_once(paired, monkeypatch):
    """Every layer along prompt and answer is that of a plain forward; the second time nothing is run."""
    data = AlignmentData(paired, paired.features.vlm, (1, 2))
    batch, _ = data.batch(0)
    visual = paired.features.visual(0, [0, 1])
    model = paired.features.vlm.model
    for row in range(4):
        length = int(batch.lengths[row])
        before = model.get_input_embeddings()(torch.tensor([paired.codec.prefix_ids()]))
        text = model.get_input_embeddings()(batch.tokens[row : row + 1, :length])
        embeds = torch.cat((before, visual[row // 2][None], text), 1)
        out = model.model.language_model(inputs_embeds=embeds, output_hidden_states=True)
        for layer in (1, 2):
            own = batch.hidden[layer][row, :length]
            assert torch.allclose(own, out.hidden_states[layer][0, -length:], atol=1e-6), (row, layer)
    monkeypatch.setattr(clip_answers, "drafter_states", lambda *_: pytest.fail("read again"))
    again, _ = data.batch(0)
    assert torch.equal(again.hidden[2], batch.hidden[2])
    assert drafter_states is not clip_answers.drafter_states


OWN, TOP = 6, 5


def state_data(answers, kept):
    return AlignmentData(answers, answers.features.vlm, (2,), kept=kept)


def own_answer_data(answers, kept):
    return OwnAnswerData(answers, answers.features.vlm, OWN, TOP, kept=kept)


@pytest.mark.parametrize("data_of", [state_data, own_answer_data])
def test_tensors_are_the_same_bits_kept_or_found_out_anew(paired, tmp_path, monkeypatch, data_of):
    """Of a step of one clip or of both, with one answer about each or with both; what is kept is not found out again.

    Products round as their sizes are: larger models' more than these, so that here every call rounds in its own way.
    """

    def rounding(*inputs):
        tokens = inputs[3].tokens
        return [states + 1e-3 * tokens.float().mean() + len(tokens) for states in drafter_states(*inputs)]

    monkeypatch.setattr(clip_answers, "drafter_states", rounding)
    kept, none = StateFile(tmp_path, spare=0), StateFile(tmp_path, spare=1 << 60)
    found: dict[int, Sequence[torch.Tensor]] = {}
    for where, clips, each in ((kept, 1, 2), (none, 1, 2), (none, 2, 2), (none, 2, 1)):
        data = data_of(replace(paired, clips=clips, each=each), where)
        for step in range(8):
            numbers = data.answers.numbers(step)
            for number, tensors in zip(numbers, data._tensors(step, numbers), strict=True):
                for one, other in zip(found.setdefault(number, tensors), tensors, strict=True):
                    assert one.equal(other), (number, step, clips)
    assert len(found) == 4
    assert all(number in kept and number not in none for number in found)
    monkeypatch.setattr(clip_answers, "drafter_states", lambda *_: pytest.fail("found out again"))
    data_of(paired, kept).batch(0)


@torch.no_grad()
def test_the_drafters_own_answer_is_greedy_with_what_each_token_came_from(paired):
    batch, _ = own_answer_data(paired, StateFile()).batch(0)
    own, model = batch.own, paired.features.vlm.model
    assert own is not None
    said = own_answers(paired.features.vlm, paired, paired.visual(0), paired.numbers(0), OWN)
    for row, number in enumerate(paired.numbers(0)):
        length = min(len(said[row]), batch.tokens.shape[1])
        assert own.tokens[row].tolist() == [*said[row][:length], *[0] * (own.tokens.shape[1] - length)], number
        assert int(own.lengths[row]) == length
        log_probs = model.get_output_embeddings()(own.states[row, :length]).log_softmax(-1)
        assert log_probs.argmax(-1).tolist() == said[row][:length]
        best = log_probs.topk(TOP, -1)
        assert own.ids[row, :length].equal(best.indices)
        assert own.log_probs[row, :length].allclose(best.values, atol=1e-6)


@pytest.mark.parametrize("spare", [0, 1 << 60])
def test_nothing_stays_in_memory_after_its_step(paired, tmp_path, spare, monkeypatch):
    """The drafter's own answers are on the disk, or found out anew where that has no room."""
    made: list[weakref.ref[torch.Tensor]] = []
    keep = StateFile.keep

    def watched(states, number, tensors):
        made.extend(weakref.ref(tensor if tensor._base is None else tensor._base) for tensor in tensors)
        keep(states, number, tensors)

    monkeypatch.setattr(StateFile, "keep", watched)
    some = own_answer_data(paired, StateFile(tmp_path, spare))
    for step in range(4):
        some.batch(step)
        gc.collect()
        assert made
        assert not [one for one in made if one() is not None], step


def test_every_answer_has_the_frames_of_its_clip(paired):
    class Frames:
        def visual(self, step, clips):
            return torch.tensor(clips, dtype=torch.float)[:, None, None].expand(-1, 2, 3)

    batch, features = AlignmentData(paired, paired.features.vlm, (2,), Frames()).batch(0)
    clips = [clip for number in paired.numbers(0) for clip, known in paired.by_clip.items() if number in known]
    assert batch.visual[0][:, 0, 0].tolist() == clips
    assert torch.equal(batch.hidden[TARGET], features)


def test_the_drafters_own_answer_stands_between_question_and_answer(paired):
    """It is the model's greedy one, said once; labels begin behind it."""
    data = AlignmentData(paired, paired.features.vlm, (), own=6)
    batch, _ = data.batch(0)
    visual, model = paired.features.visual(0, [0, 1]), paired.features.vlm.model
    for row, (question, answer) in enumerate(paired.store.rows):
        own = batch.tokens[row, len(question) : int(batch.starts[row])].tolist()
        before = model.get_input_embeddings()(torch.tensor([paired.codec.prefix_ids()]))
        said: list[int] = []
        while len(said) < 6 and paired.codec.processor.tokenizer.eos_token_id not in said:
            text = model.get_input_embeddings()(torch.tensor([[*question, *said]]))
            embeds = torch.cat((before, visual[row // 2][None], text), 1)
            hidden = model.model.language_model(inputs_embeds=embeds).last_hidden_state
            said.append(int(model.get_output_embeddings()(hidden)[0, -1].argmax()))
        assert own == said
        assert batch.tokens[row, int(batch.starts[row]) : int(batch.lengths[row])].tolist() == answer
    assert torch.equal(data.batch(0)[0].tokens, batch.tokens)


LABELS = torch.tensor([[1, 2, 0, 1, OUTSIDE, OUTSIDE], [0, 0, 1, 2, 2, OUTSIDE]])
BATCH = TrainBatch(torch.zeros(2, 6, dtype=torch.long), {}, starts=torch.tensor([2, 3]), lengths=torch.tensor([5, 6]))


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ((), (3 + 3) / 2),  # positions 1 to 3 of the first answer, 2 to 4 of the second
        (((0, 1),), (0 + 3) / 2),
        (((0, 0), (1, 1)), (3 + 3) / 2),  # before the answers
        (((0, 3), (1, 3)), (2 + 1) / 2),
        (((1, 2), (1, 4)), (3 + 0) / 2),
    ],
)
def test_the_accepted_prefix_by_hand(wrong, expected):
    logits = torch.nn.functional.one_hot(LABELS.clamp(min=0), 3).float()
    for row, position in wrong:
        logits[row, position] = -logits[row, position]
    assert prefix_figures(logits, BATCH, LABELS) == {"prefix": expected, "prefixes": len(BATCH)}


def test_a_token_outside_the_draft_vocabulary_ends_the_draft():
    labels = LABELS.clone()
    labels[0, 2] = OUTSIDE
    logits = torch.nn.functional.one_hot(LABELS.clamp(min=0), 3).float()
    assert prefix_figures(logits, BATCH, labels)["prefix"] == (1 + 3) / 2


@dataclass
class Fixed:
    """Predictions that are the target's features at a position `shift` off."""

    target: TargetHead
    features: torch.Tensor
    shift: int = 0

    def __call__(self, batch):
        features = self.features.roll(-self.shift, 1)
        return [DraftLogits(0, features @ self.target.rows.T, features)]


def test_the_loss_is_0_at_the_targets_own_features_and_not_one_position_off(paired):
    """The planted bug: features paired one position later."""
    rows, _ = paired.read([0, 1, 2, 3])
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(*rows.tokens.shape, WIDTH, generator=generator)
    ids = torch.arange(300)
    head = TargetHead(torch.randn(300, WIDTH, generator=generator), ids, 320)
    batch = train_batch(rows, {})

    def loss(shift):
        objective = Objective({"mse": 1.0, "cosine": 0.5, "kl": 1.0})
        return alignment_loss(Fixed(head, features, shift), lambda step: (batch, features), objective, head)

    assert float(loss(0)(0, MicroBatch())[0]) == pytest.approx(0, abs=1e-5)
    assert float(loss(1)(0, MicroBatch())[0]) > 1


def test_shares_of_a_step_are_its_clips(paired):
    whole = paired.numbers(3)
    assert [*paired.numbers(3, MicroBatch(0, 2)), *paired.numbers(3, MicroBatch(1, 2))] == whole
    both = [paired.visual(3, MicroBatch(index, 2)) for index in (0, 1)]
    assert torch.allclose(torch.cat(both), paired.visual(3))


def test_any_event_models_prompt_is_its_processors(pair):
    processor = EventGPTProcessor.from_pretrained(pair.event)
    codec, known = EventPromptCodec(processor), PromptCodec(processor.tokenizer, EVENT)
    assert codec.prefix_ids() == known.prefix_ids()
    assert codec.question_ids("What is ahead?") == known.question_ids("What is ahead?")
    options = replace(processor.options, template="Hello. USER: {event}\nNow: {question} ASSISTANT:")
    other = EventPromptCodec(EventGPTProcessor(processor.config, processor.tokenizer, options))
    whole = other.processor.prompt_ids("Is it dark?")
    events = [processor.config.event_token_id] * processor.config.event_seq_length
    assert [*other.prefix_ids(), *events, *other.question_ids("Is it dark?")] == whole
