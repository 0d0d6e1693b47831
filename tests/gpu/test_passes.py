"""Single passes: the bits of the executor `fast`, the kernels that a mask leaves, the cache, and what is copied."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from crossdraft.engine.cache import KVCache, KVPrefix
from crossdraft.engine.devices import resolve, to_device
from crossdraft.engine.fast.forward import attend, find_fast
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.rules import RULES
from crossdraft.engine.tree import DraftTree
from tests.gpu.pairs import DEVICE, DTYPES, target_of

FAST = ("video_llava", "llava_next_video", "llava_onevision", "eventgpt")
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FAST)
@torch.inference_mode()
def test_the_executor_fast_is_the_models_own_forward_to_the_bit(name, dtype):
    target = target_of(name, dtype)
    model, fast = target.model, find_fast(target.model)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11]], device=DEVICE)
    cache = target.new_cache()
    cache.add_row(64)
    row = PassRow(0, Chunk(ids[0, :5].cpu()), DraftTree.chain(ids[0, 5:].tolist()), capture=(-1,))
    logits, layer = fast(target.passes.build(cache, [row]), cache)
    own = model(input_ids=ids, use_cache=False, output_hidden_states=True, logits_to_keep=3)
    assert torch.equal(logits, own.logits[0])
    assert all(torch.equal(layer(number), its[0]) for number, its in enumerate(own.hidden_states))


@pytest.mark.parametrize("queries", [1, 33])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@torch.inference_mode()
def test_grouped_heads_under_a_mask_find_a_fused_kernel(dtype, queries):
    """Without one the scores of every head are written to memory."""
    generator = torch.Generator().manual_seed(0)
    kind = DTYPES[dtype]
    query, keys, values = (
        torch.randn(1, heads, n, 64, generator=generator).to(DEVICE, kind)
        for heads, n in ((8, queries), (2, 200), (2, 200))
    )
    bias = torch.zeros(1, 1, queries, 200, device=DEVICE, dtype=kind)
    bias[..., 150:] = float("-inf")
    with sdpa_kernel(FUSED):
        found = attend(query, keys, values, bias, causal=False, scale=0.125)
    wide = [part.double().cpu() for part in (query, keys, values, bias)]
    exact = attend(*wide, causal=False, scale=0.125)
    assert (found.double().cpu() - exact).abs().max() < (1e-5 if dtype == "float32" else 2e-2)


@pytest.mark.parametrize("name", ["rejection", "block", "typical", "fuzzy", "ensemble", "ears", "easd", "judi"])
def test_a_rule_decides_on_the_device_as_on_the_host(name):
    """The draws come from the host; what they are compared with may be anywhere."""
    generator = torch.Generator().manual_seed(0)
    agreed = 0
    for seed in range(20):
        dists = torch.randn(4, 50, generator=generator, dtype=torch.float64).softmax(-1)
        probs = torch.randn(5, 50, generator=generator, dtype=torch.float64).softmax(-1)
        tokens = tuple(dists.argmax(-1).tolist())
        parents = (-1, 0, 1, 2) if name == "block" else (-1, -1, 0, 0)
        tree = DraftTree(tokens, parents, dists, (0, 1, 2, 3))
        there = DraftTree(tokens, parents, dists.to(DEVICE), (0, 1, 2, 3))
        rule = RULES[name]
        outputs = {
            rule(drafted, p, torch.Generator().manual_seed(seed))
            for drafted, p in ((tree, probs), (tree, probs.to(DEVICE)), (there, probs.to(DEVICE)))
        }
        assert len(outputs) == 1
        agreed += len(outputs.pop().path)
    assert agreed > 0


@torch.inference_mode()
def test_an_accepted_path_is_compacted():
    def run(device):
        cache = KVCache(2, max_rows=2, capacity=64)
        values = torch.arange(2 * 10 * 4, dtype=torch.float32, device=device).view(1, 2, 10, 4)
        row = cache.add_row(64)
        cache.open_window(slice(row, row + 1), 10)
        for store in cache._stores:
            store.update(values, -values)
        cache.advance(row, 4)
        copy = cache.copy()
        cache.keep(row, [0, 2, 5])
        fork = cache.add_row(64)
        cache.append(fork, KVPrefix(((cache.span(row, 0, 6), 6),)))
        cache.open_window(slice(0, 2), 2)  # rows of different lengths
        for store in cache._stores:
            store.update(torch.ones(2, 2, 2, 4, device=device), torch.ones(2, 2, 2, 4, device=device))
        parts = [store.keys[r, :, : cache.lengths[r] + 2].cpu() for r in (row, fork) for store in cache._stores]
        return [*parts, copy._stores[1].values[0, :, :10].cpu()]

    there, here = run(DEVICE), run(torch.device("cpu"))
    assert all(torch.equal(a, b) for a, b in zip(there, here, strict=True))


def test_a_name_is_the_device_it_means():
    assert resolve(DEVICE.type) == resolve(f"{DEVICE.type}:0") == resolve(DEVICE)
    assert resolve(None) == resolve("cuda" if torch.cuda.is_available() else "cpu")


def test_what_is_sent_arrives_whole():
    sent = [to_device(torch.full((1000,), i), DEVICE) for i in range(100)]
    assert all(bool((values == i).all()) for i, values in enumerate(sent))
