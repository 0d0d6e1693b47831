"""Drafts, requests and distributions on their way to another process."""

import pickle
import threading
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.engine.drafter import Draft, Outcome
from crossdraft.engine.request import Request
from crossdraft.engine.runner.wire import (
    pack_draft,
    pack_request,
    pack_rows,
    pack_tensor,
    unpack_draft,
    unpack_request,
    unpack_rows,
    unpack_tensor,
)
from crossdraft.engine.sampling import Sampling, warp
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.events import Events

VOCABULARY = 152_064


def test_a_request_that_cannot_be_sent_is_refused():
    with pytest.raises(CrossdraftError, match=r"cannot be sent to the drafter's process.*lambda"):
        pack_request(Request("?", events=lambda: None))
    with pytest.raises(CrossdraftError, match=r"cannot be sent to the drafter's process.*lock"):
        pack_request(Request("?", events=threading.Lock()))


@given(st.integers(0, 5), st.integers(1, 40), st.floats(0, 1), st.sampled_from([torch.float32, torch.float64]))
def test_rows_arrive_to_the_bit(count, width, density, dtype):
    generator = torch.Generator().manual_seed(count + 10 * width)
    rows = torch.rand(count, width, generator=generator, dtype=dtype)
    rows *= torch.rand(count, width, generator=generator) < density
    tree = DraftTree((0,) * count, tuple(range(-1, count - 1)), rows, tuple(range(count)))
    found = unpack_rows(pickle.loads(pickle.dumps(pack_rows(tree))))
    assert torch.equal(found, rows)
    assert found.dtype == dtype


def test_nothing_drawn_is_nothing_sent():
    assert pack_rows(DraftTree.chain([1, 2])) is None
    assert unpack_rows(None) is None


@pytest.mark.parametrize(
    ("sampling", "most"),
    [(Sampling(1.0, top_k=50), 50_000), (Sampling(1.0, top_p=0.9), 500_000), (Sampling(1.0), 20_000_000)],
)
def test_what_a_filter_left_out_is_not_sent(sampling, most):
    """32 distributions over a large vocabulary; sharp ones, as those of a model are."""
    logits = 6 * torch.randn(32, VOCABULARY, generator=torch.Generator().manual_seed(0))
    rows = warp(logits, sampling)
    tree = DraftTree.chain(range(32), rows)
    packed = pack_rows(tree)
    assert len(pickle.dumps(packed)) < most
    assert torch.equal(unpack_rows(packed), rows)


def test_rows_of_nodes_that_were_cut_off_stay():
    tree = DraftTree.chain(range(8), torch.eye(8)).first(3)
    assert len(unpack_rows(pack_rows(tree))) == 3


def test_drafts_survive_the_wire():
    tree = DraftTree((5, 6, 7), (-1, 0, -1), torch.eye(9)[[5, 6]], (0, 1, -1))
    back = unpack_draft(pack_draft(Draft(tree))).tree
    assert (back.tokens, back.parents, back.drawn_from) == (tree.tokens, tree.parents, tree.drawn_from)
    assert torch.equal(back.dists, tree.dists)
    assert unpack_draft(pack_draft(Draft(DraftTree.chain([1])))).tree.dists is None


def test_every_field_of_a_draft_survives_the_wire():
    """A union widens a chain by its outcomes, wherever it was written."""
    draft = Draft(DraftTree.chain([1, 2]), (0.6, 0.5), "refused", "at fault", (Outcome((7,), 0.3),))
    draft = replace(draft, notes=("a sentence",))
    assert len(fields(Draft)) == 7  # one of them, spans, travels in the message
    assert unpack_draft(pack_draft(draft)) == draft
    assert unpack_draft((*pack_draft(draft)[:-1], "no draft")).fault is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tensors_survive_the_wire_to_the_bit(dtype):
    tensor = torch.randn(5, 4, 3).to(dtype)[:, 1:]  # with gaps
    packed, arrays = pack_tensor(tensor)
    back = unpack_tensor(packed, [bytearray(array) for array in arrays])
    assert back is not None
    assert back.dtype == dtype
    assert torch.equal(back, tensor)
    assert unpack_tensor(*pack_tensor(None)) is None


def test_requests_survive_the_wire_with_separate_arrays_and_writable():
    clip = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    events = Events(np.arange(5, dtype=np.uint16), np.zeros(5, np.uint16), np.arange(5), np.ones(5, np.uint8), 8, 8)
    # An array with gaps, and a tensor, travel in the message itself.
    for video, separate in (
        (clip, 5), (clip[:0], 5), (np.asfortranarray(clip), 5), (clip[:, ::2], 4), (torch.ones(2, 3), 4), (None, 4),
    ):  # fmt: skip
        request = Request("?", video=video, events=events, sampling=Sampling(0.5), namespace="n")
        packed, arrays = pack_request(request)
        back = unpack_request(packed, [bytearray(array) for array in arrays])
        assert replace(back, video=None, events=None) == replace(request, video=None, events=None)
        assert len(arrays) == separate  # four are the events'
        if video is not None:
            assert np.array_equal(np.asarray(back.video), np.asarray(video))
        for name in ("x", "y", "t", "p"):
            there = getattr(back.events, name)
            assert np.array_equal(there, getattr(events, name))
            there[:] = 0
