"""Fixtures of the benches' tests: the tiny pair's models, and their target, in float32."""

import pytest

from crossdraft_lab.bench.assembly import Models


@pytest.fixture(scope="module")
def models(pair):
    return Models(str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def target(models):
    return models.load_target()
