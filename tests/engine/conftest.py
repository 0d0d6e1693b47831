"""A target of the zoo and a drafter of its kind, for tests that name no others."""

import pytest

from crossdraft.drafters.independent import IndependentDrafter
from tests.engine.zoo import ZOO, as_target, noisy


@pytest.fixture(scope="module")
def target():
    return as_target(*ZOO["video_llava"]())


@pytest.fixture(scope="module")
def kin():
    """A drafter that agrees with the target often, not always."""
    model, prompt = ZOO["video_llava"]()
    return IndependentDrafter(as_target(noisy(model, 1e-3), prompt))
