"""Adapters on the drafter's own answer: what they compute, what they learn from, and that they draft it."""

from dataclasses import replace

import pytest
import torch

from crossdraft.drafters.event.load import load_drafter
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.registry import NETWORKS
from crossdraft_lab.align.load import aligned_drafter
from crossdraft_lab.align.networks.own_answer import FLOOR, IndexedBatch, OwnAnswer
from crossdraft_lab.align.token_drafter import OwnAnswerDrafter
from crossdraft_lab.networks import ANSWER_ADAPTERS, task_of
from crossdraft_lab.objective import Objective, score
from tests.align.small import IDS, some_adapter

MORE = {"own": 12, "top": 20}


@pytest.fixture(scope="module")
def event(pair):
    return load_drafter(str(pair.event), "cpu", "float64", packed=False).model


@pytest.fixture(params=ANSWER_ADAPTERS)
def drafter(request, pair, event):
    return aligned_drafter(event, some_adapter(request.param, pair.target, pair.event, event, **MORE))


@pytest.fixture
def question(clip):
    return Request("What is ahead?", str(clip.video), str(clip.events), max_new_tokens=24)


def test_a_map_begins_as_the_identity_and_its_row_is_that_of_the_token(pair, event):
    adapter = some_adapter("token_projection", pair.target, pair.event, event, **MORE)
    fresh = type(adapter)(adapter.config, pair_weights(adapter)).double()
    own = OwnAnswer(
        torch.tensor([[IDS[5], 3]]), torch.zeros(1, 2, 32).double(), torch.empty(0), torch.empty(0), torch.tensor([2])
    )
    logits = fresh.translate(own).logits
    assert logits.shape == (1, 2, len(IDS))
    assert logits[0, 0].nonzero().tolist() == [[5]]
    assert not logits[0, 1].any()  # of a token that is not drafted nothing is known at first
    assert torch.equal(adapter.translate(own).logits[0], adapter.token_map.weight[[IDS[5], 3]])


def pair_weights(adapter):
    rows = torch.zeros(adapter.config.vocab_size, adapter.config.hidden_size)
    return SharedWeights(rows, rows)


def test_a_logit_stays_with_its_token(pair, event):
    """By hand: two of the likeliest are drafted, one is not; all others share a logit."""
    adapter = some_adapter("logit_alignment", pair.target, pair.event, event, own=12, top=3)
    seen = torch.tensor([[[-0.1, -2.5, float("-inf")]]]).double()
    own = OwnAnswer(
        torch.tensor([[IDS[7]]]), torch.zeros(1, 1, 32), torch.tensor([[[IDS[7], 3, IDS[2]]]]), seen, torch.tensor([1])
    )
    with torch.no_grad():
        logits = adapter.translate(own).logits[0, 0]
        read = seen.clamp(min=FLOOR)
        values = (adapter.transform(read) + adapter.residual * read) / adapter.temperature.clamp(min=0.1)
        assert logits[7] == values[0, 0, 0]
        assert logits[2] == values[0, 0, 2]
        others = [index for index in range(len(IDS)) if index not in {2, 7}]
        assert torch.equal(logits[others], adapter.rest.expand(len(others)))


def test_what_is_behind_the_drafters_own_end_is_no_example(pair, event):
    """The mean loss over three positions of the target's answer, of which the drafter has two."""
    adapter = some_adapter("token_projection", pair.target, pair.event, event, **MORE)
    tokens = torch.tensor([[0, IDS[1], IDS[2], IDS[3]]])
    labels = torch.tensor([[1, 2, 3, -1]])
    own = OwnAnswer(
        torch.tensor([[40, 41, 42, 43]]), torch.zeros(1, 4, 32).double(), torch.empty(0), torch.empty(0),
        torch.tensor([2]),
    )  # fmt: skip
    batch = IndexedBatch(tokens, {}, torch.tensor([1]), torch.tensor([4]), own=own)
    predictions = adapter(batch)
    loss, _ = score(Objective({"cross_entropy": 1.0}), predictions, batch, torch.empty(0), labels)
    wanted = torch.nn.functional.cross_entropy(predictions[0].logits[0, :2], torch.tensor([1, 2]))
    assert loss.item() == pytest.approx(wanted.item())


@torch.inference_mode()
def expected_tokens(drafter, question):
    """The own answer by plain passes, translated."""
    _, own = drafter.own_answer(question)
    model = drafter.model
    prompt = model.prepare(question)
    ids = torch.cat((prompt.input_ids, torch.tensor(own)))[None]
    features = {name: value.double() for name, value in prompt.features.items()}
    out = model.model(input_ids=ids, **features, output_hidden_states=True)
    states = out.hidden_states[-1][:, len(prompt) - 1 : -1]
    best = out.logits[:, len(prompt) - 1 : -1].log_softmax(-1).topk(drafter.adapter.top, -1)
    answer = OwnAnswer(torch.tensor([own]), states, best.indices, best.values, torch.tensor([len(own)]))
    return [IDS[index] for index in drafter.adapter.translate(answer).logits[0].argmax(-1).tolist()]


def test_the_own_answer_is_drafted_translated(drafter, question):
    assert isinstance(drafter, OwnAnswerDrafter)
    expected = expected_tokens(drafter, question)
    (state,) = drafter.begin([question])
    (draft,) = drafter.propose([state], [Budget(30)])
    assert list(draft.tree.tokens) == expected
    assert 0 < len(expected) <= 12


def test_after_a_rejection_it_goes_on_at_the_same_index_and_it_ends_where_its_own_answer_does(drafter, question):
    expected = expected_tokens(drafter, question)
    (state,) = drafter.begin([question])
    drafter.propose([state], [Budget(4)])
    (fork,) = drafter.fork([state])
    drafter.commit([state], [VerifyOutput((), (expected[0], 77 if expected[1] != 77 else 78))])
    (draft,) = drafter.propose([state], [Budget(30)])
    assert list(draft.tree.tokens) == expected[2:]
    assert list(drafter.propose([fork], [Budget(30)])[0].tree.tokens) == expected
    drafter.commit([state], [VerifyOutput((), tuple(range(40, 40 + len(expected))))])
    assert len(drafter.propose([state], [Budget(30)])[0].tree) == 0


def test_samples_come_with_their_distributions(drafter, question):
    (state,) = drafter.begin([replace(question, sampling=Sampling(temperature=1.0))])
    (draft,) = drafter.propose([state], [Budget(4)])
    dists = draft.tree.dists
    assert dists is not None
    assert torch.allclose(dists.sum(-1), torch.ones(len(dists)), atol=1e-5)


def test_more_of_the_likeliest_tokens_than_there_are_is_refused(pair, event):
    with pytest.raises(CrossdraftError, match=r"top=500 tokens needs a vocabulary of as many; this one has 320"):
        some_adapter("logit_alignment", pair.target, pair.event, event, top=500)


def test_the_training_of_both_is_the_adapters():
    assert {task_of(network) for network in ANSWER_ADAPTERS} == {"alignment"}
    assert ANSWER_ADAPTERS.keys() <= NETWORKS.keys()
