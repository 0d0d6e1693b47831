"""What a drafter sends is checked: a bad draft costs that draft, never an answer."""

import math
import pickle
import random
from dataclasses import fields, replace

import pytest
import torch

from crossdraft.engine.checks import checked, drafts_of
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.drafter import Draft, Needs
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.runner.wire import pack_draft, unpack_draft
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from tests.engine.zoo import ZOO, as_target

V = 99
GOOD = Draft(DraftTree((5, 6, 7), (-1, 0, -1)), (0.5, 0.4, 0.3))
DRAWN = Draft(DraftTree((5, 6), (-1, 0), torch.eye(V)[[5, 6]], (0, 1)))


def forced(tree, **fields):
    """What its own checks would have refused, and an unpickled one may be."""
    tree = replace(tree)
    for name, value in fields.items():
        object.__setattr__(tree, name, value)
    return tree


@pytest.mark.parametrize("draft", [GOOD, DRAWN, Draft(DraftTree.empty())])
def test_what_is_in_order_passes_as_it_is(draft):
    assert checked(draft, V, forbidden={98}) is draft


def test_numbers_of_numpy_are_ids_too():
    import numpy as np

    checked(Draft(DraftTree((np.int64(5),), (-1,))), V)


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        (Draft(DraftTree.chain([10**6])), "none of the target's ids"),
        (Draft(DraftTree.chain([-5])), "none of the target's ids"),
        (Draft(DraftTree.chain([5.0])), "none of the target's ids"),
        (Draft(DraftTree.chain([98])), "something visual"),
        (Draft(DraftTree.chain([5] * 4097)), "4097 nodes; at most 4096"),
        (replace(GOOD, tree=forced(GOOD.tree, parents=(-1, 2, -1))), "parent"),
        (replace(GOOD, tree=forced(GOOD.tree, parents=(-1, 0))), "differ in number"),
        (replace(GOOD, path_probs=(0.5, math.nan, 0.1)), "chance"),
        (replace(GOOD, path_probs=(0.5, 2.0, 0.1)), "chance"),
        (replace(GOOD, path_probs=(0.5,)), "1 chances for 3 nodes"),
        (replace(DRAWN, tree=replace(DRAWN.tree, dists=torch.eye(V)[[5, 6]] * 2)), "no distribution"),
        (replace(DRAWN, tree=replace(DRAWN.tree, dists=torch.full((2, V), math.nan))), "no distribution"),
        (replace(DRAWN, tree=replace(DRAWN.tree, dists=torch.eye(V + 1)[[5, V]])), "no distribution"),
        (replace(DRAWN, tree=forced(DRAWN.tree, dists=None)), "distributions"),
        (replace(DRAWN, tree=forced(DRAWN.tree, drawn_from=(0, 7))), "not there"),
        (Draft(DraftTree.empty(), fault="it is torn"), "torn"),
        (Draft(forced(DraftTree.empty(), parents=[])), "list came where a tuple"),
        (Draft(DraftTree((True,), (-1,))), "none of the target's ids"),
        (replace(GOOD, tree=forced(GOOD.tree, parents=(-1, False, -1))), "parent"),
        (replace(DRAWN, tree=forced(DRAWN.tree, drawn_from=(0.0, 1))), "no whole number"),
    ],
)  # fmt: skip
def test_what_is_not_is_named(draft, words):
    with pytest.raises(CrossdraftError, match=words):
        checked(draft, V, forbidden={98})


def test_what_is_no_draft_s_field_is_named():
    for draft, words in (
        (replace(GOOD, tree=None), "NoneType, not a DraftTree"),
        (replace(GOOD, tree=forced(GOOD.tree, tokens=0.5)), "tokens are a float"),
        (replace(GOOD, refusal=5), "refusal"),
        (replace(GOOD, notes="a sentence"), "notes or spans are not each a str"),
        (replace(GOOD, notes=("a sentence", 5)), "notes or spans are not each a str"),
        (replace(GOOD, spans=torch.zeros(2)), "spans"),
        (replace(GOOD, spans=(1, "y")), "spans"),
    ):
        (found,) = drafts_of([draft], 1)
        assert words in found.fault


def test_distributions_that_nothing_was_drawn_from_are_left_out():
    assert checked(replace(GOOD, tree=forced(GOOD.tree, dists=b"")), V).tree.dists is None


def test_distributions_that_do_not_sum_to_one_are_made_to():
    """What is drawn in proportion to a row follows the row over its sum; the rule must be given that distribution."""
    short = torch.zeros(2, V)
    short[:, 5], short[:, 6] = 0.99, 0.0005
    draft = replace(DRAWN, tree=replace(DRAWN.tree, dists=short, drawn_from=(1, -1)))
    found = checked(draft, V).tree.dists
    assert found[1].sum().item() == pytest.approx(1, abs=1e-6)
    assert (found[1, 5] / found[1, 6]).item() == pytest.approx(0.99 / 0.0005)
    assert torch.equal(found[0], short[0])  # nothing was drawn from it
    assert short[1, 5].item() == pytest.approx(0.99)  # the drafter's own row stays
    coarse = (torch.randn(2, V) * 3).bfloat16().softmax(-1)
    exact = checked(replace(DRAWN, tree=replace(DRAWN.tree, dists=coarse)), V).tree.dists
    assert exact.dtype == torch.float32
    assert (exact.sum(-1) - 1).abs().max() < 1e-6
    fine = (torch.randn(2, V) * 3).softmax(-1)
    assert checked(replace(DRAWN, tree=replace(DRAWN.tree, dists=fine)), V).tree.dists is fine


@pytest.mark.parametrize("made", [None, [], [GOOD], [GOOD] * 3, "ab", 5])
def test_whatever_a_drafter_returns_there_is_a_draft_for_each_request(made):
    drafts = drafts_of(made, 2)
    assert len(drafts) == 2
    assert all(draft.fault for draft in drafts)
    kept, faulty = drafts_of([GOOD, None], 2)
    assert kept is GOOD
    assert "NoneType" in faulty.fault


# -- random damage -----------------------------------------------------------------------------------------------------

ODD = (None, -1, 10**9, 2**70, 0.5, math.nan, math.inf, "x", b"", (), [], {}, (1, "y"), torch.zeros(2), True)


def damaged(value: object, rng: random.Random) -> object:
    """One field of a packed draft changed, removed, repeated, or replaced by something else."""
    if isinstance(value, tuple) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        match rng.randrange(4):
            case 0:
                return value[:index] + value[index + 1 :]
            case 1:
                return (*value[:index], value[index], *value[index:])
            case _:
                return (*value[:index], damaged(value[index], rng), *value[index + 1 :])
    if isinstance(value, int) and rng.random() < 0.5:
        return rng.choice((value + 1, -value - 1, value + V, rng.randrange(-3, 2 * V)))
    return rng.choice(ODD)


@pytest.mark.parametrize("seed", range(4))
def test_no_damage_to_a_message_gets_through_or_out(seed):
    """2500 each. What passes can be read: the target's pass is made of nothing else than what is looked at here."""
    rng, passed = random.Random(seed), 0
    for _ in range(2500):
        packed = pickle.loads(pickle.dumps(pack_draft(rng.choice((GOOD, DRAWN)))))
        draft = unpack_draft(damaged(packed, rng))
        try:
            found = checked(draft, V)
        except CrossdraftError:
            continue
        passed += 1
        assert all(0 <= token < V for token in found.tree.tokens)
        assert found.tree.depth <= len(found.tree)
    assert 0 < passed < 2500


def damaged_inside(draft: Draft, rng: random.Random) -> Draft:
    """One field of a draft or of its tree replaced, as only a drafter in this process can."""
    draft = replace(draft, tree=replace(draft.tree))
    part = rng.choice([draft, draft.tree])
    name = rng.choice([field.name for field in fields(part)])
    value = getattr(part, name)
    value = damaged(value, rng) if isinstance(value, tuple) else rng.choice(ODD)
    object.__setattr__(part, name, value)
    return draft


class Damaging:
    """Drafts what the target will emit, then damages it."""

    def __init__(self, truth: dict[str, tuple[int, ...]], rng: random.Random, share: float = 0.8) -> None:
        self.needs = Needs()
        self.truth, self.rng, self.share, self.damaged = truth, rng, share, 0

    def begin(self, requests):
        return [[self.truth[request.prompt], 0] for request in requests]

    def propose(self, states, budgets):
        made = []
        for (truth, emitted), budget in zip(states, budgets, strict=True):
            draft = Draft(DraftTree.chain(truth[emitted : emitted + budget.nodes]))
            if self.rng.random() < self.share:
                self.damaged += 1
                if self.rng.random() < 0.5:
                    draft = damaged_inside(draft, self.rng)
                else:
                    draft = unpack_draft(damaged(pack_draft(draft), self.rng))
            made.append(draft)
        return damaged(made, self.rng) if self.rng.random() < 0.02 else made

    def commit(self, states, outputs):
        for state, output in zip(states, outputs, strict=True):
            state[1] += len(output.tokens)

    def fork(self, states):
        return [list(state) for state in states]

    def end(self, states):
        pass


def answer_under_damage(wanted: int, seed: int, sampling: Sampling) -> None:
    target = as_target(*ZOO["video_llava"]())
    requests = [Request("x" * (1 + i), max_new_tokens=20, sampling=sampling) for i in range(3)]
    alone = [answer.tokens for answer in DecodeLoop(target).generate(requests)]
    truth = {request.prompt: tokens for request, tokens in zip(requests, alone, strict=True)}
    drafter, dropped = Damaging(truth, random.Random(seed)), 0
    cost = CostModel()
    while drafter.damaged < wanted:
        decoder = DecodeLoop(target, DraftRunner(drafter, "before"), cost=cost, max_batch=2, nodes=3, adaptive=False)
        found = decoder.generate(requests)
        assert decoder.drafter is not None
        dropped += sum(answer.stats.bad_drafts for answer in found)
        if sampling.greedy:
            assert [answer.tokens for answer in found] == alone
        for answer in found:
            assert bool(answer.stats.bad_drafts) == any("A draft was dropped" in note for note in answer.other_notes)
    assert dropped > wanted / 4


def test_answers_are_the_target_s_own_whatever_comes():
    answer_under_damage(300, 0, Sampling())


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)], ids=["greedy", "sampled"])
def test_answers_are_the_target_s_own_whatever_comes_ten_thousand_times(sampling):
    answer_under_damage(10_000, 1, sampling)
