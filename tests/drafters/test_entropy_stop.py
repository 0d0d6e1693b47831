"""A draft ends behind the first token whose distribution is too unsure, and never because of what was drawn."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from crossdraft import methods
from crossdraft.drafters.adaedl import AdaEDLSettings
from crossdraft.drafters.entropy_stop import EntropyStop
from crossdraft.drafters.event.load import load_drafter
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.reference import full_forward
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling, warp
from crossdraft.engine.tree import ROOT
from crossdraft.errors import CrossdraftError
from crossdraft.records import DrafterContext
from tests.engine.drafting import Language, PartialTree, probs_of, sampled
from tests.engine.exact import distribution
from tests.engine.rules.rounds import VERIFIERS

GREEDY, WARM = Sampling(), Sampling(temperature=1.5, seed=3)
QUESTION, NODES = "Describe the scene.", 24


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_the_bound_by_hand():
    """Two equal tokens have ln 2 = 0.6931 nats; with γ = 0.2 the bound is 1 − √0.13863 = 0.62767. Certain: 1."""
    stop = EntropyStop.of(AdaEDLSettings())
    bounds = stop.bounds(torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]))
    assert bounds == pytest.approx([0.62767, 1.0], abs=1e-5)
    assert not stop.after(bounds[0]).ended
    assert replace(stop, threshold=0.63).after(bounds[0]).ended


def test_the_threshold_follows_the_acceptance_by_hand():
    """Below 0.9 it goes up by 0.001: 0.25, (0.25 + 1) / 2 = 0.625, 0.8125. With 0.906 down, if it ended the draft."""
    stop = EntropyStop.of(AdaEDLSettings()).verified(1, 4)
    assert (stop.rate, stop.threshold) == (0.25, pytest.approx(0.601))
    stop = stop.verified(3, 3)
    assert (stop.rate, stop.threshold) == (0.625, pytest.approx(0.602))
    stop = replace(stop.verified(2, 2), ended=True).verified(5, 5)
    assert (stop.rate, stop.threshold, stop.ended) == (0.90625, pytest.approx(0.602), False)
    assert stop.verified(9, 9).threshold == stop.threshold  # something else ended that draft
    assert stop.verified(0, 0) == stop  # there was no draft


def test_the_threshold_stays_a_share():
    wide = AdaEDLSettings(step=1.0, threshold=0.95)
    assert EntropyStop.of(wide).verified(0, 3).threshold == 1.0
    low = replace(EntropyStop.of(wide), threshold=0.05, ended=True)
    assert low.verified(3, 3).threshold == 0.0


# -- exact in expectation --------------------------------------------------------------------------------------------

P, Q = Language(2, seed=11), Language(2, seed=12, sharpness=3)
STOP = EntropyStop.of(AdaEDLSettings(gamma=0.5, threshold=0.5, step=1.0))
LENGTH = 4


def two_rounds(chance, drops_unlikely=False):
    """An answer of two rounds, which the target finishes; and how long the drafts were."""
    tokens, stop, drafted = (), STOP, ()
    for _ in range(2):
        before, part, node = tokens, PartialTree(), ROOT
        follows = lambda prefix, before=before: Q((*before, *prefix))  # noqa: E731
        for _ in range(2):
            (node,) = sampled(follows, 1)(part, node, chance)
            stop = stop.after(stop.bounds(part.dists[-1][None])[0])
            if stop.ended:
                break
        tree = part.tree()
        if drops_unlikely and tree.dists[-1][tree.tokens[-1]] < 0.5:
            tree = tree.first(len(tree) - 1)
        target = lambda prefix, before=before: P((*before, *prefix))  # noqa: E731
        output = VERIFIERS["rejection"](tree, probs_of(target, tree), chance)
        stop = stop.verified(len(output.path), len(tree))
        tokens += (*(tree.tokens[node] for node in output.path), output.bonus)
        drafted += (len(tree),)
    while len(tokens) < LENGTH:
        tokens += (chance.draw(P(tokens)),)
    return tokens[:LENGTH], drafted


def error(procedure) -> float:
    found = dict.fromkeys(itertools.product(range(2), repeat=LENGTH), 0.0)
    for (tokens, _), share in distribution(procedure).items():
        found[tokens] += share
    wanted = {tokens: math.prod(float(P(tokens[:i])[token]) for i, token in enumerate(tokens)) for tokens in found}
    return max(abs(found[tokens] - wanted[tokens]) for tokens in found)


def test_two_rounds_are_exact_in_expectation():
    """Every draw of the drafter and every die of the rule is enumerated, the threshold moves by 0.1 a round."""
    assert error(two_rounds) < 1e-12
    lengths = {drafted for (_, drafted) in distribution(two_rounds)}
    assert {1, 2} == {length for drafted in lengths for length in drafted}


def test_a_stop_that_looks_at_what_was_drawn_is_seen():
    """The control: a token left out because it is unlikely."""
    assert error(lambda chance: two_rounds(chance, drops_unlikely=True)) > 1e-3


# -- a drafter's drafts ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def twin() -> IndependentDrafter:
    """The reference pair's blind twin: it asks for nothing but a question."""
    return load_drafter("blind", "cpu", "float32")


def begun(twin: IndependentDrafter, sampling: Sampling, stop: EntropyStop | None, first: int = 3):
    """An answer of which the target has kept the first `first` drafted tokens and said another one."""
    twin.stop = stop
    try:
        (state,) = twin.begin([Request(QUESTION, max_new_tokens=64, sampling=sampling)])
    finally:
        twin.stop = None
    tokens = twin.propose([state], [Budget(first)])[0].tree.tokens
    twin.commit([state], [VerifyOutput(tuple(range(first)), (*tokens, 300))])
    return state


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_a_draft_ends_behind_the_first_unsure_token(twin, sampling):
    whole = begun(twin, sampling, None)
    full = twin.propose([whole], [Budget(NODES)])[0].tree
    prompt = twin.model.prepare(Request(QUESTION, max_new_tokens=64))
    settings = AdaEDLSettings()
    bounds = []
    for at in range(len(full)):
        logits = full_forward(twin.model, prompt, (*whole.committed, *full.tokens[:at])) + twin.banned
        q = logits.double().softmax(-1) if sampling.greedy else warp(logits.double(), sampling)
        entropy = -sum(p * math.log(p) for p in q.tolist() if p > 0)
        bounds.append(1 - math.sqrt(settings.gamma * entropy))
    for threshold in (0.2, *sorted(bound + 1e-3 for bound in bounds)[:3], 1.0):
        stop = EntropyStop.of(replace(settings, threshold=threshold))
        state = begun(twin, sampling, stop)
        draft = twin.propose([state], [Budget(NODES)])[0].tree
        wanted = next((at + 1 for at, bound in enumerate(bounds) if bound < threshold), len(full))
        assert draft.tokens == full.tokens[:wanted]
        assert twin.propose([state], [Budget(NODES)])[0].tree.tokens == draft.tokens  # asked again: no further


def test_what_is_drafted_before_the_target_speaks_is_not_stopped(twin):
    twin.stop = EntropyStop.of(AdaEDLSettings(threshold=1.0))
    try:
        (state,) = twin.begin([Request(QUESTION, max_new_tokens=64)])
    finally:
        twin.stop = None
    (draft,) = twin.propose([state], [Budget(NODES)])
    assert len(draft.tree) == NODES
    twin.commit([state], [VerifyOutput((0,), (draft.tree.tokens[0], 300))])
    assert state.stop.rate is None  # nor does it say anything of the threshold
    assert len(twin.propose([state], [Budget(NODES)])[0].tree) < NODES


def test_what_is_accepted_moves_the_threshold_of_this_answer_alone(twin):
    stop = EntropyStop.of(AdaEDLSettings(gamma=1e-9, threshold=0.3))  # ends no draft
    state = begun(twin, GREEDY, stop)
    (fork,) = twin.fork([state])
    (draft,) = twin.propose([state], [Budget(4)])
    twin.commit([state], [VerifyOutput((0, 1), (*draft.tree.tokens[:2], 300))])
    assert (state.stop.rate, state.stop.threshold) == (0.5, pytest.approx(0.301))
    assert fork.stop == stop
    (rest,) = twin.propose([fork], [Budget(6)])
    twin.commit([fork], [VerifyOutput((0, 1), rest.tree.tokens[:3])])  # cut to two by the engine; the third came, too
    assert fork.stop.rate is None  # the draft goes on
    twin.commit([fork], [VerifyOutput((0, 1, 2), (*rest.tree.tokens[3:], 300))])
    assert fork.stop.rate == 1.0


# -- specs -----------------------------------------------------------------------------------------------------------


def test_a_spec_makes_it():
    made = methods.build("adaedl:blind,threshold=0.4,gamma=0.1", DrafterContext(device="cpu", dtype="float32"))
    assert isinstance(made, IndependentDrafter)
    assert made.stop == EntropyStop.of(AdaEDLSettings(gamma=0.1, threshold=0.4))


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("adaedl:ngram", "must be a model of the target's own vocabulary"),
        ("adaedl:(adaedl:blind)", "must be a model of the target's own vocabulary"),
        ("adaedl:(blind:tree=dynamic)", "must be a model of the target's own vocabulary"),
        ("adaedl:blind,gamma=0", "gamma must be a number above 0"),
        ("adaedl:blind,threshold=1.5", "threshold must be a number from 0 to 1"),
        ("adaedl:blind,ngram", "joins 1 other, but .* names 2"),
    ],
)
def test_what_cannot_be_stopped_is_refused(spec, part):
    with pytest.raises(CrossdraftError, match=part):
        methods.build(spec, DrafterContext(device="cpu", dtype="float32"))
