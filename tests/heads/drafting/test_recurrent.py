"""Heads that remember a draft in a state: Medusa, Hydra, Hydra++, ReDrafter."""

from functools import partial

import pytest
import torch

from crossdraft.drafters.trees import Shape, TopK, fill
from crossdraft.engine.decode import Decoder
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.policy import CostModel
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import ROOT
from crossdraft.heads.drafting.head_drafter import TREES
from crossdraft.heads.drafting.recurrent import RecurrentDrafter
from crossdraft.heads.files import config_of, make
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.registry import HEADS
from crossdraft.specs import parse
from tests.engine.zoo import EOS, VOCABULARY, ZOO, as_target
from tests.heads.rehearsal import check_branches, check_rehearsal, some_head, some_lesson, told_up_to

METHODS = ("medusa", "hydra", "hydra++", "redrafter")
FIXED = partial(fill, Shape.from_paths([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 0, 0]]))
BUILDERS = {**TREES, "static": FIXED}
MORE = {"token_size": 6, "width": 10, "layers": 2}


def some(method, tree="beams", **options):
    return RecurrentDrafter(some_head(HEADS[method].network, **MORE), BUILDERS[tree], **options)


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_rehearsed_is_what_is_drafted(method, pieces):
    drafter = some(method)
    assert check_rehearsal(drafter, some_lesson(drafter.head), pieces) > 20


@pytest.mark.parametrize("method", ["hydra", "hydra++", "redrafter"])
def test_a_draft_that_forgot_its_tokens_would_be_noticed(method, monkeypatch):
    """The planted bug: the state behind a node is that of another token."""
    drafter, batch = some(method), some_lesson(some_head(method, **MORE))
    predictions, next_state = drafter.head(batch), drafter.head.next_state
    monkeypatch.setattr(drafter.head, "forward", lambda batch: predictions)
    monkeypatch.setattr(drafter.head, "next_state", lambda states, tokens: next_state(states, tokens * 0 + 3))
    with pytest.raises(AssertionError):
        check_rehearsal(drafter, batch)


@pytest.mark.parametrize("method", METHODS)
def test_a_draft_that_began_one_place_too_early_would_be_noticed(method, monkeypatch):
    """The planted bug: the feature in front of the last one."""
    drafter, batch = some(method), some_lesson(some_head(method, **MORE))
    update = drafter.update

    def stale(state, output):
        before = None if state.head_state is None else drafter.step_fn(state.head_state) and state.head_state.feature
        update(state, output)
        if before is not None:
            state.head_state.pending, state.head_state.feature = [], before

    monkeypatch.setattr(drafter, "update", stale)
    with pytest.raises(AssertionError):
        check_rehearsal(drafter, batch)


@pytest.mark.parametrize("method", METHODS)
def test_branches_do_not_see_each_other(method):
    check_branches(some(method))


@pytest.mark.parametrize("tree", BUILDERS)
@pytest.mark.parametrize("method", METHODS)
def test_a_draft_is_of_the_heads_words_and_within_the_budget(method, tree):
    drafter = some(method, tree)
    state = told_up_to(drafter, some_lesson(drafter.head), 6)
    draft = drafter.propose([state], [Budget(20)])[0]
    assert 0 < len(draft.tree) <= 20
    assert set(draft.tree.tokens) <= set(drafter.head.config.draft_ids)
    assert len(draft.path_probs) == len(draft.tree)
    assert drafter.propose([state], [Budget(20)])[0].tree == draft.tree  # a draft leaves nothing behind


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(repetition_penalty=1.3), Sampling(temperature=1.0, seed=1)])
@pytest.mark.parametrize("method", ["medusa", "hydra", "hydra++"])
def test_no_head_is_asked_for_more_tokens_than_there_are_heads(method, sampling):
    drafter = some(method, "chain")
    state = told_up_to(drafter, some_lesson(drafter.head), 6)
    state.sampling = sampling
    assert drafter.propose([state], [Budget(20)])[0].tree.is_chain
    assert drafter.propose([state], [Budget(20)])[0].tree.depth == drafter.head.config.steps == 4


def test_a_recurrent_network_has_no_last_level():
    drafter = some("redrafter", "chain")
    state = told_up_to(drafter, some_lesson(drafter.head), 6)
    assert drafter.propose([state], [Budget(20)])[0].tree.depth == 20


def test_behind_the_last_level_nothing_is_asked():
    asked = []

    def expand(tree, nodes):
        asked.append(list(nodes))
        return torch.tensor([[0.6, 0.4]]).expand(len(nodes), 2)

    drafter = RecurrentDrafter(some_head("medusa", steps=2), TREES["dynamic"])
    grown = drafter.grow(drafter._open_nodes(expand, frozenset()), TopK(), Budget(30))
    assert asked == [[ROOT], [0, 1]]
    assert len(grown.tree) == 6


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_drafted_behind_the_end_of_an_answer(method):
    drafter = some(method, "dynamic", ends=range(3, 20))
    state = told_up_to(drafter, some_lesson(drafter.head), 6)
    tree = drafter.propose([state], [Budget(30)])[0].tree
    assert all(tree.parents[node] == ROOT or tree.tokens[tree.parents[node]] >= 20 for node in range(len(tree)))


@pytest.mark.parametrize("method", ["medusa", "hydra++"])
def test_a_fork_goes_its_own_way(method):
    drafter = some(method)
    batch = some_lesson(drafter.head)
    state, longer = told_up_to(drafter, batch, 6), told_up_to(drafter, batch, 7)
    fork = drafter.fork([state])[0]
    features = {6: batch.hidden[6][0, 7:8]}
    drafter.commit([fork], [VerifyOutput((), (int(batch.tokens[0, 8]),), features)])
    budgets = [Budget(12)]
    assert drafter.propose([fork], budgets)[0].tree == drafter.propose([longer], budgets)[0].tree
    own = told_up_to(drafter, batch, 6)
    assert drafter.propose([state], budgets)[0].tree == drafter.propose([own], budgets)[0].tree


@pytest.mark.parametrize("method", METHODS)
def test_the_name_can_be_written_in_a_spec(method):
    spec = parse(f"union:{method},memory")
    assert spec.parts[0].name == method
    assert parse(f"{method}:tree=chain").settings == {"tree": "chain"}


# -- in the engine -----------------------------------------------------------------------------------------------------

REQUESTS = [Request("x" * i, max_new_tokens=6 + 5 * i) for i in range(1, 5)]


@pytest.fixture(scope="module")
def target():
    return as_target(*ZOO["video_llava"]())


@pytest.fixture(scope="module")
def alone(target):
    return [answer.tokens for answer in Decoder(target).generate(REQUESTS)]


def beside(target, method):
    """A head for this target, over the words that it says: most of its guesses are wrong, some are not."""
    text = target.text_config
    values = {
        "hidden_size": text.hidden_size,
        "vocab_size": text.vocab_size,
        "num_layers": text.num_hidden_layers,
        "draft_ids": [EOS, *range(5, VOCABULARY - 4)],
        "steps": 4,
    }
    mlps = {"token_size": 8, "width": 64}
    layer = {"heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate_size": 32}
    own = {"medusa": {}, "hydra": mlps, "hydra++": mlps | layer | {"layers": 2}, "redrafter": {}}
    torch.manual_seed(3)
    config = config_of(method, values | own[method], "here")
    head = make(method, config, SharedWeights.of(target.model)).double()
    return RecurrentDrafter(head, FIXED, target.eos, target.reserved)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_greedy_answers_are_the_targets_own(target, alone, method, batch):
    cost = CostModel()
    placement = DraftRunner(beside(target, method), "off")
    found = Decoder(target, placement, cost=cost, adaptive=False, max_batch=batch).generate(REQUESTS)
    assert [answer.tokens for answer in found] == alone
    assert sum(answer.stats.drafted for answer in found) > 50
