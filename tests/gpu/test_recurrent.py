"""The fused kernel of recurrent layers on a GPU: trees are read as by plain forwards."""

import pytest
import torch

from crossdraft.engine.conformance import PARENTS, check_conformance
from tests.engine.recurrent.tiny import prompt_of, target_of, tiny


@pytest.mark.parametrize("kind", ["qwen3_5", "kimi_linear", "nemotron_h"])
def test_a_compiled_target_reads_trees_by_the_kernel(kind):
    target = target_of(tiny(kind, torch.float32).cuda())
    target.compile()
    found = check_conformance(target, prompt_of(kind, "text"), range(20, 20 + len(PARENTS)))
    assert max(found.riding, found.batched, found.compacted) < 2e-5, found
    assert found.wrong_mask > 1e-3
