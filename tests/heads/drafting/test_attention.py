"""Heads that read the target's keys and values, or layers from its middle: GLIDE, Chimera, DREAM and DFlash."""

import pytest
import torch

from crossdraft.engine.decode import Decoder
from crossdraft.engine.drafter import Budget
from crossdraft.engine.policy import CostModel
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import ROOT
from crossdraft.heads.drafting.block import BlockDrafter
from crossdraft.heads.drafting.head_drafter import TREES
from crossdraft.heads.files import config_of, make
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.registry import HEADS
from tests.engine.zoo import EOS, VOCABULARY, ZOO, as_target
from tests.heads.rehearsal import START, check_branches, check_rehearsal, some_head, some_lesson, told_up_to

STEP_BY_STEP = ("glide", "chimera", "dream")
METHODS = (*STEP_BY_STEP, "dflash")


def some(method, tree="dynamic", **more):
    return HEADS[method].drafter_class(some_head(HEADS[method].network, **more), TREES[tree])


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_rehearsed_is_what_is_drafted(method, pieces):
    drafter = some(method)
    assert check_rehearsal(drafter, some_lesson(drafter.head), pieces) > 20


@pytest.mark.parametrize("pieces", [1, 3])
def test_chimera_with_narrow_embeddings_too(pieces):
    drafter = some("chimera", gram_size=8)
    assert check_rehearsal(drafter, some_lesson(drafter.head), pieces) > 20


def planted(drafter, batch, monkeypatch, name, bug):
    """Rehearse as it should be, draft with a bug."""
    predictions = drafter.head(batch)
    monkeypatch.setattr(drafter.head, "forward", lambda batch: predictions)
    monkeypatch.setattr(drafter.head, name, bug)
    with pytest.raises(AssertionError):
        check_rehearsal(drafter, batch)


@pytest.mark.parametrize("method", ["glide", "dream"])
def test_a_draft_that_saw_the_target_further_on_would_be_noticed(method, monkeypatch):
    """The planted bug: drafted rows bring keys and values for the target's, as if it had read them."""
    drafter = some(method)
    decode = drafter.head.decode
    bug = lambda embeds, features, attend, step: decode(embeds, features, attend, 0)  # noqa: E731
    planted(drafter, some_lesson(drafter.head), monkeypatch, "decode", bug)


def test_a_trigram_that_forgot_the_tokens_in_front_would_be_noticed(monkeypatch):
    drafter = some("chimera")
    rows = drafter.head.embed_tokens
    bug = lambda tokens: rows(tokens[:, -drafter.head.span :].flip(1) if tokens.shape[1] == 3 else tokens)  # noqa: E731
    planted(drafter, some_lesson(drafter.head), monkeypatch, "embed_tokens", bug)


def test_a_block_of_another_root_would_be_noticed(monkeypatch):
    drafter = some("dflash")
    block = drafter.head.block
    planted(drafter, some_lesson(drafter.head), monkeypatch, "block", lambda roots: block(roots * 0 + 3))


@pytest.mark.parametrize("method", STEP_BY_STEP)
def test_branches_do_not_see_each_other(method):
    check_branches(some(method))


@pytest.mark.parametrize("tree", ["dynamic", "chain", "cape"])
@pytest.mark.parametrize("method", METHODS)
def test_drafts_stay_within_the_budget_fork_and_leave_nothing_behind(method, tree):
    drafter = some(method, tree)
    batch = some_lesson(drafter.head)
    state = told_up_to(drafter, batch, 6)
    before = drafter.propose([state], [Budget(20)])[0]
    assert 0 < len(before.tree) <= 20
    assert set(before.tree.tokens) <= set(drafter.head.config.draft_ids)
    fork = drafter.fork([state])[0]
    drafter.propose([fork], [Budget(30)])
    assert drafter.propose([state], [Budget(20)])[0].tree == before.tree
    assert drafter.propose([fork], [Budget(20)])[0].tree == before.tree


@pytest.mark.parametrize("method", METHODS)
def test_what_is_kept_of_an_answer_is_one_row_per_place_and_layer(method):
    drafter = some(method)
    state = told_up_to(drafter, some_lesson(drafter.head), 8)
    drafter.propose([state], [Budget(40)])
    drafter.step_fn(state.head_state)
    assert state.head_state.cache.lengths == [9]
    assert sum(rows.shape[1] for rows in getattr(state.head_state, "pending", ())) == 0


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_a_block_is_asked_once_a_round_and_its_path_probs_are_products(monkeypatch):
    drafter = some("dflash")
    asked, draft = [], drafter.head.draft
    monkeypatch.setattr(drafter.head, "draft", lambda *rows: asked.append(1) or draft(*rows))
    state = told_up_to(drafter, some_lesson(drafter.head), 6)
    found = drafter.propose([state], [Budget(20)])[0]
    drafter.propose([state], [Budget(20)])
    assert len(asked) == 1
    probs = state.head_state.logits.softmax(-1)
    ids = list(drafter.head.config.draft_ids)
    for node, reach in enumerate(found.path_probs):
        path = [ids.index(found.tree.tokens[step]) for step in found.tree.path(node)]
        product = torch.stack([probs[level, place] for level, place in enumerate(path)]).prod()
        assert reach == pytest.approx(float(product))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=1)])
def test_nothing_is_drafted_behind_the_block(sampling):
    drafter = some("dflash", "chain")
    state = told_up_to(drafter, some_lesson(drafter.head), 6)
    state.sampling = sampling
    assert drafter.propose([state], [Budget(20)])[0].tree.depth == drafter.head.config.steps == 4


def test_a_new_verdict_asks_anew():
    drafter, batch = some("dflash"), some_lesson(some_head("dflash"))
    state = told_up_to(drafter, batch, START)
    first = drafter.step_fn(state.head_state)([ROOT], [], [])
    later = drafter.step_fn(told_up_to(drafter, batch, START + 1).head_state)([ROOT], [], [])
    assert not torch.allclose(first, later)
    assert state.head_state.logits is not None
    assert isinstance(drafter, BlockDrafter)


# -- in the engine -----------------------------------------------------------------------------------------------------

REQUESTS = [Request("x" * i, max_new_tokens=6 + 5 * i) for i in range(1, 5)]


@pytest.fixture(scope="module")
def target():
    return as_target(*ZOO["video_llava"]())


@pytest.fixture(scope="module")
def alone(target):
    return [answer.tokens for answer in Decoder(target).generate(REQUESTS)]


def beside(target, method):
    """A small random head for this target: most of its guesses are wrong."""
    text = target.text_config
    values = {
        "hidden_size": text.hidden_size,
        "vocab_size": text.vocab_size,
        "num_layers": text.num_hidden_layers,
        "draft_ids": [EOS, *range(5, VOCABULARY - 4)],
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "intermediate_size": 48,
        "steps": 4,
    } | ({"middle_layer": 1} if method == "dream" else {})
    torch.manual_seed(3)
    head = make(method, config_of(method, values, "here"), SharedWeights.of(target.model)).double()
    return HEADS[method].drafter_class(head, TREES["dynamic"], target.eos, target.reserved)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_greedy_answers_are_the_targets_own(target, alone, method, batch):
    cost = CostModel()
    placement = DraftRunner(beside(target, method), "off")
    found = Decoder(target, placement, cost=cost, adaptive=False, max_batch=batch).generate(REQUESTS)
    assert [answer.tokens for answer in found] == alone
    assert sum(answer.stats.drafted for answer in found) > 50
    assert not any(answer.notes for answer in found)
