"""A cascade drafts what its model would have drafted alone, in fewer passes, whoever drafts for the model."""

from contextlib import closing

import pytest
import torch

from crossdraft.drafters.combine.cascade import CascadeDrafter, main_path, readable
from crossdraft.drafters.event.load import load_drafter
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.drafters.memory.drafter import MemoryDrafter
from crossdraft.drafters.ngram.drafter import NgramDrafter
from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Budget, Draft, VerifyOutput
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.prompt import PromptIds
from crossdraft.engine.reference import full_forward
from crossdraft.engine.request import Request
from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from tests.drafters.test_fork import DRAFTERS, independent, model

QUESTIONS = ("Describe the scene.", "What is the vehicle in front doing?")
LENGTH = 12
GREEDY, WARM = Sampling(), Sampling(temperature=1.0, seed=3)


@pytest.fixture(scope="module")
def twin() -> IndependentDrafter:
    """The reference pair's blind twin: it asks for nothing but a question."""
    return load_drafter("blind", "cpu", "float64")


class Prophet(NgramDrafter):
    """Knows a text, and says the word before in place of every fourth. Its state is what it was told, nothing else."""

    def __init__(self, text, wrong=4):
        super().__init__()
        self.text, self.wrong = text, wrong

    def propose(self, states, budgets):
        drafts = []
        for state, budget in zip(states, budgets, strict=True):
            positions = range(len(state.text), min(len(state.text) + budget.nodes, len(self.text)))
            drafts.append(Draft(DraftTree.chain([self.word(i) for i in positions])))
        return drafts

    def word(self, i):
        return self.text[i - (i % self.wrong == self.wrong - 1)]


def written_alone(twin, question):
    (state,) = twin.begin([Request(question, max_new_tokens=64)])
    return twin.propose([state], [Budget(LENGTH)])[0].tree.tokens


def inners(twin, question):
    ngram = NgramDrafter()
    prophet = Prophet(written_alone(twin, question))
    memory = MemoryDrafter()
    (state,) = memory.begin([Request(question)])
    memory.commit([state], [VerifyOutput((), prophet.text)])
    memory.end([state])
    return {
        "ngram": ngram,
        "prophet": prophet,
        "liar": Prophet(prophet.text, wrong=1),
        "memory": memory,
        "model": IndependentDrafter(twin.model),
        "nested": CascadeDrafter(IndependentDrafter(twin.model), prophet, ahead=2),
    }


def rounds(drafter, twin, question, sampling=GREEDY):
    """What is drafted where, twice over, the target takes five words and puts the next best in place of the sixth."""
    request = Request(question, max_new_tokens=64, sampling=sampling)
    prompt, answer, drafts = twin.model.prepare(request), (), []
    (state,) = drafter.begin([request])
    for _ in range(3):
        drafts += drafter.propose([state], [Budget(LENGTH)])
        first = drafts[-1].tree.tokens
        if len(first) <= 5:
            break
        best = full_forward(twin.model, prompt, (*answer, *first[:5])).topk(2).indices.tolist()
        tokens = (*first[:5], next(token for token in best if token != first[5]))
        answer += tokens
        drafter.commit([state], [VerifyOutput((0, 1, 2, 3, 4), tokens)])
    return drafts, state, answer


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("inner", ["ngram", "prophet", "liar", "memory", "model", "nested"])
def test_the_draft_is_the_one_the_model_writes_alone(twin, question, inner):
    alone, _, _ = rounds(twin, twin, question)
    cascade = CascadeDrafter(twin, inners(twin, question)[inner])
    together, _, _ = rounds(cascade, twin, question)
    assert [draft.tree.tokens for draft in together] == [draft.tree.tokens for draft in alone]
    for ours, its in zip(together, alone, strict=True):
        assert ours.path_probs == pytest.approx(its.path_probs)


def copying():
    return CascadeDrafter(load_drafter("blind", "cpu", "float64"), NgramDrafter(), early=1)


def test_in_a_process_the_inner_drafter_copies_from_the_prompt(twin):
    first = written_alone(twin, QUESTIONS[0])[0]
    with closing(ProcessDrafter(copying)) as drafter:
        prompt = PromptIds()
        states = drafter.begin([Request(QUESTIONS[0], max_new_tokens=64, prompt_ids=prompt)])
        prompt.set_result((first, 5, 6, 7))
        (draft,) = drafter.propose(states, [Budget(4)])
    assert draft.tree.tokens == (first, 5, 6, 7)


@pytest.mark.parametrize("two_level", [False, True])
def test_behind_an_answer_that_has_ended_nothing_is_written(twin, two_level):
    drafter = CascadeDrafter(twin, inners(twin, QUESTIONS[0])["prophet"]) if two_level else twin
    for received, drafts in ((7, True), (min(twin.model.eos), False)):
        (state,) = drafter.begin([Request(QUESTIONS[0], max_new_tokens=64)])
        drafter.commit([state], [VerifyOutput((), (received,))])
        assert bool(len(drafter.propose([state], [Budget(LENGTH)])[0].tree)) == drafts


def test_a_planted_bug_in_the_bookkeeping_is_seen(twin, monkeypatch):
    """The control: keeping one word too few of what stood must change the draft."""
    cascade = CascadeDrafter(twin, Prophet(written_alone(twin, QUESTIONS[0])))
    honest, _, _ = rounds(cascade, twin, QUESTIONS[0])
    keep = KVCache.keep
    monkeypatch.setattr(KVCache, "keep", lambda cache, row, path: keep(cache, row, path[:-1]))
    planted, _, _ = rounds(cascade, twin, QUESTIONS[0])
    assert planted[0].path_probs != pytest.approx(honest[0].path_probs)


def test_passes_by_hand(twin, monkeypatch):
    """The first word comes from the prompt. Of the words 1 2 3' 4 5 the third is wrong: three more in one pass."""
    text = written_alone(twin, QUESTIONS[0])
    widths = []
    extend = twin.model.extend

    def counted(cache, rows):
        widths.append((len(rows[0].chunk.tokens), len(rows[0].tree)))
        return extend(cache, rows)

    cascade = CascadeDrafter(twin, Prophet(text, wrong=4), ahead=5)
    (state,) = cascade.begin([Request(QUESTIONS[0], max_new_tokens=64)])
    monkeypatch.setattr(twin.model, "extend", counted)
    (draft,) = cascade.propose([state], [Budget(9)])
    assert draft.tree.tokens == text[:9]
    # words 1 … 5 are read after word 0, where word 3 is wrong; 4 … 8 after 3, where 7 is; then word 8 alone
    assert widths == [(1, 5), (1, 4), (1, 0)]
    assert state.trial.text == list(text[:4])  # the last pass had room for its own word alone: nobody was asked


def test_the_cheap_one_receives_what_is_committed_and_a_fork_the_rest(twin):
    prophet = Prophet(written_alone(twin, QUESTIONS[0]))
    cascade = CascadeDrafter(twin, prophet)
    _, state, answer = rounds(cascade, twin, QUESTIONS[0])
    cascade.propose([state], [Budget(8)])
    assert state.inner.state.text.answer == state.inner.text == list(answer)
    assert (
        state.trial.state.text.answer
        == state.trial.text
        == [*answer, *state.outer.pending[: len(state.trial.text) - len(answer)]]
    )
    assert len(state.trial.text) > len(answer)
    cascade.commit([state], [VerifyOutput((), (7,))])
    cascade.end([state])
    assert state.inner.state.text.answer == [*answer, 7]


def test_it_is_forked_only_where_the_text_went_another_way(twin):
    forks = []

    class Counted(Prophet):
        def fork(self, states):
            forks.append(len(states[0].text))
            return super().fork(states)

    text = written_alone(twin, QUESTIONS[0])
    cascade = CascadeDrafter(twin, Counted(text, wrong=4), ahead=2)
    (state,) = cascade.begin([Request(QUESTIONS[0], max_new_tokens=64)])
    cascade.propose([state], [Budget(LENGTH)])
    assert len(forks) == 1  # however often it was asked after what is not committed
    cascade.commit([state], [VerifyOutput(tuple(range(6)), text[:7])])
    cascade.propose([state], [Budget(LENGTH)])
    assert len(forks) == 1  # the target said the same
    cascade.commit([state], [VerifyOutput((), (text[7] + 1,))])
    cascade.propose([state], [Budget(LENGTH)])
    assert forks == [0, 8]


@pytest.mark.parametrize("inner", DRAFTERS)
def test_any_drafter_may_be_the_cheap_one(inner):
    requests = [Request(question, max_new_tokens=20) for question in ("kkk", "kk", "k")]
    alone = DecodeLoop(model()).generate(requests)
    cascade = CascadeDrafter(independent(1e-3), DRAFTERS[inner](), ahead=3)
    found = DecodeLoop(model(), DraftRunner(cascade, "before"), max_batch=2, nodes=6, adaptive=False)
    answers = found.generate(requests)
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in alone]
    assert not any(answer.other_notes for answer in answers)
    assert sum(answer.stats.accepted for answer in answers) > 0


def test_a_sampled_draft_is_the_models_own(twin):
    """Verified by the noise of the request's seed."""
    alone, _, _ = rounds(twin, twin, QUESTIONS[0], WARM)
    cascade = CascadeDrafter(twin, Prophet(written_alone(twin, QUESTIONS[0])))
    together, _, _ = rounds(cascade, twin, QUESTIONS[0], WARM)
    for ours, its in zip(together, alone, strict=True):
        assert ours.tree.tokens == its.tree.tokens
        assert ours.tree.dists is None


def test_without_a_seed_the_model_draws_alone(twin):
    cascade = CascadeDrafter(twin, Prophet(written_alone(twin, QUESTIONS[0])), early=2)
    (state,) = cascade.begin([Request(QUESTIONS[0], max_new_tokens=64, sampling=Sampling(temperature=1.0))])
    (draft,) = cascade.propose([state], [Budget(4)])
    assert len(draft.tree.dists) == len(draft.tree) == 4
    assert not state.inner.text


def test_the_later_words_are_the_cheap_ones(twin):
    text = written_alone(twin, QUESTIONS[0])
    cascade = CascadeDrafter(twin, Prophet(text, wrong=1), early=3)
    (state,) = cascade.begin([Request(QUESTIONS[0], max_new_tokens=64)])
    shown = []
    (draft,) = cascade.propose([state], [Budget(6, on_token=shown.append)])
    assert draft.tree.tokens == (*text[:3], *text[2:5]) == tuple(shown)
    assert draft.path_probs[3:] == pytest.approx([draft.path_probs[2] * 0.7**k for k in (1, 2, 3)])
    cascade.commit([state], [VerifyOutput((0, 1, 2, 3), (*draft.tree.tokens[:4], 7))])
    cascade.propose([state], [Budget(2)])
    assert state.inner.state.text.answer == [*draft.tree.tokens[:4], 7]


def test_leniency_by_hand(twin):
    keeps = CascadeDrafter(twin, Prophet(()), leniency=2.0).accepts
    p = torch.tensor([0.5, 0.25, 0.2, 0.05])
    assert [keeps(p, token, p) for token in range(4)] == [True, True, False, False]
    exact = CascadeDrafter(twin, Prophet(())).accepts
    assert not any(exact(p, token, p) for token in range(4))  # the best one stands without being asked about


def test_with_boundless_leniency_the_cheap_words_stand(twin):
    text = written_alone(twin, QUESTIONS[0])
    cascade = CascadeDrafter(twin, Prophet(text, wrong=3), leniency=1e300)
    (state,) = cascade.begin([Request(QUESTIONS[0], max_new_tokens=64)])
    (draft,) = cascade.propose([state], [Budget(7)])
    assert draft.tree.tokens[:6] == (*text[:2], text[1], *text[3:5], text[4])


def test_of_a_tree_the_main_path_is_read():
    tree = DraftTree((5, 6, 7, 8), (-1, -1, 0, 2))
    draft = main_path(Draft(tree, (0.6, 0.3, 0.5, 0.4)))
    assert (draft.tree.tokens, draft.path_probs) == ((5, 7, 8), (0.6, 0.5, 0.4))
    assert draft.tree.is_chain


def test_words_that_the_model_lacks_are_not_read():
    assert readable(DraftTree.chain([3, 9, 4]), 9).tokens == (3,)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda twin: CascadeDrafter(NgramDrafter(), twin), "must be a model of the target's own vocabulary"),
        (lambda twin: CascadeDrafter(twin, twin, leniency=0.5), "leniency is 0.5"),
        (lambda twin: CascadeDrafter(twin, twin, leniency=float("nan")), "leniency is nan"),
        (lambda twin: CascadeDrafter(twin, twin, early=0), "early is 0"),
    ],
)
def test_nonsense_is_one_clear_sentence(twin, make, said):
    with pytest.raises(CrossdraftError, match=said):
        make(twin)
