"""Linear layers in oneDNN's own weight layout, for inference on a CPU.

PyTorch's plain `linear` hands few rows to a BLAS that rearranges the whole weight at every call: a verify pass over
2 to 64 rows pays that for every layer. Rearranged once, at loading, the same products take about half the time. The
packed kernels also give a row the same bits whatever the other rows are, so that only attention makes a token's logits
depend on how many are verified with it. (Inductor's "freezing" packs weights by the same operators.)

Layers that read the same input (query, key and value; gate and up) become one product, which their stand-ins share.

On some processors the plain kernels are the faster ones for a row or two. So both are timed at loading, for passes of
as many rows as the model will mostly run, and a model that is faster plain stays plain. On others the packed kernels
take longer for a row than for six; there fewer rows are padded.

A packed model is for inference on its device. It can be saved, but not moved, cast or loaded into.
"""

import math
import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import chain, product
from threading import get_ident
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from crossdraft.engine.fast.elastic import poll
from crossdraft.engine.fast.heap import HeapTrimmer
from crossdraft.errors import CrossdraftError

ROWS_HINT = 16  # the number of rows that the layout is chosen for; it serves one row, and a thousand, as well
FEW = 6  # rows for which kernels for AVX-512 read a weight once: one row takes no less time there, and often more
PRIMITIVES = 192  # primitives that oneDNN keeps in a process, some 100 MiB: most that requests of all lengths need
DESCRIPTORS = 8  # descriptors that PyTorch keeps in each thread; oneDNN keeps those of its own primitives
CAPACITIES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": PRIMITIVES, "LRU_CACHE_CAPACITY": DESCRIPTORS}  # environment variables
DTYPES = (torch.float32, torch.bfloat16)
TIMED, COPIES, COLD_BYTES = 3, 32, 64 << 20  # timings of a product after a first one; copies of its layers, by bytes
LOSS = 1.1  # times of plain layers that packed ones may take, as they keep a row's bits, and for noise
CACHED_BYTES = 256 << 20  # weights of a model of which much stays in CPU caches from pass to pass: six rows take longer
Shape = tuple[int, tuple[int, ...], torch.dtype]  # features, sizes and dtype of layers that become one product
Way = tuple[int, bool]  # a number of rows, and if the layers are plain
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # in the order in which they are called
_reorder, _linear, _has_bf16 = (  # private: another PyTorch may lack them
    cast("Any", getattr(getattr(torch.ops.mkldnn, name, None), "default", None))
    for name in ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
)

_library = torch.library.Library("crossdraft", "FRAGMENT")
_library.define("packed_linear(Tensor rows, Tensor weight, Tensor? bias, int features) -> Tensor")


def usual_rows(count: int, known: Sequence[int] = (), least: int = 1) -> int:
    """Round a number of rows up to one for which kernels exist, or will be made.

    oneDNN makes a primitive for each number of rows that a product of some shape ever has, and for each number of
    threads, and keeps it (`bound_kernels` says how many): half a megabyte, nearly all of it tables that describe
    kernels, and as long to make as the product of twenty rows. So that not every length of a draft or a prompt has its
    own, numbers above 8 are rounded up: to multiples of 2, above 16 of 4, above 32 of 8, above 64 of 16; or to an
    earlier number, if that is at most an eighth more.
    A row's result does not depend on the other rows.

    Args:
        count: number of rows.
        known: earlier numbers of rows, in rising order.
        least: number to which fewer rows are rounded up.

    >>> [usual_rows(count) for count in (1, 8, 9, 17, 33, 65, 401)]
    [1, 8, 10, 20, 40, 80, 416]
    >>> usual_rows(401, [16, 448])
    448
    >>> usual_rows(1, least=6)
    6
    """
    count = max(count, least if count else 0)
    at = bisect_left(known, count)
    if at < len(known) and known[at] <= count + count // 8:
        return known[at]
    step = min(16, 1 << max(0, (count - 1).bit_length() - 3))
    return -(-count // step) * step


def bound_kernels() -> None:
    """Bound the primitives that oneDNN and PyTorch keep, unless the environment does: they would keep 1,024 each.

    A primitive takes half a megabyte, and PyTorch keeps its descriptor, half of that, in each thread that ever used it,
    also when oneDNN has dropped the primitive. Both read the environment once, when the first product is made. The
    least recently used primitives are dropped, and made anew when wanted.
    """
    for name, capacity in CAPACITIES.items():
        os.environ.setdefault(name, str(capacity))


def _multiply(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """[rows, in] -> [rows, out]. With gradients on, oneDNN takes training kernels, thousands of times slower."""
    if torch.is_grad_enabled():
        with torch.no_grad():
            return _linear(rows, packed, bias, "none", [], "")
    return _linear(rows, packed, bias, "none", [], "")


class Product:
    """One packed matrix that holds the rows of several linear layers.

    A subclass holds other numbers: it overrides `hold`, `multiply`, `multiply_traced`, `dense` and `nbytes`.

    Args:
        linears: the layers.
        least: number of rows to which fewer are padded.
    """

    padded = True  # to a usual number of rows

    def __init__(self, linears: Sequence[nn.Linear], least: int = 1) -> None:
        parts = [linear.weight.detach() for linear in linears]
        weights = torch.cat(parts) if len(parts) > 1 else parts[0]
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self.sizes = [linear.out_features for linear in linears]
        self.in_features, self.dtype, self.least = linears[0].in_features, weights.dtype, least
        self.bias = torch.cat(biases) if biases else None
        self.hold(weights)
        self._last: dict[int, tuple[Tensor, Sequence[Tensor]]] = {}  # by thread: several may read at once
        self._known: tuple[int, ...] = ()  # numbers of rows that there were, in rising order

    def hold(self, weights: Tensor) -> None:
        """Keep [out, in] of all layers in the kernels' layout."""
        # Held by no module: an opaque tensor can be neither moved nor written to a file.
        self.packed: Tensor = _reorder(weights, ROWS_HINT)

    def multiply(self, rows: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""
        return _multiply(rows, self.packed, self.bias)

    def dense(self) -> Tensor:
        """[out, in] as the products see it, a copy."""
        return self.packed.to_dense()

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return self.in_features * sum(self.sizes) * self.dtype.itemsize

    def part(self, index: int, rows: Tensor) -> Tensor:
        """Compute layer `index` of `rows`. The joint product is kept until its last part has been fetched."""
        if len(self.sizes) == 1:
            return self.whole(rows)
        thread = get_ident()
        last = self._last.pop(thread, None)
        if last is None or last[0] is not rows:
            last = (rows, torch.split_with_sizes(self.whole(rows), self.sizes, -1))
        if index < len(self.sizes) - 1:
            self._last[thread] = last
        return last[1][index]

    def whole(self, rows: Tensor) -> Tensor:
        """[..., in] -> [..., out] of all layers, in one product padded to a usual number of rows."""
        count = math.prod(rows.shape[:-1])
        usual = usual_rows(count, self._known, self.least) if self.padded else count
        if usual not in self._known:  # another thread may put its own there meanwhile, and one is forgotten
            self._known = tuple(sorted((*self._known, usual)))
        if usual == count:
            return self.multiply(rows)
        more = F.pad(rows.reshape(count, -1), (0, 0, 0, usual - count))
        return self.multiply(more)[:count].view(*rows.shape[:-1], -1)

    def multiply_traced(self, rows: Tensor) -> Tensor:
        """`multiply` by operators that torch.compile can trace, or leaves as they are."""
        return torch.ops.crossdraft.packed_linear(rows, self.packed, self.bias, sum(self.sizes))

    def traced(self, rows: Tensor) -> Sequence[Tensor]:
        """Apply all layers to `rows`, in a form that torch.compile can trace."""
        count = math.prod(rows.shape[:-1])
        more = F.pad(rows.reshape(count, -1), (0, 0, 0, max(0, self.least - count)))
        whole = self.multiply_traced(more)[:count].view(*rows.shape[:-1], -1)
        return torch.split_with_sizes(whole, self.sizes, -1)

    def rows_of(self, index: int, whole: Tensor) -> Tensor:
        """Layer `index`'s part of the weights or the bias."""
        return whole.split(self.sizes)[index]


class PrepackedLinear(nn.Module):
    """`nn.Linear` whose weight only the CPU's matrix kernels can read; `weight` makes a plain copy on demand."""

    kept = "packed", "with packed=False"  # what the layer is, and how to load a plain one

    def __init__(self, product: Product, index: int) -> None:
        super().__init__()
        self.in_features, self.out_features = product.in_features, product.sizes[index]
        self._product, self._index = product, index

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        return self._product.nbytes * self.out_features // sum(self._product.sizes)

    @property
    def least(self) -> int:
        """Number of rows to which fewer are padded."""
        return self._product.least

    @property
    def weight(self) -> Tensor:
        """[out, in] as the products see it, a copy."""
        return self._product.rows_of(self._index, self._product.dense())

    @property
    def bias(self) -> Tensor | None:
        """[out]."""
        whole = self._product.bias
        return None if whole is None else self._product.rows_of(self._index, whole)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return self._product.part(self._index, rows)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PrepackedLinear":
        before = torch.empty(0, dtype=self._product.dtype)
        after = fn(before)
        if after.dtype != before.dtype or after.device != before.device:
            what, how = self.kept
            raise CrossdraftError(
                f"A {what} layer cannot be moved to {after.device} or cast to {after.dtype}; load {how}."
            )
        return super()._apply(fn, recurse)

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight
        if self.bias is not None:
            destination[f"{prefix}bias"] = self.bias


def traced_products(linears: Sequence[nn.Module], rows: Tensor) -> Sequence[Tensor]:
    """Apply layers that read the same [..., in], in a form that torch.compile can trace."""
    if not all(isinstance(linear, PrepackedLinear) for linear in linears):
        return [linear(rows) for linear in linears]
    products = [linear._product for linear in cast("Sequence[PrepackedLinear]", linears)]  # noqa: SLF001
    if all(product is products[0] for product in products):
        return products[0].traced(rows)
    return [product.traced(rows)[0] for product in products]


def _packed_linear(rows: Tensor, weight: Tensor, bias: Tensor | None, features: int) -> Tensor:
    """The packed product. Inductor supports the inner operator only for weights that it has packed itself."""
    poll()  # a compiled pass borrows cores, and gives them back, between its products
    return _multiply(rows, weight, bias)


@torch.library.register_fake("crossdraft::packed_linear", lib=_library)  # pyright: ignore[reportUntypedFunctionDecorator]
def _packed_shape(rows: Tensor, weight: Tensor, bias: Tensor | None, features: int) -> Tensor:
    return rows.new_empty(*rows.shape[:-1], features)


_library.impl("packed_linear", _packed_linear, "CompositeExplicitAutograd")


def has_bf16() -> bool:
    """True if this processor multiplies bfloat16 matrices itself, and PyTorch lets it."""
    return torch.backends.mkldnn.is_available() and _has_bf16 is not None and bool(_has_bf16())


def prepack(model: nn.Module, fill: Callable[[nn.Linear], None] = lambda linear: None, *, rows: int = 1) -> int:
    """Replace every plain linear layer on the CPU by its packed form, in place; returns how many there were.

    The plain weights are given up layer by layer, so that memory grows by one layer only; a head that shares its
    weights with the embedding gets a copy. Nothing is packed if the processor's plain kernels are faster, or if PyTorch
    lacks the operators, or the processor the kernels.

    Args:
        model: the model.
        fill: called with each layer before it is packed; reads its weights if they are still in their file.
        rows: rows of a usual pass: 1 if tokens are written one by one, more if drafts are verified.
    """
    if not torch.backends.mkldnn.is_available() or None in (_reorder, _linear, _has_bf16):
        return 0
    bound_kernels()
    parents = parents_of(model)
    least = _least_rows(Counter(_shape(group) for parent in parents for group in _groups(parent, _packable)), rows)
    return replace_groups(parents, _packable, partial(_packed, least=least), fill) if least else 0


def parents_of(model: nn.Module) -> list[nn.Module]:
    """Modules that may have linear layers as children; not these, as a list would keep their weights to the end."""
    return [module for module in model.modules() if type(module) is not nn.Linear]


def replace_groups(
    parents: Sequence[nn.Module],
    fits: Callable[[nn.Module], bool],
    made: Callable[[Sequence[nn.Linear]], Sequence[Any]],
    fill: Callable[[nn.Linear], None],
) -> int:
    """Put other layers in the place of modules' linear children, group by group; returns how many there were.

    Args:
        parents: the modules.
        fits: true for layers that can be replaced.
        made: makes the layers, each with `nbytes`, that replace those of a group: one layer, or all of one input.
        fill: as `prepack`.
    """
    count, heap = 0, HeapTrimmer()
    for parent in parents:
        for group in _groups(parent, fits):
            for linear in group.values():
                fill(linear)
            for name, layer in zip(group, made([*group.values()]), strict=True):
                setattr(parent, name, layer)
                heap.replaced(layer.nbytes)
            count += len(group)
    heap.trim()
    return count


def _least_rows(shapes: Mapping[Shape, int], rows: int) -> int:
    """Number of rows to which fewer are padded in products of these shapes; 0 if plain layers are clearly faster."""

    def both(*ways: Way) -> list[float]:
        threads = torch.get_num_threads()
        times = [(number, product_times(*shape, ways, threads)) for shape, number in shapes.items()]
        return [sum(number * one[at] for number, one in times) for at in range(2)]

    least = 1
    if sum(n * features * sum(sizes) * dtype.itemsize for (features, sizes, dtype), n in shapes.items()) > CACHED_BYTES:
        padded, single = both((FEW, False), (1, False))
        least = FEW if padded < single else 1
    packed, plain = both((max(rows, least), False), (rows, True))
    return least if packed <= LOSS * plain else 0


@cache
def product_times(
    features: int, sizes: tuple[int, ...], dtype: torch.dtype, ways: tuple[Way, ...], threads: int
) -> list[float]:
    """Seconds of each way to multiply by layers [size, features], on copies too large for CPU caches.

    Args:
        features: inputs of each layer.
        sizes: outputs of each layer.
        dtype: dtype of weights and rows.
        ways: to compare. Packed products alone are a large model's, of which caches keep less: more bytes are timed.
        threads: number of torch threads, on which the times depend.
    """
    cold, most = (COLD_BYTES, COPIES) if any(plain for _, plain in ways) else (CACHED_BYTES, 4 * COPIES)
    parts = max(1, features * sum(sizes) * dtype.itemsize // cold)  # a part of what is larger, so that it fits
    sizes = tuple(max(1, size // parts) for size in sizes)
    copies = max(1, min(most, -(-cold // (features * sum(sizes) * dtype.itemsize))))
    made = partial(skip_init, nn.Linear, features, bias=False, dtype=dtype)
    layers = [[cast("nn.Linear", made(out_features=size)) for size in sizes] for _ in range(copies)]
    with torch.inference_mode():
        for linear in chain(*layers):
            linear.weight.zero_()
        packed, plain = [Product(linears).multiply for linears in layers], [*chain(*layers)]
        found = [list[float]() for _ in ways]
        for _, ((rows, is_plain), seconds) in product(range(1 + TIMED), zip(ways, found, strict=True)):
            read = torch.zeros(rows, features, dtype=dtype)
            start = time.perf_counter()
            for layer in plain if is_plain else packed:
                layer(read)
            seconds.append(time.perf_counter() - start)
    return [parts * min(seconds) / copies for seconds in found]


def _packed(linears: Sequence[nn.Linear], least: int) -> list[PrepackedLinear]:
    """Make parts of one packed product."""
    made = Product(linears, least)
    return [PrepackedLinear(made, index) for index in range(len(linears))]


def _groups(parent: nn.Module, fits: Callable[[nn.Module], bool]) -> list[dict[str, nn.Linear]]:
    """Group those of a module's children that can be replaced: several become one product, or one is by itself."""
    linears = {name: cast("nn.Linear", child) for name, child in parent.named_children() if fits(child)}
    groups = [names for names in TOGETHER if all(name in linears for name in names)]
    groups = [
        names
        for names in groups
        if len({(linears[name].in_features, linears[name].bias is None) for name in names}) == 1
    ]
    taken = {name for names in groups for name in names}
    together = [*groups, *((name,) for name in linears if name not in taken)]
    return [{name: linears[name] for name in names} for names in together]


def _shape(group: Mapping[str, nn.Linear]) -> Shape:
    linears = [*group.values()]
    return linears[0].in_features, tuple(one.out_features for one in linears), linears[0].weight.dtype


def _packable(child: nn.Module) -> TypeGuard[nn.Linear]:
    if type(child) is not nn.Linear or child.weight.device.type != "cpu" or child.weight.dtype not in DTYPES:
        return False
    return child.weight.dtype is torch.float32 or _has_bf16()
