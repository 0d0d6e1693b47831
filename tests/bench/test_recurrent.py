"""`crossdraft bench recurrent`, on a tiny model."""

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.recurrent import compare_steps, lines, main

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "head_dim": 16, "num_attention_heads": 2,
    "num_key_value_heads": 1, "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}  # fmt: skip


def test_every_pass_is_timed_and_projections_are_a_part_of_their_modules():
    found = compare_steps(torch.device("cpu"), torch.float32, 5, 12, SMALL)
    assert 0 < found["projections_ms"]["median"] < found["modules_ms"]["median"] < found["tree_ms"]["median"]
    assert found["ours_ms"]["median"] > 0 < found["hugging_face_ms"]["median"]
    assert found["over_hugging_face"]["n"] == 12
    assert "a pass over a tree of 5" in lines(found)[2]


@pytest.mark.parametrize("option", ["--nodes", "--repeats"])
def test_nothing_is_not_measured(option):
    with pytest.raises(CrossdraftError, match="must be 1 or more"):
        main([option, "0"])
