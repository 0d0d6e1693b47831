"""PaSS's training: what is rehearsed after an answer is what the engine's probes will read there."""

import pytest
import torch

from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.passes import PassRow
from crossdraft.engine.request import Request
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.objective import Objective
from crossdraft.heads.pass_.drafter import PassDrafter
from crossdraft_lab.train.core.dist import MicroBatch
from crossdraft_lab.train.heads import pass_task as pass_
from crossdraft_lab.train.heads.pass_task import AnsweredPrompt, lookahead_logits, pass_loss, read_answer
from tests.engine.zoo import ZOO, as_target
from tests.heads.pass_.test_drafter import rows_for

OBJECTIVE = Objective({"cross_entropy": 1.0}, step_weight=0.8)


def answered(target, count=2) -> list[AnsweredPrompt]:
    requests = [Request("x" * i, max_new_tokens=5 + i) for i in range(1, count + 1)]
    answers = DecodeLoop(target).generate(requests)
    return [AnsweredPrompt(target.prepare(r), answer.tokens) for r, answer in zip(requests, answers, strict=True)]


def probed(target, head, prompted: AnsweredPrompt) -> torch.Tensor:
    """[n, L, V] what the engine's probes say after the prompt and after all but the last of the answer's tokens."""
    tree = DraftTree.chain(prompted.answer[:-1])
    probes = PassDrafter(head).probes(len(tree))
    cache = target.new_cache(capacity=256)
    cache.add_row(256)
    pieces, cache.rope_deltas[0] = target.chunks(prompted.prompt, target.encode(prompted.prompt))
    for piece in pieces[:-1]:
        target.extend(cache, [PassRow(0, piece)])
    fed = probes.behind(tree)
    out = target.extend(cache, [PassRow(0, pieces[-1], fed, probes.embeddings)])
    return out.logits[0][1 + len(tree) :].unflatten(0, (len(prompted.answer), head.config.steps))


@pytest.mark.parametrize("name", ZOO)
def test_training_logits_equal_the_probe_logits_of_drafting(name):
    target = as_target(*ZOO[name]())
    head = rows_for(target)
    for prompted in answered(target):
        anchors = range(len(prompted.answer))
        logits = lookahead_logits(target, head, read_answer(target, prompted), anchors)
        assert (logits - probed(target, head, prompted)).abs().max() < 1e-10


def test_logits_that_see_the_next_token_would_be_noticed(monkeypatch):
    """The planted bug: one word of the answer too many in view."""
    target = as_target(*ZOO["video_llava"]())
    head, prompted = rows_for(target), answered(target)[1]
    read = read_answer(target, prompted)
    peeking = pass_.ReadAnswer(read.keys, read.values, read.logits, read.length + 1, read.offset - 1)
    logits = lookahead_logits(target, head, peeking, range(4))
    assert (logits - probed(target, head, prompted)[:4]).abs().max() > 1e-3


def test_teacher_logits_give_the_answer():
    target = as_target(*ZOO["qwen2_5_vl"]())
    for prompted in answered(target):
        read = read_answer(target, prompted)
        assert tuple(read.logits.argmax(-1).tolist()) == prompted.answer
        assert read.keys[0].shape[2] == len(prompted.prompt) + len(prompted.answer) - 1


def test_the_loss_by_hand():
    """All positions of one answer: 0.8^(j - 1) times the surprise at the token j further on, over the positions."""
    target = as_target(*ZOO["video_llava"]())
    head, prompted = rows_for(target), answered(target)[0]
    loss, figures = pass_loss(target, head, lambda step: [prompted], OBJECTIVE, anchors=99)(0, MicroBatch())
    end = len(prompted.answer)
    log_probs = probed(target, head, prompted).log_softmax(-1)
    total = sum(
        -(0.8**offset) * log_probs[position, offset, prompted.answer[position + 1 + offset]]
        for position in range(end - 1)
        for offset in range(min(3, end - 1 - position))
    )
    assert float(loss.detach()) == pytest.approx(float(total.detach()) / (end - 1))
    assert figures["places"] == end - 1
    first = [int(log_probs[position, 0].argmax()) == prompted.answer[position + 1] for position in range(end - 1)]
    assert figures["right_1"] == pytest.approx(sum(first) / (end - 1))


def test_micro_batches_add_up_and_steps_repeat():
    target = as_target(*ZOO["video_llava"]())
    head, four = rows_for(target), answered(target, 4)
    loss_of = pass_loss(target, head, lambda step: four, OBJECTIVE, anchors=3)
    whole, figures = loss_of(5, MicroBatch())
    parts = [loss_of(5, MicroBatch(i, 2)) for i in range(2)]
    weights = [part[1]["places"] for part in parts]
    mean = sum(float(part[0].detach()) * w for part, w in zip(parts, weights, strict=True)) / sum(weights)
    assert mean == pytest.approx(float(whole.detach()))
    assert float(loss_of(5, MicroBatch())[0].detach()) == float(whole.detach())
    assert figures["places"] == sum(weights) <= 12
    assert float(loss_of(6, MicroBatch())[0].detach()) != float(whole.detach())


def test_only_the_rows_learn_and_they_do():
    target = as_target(*ZOO["video_llava"]())
    head, some = rows_for(target), answered(target)
    before = {name: value.clone() for name, value in target.model.state_dict().items()}
    loss_of = pass_loss(target, head, lambda step: some, Objective({"kl": 1.0}), anchors=4)
    optimiser = torch.optim.Adam(head.parameters(), 0.1)
    losses = []
    for _ in range(12):
        loss, _ = loss_of(0, MicroBatch())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert min(losses[-3:]) < 0.9 * losses[0]
    assert all(torch.equal(value, target.model.state_dict()[name]) for name, value in before.items())
    assert all(value.grad is None for value in target.model.parameters())


def test_what_cannot_be_learned_from_is_refused_or_left_out():
    target = as_target(*ZOO["video_llava"]())
    head, prompted = rows_for(target), answered(target)[0]
    with pytest.raises(CrossdraftError, match="predicts no features"):
        pass_loss(target, head, lambda step: [prompted], Objective({"mse": 1.0}))
    short = AnsweredPrompt(prompted.prompt, prompted.answer[:1])
    loss, figures = pass_loss(target, head, lambda step: [short], OBJECTIVE)(0, MicroBatch())
    assert (float(loss.detach()), figures) == (0.0, {"places": 0.0})
