"""A model that drafts trees: the drafts are what full passes say, and the answers the target's own."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.drafters.trees.builder import TopK, TreeBuilder
from crossdraft.drafters.trees.dynamic import expand_and_rerank
from crossdraft.drafters.trees.static import fill
from crossdraft.engine.accept import Chance
from crossdraft.engine.cache import KVCache
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.drafter import Budget, Draft, VerifyOutput
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.reference import full_forward
from crossdraft.engine.request import Request
from crossdraft.engine.request_state import Job, RequestState
from crossdraft.engine.rules import rule_for
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling, warp
from crossdraft.engine.target import Target
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft_lab.drafters.iid.tree_model import TreeDrafter, branches_of
from crossdraft_lab.train.heads.ranks import shape_of
from tests.drafters.trees.languages import ByChance
from tests.engine.rules.rounds import error
from tests.engine.zoo import ZOO, as_target, noisy

REQUESTS = [Request("x" * i, max_new_tokens=6 + 5 * i) for i in range(1, 6)]
SHAPE = shape_of([[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 1, 0]])


def two(probs):
    return 2


CHAIN = partial(expand_and_rerank, beam=1, width=two)  # a chain with a sibling of each token
GROWERS = {"static": partial(fill, SHAPE), "dynamic": partial(expand_and_rerank, beam=2, width=two), "chain": CHAIN}


@pytest.fixture(scope="module")
def target() -> Target:
    return as_target(*ZOO["video_llava"]())


@pytest.fixture(scope="module")
def kin() -> Target:
    """A model that agrees with the target often, not always."""
    model, prompt = ZOO["video_llava"]()
    return as_target(noisy(model, 1e-3), prompt)


@pytest.fixture(scope="module")
def alone(target):
    return [answer.tokens for answer in DecodeLoop(target).generate(REQUESTS)]


def decoder(target, drafter, **options):
    cost = CostModel()
    return DecodeLoop(target, DraftRunner(drafter, "before"), cost=cost, **options)


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", GROWERS)
def test_greedy_answers_are_the_targets_own(target, kin, alone, name, batch, adaptive):
    drafter = TreeDrafter(kin, GROWERS[name])
    found = decoder(target, drafter, max_batch=batch, adaptive=adaptive, nodes=7).generate(REQUESTS)
    assert [answer.tokens for answer in found] == alone
    if not adaptive:
        assert sum(answer.stats.accepted for answer in found) > 0


@pytest.mark.parametrize("name", ["qwen2_5_vl", "eventgpt"])
def test_greedy_answers_of_other_classes(name):
    target = as_target(*ZOO[name]())
    model, prompt = ZOO[name]()
    drafter = TreeDrafter(as_target(noisy(model, 1e-3), prompt), GROWERS["dynamic"], sorted(target.reserved))
    alone = DecodeLoop(target).generate(REQUESTS[:3])
    found = decoder(target, drafter, max_batch=2, adaptive=False, nodes=7).generate(REQUESTS[:3])
    assert [answer.tokens for answer in found] == [answer.tokens for answer in alone]


class TextDrafter:
    """A model as a language: what it says after its prompt, two tokens to choose from each time."""

    def __init__(self, model: Target, request: Request) -> None:
        self.model, self.request, self.vocabulary = model, request, model.vocab_size
        self.known: dict[tuple[int, ...], Tensor] = {}

    def __call__(self, prefix: tuple[int, ...]) -> Tensor:
        if any(self(prefix[:position])[token] == 0 for position, token in enumerate(prefix)):
            return torch.zeros(self.vocabulary, dtype=torch.float64)  # never said, hence never asked the model
        if prefix not in self.known:
            row = full_forward(self.model, self.model.prepare(self.request), prefix)
            self.known[prefix] = warp(row, self.request.sampling)
        return self.known[prefix]


def deviation(target: Target, model: Target, name: str, monkeypatch) -> float:
    """Largest error of any two sampled tokens' probability, over every way that the drafter's chances may fall."""
    request = Request("xx", max_new_tokens=40, sampling=Sampling(temperature=1.5, top_k=2))
    drafter = TreeDrafter(model, GROWERS[name])
    state = drafter.begin([request])[0]

    def grow(chance: Chance) -> DraftTree:
        monkeypatch.setattr("crossdraft.drafters.base.WithoutReplacement", lambda _: ByChance(chance))
        return drafter.propose([state], [Budget(4)])[0].tree

    with torch.inference_mode():
        return error("rejection", TextDrafter(target, request), grow, 2)


@pytest.mark.parametrize("name", GROWERS)
def test_sampled_answers_follow_the_targets_distribution(target, kin, name, monkeypatch):
    assert deviation(target, kin, name, monkeypatch) < 1e-12


def test_a_planted_bug_in_sampling_is_seen(target, kin, monkeypatch):
    """The control: of what was drawn, the likeliest is kept."""
    monkeypatch.setattr(TreeBuilder, "whole", lambda self: self.best(1))
    assert deviation(target, kin, "dynamic", monkeypatch) > 1e-3


def test_a_seed_fixes_a_sampled_answer(target, kin):
    request = Request("x", max_new_tokens=20, sampling=Sampling(temperature=1.0, seed=5))
    drafter = TreeDrafter(kin, GROWERS["static"])
    one, two = (decoder(target, drafter, adaptive=False).generate([request])[0] for _ in range(2))
    assert one.tokens == two.tokens
    assert one.stats.drafted > one.stats.rounds


# -- drafts -----------------------------------------------------------------------------------------------------------


def by_full_passes(model: Target, request: Request, answer: Sequence[int], bias: Tensor):
    """What the model says after nodes, without any cache of ours."""
    prompt = model.prepare(request)

    def expand(tree: DraftTree, nodes: Sequence[int]) -> Tensor:
        return torch.stack([behind([*answer, *tree.path_tokens(node)]) for node in nodes])

    def behind(text: list[int]) -> Tensor:
        row = full_forward(model, prompt, text) + bias
        probs = warp(row, request.sampling, [*prompt.input_ids.tolist(), *text]).softmax(-1)
        return probs * (not text or text[-1] not in model.eos)

    return expand


def strays(model: Target, grow, sampling: Sampling = Sampling(), nodes: int = 7) -> int:  # noqa: B008
    """In how many of six rounds, judged this way and that, the draft is not what full passes give."""
    request = Request("xxx", max_new_tokens=40, sampling=sampling)
    drafter = TreeDrafter(model, grow, banned=[7])
    state, answer, wrong = drafter.begin([request])[0], (), 0
    for turn in range(6):
        draft = drafter.propose([state], [Budget(nodes)])[0]
        with torch.inference_mode():
            expected = grow(by_full_passes(model, request, answer, drafter.banned), TopK(), Budget(nodes))
        same = (draft.tree.tokens, draft.tree.parents) == (expected.tree.tokens, expected.tree.parents)
        wrong += not same or list(draft.path_probs) != pytest.approx(expected.path_probs)
        # Accept down to the last node, to some other one, or none; the bonus is a word that nobody drafted.
        path = draft.tree.path([len(draft.tree) - 1, len(draft.tree) // 2, ROOT][turn % 3])
        tokens = (*(draft.tree.tokens[node] for node in path), 20 + turn)
        drafter.commit([state], [VerifyOutput(tuple(path), tokens)])
        assert state.cache.lengths == [len(state.held)]
        answer += tokens
    return wrong


@pytest.mark.parametrize("name", GROWERS)
def test_a_draft_is_what_full_passes_say(kin, name):
    assert strays(kin, GROWERS[name]) == 0


def test_so_is_one_behind_a_word_that_was_drafted_but_not_sent(kin):
    """The target's own word may be one that the loop trimmed: then all that it accepted has been fed."""
    request, shape = REQUESTS[4], shape_of([[0], [1], [0, 0], [0, 1], [0, 0, 0], [0, 1, 0]])
    drafter = TreeDrafter(kin, partial(fill, shape))
    state = drafter.begin([request])[0]
    draft = drafter.propose([state], [Budget(6)])[0].tree
    behind = next(node for node in range(6) if draft.depths[node] == 2 and draft.children(node))
    path = draft.path(behind)
    tokens = tuple(draft.tokens[node] for node in path)
    drafter.commit([state], [VerifyOutput(tuple(path[:-1]), tokens)])
    assert state.held == state.written
    with torch.inference_mode():
        expand = by_full_passes(kin, request, tokens, drafter.banned)
        expected = fill(shape, expand, TopK(), Budget(6))
    found = drafter.propose([state], [Budget(6)])[0]
    assert found.tree.tokens == expected.tree.tokens
    assert list(found.path_probs) == pytest.approx(expected.path_probs)


def test_each_node_is_penalised_for_its_own_path(kin):
    assert strays(kin, GROWERS["dynamic"], Sampling(repetition_penalty=1.5)) == 0


def test_a_planted_bug_in_the_reuse_is_seen(kin, monkeypatch):
    """The control: what was accepted is not moved into place."""
    monkeypatch.setattr(KVCache, "keep", lambda cache, row, path: cache.advance(row, len(path)))
    assert strays(kin, GROWERS["dynamic"]) > 0


def test_a_planted_bug_in_the_branches_is_seen(kin, monkeypatch):
    """The control: branches are fed as children of one another."""
    monkeypatch.setattr(
        "crossdraft_lab.drafters.iid.tree_model.branches_of",
        lambda tree, trunk, branches: DraftTree.chain(branches_of(tree, trunk, branches).tokens),
    )
    assert strays(kin, GROWERS["dynamic"]) > 0


def test_the_first_alternatives_are_the_chain_drafters(kin):
    request, budget = REQUESTS[4], Budget(6)
    chain, tree = IndependentDrafter(kin), TreeDrafter(kin, CHAIN)
    tokens = chain.propose(chain.begin([request]), [budget])[0].tree.tokens
    draft = tree.propose(tree.begin([request]), [Budget(30)])[0].tree
    node, first = ROOT, []
    while children := draft.children(node):
        node = children[0]
        first.append(draft.tokens[node])
    assert tuple(first[:6]) == tokens[: len(first)]


# -- work -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def passes(kin, monkeypatch) -> list[int]:
    """Widths of the drafter's passes."""
    widths: list[int] = []
    extend = kin.extend

    def counted(cache, rows):
        widths.append(len(rows[0]))
        return extend(cache, rows)

    monkeypatch.setattr(kin, "extend", counted)
    return widths


def test_a_chain_with_siblings_costs_one_token_a_pass(kin, passes):
    drafter = TreeDrafter(kin, partial(CHAIN, depth=4))
    state = drafter.begin([REQUESTS[4]])[0]
    passes.clear()
    draft = drafter.propose([state], [Budget(40)])[0]
    assert draft.tree.depth == 4
    assert passes == [1, 1, 1]  # the first row came with the prompt


def test_the_accepted_branch_is_not_fed_again(kin, passes):
    drafter = TreeDrafter(kin, partial(fill, shape_of([[0], [1], [1, 0], [0, 0], [1, 0, 0]])))
    state = drafter.begin([REQUESTS[4]])[0]
    draft = drafter.propose([state], [Budget(9)])[0].tree
    deepest = max(range(5), key=lambda node: draft.depths[node])
    path = draft.path(deepest)
    tokens = (*(draft.tokens[node] for node in path), 20)
    drafter.commit([state], [VerifyOutput(tuple(path), tokens)])
    passes.clear()
    drafter.propose([state], [Budget(1)])
    assert passes == [2]  # the leaf, which was never fed, and the target's own word


# -- limits -----------------------------------------------------------------------------------------------------------


def test_nothing_is_drafted_behind_the_end(kin):
    model, prompt = ZOO["video_llava"]()
    ended = as_target(noisy(model, 1e-3), prompt)
    plain = TreeDrafter(kin, GROWERS["dynamic"])
    tree = plain.propose(plain.begin(REQUESTS[:1]), [Budget(7)])[0].tree
    ended.eos = frozenset({tree.tokens[0]})
    drafter = TreeDrafter(ended, GROWERS["dynamic"])
    found = drafter.propose(drafter.begin(REQUESTS[:1]), [Budget(7)])[0].tree
    ends = [node for node in range(len(found)) if found.tokens[node] in ended.eos]
    assert ends
    assert all(not found.children(node) for node in ends)
    for received, drafts in ((tree.tokens[0], False), (tree.tokens[0] + 1, True)):
        state = drafter.begin(REQUESTS[:1])[0]
        drafter.commit([state], [VerifyOutput((), (received,))])
        assert bool(len(drafter.propose([state], [Budget(7)])[0].tree)) == drafts


def test_nothing_is_drafted_beyond_the_context(kin, monkeypatch):
    drafter = TreeDrafter(kin, CHAIN)
    state = drafter.begin(REQUESTS[:1])[0]
    monkeypatch.setattr(kin, "context", len(state.written) + 3)
    assert drafter.propose([state], [Budget(40)])[0].tree.depth == 3


def test_a_tree_never_outgrows_the_cache(kin):
    drafter = TreeDrafter(kin, partial(expand_and_rerank, beam=30, width=lambda probs: 30))
    state = drafter.begin(REQUESTS[:1])[0]
    draft = drafter.propose([state], [Budget(400)])[0]
    assert 100 < len(draft.tree) <= 400


def test_drafts_never_hold_a_banned_id(target):
    model, prompt = ZOO["video_llava"]()
    with torch.no_grad():
        model.lm_head.weight[98] = 50 * model.lm_head.weight.sign().sum(0)
    drafter = TreeDrafter(as_target(model, prompt), CHAIN, banned=[7])
    tree = drafter.propose(drafter.begin(REQUESTS[:1]), [Budget(20)])[0].tree
    assert not {7, 97, 98} & set(tree.tokens)


def test_two_proposals_without_a_verification_are_the_same(kin):
    drafter = TreeDrafter(kin, GROWERS["dynamic"])
    state = drafter.begin(REQUESTS[:1])[0]
    one, two = (drafter.propose([state], [Budget(7)])[0] for _ in range(2))
    assert one.tree.tokens == two.tree.tokens
    assert one.path_probs == pytest.approx(two.path_probs)


# -- what the loop makes of a tree ------------------------------------------------------------------------------------


def test_the_loop_sends_only_the_nodes_that_repay_their_row(target, kin):
    decoding = decoder(target, TreeDrafter(kin, GROWERS["dynamic"]))
    for n in (1, 2, 9):
        decoding.policy.cost.verify.add(n, 10.0 + 1.0 * (n - 1))  # worth a chance of 0.1
    draft = Draft(DraftTree((5, 6, 7, 8), (-1, -1, 0, 1)), (0.6, 0.05, 0.3, 0.04))
    live = RequestState(Job(0, REQUESTS[0]), rule_for(None, REQUESTS[0].sampling))
    assert decoding.policy.trim(draft, live, 9).tree == DraftTree((5, 7), (-1, 0))
    decoding.policy.adaptive = False
    assert decoding.policy.trim(draft, live, 9).tree is draft.tree


def test_an_accepted_branch_of_a_trimmed_tree_is_found_again(kin):
    """The loop renumbers what it sends; the drafter follows the tokens."""
    drafter = TreeDrafter(kin, GROWERS["dynamic"])
    one, two = (drafter.begin([REQUESTS[4]])[0] for _ in range(2))
    for state, numbers in ((one, (0,)), (two, (3,))):
        draft = drafter.propose([state], [Budget(7)])[0].tree
        drafter.commit([state], [VerifyOutput(numbers, (draft.tokens[0], 20))])
    first, second = (drafter.propose([state], [Budget(7)])[0] for state in (one, two))
    assert first.tree == second.tree
