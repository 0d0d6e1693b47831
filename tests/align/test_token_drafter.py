"""The adapter on tokens: it reads the drafter's own answer, and drafts what it was trained to say."""

from dataclasses import replace

import pytest
import torch

from crossdraft.drafters.event.load import load_drafter
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft_lab.align import token_drafter
from crossdraft_lab.align.drafter import AlignedOptions, first_positions
from crossdraft_lab.align.load import aligned_drafter
from crossdraft_lab.align.token_drafter import TokenDrafter
from tests.align.small import IDS, some_adapter

TEXT = (45, 77, 130, 45, 200, 61)


@pytest.fixture(scope="module")
def event(pair):
    return load_drafter(str(pair.event), "cpu", "float64", packed=False).model


@pytest.fixture
def drafter(pair, event):
    return aligned_drafter(event, some_adapter("token", pair.target, pair.event, event, layers=2, own=12))


@pytest.fixture
def question(clip):
    return Request("What is ahead?", str(clip.video), str(clip.events), max_new_tokens=24)


def committed(drafter, question, text, pieces):
    (state,) = drafter.begin([question])
    for at in range(0, len(text), pieces):
        drafter.commit([state], [VerifyOutput((), tuple(text[at : at + pieces]))])
        drafter.propose([state], [Budget(3)])
    return state


@torch.inference_mode()
def expected_tokens(drafter, question, text, count):
    """What the training forward says after the text, token by token."""
    asked, own = drafter.own_answer(question)
    found = []
    for _ in range(count):
        tokens = torch.tensor([[*asked, *own, *text, *found]])
        batch = TrainBatch(tokens, {}, torch.tensor([len(asked) + len(own)]), torch.tensor([tokens.shape[1] + 1]))
        found.append(IDS[int(drafter.adapter(batch)[0].logits[0, -1].argmax())])
    return found


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("count", [0, 6])
def test_drafts_are_as_trained(drafter, question, count, pieces):
    assert isinstance(drafter, TokenDrafter)
    state = committed(drafter, question, TEXT[:count], pieces)
    (draft,) = drafter.propose([state], [Budget(5)])
    assert list(draft.tree.tokens) == expected_tokens(drafter, question, TEXT[:count], 5)


def test_a_past_that_is_not_cut_would_be_noticed(drafter, question, monkeypatch):
    """The planted bug: keys and values of rejected tokens stay."""
    monkeypatch.setattr(token_drafter, "first_positions", lambda past, count: past)
    state = committed(drafter, question, TEXT, 1)
    (draft,) = drafter.propose([state], [Budget(5)])
    assert list(draft.tree.tokens) != expected_tokens(drafter, question, TEXT, 5)
    assert token_drafter.first_positions is not first_positions


def test_its_own_answer_is_what_it_reads(drafter, question, event):
    asked, own = drafter.own_answer(question)
    prompt = event.prepare(question).input_ids.tolist()
    assert prompt[-len(asked) :] == asked
    assert 0 < len(own) <= 12
    (state,) = drafter.begin([question])
    assert state.prompt == [*asked, *own]
    drafter.adapter.config = replace(drafter.adapter.config, own=2)
    assert drafter.own_answer(question)[1] == own[:2]


def test_a_fork_and_a_rejection_leave_nothing_behind(drafter, question):
    (state,) = drafter.begin([question])
    (draft,) = drafter.propose([state], [Budget(6)])
    output = VerifyOutput((0, 1), (*draft.tree.tokens[:2], 77))
    (fork,) = drafter.fork([state])
    (fresh,) = drafter.begin([question])
    for one in (fork, state, fresh):
        drafter.commit([one], [output])
    own = [drafter.propose([one], [Budget(6)])[0].tree.tokens for one in (state, fork, fresh)]
    assert own[0] == own[1] == own[2]


def test_what_the_target_agrees_with_stays_drafted(drafter, question):
    (state,) = drafter.begin([question])
    (draft,) = drafter.propose([state], [Budget(6)])
    drafter.commit([state], [VerifyOutput((0, 1), draft.tree.tokens[:3])])
    assert drafter.propose([state], [Budget(3)])[0].tree.tokens == draft.tree.tokens[3:]


def test_samples_come_with_their_distributions(drafter, question):
    warm = replace(question, sampling=Sampling(temperature=1.0))
    (state,) = drafter.begin([warm])
    (draft,) = drafter.propose([state], [Budget(4)])
    dists = draft.tree.dists
    assert dists is not None
    assert torch.allclose(dists.sum(-1), torch.ones(4), atol=1e-5)


def test_it_drafts_alone_anyway(pair, event):
    with pytest.raises(CrossdraftError, match="always drafts alone"):
        aligned_drafter(event, some_adapter("token", pair.target, pair.event, event), AlignedOptions(alone=2))
