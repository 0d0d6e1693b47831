"""The answer is the target's own, token by token, wherever the drafter runs and whatever it proposes."""

from dataclasses import replace
from functools import cache, partial

import pytest
import torch

from crossdraft.engine.conformance import PARENTS, check_conformance
from crossdraft.engine.request import Request
from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.engine.runner.runner import DraftRunner
from tests.engine.zoo import ZOO
from tests.gpu.pairs import DEVICE, REQUESTS, answers, check_same, drafter_of, inline, target_of

# Grouped heads in the executor `fast` (Llama, Qwen2), and M-RoPE on the model's own forward.
NAMES = ("video_llava", "llava_onevision", "qwen2_5_vl")
DTYPES = ("float32", "bfloat16")


@cache
def alone(name, dtype):
    target = target_of(name, dtype)
    return target, answers(target, None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", ["before", "beside"])
@pytest.mark.parametrize("name", NAMES)
def test_with_a_drafter_inline(name, hidden, dtype, record_property):
    target, expected = alone(name, dtype)
    found = answers(target, inline(drafter_of(name, dtype), hidden), adaptive=False)
    check_same(target, dtype, expected, found, record_property)
    assert sum(answer.stats.accepted for answer in found) > 0


@pytest.mark.parametrize("hidden", ["auto", "off"])
def test_with_the_other_ways_to_hide(hidden, record_property):
    target, expected = alone("video_llava", "float32")
    found = answers(target, inline(drafter_of("video_llava", "float32"), hidden))
    check_same(target, "float32", expected, found, record_property)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_with_trees_that_branch(name, dtype, record_property):
    target, expected = alone(name, dtype)
    drafter = drafter_of(name, dtype, words=3)
    found = answers(target, inline(drafter, "before"), adaptive=False, nodes=12)
    check_same(target, dtype, expected, found, record_property)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_with_several_requests_in_a_pass(size, dtype, record_property):
    target, expected = alone("llava_onevision", dtype)
    drafter = drafter_of("llava_onevision", dtype, words=2)
    found = answers(target, inline(drafter, "before"), adaptive=False, max_batch=size)
    check_same(target, dtype, expected, found, record_property)


def test_with_several_requests_in_a_pass_and_mrope(record_property):
    target, expected = alone("qwen2_5_vl", "float32")
    found = answers(target, inline(drafter_of("qwen2_5_vl", "float32"), "beside"), max_batch=4)
    check_same(target, "float32", expected, found, record_property)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_the_drafter_in_a_process_on_the_same_device(dtype, record_property):
    target, expected = alone("video_llava", dtype)
    factory = partial(drafter_of, "video_llava", dtype, str(DEVICE))
    worker = ProcessDrafter(factory, drafter_timeout_s=120.0, drain_timeout_s=60.0)
    found = answers(target, DraftRunner(worker, workers=[worker]), adaptive=False)
    check_same(target, dtype, expected, found, record_property)
    assert sum(answer.stats.drafted for answer in found) > 0  # its prefill may be over before it begins


@pytest.mark.skipif(DEVICE.type != "cuda", reason="cuDNN is CUDA's")
def test_no_attention_is_cudnns(record_property):
    """It builds a plan for each number of keys; answers as long as these lost drafters in a process of their own."""
    name, dtype, requests = "llava_onevision", "bfloat16", [Request("x" * i, max_new_tokens=96) for i in (1, 2, 3)]
    target = target_of(name, dtype)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    worker = ProcessDrafter(
        partial(drafter_of, name, dtype, str(DEVICE)), drafter_timeout_s=120.0, drain_timeout_s=60.0
    )
    expected = answers(target, None, requests)
    found = answers(target, DraftRunner(worker, workers=[worker]), requests, adaptive=False)
    check_same(target, dtype, expected, found, record_property, requests)


def test_with_a_drafter_on_the_cpu(record_property):
    target, expected = alone("video_llava", "float32")
    worker = ProcessDrafter(
        partial(drafter_of, "video_llava", "float32", "cpu"), drafter_timeout_s=120.0, drain_timeout_s=60.0
    )
    found = answers(target, DraftRunner(worker, workers=[worker]), adaptive=False)
    check_same(target, "float32", expected, found, record_property)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 2e-3)])
@pytest.mark.parametrize("name", ZOO)
def test_conformance(name, dtype, tolerance, record_property):
    target = target_of(name, dtype)
    prompt = target.prepare(REQUESTS[0])
    found = check_conformance(target, prompt, range(20, 20 + len(PARENTS)))
    record_property("conformance", str(found))
    assert found.passes(tolerance), found


@torch.inference_mode()
def test_the_planted_faults_of_the_comparison_show(record_property):
    """A wrong token must not pass for a near-tie: this comparison can fail."""
    target, expected = alone("video_llava", "float32")
    wrong = [*expected]
    tokens = list(wrong[0].tokens)
    tokens[1] = (tokens[1] + 1) % 90
    wrong[0] = replace(wrong[0], tokens=tuple(tokens))
    with pytest.raises(AssertionError):
        check_same(target, "float32", expected, wrong, record_property)
