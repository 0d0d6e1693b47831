"""Drafts of the scheduler's in the tensor that Model Runner V2 reads."""

import torch

from crossdraft_vllm.device_drafts import write_drafts


def test_drafts_are_written_into_their_rows_and_those_of_the_worker_stay():
    tokens = torch.arange(12).view(3, 4)
    write_drafts(tokens, {"a": 2, "b": 0, "c": 1}, {"a": [7, 8], "b": [-1, -1, -1], "c": [], "d": [5]})
    assert tokens.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [7, 8, 10, 11]]
