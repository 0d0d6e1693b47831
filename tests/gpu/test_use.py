"""Sampling and memory."""

import gc
from collections import Counter

import pytest
import torch

from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from tests.gpu.pairs import DEVICE, REQUESTS, answers, drafter_of, inline, target_of

DRAWS = 300
WARM = Sampling(temperature=1.5, top_k=4)


def requests(sampling, count):
    return [
        Request("xx", max_new_tokens=3, sampling=Sampling(sampling.temperature, sampling.top_k, seed=seed))
        for seed in range(count)
    ]


def test_what_is_sampled_with_a_drafter_has_the_targets_distribution(record_property):
    """The third tokens, the first ones that a draft can decide twice; both samples are noisy."""
    target = target_of("video_llava", "float32")
    asked = requests(WARM, DRAWS)
    placement = inline(drafter_of("video_llava", "float32"), "before")
    drafted = answers(target, placement, asked, adaptive=False, max_batch=4)
    alone = answers(target, None, requests(WARM, 2 * DRAWS)[DRAWS:], max_batch=4)
    distributions = [Counter(answer.tokens[1] for answer in found) for found in (drafted, alone)]
    words = set(distributions[0]) | set(distributions[1])
    distance = sum(abs(distributions[0][word] - distributions[1][word]) for word in words) / (2 * DRAWS)
    record_property("total_variation", distance)
    assert sum(answer.stats.drafted for answer in drafted) >= DRAWS
    assert distance < 0.9 * (len(words) / DRAWS) ** 0.5


def test_a_seed_is_a_seed():
    target = target_of("video_llava", "float32")
    asked = requests(WARM, 4)
    first, second = (answers(target, None, asked) for _ in range(2))
    assert [a.tokens for a in first] == [a.tokens for a in second]
    assert len({a.tokens for a in first}) > 1


@pytest.mark.parametrize("hidden", ["before", "beside"])
def test_memory_is_given_back(hidden):
    def held():
        gc.collect()
        if DEVICE.type == "cuda":
            return torch.cuda.memory_allocated(DEVICE)
        found = [value for value in gc.get_objects() if type(value) in (torch.Tensor, torch.nn.Parameter)]
        return sum({v.untyped_storage().data_ptr(): v.untyped_storage().nbytes() for v in found}.values())

    target = target_of("video_llava", "float32")
    placement = inline(drafter_of("video_llava", "float32"), hidden)
    DecodeLoop(target, placement, max_batch=2).generate(REQUESTS)  # whatever is made once
    before = held()
    for _ in range(4):
        DecodeLoop(target, placement, max_batch=2).generate(REQUESTS)
    assert held() <= before + 2**16
    placement.close()


def test_an_interrupted_batch_leaves_the_device_usable():
    target = target_of("video_llava", "float32")
    placement = inline(drafter_of("video_llava", "float32"), "beside")
    decoder = DecodeLoop(target, placement, max_batch=2, adaptive=False)
    request_ids = [decoder.submit(request) for request in REQUESTS[3:]]
    decoder.step()
    decoder.cancel(request_ids[0])
    while decoder.busy:
        decoder.step()
    assert decoder.answer(request_ids[1]).tokens == answers(target, None, REQUESTS[4:])[0].tokens
    placement.close()
