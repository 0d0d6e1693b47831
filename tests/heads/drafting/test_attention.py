"""Drafting with DFlash's blocks, and the cache of heads that attend to the text."""

import pytest
import torch

from crossdraft.engine.drafter import Budget
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import ROOT
from crossdraft.heads.drafting.block import BlockDrafter
from crossdraft.heads.drafting.head_drafter import TREES
from crossdraft.heads.registry import HEADS
from tests.heads.consistency import START, check_consistency, some_batch, some_head, state_at

METHODS = ("eagle3", "dflash")


def some(method, tree="dynamic", **more):
    return HEADS[method].drafter_class(some_head(HEADS[method].network, **more), TREES[tree])


def planted(drafter, batch, monkeypatch, name, bug):
    """Train without the bug, draft with it: the logits must differ."""
    predictions = drafter.head(batch)
    monkeypatch.setattr(drafter.head, "forward", lambda batch: predictions)
    monkeypatch.setattr(drafter.head, name, bug)
    with pytest.raises(AssertionError):
        check_consistency(drafter, batch)


SLIDING = {"windows": (3, 0), "causal_layers": (0,), "whole_prompt": True}


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("more", [SLIDING, {"windows": (2, 5)}])
def test_layers_that_slide_and_whole_prompts(more, pieces):
    drafter = some("dflash", **more)
    assert check_consistency(drafter, some_batch(drafter.head), pieces) > 20


def test_a_wider_window_would_be_noticed(monkeypatch):
    drafter = some("dflash", **SLIDING)
    sees = drafter.head.sees
    planted(drafter, some_batch(drafter.head), monkeypatch, "sees", lambda layer, far: sees(layer, far - far.sign()))


def test_a_block_of_another_root_would_be_noticed(monkeypatch):
    drafter = some("dflash")
    block = drafter.head.block
    planted(drafter, some_batch(drafter.head), monkeypatch, "block", lambda roots: block(roots * 0 + 3))


@pytest.mark.parametrize("method", METHODS)
def test_the_cache_has_one_row_per_position_and_layer(method):
    drafter = some(method)
    state = state_at(drafter, some_batch(drafter.head), 8)
    drafter.propose([state], [Budget(40)])
    drafter.step_fn(state.head_state)
    assert state.head_state.cache.lengths == [9]
    assert sum(rows.shape[1] for rows in getattr(state.head_state, "pending", ())) == 0


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_a_block_is_computed_once_a_round_and_path_probs_are_products(monkeypatch):
    drafter = some("dflash")
    calls, draft = [], drafter.head.draft
    monkeypatch.setattr(drafter.head, "draft", lambda *rows: calls.append(1) or draft(*rows))
    state = state_at(drafter, some_batch(drafter.head), 6)
    found = drafter.propose([state], [Budget(20)])[0]
    drafter.propose([state], [Budget(20)])
    assert len(calls) == 1
    probs = state.head_state.logits.softmax(-1)
    ids = list(drafter.head.config.draft_ids)
    for node, path_prob in enumerate(found.path_probs):
        path = [ids.index(found.tree.tokens[step]) for step in found.tree.path(node)]
        product = torch.stack([probs[level, index] for level, index in enumerate(path)]).prod()
        assert path_prob == pytest.approx(float(product))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=1)])
def test_nothing_is_drafted_behind_the_block(sampling):
    drafter = some("dflash", "chain")
    state = state_at(drafter, some_batch(drafter.head), 6, sampling=sampling)
    assert drafter.propose([state], [Budget(20)])[0].tree.depth == drafter.head.config.steps == 4


def test_a_new_verification_computes_a_new_block():
    drafter, batch = some("dflash"), some_batch(some_head("dflash"))
    state = state_at(drafter, batch, START)
    first = drafter.step_fn(state.head_state)([ROOT], [], [], 0)
    later = drafter.step_fn(state_at(drafter, batch, START + 1).head_state)([ROOT], [], [], 0)
    assert not torch.allclose(first, later)
    assert state.head_state.logits is not None
    assert isinstance(drafter, BlockDrafter)
