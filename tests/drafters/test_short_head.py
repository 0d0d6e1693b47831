"""A head of few ids: its own logits there, nothing elsewhere."""

import json

import pytest
import torch
from torch import nn

from crossdraft.drafters.short_head import FILE, ShortHead, read_ids
from crossdraft.engine.fast.packed_linear import prepack
from crossdraft.errors import CrossdraftError

IDS = [7, 2, 11, 2]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@torch.inference_mode()
def test_logits_are_the_head_s_own_at_its_ids_and_nothing_elsewhere(bias, packed):
    torch.manual_seed(0)
    head = nn.Linear(16, 13, bias=bias)
    short = ShortHead(head, IDS)
    if packed:
        assert prepack(short) == 1
    states = torch.randn(2, 3, 16)
    found, whole = short(states), head(states)
    torch.testing.assert_close(found[..., [2, 7, 11]], whole[..., [2, 7, 11]])
    others = [i for i in range(13) if i not in IDS]
    assert (found[..., others] == -torch.inf).all()


@pytest.mark.parametrize("ids", [[], [13], [-1]])
def test_ids_that_the_head_lacks_are_refused(ids):
    with pytest.raises(CrossdraftError, match="ids from 0 to 12"):
        ShortHead(nn.Linear(16, 13), ids)


def test_the_file_next_to_the_weights(tmp_path):
    assert read_ids(tmp_path) is None
    (tmp_path / FILE).write_text(json.dumps(IDS))
    assert read_ids(tmp_path) == IDS
    for broken in ("{", '{"ids": 1}', "[1.5]", '["a"]'):
        (tmp_path / FILE).write_text(broken)
        with pytest.raises(CrossdraftError, match=FILE):
            read_ids(tmp_path)
