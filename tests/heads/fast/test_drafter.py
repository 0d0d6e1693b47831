"""The fast draft head: marginals of every position in one step, and trees of them."""

import pytest
import torch

from crossdraft.drafters.independent import top_tokens
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling, warp
from crossdraft.errors import CrossdraftError
from crossdraft.heads.event_medusa.drafter import shared_weights_of
from crossdraft.heads.fast.drafter import FastDrafter
from crossdraft.heads.fast.network import Fast, FastConfig
from tests.engine.zoo import EOS, VOCABULARY, ZOO, as_target

IDS = (2, *range(20, 60))
REQUEST = Request("what?", max_new_tokens=30)


def fast(model, steps=6, **more) -> Fast:
    config = FastConfig(
        hidden_size=64, vocab_size=VOCABULARY, num_layers=3, draft_ids=IDS, steps=steps, width=32, **more
    )
    torch.manual_seed(0)
    head = Fast(config, shared_weights_of(model)).double()
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.3)
        head.lm_head.weight.mul_(0.05)  # so that every position has more than one likely token
    return head


@pytest.fixture(scope="module")
def model():
    return as_target(*ZOO["eventgpt"]())


def begun(drafter, request=REQUEST):
    return drafter.begin([request])[0]


@torch.inference_mode()
def test_the_marginals_by_hand(model):
    """One clip, one question, written out: W_s s + W_q q + p_n, SiLU, down, head."""
    head = fast(model)
    prompt = model.prepare(REQUEST)
    visual = model.encode(prompt)["video"].pooler_output
    question = model.model.get_input_embeddings().weight[prompt.input_ids[-3:]].mean(0)
    visual, question = (rows / (rows.square().mean(-1, keepdim=True) + 1e-6).sqrt() for rows in (visual, question))
    visual_part = head.see_proj.weight @ visual[0, :5].reshape(-1)
    for position in range(6):
        inner = visual_part + head.ask_proj.weight @ question + head.places[position]
        out = head.down_proj.weight @ (inner * inner.sigmoid()) + head.down_proj.bias
        logits = begun(FastDrafter(model, head)).logits[position]
        assert torch.allclose(logits[list(IDS)], head.lm_head.weight @ out, atol=1e-9)
        assert torch.isinf(logits).sum() == VOCABULARY - len(IDS)


@torch.inference_mode()
def test_only_a_head_with_visual_input_depends_on_it(model):
    other = as_target(*ZOO["eventgpt"]())
    prepare = other.prepare

    def shown(request):
        prompt = prepare(request)
        return Prompt(prompt.input_ids, {name: value + 1 for name, value in prompt.features.items()})

    other.prepare = shown
    blind, seeing = fast(model, sees=False), fast(model)
    outputs = [[begun(FastDrafter(one, head)).logits for one in (model, other)] for head in (blind, seeing)]
    assert torch.equal(*outputs[0])
    assert not torch.equal(*outputs[1])
    with pytest.raises(CrossdraftError, match="temporal features"):
        seeing.marginal_logits(None, torch.zeros(1, 64, dtype=torch.double))


@pytest.mark.parametrize("words", [1, 3])
def test_drafts_are_of_its_words_within_the_budget_and_go_on_behind_the_answer(model, words):
    drafter = FastDrafter(model, fast(model), banned=[25], words=words)
    state, shown = begun(drafter), []
    (draft,) = drafter.propose([state], [Budget(5, on_token=shown.append)])
    assert 0 < len(draft.tree) <= 5
    assert set(draft.tree.tokens) <= set(IDS) - {25}
    assert tuple(shown) == draft.tree.main_path_tokens
    assert draft.tree.is_chain or words > 1
    best = state.logits.argmax(-1).tolist()
    assert draft.tree.tokens[0] == best[0]
    drafter.commit([state], [VerifyOutput((0,), (best[0], 50))])
    assert drafter.propose([state], [Budget(5)])[0].tree.tokens[0] == best[2]
    drafter.commit([state], [VerifyOutput((), (50,) * 4)])
    assert len(drafter.propose([state], [Budget(5)])[0].tree) == 0


def test_nothing_is_drafted_behind_the_end(model):
    head = fast(model)
    with torch.no_grad():
        head.lm_head.weight[0] = 0
        head.down_proj.bias += 9 * head.lm_head.weight[1] / head.lm_head.weight[1].norm()
    drafter = FastDrafter(model, head, words=1)
    state = begun(drafter)
    state.slots[2] = type(state.slots[2])((EOS,), (1.0,))
    assert drafter.propose([state], [Budget(6)])[0].tree.tokens[2:] == (EOS,)


def test_sampled_tokens_follow_the_reported_distributions(model):
    sampling = Sampling(temperature=1.0)
    drafter = FastDrafter(model, fast(model))
    state = begun(drafter, Request("what?", max_new_tokens=30, sampling=sampling))
    (draft,) = drafter.propose([state], [Budget(4)])
    assert 0 < len(draft.tree) <= 4
    probs = warp(state.logits[: len(draft.tree)], sampling)
    assert torch.allclose(draft.tree.dists, probs)
    assert draft.tree.drawn_from == tuple(range(len(draft.tree)))
    (again,) = drafter.propose([state], [Budget(4)])
    assert again.tree.tokens != draft.tree.tokens  # drawn anew


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(repetition_penalty=1.3), Sampling(temperature=1.0, top_k=1)])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("hidden", ["before", "off"])
def test_answers_are_the_targets_own(model, hidden, batch, sampling):
    target = as_target(*ZOO["video_llava"]())
    requests = [Request("x" * i, max_new_tokens=8 + 6 * i, sampling=sampling) for i in range(1, 5)]
    alone = [answer.tokens for answer in DecodeLoop(target).generate(requests)]
    cost = CostModel()
    positioned = DraftRunner(FastDrafter(model, fast(model)), hidden)
    found = DecodeLoop(target, positioned, cost=cost, adaptive=False, max_batch=batch).generate(requests)
    assert [answer.tokens for answer in found] == alone


def test_a_trained_heads_predictions_are_accepted(model):
    """A head that holds the answer: all that it predicts is accepted in the first pass."""
    target = as_target(*ZOO["video_llava"]())
    (alone,) = DecodeLoop(target).generate([REQUEST])
    config = FastConfig(
        hidden_size=64, vocab_size=VOCABULARY, num_layers=3, draft_ids=tuple(range(VOCABULARY)), steps=6, width=8
    )
    head = Fast(config, shared_weights_of(model)).double()
    drafter = FastDrafter(model, head)
    begin = drafter._begin

    def begin_with_answer(request):
        state = begin(request)
        state.logits.fill_(-9.0)
        state.logits[range(6), list(alone.tokens[:6])] = 9.0
        state.slots = top_tokens(state.logits)
        return state

    drafter._begin = begin_with_answer
    cost = CostModel()
    (found,) = DecodeLoop(target, DraftRunner(drafter, "before"), cost=cost, adaptive=False).generate([REQUEST])
    assert found.tokens == alone.tokens
    assert found.stats.accepted >= 6


def test_a_fork_changes_independently(model):
    drafter = FastDrafter(model, fast(model))
    state = begun(drafter)
    (fork,) = drafter.fork([state])
    before = drafter.propose([state], [Budget(4)])[0].tree
    drafter.commit([fork], [VerifyOutput((), (30, 31, 32, 33, 34, 35))])
    assert len(before)
    assert not len(drafter.propose([fork], [Budget(4)])[0].tree)
    assert drafter.propose([state], [Budget(4)])[0].tree == before
