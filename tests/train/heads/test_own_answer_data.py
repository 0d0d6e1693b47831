"""The drafter's own answers that adapters learn from: said once, the same bits kept or not, never held in memory."""

import gc
import weakref
from dataclasses import fields, replace

import pytest
import torch

from crossdraft_lab.align.networks.own_answer import IndexedBatch, OwnAnswer
from crossdraft_lab.train.heads import clip_answers
from crossdraft_lab.train.heads.clip_answers import OwnAnswerData, drafter_states, own_answers
from crossdraft_lab.train.heads.state_file import StateFile

OWN, TOP = 6, 5


@pytest.fixture
def kept(tmp_path):
    return StateFile(tmp_path, spare=0)


@pytest.fixture
def data(paired, kept):
    return OwnAnswerData(paired, paired.features.vlm, OWN, TOP, kept=kept)


def own_of(batch: IndexedBatch) -> OwnAnswer:
    assert batch.own is not None
    return batch.own


@torch.no_grad()
def test_it_is_the_models_greedy_answer_with_what_each_token_came_from(data, paired):
    batch, _ = data.batch(0)
    own, model = own_of(batch), paired.features.vlm.model
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


def test_it_is_said_once(data, monkeypatch):
    first = own_of(data.batch(0)[0])
    monkeypatch.setattr(clip_answers, "own_answers", lambda *_: pytest.fail("said again"))
    again = own_of(data.batch(0)[0])
    for field in fields(OwnAnswer):
        assert getattr(first, field.name).equal(getattr(again, field.name)), field.name


def test_it_has_the_same_bits_kept_or_found_out_anew(data, paired, kept, tmp_path, monkeypatch):
    """Of a step of one clip or of both, with one answer about each or with both.

    Products round as their sizes are: larger models' more than these, so that here every call rounds in its own way.
    """

    def rounding(*inputs):
        tokens = inputs[3].tokens
        return [states + 1e-3 * tokens.float().mean() + len(tokens) for states in drafter_states(*inputs)]

    monkeypatch.setattr(clip_answers, "drafter_states", rounding)
    none = StateFile(tmp_path, spare=1 << 60)
    found: dict[int, tuple[torch.Tensor, ...]] = {}
    for where, clips, each in ((kept, 1, 2), (none, 1, 2), (none, 2, 2), (none, 2, 1)):
        some = replace(data, answers=replace(paired, clips=clips, each=each), kept=where)
        for step in range(8):
            own, numbers = own_of(some.batch(step)[0]), some.answers.numbers(step)
            for row, number in enumerate(numbers):
                length = int(own.lengths[row])
                said = tuple(part[row, :length] for part in (own.tokens, own.states, own.ids, own.log_probs))
                for one, other in zip(found.setdefault(number, said), said, strict=True):
                    shared = min(len(one), len(other))  # a batch is as wide as the longest of the target's answers
                    assert one[:shared].equal(other[:shared]), (number, step, clips)
    assert len(found) == 4
    assert all(number in kept and number not in none for number in found)


@pytest.mark.parametrize("spare", [0, 1 << 60])
def test_nothing_of_it_stays_in_memory_after_its_step(data, tmp_path, spare, monkeypatch):
    """Whether there is room on the disk or not."""
    made: list[weakref.ref[torch.Tensor]] = []
    keep = StateFile.keep

    def watched(states, number, tensors):
        made.extend(weakref.ref(tensor if tensor._base is None else tensor._base) for tensor in tensors)
        keep(states, number, tensors)

    monkeypatch.setattr(StateFile, "keep", watched)
    some = replace(data, kept=StateFile(tmp_path, spare))
    for step in range(4):
        some.batch(step)
        gc.collect()
        assert made
        assert not [one for one in made if one() is not None], step
