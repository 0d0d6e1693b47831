"""The identity check passes where the tokens are the target's, and fails where they are not."""

import pytest
import torch

from crossdraft.bench.contestants import Models
from crossdraft.bench.identity import Check, check_identity
from crossdraft.bench.workload import Workload, items
from crossdraft.engine.cost import CostModel
from crossdraft.engine.decode import Decoder
from crossdraft.engine.placement import Inline
from crossdraft.engine.target import Target


@pytest.fixture(scope="module")
def models(pair):
    return Models(str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def target(models):
    return models.load_target()


def test_single_and_shared_passes_are_identical(models, target):
    drafter = models.drafter(models.event, target)()
    checks = [
        Check(f"batch of {size}", Decoder(target, Inline(drafter, CostModel(), hidden), max_batch=size))
        for size, hidden in ((1, "before"), (3, "before"), (4, "off"))
    ]
    check_identity(target, checks, items(Workload(pairs=8, answers="any", max_new_tokens=16)))
    assert [(check.equal, check.total) for check in checks] == [(8, 8)] * 3
    assert checks[1].to_json()["identical"] == {"equal": 8, "total": 8}


def test_another_models_tokens_are_found_out(models, target):
    model = models.load_target(packed=False).model
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head += (
            0.3
            * head.std()
            * torch.randn(head.shape, generator=torch.Generator().manual_seed(0))
            * (head != 0)
        )
    other = Target(model, target.prepare, target.decode, tuple(target.eos), tuple(target.reserved))
    check = Check("another model", Decoder(other))
    check_identity(target, [check], items(Workload(pairs=4, answers="any", max_new_tokens=16)))
    assert check.divergences
    assert not check.to_json()["lossless"]
    assert check.remark.startswith("top-2 logit gaps: ")
    assert all(divergence.gap >= 0 for divergence in check.divergences)
