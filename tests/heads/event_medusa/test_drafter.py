"""Heads on the event model: the text is the event model's own, in fewer passes."""

from dataclasses import replace

import pytest
import torch

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.drafters.short_head import ShortHead
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError
from crossdraft.heads.event_medusa.drafter import DrafterMedusaDrafter, shared_weights_of
from crossdraft.heads.event_medusa.network import DrafterMedusa, DrafterMedusaConfig
from tests.engine.zoo import EOS, VOCABULARY, ZOO, as_target, noisy
from tests.heads.consistency import some_batch, some_head

IDS = tuple(range(2, 97))
GREEDY, WARM = Sampling(), Sampling(temperature=1.0, seed=3)


def event_model():
    """An event model that agrees with the video model of the zoo often, not always."""
    model, prompt = ZOO["video_llava"]()
    return as_target(noisy(model, 1e-3), prompt)


def heads_on(model, steps=4, seed=0, **more) -> DrafterMedusa:
    config = DrafterMedusaConfig(
        hidden_size=64, vocab_size=VOCABULARY, num_layers=more.pop("num_layers", 3), draft_ids=IDS, steps=steps
    )
    torch.manual_seed(seed)
    head = DrafterMedusa(config, shared_weights_of(model)).double()
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.05)
    return head


class Oracle(DrafterMedusa):
    """Predicts a given text, instead of a trained head: every `wrong_every`-th prediction ends in a wrong token."""

    def predict(self, feature, tokens, most, ends=()):
        text = self.text
        at = next((i for i in range(len(text)) if text[i : i + len(tokens)] == list(tokens)), len(text))
        predicted = text[at + len(tokens) :][: max(0, min(most, 5 - len(tokens)))]
        self.calls += 1
        wrong = predicted and self.wrong_every and self.calls % self.wrong_every == 0
        return iter([*predicted[:-1], 7] if wrong else predicted)


@pytest.fixture(scope="module")
def model():
    return event_model()


@pytest.fixture
def passes(model, monkeypatch) -> list[int]:
    """Widths of the event model's passes."""
    widths: list[int] = []
    extend = model.extend

    def counted(cache, rows):
        widths.append(len(rows[0]))
        return extend(cache, rows)

    monkeypatch.setattr(model, "extend", counted)
    return widths


def drafts_of(drafter, sampling, overrule=True) -> list:
    """Drafts of four rounds: of the first 5 tokens all but the last are accepted; another token replaces that."""
    request = Request("what?", max_new_tokens=64, sampling=sampling)
    (state,) = drafter.begin([request])
    drafts = []
    for turn in range(4):
        draft = drafter.propose([state], [Budget(12)])[0]
        drafts.append(draft)
        tokens = state.pending[:5]
        if len(tokens) < 5 or tokens[-1] == EOS:
            break
        last = 10 + (tokens[4] + turn) % 60 if overrule else tokens[4]
        drafter.commit([state], [VerifyOutput((0, 1, 2, 3), (*tokens[:4], last))])
    return drafts


def oracle(model, text, wrong_every=0) -> DrafterMedusa:
    head = heads_on(model)
    head.__class__, head.text, head.wrong_every, head.calls = Oracle, list(text), wrong_every, 0
    return head


@pytest.mark.parametrize("words", [1, 3])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("seed", [0, 1])
def test_drafts_are_those_of_the_event_model_alone(model, sampling, words, seed):
    alone = drafts_of(IndependentDrafter(model, words=words), sampling)
    found = drafts_of(DrafterMedusaDrafter(model, heads_on(model, seed=seed), words=words), sampling)
    assert len(alone) > 2
    for mine, its in zip(found, alone, strict=True):
        assert (mine.tree.tokens, mine.tree.parents) == (its.tree.tokens, its.tree.parents)
        assert torch.allclose(torch.tensor(mine.path_probs), torch.tensor(its.path_probs))
        if its.tree.dists is not None:
            assert torch.allclose(mine.tree.dists, its.tree.dists, atol=1e-12)


@pytest.mark.parametrize("wrong_every", [0, 2, 3])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_right_predictions_are_kept_and_wrong_ones_are_not(model, passes, sampling, wrong_every):
    alone = drafts_of(IndependentDrafter(model), sampling)
    text = [token for draft in alone for token in draft.tree.tokens]
    word_by_word = len(passes)
    passes.clear()
    found = drafts_of(DrafterMedusaDrafter(model, oracle(model, text, wrong_every)), sampling)
    assert [draft.tree.tokens for draft in found] == [draft.tree.tokens for draft in alone]
    assert len(passes) < (0.7 if wrong_every else 0.55) * word_by_word


def test_predictions_kept_without_verification_would_be_noticed(model, monkeypatch):
    """The planted bug: predictions are kept without verification."""
    right = drafts_of(IndependentDrafter(model), GREEDY)
    drafter = DrafterMedusaDrafter(model, heads_on(model))
    choose = drafter._choose

    def gullible(state, prediction):
        for row, foreseen in zip(state.logits, prediction, strict=False):
            row[foreseen] = 99.0
        return choose(state, prediction)

    monkeypatch.setattr(drafter, "_choose", gullible)
    assert [draft.tree for draft in drafts_of(drafter, GREEDY)] != [draft.tree for draft in right]


@torch.inference_mode()
def test_predictions_are_as_trained():
    """At every position of a batch `predict` gives the tokens of the training logits."""
    head = some_head("event_medusa")
    batch = some_batch(head)
    predictions, text = head(batch), batch.tokens[0].tolist()
    assert [prediction.offset for prediction in predictions] == [1, 2, 3, 4]
    compared = 0
    for position in range(3, 9):
        for prediction in predictions[: len(text) - position - 1]:
            since = text[position + 1 : position + 1 + prediction.offset]
            (predicted,) = head.predict(batch.hidden[6][0, position], since, 1)
            assert predicted == head.config.draft_ids[prediction.logits[0, position].argmax()]
            compared += 1
    assert compared > 20
    chain = list(head.predict(batch.hidden[6][0, 4], text[5:6], 9))
    assert len(chain) == 4
    assert list(head.predict(batch.hidden[6][0, 4], text[5:6], 9, ends=chain[1:2])) == chain[:2]
    assert list(head.predict(batch.hidden[6][0, 4], text[5:10], 9)) == []


def test_the_features_are_those_that_training_reads(model, monkeypatch):
    """The feature that a head reads at each position is the hidden state of a plain forward over the text."""
    inputs = []
    head = heads_on(model)

    def predict(feature, tokens, *rest):
        inputs.append((feature, list(tokens)))
        return iter([8, 9])

    monkeypatch.setattr(head, "predict", predict)
    drafter = DrafterMedusaDrafter(model, head)
    request = Request("what?", max_new_tokens=64)
    (state,) = drafter.begin([request])
    drafter.propose([state], [Budget(6)])
    tail = state.pending
    drafter.commit([state], [VerifyOutput((0, 1), (*tail[:2], 55))])
    drafter.propose([state], [Budget(3)])
    prompt = model.prepare(request)
    answer = [*tail[:2], *state.committed[2:], *state.pending]
    texts = [*(tail[: position + 1] for position in range(len(tail) - 1)), answer[:3], answer[:4], answer[:5]]
    assert len(inputs) == len(texts)
    for (feature, tokens), text in zip(inputs, texts, strict=True):
        assert tokens == text[-1:]
        ids = torch.tensor([[*prompt.input_ids.tolist(), *text]])
        pixels = prompt.features["pixel_values_videos"].double()
        with torch.inference_mode():
            own = model.model(input_ids=ids, pixel_values_videos=pixels, output_hidden_states=True)
        assert torch.allclose(feature, own.hidden_states[-1][0, -2], atol=1e-10)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("hidden", ["before", "off"])
def test_answers_are_the_targets_own(model, hidden, batch):
    target = as_target(*ZOO["video_llava"]())
    requests = [Request("x" * i, max_new_tokens=8 + 6 * i) for i in range(1, 5)]
    alone = [answer.tokens for answer in DecodeLoop(target).generate(requests)]
    cost = CostModel()
    positioned = DraftRunner(DrafterMedusaDrafter(model, heads_on(model), words=3), hidden)
    found = DecodeLoop(target, positioned, cost=cost, adaptive=False, max_batch=batch).generate(requests)
    assert [answer.tokens for answer in found] == alone
    assert sum(answer.stats.accepted for answer in found) > 0


def test_a_fork_changes_independently(model):
    drafter = DrafterMedusaDrafter(model, heads_on(model))
    (state,) = drafter.begin([Request("what?", max_new_tokens=64)])
    first = drafter.propose([state], [Budget(5)])[0].tree
    (fork,) = drafter.fork([state])
    drafter.commit([fork], [VerifyOutput((), (33,))])
    drafter.propose([fork], [Budget(9)])
    longer = drafter.propose([state], [Budget(9)])[0].tree
    assert longer.tokens[:5] == first.tokens
    (fresh,) = drafter.begin([Request("what?", max_new_tokens=64)])
    assert drafter.propose([fresh], [Budget(9)])[0].tree == longer


def test_a_short_head_gives_its_rows_and_no_more():
    model = event_model()
    whole = shared_weights_of(model).lm_head.clone()
    model.model.lm_head = ShortHead(model.model.lm_head, [5, 9])
    short = shared_weights_of(model).lm_head
    assert torch.equal(short[[5, 9]], whole[[5, 9]])
    assert int(short.any(1).sum()) == 2


def test_heads_of_another_model_are_refused(model):
    head = heads_on(model)
    object.__setattr__(head, "config", replace(head.config, num_layers=7))
    with pytest.raises(CrossdraftError, match="train heads for it"):
        DrafterMedusaDrafter(model, head)
