"""A drafter that learns an answer must not know the draws that verify the next one."""

from crossdraft.drafters.memory.drafter import MemoryDrafter
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from tests.drafters.test_fork import model


def test_asked_again_with_the_same_seed_the_distribution_is_the_same():
    """Verified by the stream that it was drawn from, a remembered word of probability 0.35 would come in 0.68."""
    same, often = 150, 0
    for seed in range(same):
        decoder = DecodeLoop(model(), DraftRunner(MemoryDrafter(), "before"), adaptive=False)
        request = Request("kkk", max_new_tokens=2, sampling=Sampling(temperature=1.0, top_k=3, seed=seed))
        decoder.generate([request])
        often += decoder.generate([request])[0].tokens[0] == 24
    assert often / same < 0.51  # four standard deviations above
