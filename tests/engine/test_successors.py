"""The target's likeliest tokens at the nodes of a verified tree, as a drafter gets them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.engine.drafter import Needs
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.reference import full_forward
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.successors import BLOCK, likeliest
from crossdraft.engine.tree import DraftTree
from tests.engine.scripted import Scripted


@given(st.integers(1, 12 * BLOCK + 5), st.integers(1, 8), st.integers(0, 9))
def test_the_likeliest_are_those_of_topk(size, count, seed):
    logits = torch.rand(3, size, generator=torch.Generator().manual_seed(seed))
    logits[:, ::3] = -torch.inf  # tokens that a model never says
    count = min(count, torch.isfinite(logits[0]).sum().item() or 1)
    assert torch.equal(likeliest(logits, count), logits.topk(count).indices)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3, repetition_penalty=1.3)])
@torch.inference_mode()
def test_a_drafter_gets_what_was_likely_at_every_node_rejected_ones_too(target, sampling):
    trees = [DraftTree((7, 8, 9), (-1, 0, -1)), DraftTree.empty(), DraftTree.chain([5])]
    drafter = Scripted([*trees], Needs(successors=3))
    request = Request("xx", max_new_tokens=4, sampling=sampling, ignore_eos=True)
    (answer,) = DecodeLoop(target, DraftRunner(drafter, "before"), adaptive=False).generate([request])
    prompt, said = target.prepare(request), ()
    for tree, output in zip(trees, drafter.outputs, strict=False):
        paths = [(), *(tuple(tree.path_tokens(node)) for node in range(len(tree)))]
        assert list(output.successors) == paths
        for path, found in output.successors.items():
            likely = full_forward(target, prompt, (*said, *path)).topk(3).indices.tolist()
            assert list(found) == [token for token in likely if token not in target.reserved]
        said += output.tokens
    assert said == answer.tokens[: len(said)]


def test_tokens_that_must_not_be_drafted_are_left_out(target):
    """A draft with one of them would be dropped whole."""
    drafter = Scripted([DraftTree.chain([5])], Needs(successors=target.vocab_size))
    DecodeLoop(target, DraftRunner(drafter, "before"), adaptive=False).generate([Request("xx", max_new_tokens=3)])
    assert target.reserved
    for output in drafter.outputs:
        for found in output.successors.values():
            assert len(found) > 3
            assert target.reserved.isdisjoint(found)
