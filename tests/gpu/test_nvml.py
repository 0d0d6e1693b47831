"""What NVML says of the GPU while it computes; needs nvidia-ml-py."""

import time

import pytest
import torch

from crossdraft_lab.bench.gpu import sampled_gpus

pytest.importorskip("pynvml")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="NVML knows of no other devices")


def test_a_gpu_that_computes_is_busy_and_holds_memory():
    with sampled_gpus(0.05) as gpus:
        product = torch.eye(4096, device="cuda")
        until = time.perf_counter() + 2
        while time.perf_counter() < until:
            product = product @ product
        torch.cuda.synchronize()
    assert gpus.absent is None
    assert max(use["busy"] for use in gpus.uses) > 0.1
    assert all(use["samples"] >= 10 and use["most_mib"] > 0 for use in gpus.uses)
