"""A pyramid drafts what its bar lets stand, and its draft knows the law of every word."""

import math
from functools import cache

import pytest
import torch

from crossdraft.drafters.combine.cascade import PyramidDrafter, TwoLevelDrafter, close, point_mass
from crossdraft.drafters.event.load import load_drafter
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.drafters.ngram.drafter import NgramDrafter
from crossdraft.engine.drafter import Budget, Draft, VerifyOutput
from crossdraft.engine.reference import full_forward
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.rules.fuzzy import divergence

QUESTION = "Describe the scene."
WARM = Sampling(temperature=1.0)


@pytest.fixture(scope="module")
def twin() -> IndependentDrafter:
    """The reference pair's blind twin: it asks for nothing but a question."""
    return load_drafter("blind", "cpu", "float64")


@pytest.fixture(scope="module")
def dist(twin):
    """The twin's distribution [V] after an answer, by the plain model."""
    prompt = twin.model.prepare(Request(QUESTION))

    @cache
    def dist_after(answer):
        return (full_forward(twin.model, prompt, answer) + twin.banned).softmax(-1)

    return dist_after


class Near(NgramDrafter):
    """Draws nearly as the twin would, but of two words with even chance at every third place of the answer."""

    def __init__(self, dist, eos=frozenset()):
        super().__init__()
        self.twins, self.eos = dist, eos
        self.asked = set()  # after what it was asked for a word
        self.generator = torch.Generator().manual_seed(5)

    def dist(self, answer):
        p = self.twins(answer)
        if len(answer) % 3 == 2:
            return (point_mass(300, p) + point_mass(301, p)) / 2
        return 0.8 * p + 0.2 * point_mass(300, p)

    def propose(self, states, budgets):
        (state,), (budget,) = states, budgets
        received = state.text.answer
        words, distributions = [], []
        for _ in range(budget.nodes):
            self.asked.add((*received, *words))
            distributions.append(self.dist((*received, *words)))
            words.append(int(torch.multinomial(distributions[-1], 1, generator=self.generator)))
        return [Draft(DraftTree.chain(words, torch.stack(distributions)))]


@pytest.mark.parametrize(("chance", "far"), [(1.0, 0.0), (0.5, 0.2158), (0.3, 0.3420), (0.0, math.log(2))])
def test_the_bar_by_hand(chance, far):
    """JS of a point mass and p(x) = a: (ln 2/(1+a) + a ln 2a/(1+a) + (1-a) ln 2) / 2."""
    p = torch.tensor([chance, 1 - chance], dtype=torch.float64)
    sure = point_mass(0, p)
    assert divergence(p, sure) == pytest.approx(far, abs=1e-4)
    assert close(min(0.69, far + 0.001))(p, 0, sure) == (chance > 0)
    assert close(max(0.0, far - 0.001))(p, 0, sure) == (chance == 1)


@pytest.mark.parametrize(("nearer", "stands"), [(1e-4, True), (-1e-4, False)])
def test_a_greedy_word_stands_or_is_corrected(twin, dist, nearer, stands):
    """The qualifier's second best word, just within the bar and just beyond it."""
    request = Request(QUESTION, max_new_tokens=64)
    (alone,) = twin.propose(twin.begin([request]), [Budget(4)])
    p = dist(alone.tree.tokens[:1])
    second = int(p.topk(2).indices[1])
    threshold = divergence(p, point_mass(second, p)) + nearer
    pyramid = PyramidDrafter(twin, Listed(second), ahead=1, threshold=threshold)
    (draft,) = pyramid.propose(pyramid.begin([request]), [Budget(3)])
    assert draft.tree.tokens[:2] == (alone.tree.tokens[0], second if stands else alone.tree.tokens[1])
    assert draft.path_probs[1] == pytest.approx(draft.path_probs[0] * float(p[draft.tree.tokens[1]]))


def test_with_a_bar_of_0_the_qualifier_writes_alone(twin):
    request = Request(QUESTION, max_new_tokens=64)
    (alone,) = twin.propose(twin.begin([request]), [Budget(4)])
    pyramid = PyramidDrafter(twin, Listed(300), ahead=1, threshold=0.0)
    (draft,) = pyramid.propose(pyramid.begin([request]), [Budget(4)])
    assert draft.tree.tokens == alone.tree.tokens


class Listed(NgramDrafter):
    """Proposes the same always; its state is what it was told."""

    def __init__(self, *words):
        super().__init__()
        self.words = words

    def propose(self, states, budgets):
        return [Draft(DraftTree.chain(self.words)) for _ in states]


def wrong_distributions(pyramid, near, threshold):
    """How many words of two drafts are said to come from another law than they do."""
    (state,) = pyramid.begin([Request(QUESTION, max_new_tokens=64, sampling=WARM)])
    answer, wrong = (), 0
    for _ in range(2):
        (draft,) = pyramid.propose([state], [Budget(6)])
        tokens = draft.tree.tokens
        assert len(tokens) == 6 or not near.eos.isdisjoint(tokens)  # its end was drawn
        for position, row in enumerate(draft.tree.dists):
            before = (*answer, *tokens[:position])
            p, q = near.twins(before), near.dist(before)
            stands = before in near.asked and divergence(p, q) <= threshold
            wrong += not torch.allclose(row, q if stands else p, atol=1e-9)
            assert row[tokens[position]] > 0
        committed = (*tokens[:2], 7)
        pyramid.commit([state], [VerifyOutput((0, 1), committed)])
        answer += committed
    return wrong


def test_a_sampled_draft_knows_the_distribution_of_every_word(twin, dist):
    """q where it is close to the qualifier's p, else p, whatever was drawn: what exact acceptance needs."""
    near = Near(dist, twin.model.eos)
    assert wrong_distributions(PyramidDrafter(twin, near, threshold=0.3), near, 0.3) == 0


def test_no_number_is_drawn_twice(twin):
    """What own state and trial draw may both be judged: they draw from one source."""
    pyramid = PyramidDrafter(twin, IndependentDrafter(twin.model), ahead=2)
    (state,) = pyramid.begin([Request(QUESTION, max_new_tokens=64, sampling=WARM)])
    pyramid.propose([state], [Budget(6)])
    assert state.trial.state.draws is state.inner.state.draws


def test_a_planted_bug_is_seen(twin, dist):
    """The control: a bar that everything passes says q where p is due."""
    near = Near(dist, twin.model.eos)
    assert wrong_distributions(TwoLevelDrafter(twin, near, lambda p, token, q: True), near, 0.3) > 0


def test_a_word_chosen_for_certain_is_a_point_mass(twin):
    request = Request(QUESTION, max_new_tokens=64, sampling=WARM)
    pyramid = PyramidDrafter(twin, Listed(300), ahead=1, threshold=0.69)
    pyramid.accepts = lambda p, token, q: True
    (draft,) = pyramid.propose(pyramid.begin([request]), [Budget(3)])
    assert draft.tree.tokens[1] == 300
    assert draft.tree.dists[1].nonzero().tolist() == [[300]]


@pytest.mark.parametrize("threshold", [-0.1, 0.7, math.nan])
def test_a_bar_that_bars_nothing_or_all(twin, threshold):
    with pytest.raises(CrossdraftError, match="threshold is"):
        PyramidDrafter(twin, twin, threshold=threshold)
