"""Verification by a request: which rows of scores are made, and that the tokens are those of the whole tree."""

import pytest
import torch

from crossdraft.engine import request_state
from crossdraft.engine.request import Request
from crossdraft.engine.request_state import Job, RequestState
from crossdraft.engine.rules import rule_for
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import DraftTree

VOCABULARY = 8
TREE = DraftTree((0, 1, 2, 3, 0, 5, 6), (-1, -1, 0, 1, 3, 2, 4))
SETTINGS = [
    Sampling(temperature=0.0),
    Sampling(temperature=0.0, repetition_penalty=1.3),
    Sampling(temperature=0.0, presence_penalty=0.7, frequency_penalty=0.4),
    Sampling(temperature=0.0, logit_bias=((4, -3.0),)),
    Sampling(temperature=0.8, top_p=0.8),
    Sampling(temperature=1.3, top_k=5, repetition_penalty=1.2),
    Sampling(temperature=1.0, min_p=0.1),
]


def state_of(sampling: Sampling, seed: int) -> RequestState:
    state = RequestState(Job(0, Request("x", sampling=sampling, max_new_tokens=40)), rule_for(None, sampling))
    state.seed, state.context, state.tokens = seed, [3, 1, 4, 1], [4, 1]
    return state


@pytest.mark.parametrize("cores", [3, 4])
@pytest.mark.parametrize("sampling", SETTINGS, ids=range(len(SETTINGS)))
def test_few_cores_make_scores_along_the_answer_which_give_the_tokens_of_the_whole_tree(sampling, cores, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    rows, warp_tree = [], request_state.warp_tree
    monkeypatch.setattr(request_state, "warp_tree", lambda *args: rows.append(len(args[0])) or warp_tree(*args))
    paths = set()
    for seed in range(60):
        state = state_of(sampling, seed)
        logits = 2 * torch.randn(1 + len(TREE), VOCABULARY, generator=torch.Generator().manual_seed(seed))
        whole = state._verified(TREE, logits)
        rows.clear()
        assert state.verify(TREE, logits) == whole
        assert rows == ([1 + len(TREE)] if sampling.plain or cores == 4 else [1] * (1 + len(whole.path)))
        paths.add(whole.path)
    assert len(paths) > 3
    assert max(map(len, paths)) > 1
