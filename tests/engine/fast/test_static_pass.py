"""Compiled passes of fixed shapes: the tokens of `fast`, whatever is drafted, batched, captured or shared."""

import gc
import shutil
from functools import cache

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from crossdraft.api import Engine, new_loop
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.cache import KVPrefix
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.fast import static_pass
from crossdraft.engine.fast.packed_linear import PrepackedLinear, prepack, traced_products
from crossdraft.engine.fast.quantized_linear import quantize_layers
from crossdraft.engine.fast.static_cache import StaticKVCache, hand_back
from crossdraft.engine.fast.static_pass import StaticDecoder, check_compiler, row_counts
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.pass_times import calibrate
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.prefill import prefill
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.options import Options
from tests.engine.scripted import Scripted
from tests.engine.zoo import ZOO, as_target, noisy
from tests.support import failing

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler here: nothing is compiled"
)
NEAR = {torch.float64: 1e-4, torch.float32: 2e-3}  # norms are taken in float32, whatever the dtype
REQUESTS = [Request("x" * i, max_new_tokens=8 + 6 * i) for i in range(1, 6)]
TREE = DraftTree((20, 21, 22, 23), (-1, -1, 0, 2))


def target_of(name, dtype, *, packed=False):
    model, prompt = ZOO[name]()
    model = model.to(dtype)
    assert not packed or prepack(model)
    return as_target(model, prompt)


@cache
def compiled(name, dtype, rows=1, widest=8, *, packed=False):
    target = target_of(name, dtype, packed=packed)
    target.compile(rows, widest)
    return target


def drafter_of(name, dtype, words=1):
    model, prompt = ZOO[name]()
    return IndependentDrafter(as_target(noisy(model, 1e-3).to(dtype), prompt), words=words)


def answers(target, name, dtype, words=1, **options):
    runner = DraftRunner(drafter_of(name, dtype, words), "before")
    try:
        return DecodeLoop(target, runner, adaptive=False, **options).generate(REQUESTS)
    finally:
        runner.close()


@pytest.fixture
def counted(monkeypatch):
    """The shapes of the compiled passes that run."""
    shapes = []
    run = StaticDecoder.__call__

    def counting(self, one, cache):
        (segment,) = one.segments
        shapes.append((len(segment.rows), segment.width))
        return run(self, one, cache)

    monkeypatch.setattr(StaticDecoder, "__call__", counting)
    return shapes


def read(target, rows=1):
    """A cache with a prompt in each of its rows."""
    cache = target.new_cache(rows, 128)
    prompt = target.prepare(REQUESTS[0])
    for _ in range(rows):
        prefill(target, cache, prompt, target.encode(prompt), 128)
    return cache


def root_pass(target):
    """[1, V] logits of a decode pass after a prompt."""
    return target.extend(read(target), [PassRow(0, Chunk(torch.tensor([7])), DraftTree.empty())]).logits[0]


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("bits", [None, "int8", "int4"])
def test_passes_of_packed_and_quantised_layers_are_near_the_plain_ones(bits, counted):
    """Rows are padded alike, and rounded at the same places; but attention to a padded window may round otherwise."""
    model, prompt = ZOO["video_llava"]()
    model = model.to(torch.bfloat16)
    assert prepack(model) if bits is None else quantize_layers(model, bits) == 21
    for layer in model.modules():
        if isinstance(layer, PrepackedLinear) and layer._product.padded:
            layer._product.least = 6
    target = as_target(model, prompt)
    plain = root_pass(target)
    target.compile(1, 1)
    counted.clear()
    assert (root_pass(target) - plain).abs().max() < 0.025 * plain.abs().max()
    assert counted == [(1, 1)]


@needs_compiler
@pytest.mark.slow
def test_layers_that_differ_are_compiled_one_by_one(counted):
    """A region is compiled for eight kinds of layer at most, and each of these twelve has a constant of its own."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    text = Qwen2Config(vocab_size=99, num_hidden_layers=12, **sizes)
    model = Qwen2ForCausalLM(text).eval()
    for number, layer in enumerate(model.model.layers):
        layer.input_layernorm.variance_epsilon = 1e-6 * (1 + number)
    target = as_target(model, Prompt(torch.arange(5, 15)))
    plain = root_pass(target)
    target.compile(1, 1)
    counted.clear()
    torch.testing.assert_close(root_pass(target), plain, rtol=0, atol=1e-4)
    assert counted == [(1, 1)]


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("tree", [DraftTree.empty(), DraftTree.chain([20, 21]), TREE], ids=["root", "chain", "tree"])
def test_logits_features_and_keys_are_those_of_fast(dtype, tree, counted):
    outs, spans = [], []
    for target in (target_of("video_llava", dtype), compiled("video_llava", dtype)):
        cache = read(target)
        length = cache.lengths[0]
        outs.append(target.extend(cache, [PassRow(0, Chunk(torch.tensor([7])), tree, capture=(0, 2, -1))]))
        spans.append(cache.span(0, 0, length + 1 + len(tree)))
    assert counted[-1] == (1, 1 << len(tree).bit_length())  # 1, 4 and 8: padded
    fast, static = outs
    assert static.logits[0].shape == fast.logits[0].shape
    pairs = [*zip(fast.logits, static.logits, strict=True), *zip(fast.hidden[0], static.hidden[0], strict=True)]
    for mine, its in zip(spans[0].layers.values(), spans[1].layers.values(), strict=True):
        pairs += zip(mine, its, strict=True)
    assert all((one - other).abs().max() < NEAR[dtype] for one, other in pairs)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "packed"), [(torch.float64, False), (torch.float32, False), (torch.float32, True)])
@pytest.mark.parametrize("name", ["video_llava", "llava_onevision"])
@pytest.mark.parametrize("words", [1, 3])
def test_answers_are_those_of_fast(name, dtype, packed, words, counted):
    """Chains and trees, the hidden draft rides along, and what is drafted is accepted."""
    expected = DecodeLoop(target_of(name, dtype, packed=packed)).generate(REQUESTS)
    found = answers(compiled(name, dtype, packed=packed), name, dtype, words, nodes=7)
    assert [answer.tokens for answer in found] == [answer.tokens for answer in expected]
    assert sum(answer.stats.accepted for answer in found) > 0
    assert counted


@needs_compiler
@pytest.mark.slow
def test_rows_of_different_lengths_share_a_pass(counted):
    """Three requests: their passes are padded to four rows, of which one may belong to nobody."""
    dtype = torch.float64
    expected = DecodeLoop(target_of("video_llava", dtype)).generate(REQUESTS)
    found = answers(compiled("video_llava", dtype, 4, 4), "video_llava", dtype, 2, max_batch=4, nodes=3)
    assert [answer.tokens for answer in found] == [answer.tokens for answer in expected]
    assert {rows for rows, _ in counted} == {1, 2, 3, 4}


@needs_compiler
@pytest.mark.slow
def test_a_padded_row_leaves_those_of_other_requests_as_they_are():
    """A pass over one row of two in use is not padded into the other, and one over three only behind its tokens."""
    target = compiled("video_llava", torch.float64, 4, 4)
    cache = read(target, 4)
    before = [cache.span(row, 0, cache.lengths[row]) for row in range(4)]
    target.extend(cache, [PassRow(row, Chunk(torch.tensor([7])), DraftTree.chain([9])) for row in range(3)])
    for row, span in enumerate(before):
        after = cache.span(row, 0, len(span))
        pairs = zip((*sum(span.layers.values(), ()),), (*sum(after.layers.values(), ()),), strict=True)
        assert all(torch.equal(mine, its) for mine, its in pairs)
    assert cache.lengths[3] == len(before[3])


@needs_compiler
@pytest.mark.slow
@torch.inference_mode()
def test_a_row_that_begins_with_a_known_prefix():
    """`append` and `span` write and read the static rows as they do others."""
    logits = []
    for target in (target_of("video_llava", torch.float64), compiled("video_llava", torch.float64)):
        cache = read(target)
        length = cache.lengths[0]
        prefix = KVPrefix(((cache.span(0, 0, length), length),))
        cache.drop_row(0)
        cache.append(cache.add_row(128), prefix)
        out = target.extend(cache, [PassRow(0, Chunk(torch.tensor([7])), TREE)])
        cache.keep(0, [0, 2])
        again = target.extend(cache, [PassRow(0, Chunk(torch.tensor([8])))])
        logits += [out.logits[0], again.logits[0]]
    assert all((a - b).abs().max() < NEAR[torch.float64] for a, b in zip(logits[:2], logits[2:], strict=True))


@needs_compiler
@pytest.mark.slow
def test_one_function_serves_every_window():
    """Windows of 64 positions to 512: nothing is compiled again, and nothing is wrong."""
    plain, target = target_of("video_llava", torch.float64), compiled("video_llava", torch.float64)
    caches = [one.new_cache(1, 512) for one in (plain, target)]
    for one in caches:
        one.add_row(512)
    functions = dict(target._static._compiled)
    for length in (60, 33, 200, 128, 60):
        outs = []
        for one, own in zip((plain, target), caches, strict=True):
            one.extend(own, [PassRow(0, Chunk(torch.arange(length) % 90))])
            outs.append(one.extend(own, [PassRow(0, Chunk(torch.tensor([7])), TREE)]).logits[0])
        assert (outs[0] - outs[1]).abs().max() < NEAR[torch.float64]
    assert target._static._compiled == functions


@needs_compiler
@pytest.mark.slow
def test_a_planted_fault_shows(monkeypatch):
    """Keys written one position late give other answers."""
    rotate = static_pass.rotate
    monkeypatch.setattr(static_pass, "rotate", lambda x, cos, sin: rotate(x, cos, sin).roll(1, 2))
    target = target_of("video_llava", torch.float64)
    target.compile(1, 2)
    found = answers(target, "video_llava", torch.float64, nodes=1)
    expected = DecodeLoop(target_of("video_llava", torch.float64)).generate(REQUESTS)
    assert [answer.tokens for answer in found] != [answer.tokens for answer in expected]


@needs_compiler
@pytest.mark.slow
def test_who_listens_to_a_layer_gets_the_ordinary_pass(counted):
    target = compiled("video_llava", torch.float64)
    counted.clear()
    cache = read(target)
    handle = target.fast.text.layers[0].register_forward_hook(lambda *_: None)
    try:
        target.extend(cache, [PassRow(0, Chunk(torch.tensor([7])), TREE)])
    finally:
        handle.remove()
    assert not counted


def test_a_model_without_the_executor_fast_is_refused_in_one_sentence():
    model, prompt = ZOO["qwen2_5_vl"]()
    with pytest.raises(CrossdraftError, match="which Qwen2_5_VLForConditionalGeneration has not here; leave it out"):
        as_target(model, prompt).compile()


def test_without_a_compiler_one_sentence_says_so(monkeypatch):
    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", failing(RuntimeError("none")))
    with pytest.raises(CrossdraftError, match=r"needs a C\+\+ compiler on a CPU, and none was found; install g\+\+"):
        check_compiler(torch.device("cpu"))


def test_rows_keep_their_memory_and_passes_room():
    cache = StaticKVCache(2, 3, 500, 96)
    assert cache.capacity == 640  # 596 in steps of 64
    assert not cache.ready
    for row in range(2):
        assert cache.add_row(500) == row
    for layer in cache._stores:
        layer.lazy_initialization(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
    memory = cache._stores[0].keys
    cache.advance(1, 7)
    assert cache.starts(3) == [0, 7, 0]
    keys, values = cache.views(2, 64)
    assert keys[1].shape == values[0].shape == (2, 2, 64, 4)
    assert cache.views(2, 64)[0][0] is keys[0]
    cache.add_row(500)
    assert cache._stores[0].keys is memory
    cache.made["graph"] = object()
    cache.reserve(1000)
    assert cache.views(2, 64)[0][0] is not keys[0]
    assert not cache.made  # it was made for other memory


def test_widths_and_rows_are_padded_to_few_sizes():
    static = compiled_never()
    assert [row_counts(rows) for rows in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]
    assert static.widths(1) == static.widths(4) == [1, 2, 4, 8]
    cache = StaticKVCache(1, 1, 100, 96)
    cache.add_row(100)
    assert width(static, cache, 1, 3) is None  # no pass has been: nobody knows the size of keys
    cache._stores[0].lazy_initialization(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
    assert [width(static, cache, 1, tokens) for tokens in (1, 3, 8, 9)] == [1, 4, 8, None]
    cache.advance(0, cache.capacity - 32 - 4)
    assert [width(static, cache, 1, tokens) for tokens in (4, 5)] == [4, None]


def test_what_pads_a_pass_is_written_within_its_window():
    """Three rows are padded to four, of which the last may be another request's, and longer."""
    static, cache = compiled_never(), StaticKVCache(1, 4, 100, 96)
    for row, length in enumerate((20, 0, 7, 90)):
        cache.add_row(100)
        cache.advance(row, length)
    cache._stores[0].lazy_initialization(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
    assert [static.window(cache, rows, 4) for rows in (1, 2, 3)] == [32, 32, 96]
    cache.advance(3, cache.capacity - 32 - 4 - 90)
    assert [width(static, cache, 3, tokens) for tokens in (4, 5)] == [4, None]
    cache.drop_row(3)  # nobody's row is written at its beginning
    assert static.window(cache, 3, 4) == 32
    assert width(static, cache, 3, 5) == 8


def width(static, cache, rows, tokens):
    """The padded width of a decode round of so many rows and tokens a row; `None` = it is none of fixed shapes."""
    tree = DraftTree.chain([7] * (tokens - 1))
    shape = static.shape(cache, [PassRow(row, Chunk(torch.tensor([7])), tree) for row in range(rows)])
    return None if shape is None else shape[0]


def compiled_never():
    return StaticDecoder(target_of("video_llava", torch.float64).fast, torch.device("cpu"), 7)


def test_widths_that_take_as_long_as_a_wider_one_are_not_compiled(monkeypatch):
    """Products of six rows: six tokens of one request, or two of each of three or four."""
    decoder = target_of("video_llava", torch.float64).fast
    monkeypatch.setattr(decoder.text.layers[0].mlp.gate_proj, "least", 6, raising=False)
    widest = {most: StaticDecoder(decoder, torch.device("cpu"), most) for most in (1, 2, 7)}
    assert [one.widths(1) for one in widest.values()] == [[1], [1, 6], [1, 6, 8]]
    assert [widest[7].widths(rows) for rows in (2, 3, 4, 8)] == [[1, 3, 4, 8], [1, 2, 4, 8], [1, 2, 4, 8], [1, 2, 4, 8]]


def test_products_for_tracing_are_those_of_the_layers():
    torch.manual_seed(0)
    names = ("q_proj", "k_proj", "v_proj")
    module = torch.nn.ModuleDict({name: torch.nn.Linear(8, 4 + i) for i, name in enumerate(names)})
    rows = torch.randn(2, 3, 8)
    with torch.inference_mode():
        plain = traced_products(list(module.values()), rows)
        prepack(module)
        packed = traced_products(list(module.values()), rows)
    assert [part.shape for part in packed] == [part.shape for part in plain]
    assert all((a - b).abs().max() < 1e-6 for a, b in zip(plain, packed, strict=True))


@pytest.fixture
def static(monkeypatch):
    """A model for passes of fixed shapes, none of which is compiled."""
    monkeypatch.setattr(static_pass, "check_compiler", lambda device: None)
    target = target_of("video_llava", torch.float32)
    target.compile(now=False)
    return target


def captured(target, rows):
    """A cache for so many rows that graphs were captured for; it was handed back."""
    cache = target.new_cache(rows)
    cache.add_row(8)
    cache.made["a pass"] = "its graph"
    hand_back(cache)
    return cache


def test_a_row_that_pads_a_pass_may_reach_behind_all_that_the_pass_attends_to(static, counted, monkeypatch):
    """Where the fourth reads its prompt: three rows are padded to a fourth, which is another request's, and longer."""
    monkeypatch.setattr(static_pass, "compile_pass", lambda fast, *_: static_pass.static_pass(fast))
    cache = read(static, 4)
    static.extend(cache, [PassRow(3, Chunk(torch.arange(40)))])
    before, root = cache.span(3, 0, cache.lengths[3]), Chunk(torch.tensor([7]))
    out = static.extend(cache, [PassRow(row, root, DraftTree.chain([9])) for row in range(3)])
    assert counted == [(3, 2)]
    for mine, its in zip(before.layers.values(), cache.span(3, 0, len(before)).layers.values(), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(mine, its, strict=True))
    plain = target_of("video_llava", torch.float32)
    expected = plain.extend(read(plain), [PassRow(0, root, DraftTree.chain([9]))])
    assert all((logits - expected.logits[0]).abs().max() < NEAR[torch.float32] for logits in out.logits)


def test_a_longer_request_gets_a_cache_of_its_own_length(static):
    static.compile(longest=600, now=False)
    assert isinstance(static.new_cache(capacity=600), StaticKVCache)
    assert not isinstance(static.new_cache(capacity=601), StaticKVCache)


def test_a_cache_of_another_size_leaves_the_kept_one_to_who_wants_it(static):
    kept = captured(static, 4)
    assert static.new_cache(1) is not kept
    found = static.new_cache(4)
    assert found is kept
    assert (found.made, found.rows) == ({"a pass": "its graph"}, 0)
    assert static.new_cache(4) is not kept  # who has it has it alone


def test_of_two_that_are_handed_back_the_larger_is_kept(static):
    kept = captured(static, 4)
    captured(static, 1)
    assert static.new_cache(4) is kept
    kept = captured(static, 1)
    assert static.new_cache(1) is kept
    kept.add_row(4096)  # a long request made its rows grow, which nobody asks for
    hand_back(kept)
    assert static.new_cache(1) is not kept


def test_measured_passes_hand_back_what_was_captured_for_them(static, monkeypatch):
    monkeypatch.setattr(StaticDecoder, "shape", lambda *_: None)
    for rows in (1, 2):
        kept = captured(static, rows)
        calibrate(static, CostModel(), rows, tuple)
        assert static.new_cache(rows) is kept
    kept = captured(static, 2)
    assert new_loop(static, DraftRunner(Scripted([])), Options(max_batch=2), CostModel()).cache is kept


def test_a_loop_for_comparison_and_a_stepped_one_hand_back_theirs(static):
    with Engine(static, None, Options(), CostModel()) as engine:
        kept = captured(static, 1)
        expected = engine.alone(REQUESTS[0])
        stepped = engine.decoder()
        assert stepped._loop.cache is kept
        del stepped
        gc.collect()
        assert engine.generate(REQUESTS[0]).tokens == expected.tokens
        assert engine._scheduler._loop.cache is kept


def test_a_drafter_hands_back_its_cache_when_its_request_is_over(static, monkeypatch):
    monkeypatch.setattr(StaticDecoder, "shape", lambda *_: None)
    drafter = IndependentDrafter(static)
    states = drafter.begin(REQUESTS[:1])
    kept, forked = states[0].cache, drafter.fork(states)[0].cache
    kept.made["a pass"] = "its graph"
    assert not isinstance(forked, StaticKVCache)  # and is dropped without `end`
    drafter.end(states)
    assert drafter.begin(REQUESTS[1:2])[0].cache is kept
    assert kept.made == {"a pass": "its graph"}
