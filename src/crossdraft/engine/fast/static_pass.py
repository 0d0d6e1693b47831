"""Passes of fixed shapes over a text decoder, each one compiled function; on CUDA, one captured graph.

Decode passes of all rounds differ only in numbers: ids, positions, places where keys are written, masks. Here all of
these are tensors, rows and widths are padded to a few sizes, and no Python code of the pass depends on data (gpt-fast
does the same for one token at a time). So `torch.compile` makes one function for each number of rows and each width;
the window that is attended to stays a variable of the function. On CUDA the window is padded to a few sizes, too, as a
captured graph has no variables. The arithmetic is that of `FastDecoder`, operation by operation, but fused, so that
sums may round differently in their last bits.

Prompts, and all other passes that are no decode round, run in the ordinary way, on the same cache.
"""

import importlib.util
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor

from crossdraft.engine.cache import KVCache
from crossdraft.engine.devices import to_device
from crossdraft.engine.fast.elastic import poll
from crossdraft.engine.fast.forward import FastDecoder, attend, mask_bias, rms_norm, rotate, signed_sin, split_heads
from crossdraft.engine.fast.packed_linear import traced_products
from crossdraft.engine.fast.static_cache import StaticKVCache, hand_back
from crossdraft.engine.passes import Pass, PassResult, PassRow
from crossdraft.errors import CrossdraftError

WIDTHS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
WINDOW_STEP = 32  # on a CPU; on CUDA see `windows`
LEAST_WINDOW = 512
CAPTURE_RUNS = 3  # runs before a capture, which load kernels and make workspaces
Arguments = tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor], list[Tensor]]
Outputs = tuple[Tensor, list[Tensor]]
Function = Callable[..., Outputs]


@dataclass(frozen=True, slots=True)
class PassShape:
    """Shape for which a pass is compiled."""

    rows: int
    width: int
    capacity: int


class StaticDecoder:
    """Executor `graphs`: compiled decode passes of a decoder.

    Args:
        fast: the decoder's executor `fast`, whose modules are used.
        device: device of the decoder.
        widest: most tokens in a row of a pass; a wider pass runs in the ordinary way.
        longest: tokens of a row of a cache, whose memory must not move; 0 = the model's context.
    """

    def __init__(self, fast: FastDecoder, device: torch.device, widest: int = WIDTHS[-1], longest: int = 0) -> None:
        check_compiler(device)
        self.fast, self.device = fast, device
        self.widest, self.longest = widest, longest
        self.least = getattr(fast.text.layers[0].mlp.gate_proj, "least", 1)  # rows to which products pad fewer
        self._compiled: dict[PassShape, Function] = {}
        self._kept: StaticKVCache | None = None
        self._pool: GraphPool | None = None  # the captured graphs share it: they never run at the same time

    padding = WIDTHS[-1] + WINDOW_STEP  # positions of a row beyond those that a request needs

    def new_cache(self, num_layers: int, max_rows: int, capacity: int) -> StaticKVCache:
        """An empty cache whose rows hold `capacity` tokens; the kept cache, if it has this size."""
        wanted, kept = StaticKVCache(num_layers, max_rows, capacity, self.padding, self._keep), self._kept
        if kept is None or kept.size != wanted.size:
            return wanted
        self._kept = None
        return kept

    def keep_for_next(self, cache: KVCache) -> None:
        """Keep a cache for the next user of its size, as graphs are captured for its memory."""
        hand_back(cache)

    def _keep(self, cache: StaticKVCache) -> None:
        """Keep one cache, the one with the most rows, as its memory and graphs cost most."""
        if not cache.grown and (self._kept is None or cache.size >= self._kept.size):
            self._kept = cache

    def widths(self, rows: int) -> list[int]:
        """The padded widths of passes over so many rows, rising; of those that take as long as a wider one, only 1."""
        least = -(-self.least // rows)
        sizes = sorted({1, *(size for size in (least, *WIDTHS) if size >= least)})
        return [width for smaller, width in zip((0, *sizes), sizes, strict=False) if smaller < self.widest]

    def shape(self, cache: KVCache, rows: Sequence[PassRow]) -> tuple[int, int] | None:
        """The padded width of a decode round over these rows, and its number of keys; `None` for other passes."""
        if not isinstance(cache, StaticKVCache) or not cache.ready or not self.fast.usable:
            return None
        if any(row.index != number for number, row in enumerate(rows)):
            return None
        if not all(row.decodes for row in rows):
            return None
        width, widths = max(map(len, rows)), self.widths(_padded_rows(cache, len(rows)))
        if width > widths[-1]:
            return None
        padded = next(size for size in widths if size >= width)
        # Were the window as wide as the rows, torch.compile would take both sizes for one.
        fits = _positions(cache, len(rows), padded) <= cache.capacity - WINDOW_STEP
        return (padded, self.window(cache, len(rows), padded)) if fits else None

    def window(self, cache: StaticKVCache, rows: int, width: int) -> int:
        """The window that a pass over the first rows attends to, of a width as `shape` gives it."""
        keys = _positions(cache, rows, width)
        if self.device.type == "cpu":
            return -(-keys // WINDOW_STEP) * WINDOW_STEP
        return next(size for size in windows(cache.capacity) if size >= keys)

    def shapes(self, max_rows: int, capacity: int) -> Iterator[tuple[int, int, int]]:
        """Yield rows, width and number of cached tokens of one pass for each function."""
        lengths = [0] if self.device.type == "cpu" else [0, *windows(capacity)[:-1]]
        for rows in row_counts(max_rows):
            yield from ((rows, width, length) for width in self.widths(rows) for length in lengths)

    def __call__(self, one: Pass, cache: KVCache) -> PassResult:
        """Run a pass of a shape as `shape` gives it; see `passes.Executor`."""
        (segment,), cache = one.segments, cast("StaticKVCache", cache)  # `shape` has looked
        poll()
        ids, positions, mask = segment.padded(one.ids), segment.padded(one.positions), cast("Any", segment.mask)
        count, width = ids.shape
        keys, rows = self.window(cache, count, width), _padded_rows(cache, count)
        starts = to_device(torch.tensor(cache.starts(rows)), self.device)
        if rows > count or mask is None:
            last = starts[:, None] + torch.arange(width, device=self.device)
            seen = torch.arange(keys, device=self.device) <= last.view(rows, 1, width, 1)
            mask = seen if mask is None else torch.cat([mask, seen[count:]])
            ids, positions = (torch.cat([one, one.new_zeros(rows - count, width)]) for one in (ids, positions))
        arguments = (ids, positions, starts, mask, *cache.views(rows, keys))
        logits, states = self._function(PassShape(rows, width, cache.capacity), cache, arguments, keys)(*arguments)
        return segment.packed(logits[:count]), lambda layer: segment.packed(states[layer][:count])

    def _function(self, shape: PassShape, cache: StaticKVCache, arguments: Arguments, keys: int) -> Function:
        """The function of a shape, on CUDA its graph for a window; compiled or captured at first use."""
        if shape not in self._compiled:
            self._compiled[shape] = compile_pass(self.fast, shape, arguments)
        function = self._compiled[shape]
        if self.device.type != "cuda":
            return function
        graph = cache.made.get((shape, keys))
        if not isinstance(graph, CapturedPass):
            self._pool = self._pool or GraphPool()
            graph = cache.made[shape, keys] = CapturedPass(function, arguments, self._pool.handle)
        return graph


def _padded_rows(cache: StaticKVCache, count: int) -> int:
    """The rows of a pass over the first `count`."""
    return next(size for size in row_counts(cache.memory_rows) if size >= count)


def _positions(cache: StaticKVCache, count: int, width: int) -> int:
    """Number of positions that a pass over the first `count` rows reaches, its padding rows included."""
    return max(cache.starts(_padded_rows(cache, count))) + width


def windows(capacity: int) -> list[int]:
    """The windows of captured passes, rising: powers of two and those halfway between, and the most a pass attends to.

    >>> windows(1152)
    [512, 768, 1024, 1120]
    """
    most = capacity - WINDOW_STEP
    sizes = [
        size for bits in range(most.bit_length()) for size in (LEAST_WINDOW << bits, 3 * LEAST_WINDOW << bits >> 1)
    ]
    return [*(size for size in sizes if size < most), most]


def row_counts(max_rows: int) -> list[int]:
    """The numbers of rows that passes are padded to: powers of two, and the largest.

    >>> row_counts(6)
    [1, 2, 4, 6]
    """
    return sorted({min(1 << bits, max_rows) for bits in range(max_rows.bit_length() + 1)})


class GraphPool:
    """Memory that captured graphs share, by its `handle`.

    PyTorch frees a pool with the last of its graphs, and a capture into a freed pool fails. So an empty graph is kept
    in the pool, as in `torch._inductor.cudagraph_trees`.
    """

    def __init__(self) -> None:
        self.handle: Any = torch.cuda.graph_pool_handle()
        self._kept = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            with torch.cuda.graph(self._kept, pool=self.handle, capture_error_mode="thread_local"):
                pass


class CapturedPass:
    """A compiled pass as one CUDA graph: a launch instead of hundreds.

    Keys and values are not moved; the numbers of a pass are copied to the graph's input tensors, and its results are
    copied from the output tensors, which the next pass overwrites.

    Args:
        function: the compiled pass.
        arguments: those of a pass that is about to run; runs before the capture write the same values as that pass.
        pool: memory that the graphs share.
    """

    def __init__(self, function: Function, arguments: Arguments, pool: Any) -> None:
        *inputs, keys, values = arguments
        self.inputs = [one.clone() for one in inputs]
        self.kept = keys, values  # their addresses are the graph's
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(CAPTURE_RUNS):
                function(*self.inputs, keys, values)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # A drafter's thread may use the device meanwhile.
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            self.outputs = function(*self.inputs, keys, values)

    def __call__(self, *arguments: Any) -> Outputs:
        for own, given in zip(self.inputs, arguments[:-2], strict=True):
            own.copy_(given)
        self.graph.replay()
        logits, states = self.outputs
        return logits.clone(), [state.clone() for state in states]


def static_pass(decoder: FastDecoder, *, nested: bool = False) -> Function:
    """The pass over a decoder as a function of tensors alone: ids, positions, starts, mask, keys, values.

    `nested`: a layer is compiled once for all that are like it.
    """
    text, head = decoder.text, decoder.head
    run_layer: Callable[..., Tensor] = cast("Any", torch.compiler.nested_compile_region)(_layer) if nested else _layer

    def run(
        ids: Tensor, positions: Tensor, starts: Tensor, mask: Tensor, keys: list[Tensor], values: list[Tensor]
    ) -> Outputs:
        stream = text.embed_tokens(ids)
        cos, sin = text.rotary_emb(stream, positions)
        turn = cos.unsqueeze(1), signed_sin(sin.unsqueeze(1))
        bias = mask_bias(stream, mask)
        rows = torch.arange(ids.shape[0], device=ids.device)[:, None]
        written = starts[:, None] + torch.arange(ids.shape[1], device=ids.device)
        states = [stream]
        for layer, own_keys, own_values in zip(text.layers, keys, values, strict=True):
            states.append(run_layer(layer, states[-1], turn, bias, (rows, written), own_keys, own_values))
        states[-1] = rms_norm(text.norm, states[-1])
        return traced_products([head], states[-1])[0], states

    return run


def _layer(
    layer: Any,
    stream: Tensor,
    turn: tuple[Tensor, Tensor],
    bias: Tensor | None,
    written: tuple[Tensor, Tensor],
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    attention, mlp = layer.self_attn, layer.mlp
    normed = rms_norm(layer.input_layernorm, stream)
    parts = traced_products([attention.q_proj, attention.k_proj, attention.v_proj], normed)
    query, key, value = (split_heads(part, attention.head_dim) for part in parts)
    rows, positions = written
    keys[rows, :, positions] = rotate(key, *turn).transpose(1, 2)
    values[rows, :, positions] = value.transpose(1, 2)
    mixed = attend(rotate(query, *turn), keys, values, bias, causal=False, scale=attention.scaling)
    stream = stream + traced_products([attention.o_proj], mixed.transpose(1, 2).flatten(2))[0]
    gate, up = traced_products([mlp.gate_proj, mlp.up_proj], rms_norm(layer.post_attention_layernorm, stream))
    return stream + traced_products([mlp.down_proj], mlp.act_fn(gate) * up)[0]


def compile_pass(decoder: FastDecoder, shape: PassShape, arguments: Arguments) -> Function:
    """A compiled function for passes of this shape; it runs once over the arguments, in which it is compiled.

    On a CPU a layer is compiled once for all, in half the time; one by one if more than a few differ. On CUDA that is
    untried.
    """
    from torch._dynamo.exc import TorchDynamoException  # a second to import

    if arguments[0].device.type == "cpu":
        with suppress(TorchDynamoException):
            return _compiled(static_pass(decoder, nested=True), decoder, shape, arguments)
    try:
        return _compiled(static_pass(decoder), decoder, shape, arguments)
    except TorchDynamoException as error:
        raise CrossdraftError(
            f"torch.compile failed on this model ({str(error).splitlines()[0]}); load it without compile."
        ) from error


def _compiled(plain: Any, decoder: FastDecoder, shape: PassShape, arguments: Arguments) -> Function:
    # torch.compile keeps at most eight variants of one piece of code and asks guards which to take. We know which, so
    # each shape is code of its own, without guards, which would take a good part of a small model's pass.
    # It remembers sizes by names, too, and makes a variable of what has changed.
    name = f"pass_{shape.rows}x{shape.width}_{shape.capacity}_{decoder.text.config.hidden_size}"
    code = plain.__code__.replace(co_name=name)
    own = FunctionType(code, plain.__globals__, code.co_name, plain.__defaults__, plain.__closure__)
    *_, mask, keys, values = arguments
    for one in (*keys, *values):
        torch._dynamo.mark_dynamic(one, 2)  # noqa: SLF001 - its documented name
    torch._dynamo.mark_dynamic(mask, 3)  # noqa: SLF001
    options: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    if mask.device.type == "cpu":
        options["cpp.dynamic_threads"] = True  # the target's threads change while it borrows cores
        options["emulate_precision_casts"] = True  # else rows of 8 bits are made from others than the plain pass's
    compiled = torch.compile(own, fullgraph=True, options=options)
    compiled(*arguments)
    return compiled


def check_compiler(device: torch.device) -> None:
    """Raise CrossdraftError unless torch.compile can make functions for a device here."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise CrossdraftError("compile needs the package triton on a GPU; install it, or load without compile.")
        return
    from torch._inductor.cpp_builder import get_cpp_compiler  # seconds to import

    try:
        get_cpp_compiler()
    except Exception as error:
        raise CrossdraftError(
            "compile needs a C++ compiler on a CPU, and none was found; install g++ (or name one in CXX), or load "
            "without compile."
        ) from error
