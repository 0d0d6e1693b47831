"""A target's vision encoder on several devices or groups of CPU cores: each encodes a share of the frames.

The shares are joined in their order. That is right for encoders that look at each frame by itself, which most do; it
is tried, with two frames, before it is used. (A video encoder may be spread as the batch of a layer is in data
parallelism; nothing else of the model is.)
"""

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from crossdraft.engine.devices import usable_device
from crossdraft.engine.fast.pinning import pin
from crossdraft.engine.workers.groups import DeviceGroup
from crossdraft.errors import CrossdraftError

PIXELS, GRID = "pixel_values_videos", "video_grid_thw"
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}  # of the largest feature; a half-precision kernel may round
HALF_TOLERANCE = 2e-2
Inputs = Mapping[str, Tensor]


def frame_count(inputs: Inputs) -> int:
    """Frames of a model's visual inputs; of a model that reads pairs of them as one, pairs. 1 = not to be divided."""
    if (grid := inputs.get(GRID)) is not None:
        return int(grid[0, 0]) if len(grid) == 1 else 1
    pixels = inputs[PIXELS]
    return pixels.shape[1] if pixels.ndim == 5 and len(pixels) == 1 else 1


def frame_span(inputs: Inputs, start: int, stop: int) -> dict[str, Tensor]:
    """The inputs of the frames `start` … `stop` - 1."""
    pixels, grid = inputs[PIXELS], inputs.get(GRID)
    if grid is None:
        return {**inputs, PIXELS: pixels[:, start:stop]}
    each = len(pixels) // int(grid[0, 0])
    fewer = grid.clone()
    fewer[0, 0] = stop - start
    return {**inputs, PIXELS: pixels[start * each : stop * each], GRID: fewer}


def shares(frames: int, weights: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive spans of frames in proportion to `weights`; there are fewer where there are fewer frames.

    >>> shares(8, (1, 1)), shares(5, (1, 1)), shares(6, (1, 2)), shares(1, (1, 1))
    ([(0, 4), (4, 8)], [(0, 3), (3, 5)], [(0, 2), (2, 6)], [(0, 1)])
    """
    total = sum(weights)
    ends = [-(-frames * sum(weights[: i + 1]) // total) for i in range(len(weights))]
    return [(a, b) for a, b in zip([0, *ends], ends, strict=False) if a < b]


@dataclass(frozen=True)
class FeatureFunction:
    """A model's video features, as a thread computes them; holds what of the model they need.

    Args:
        model: with `get_video_features`.
    """

    model: nn.Module

    def pooled(self, inputs: Inputs) -> list[Tensor]:
        """Compute the features that replace the placeholders: one tensor, or one for each video."""
        function: Callable[..., Any] = getattr(self.model, "get_video_features")  # noqa: B009
        pooled = function(**inputs, return_dict=True).pooler_output
        return [pooled] if isinstance(pooled, Tensor) else list(pooled)


@dataclass(frozen=True)
class Join:
    """A way to join the features of shares to those of the whole.

    Args:
        dim: along which they follow each other.
        tail: rows at the end of each that belong to the end of the clip, and are dropped of all but the last.
        listed: the model returns a list of them.
    """

    dim: int
    tail: int
    listed: bool

    def __call__(self, parts: Sequence[Tensor]) -> BaseModelOutputWithPooling:
        inner = [part.narrow(self.dim, 0, part.shape[self.dim] - self.tail) for part in parts[:-1]]
        whole: Any = torch.cat([*inner, parts[-1]], self.dim)
        made: Any = [whole] if self.listed else whole
        return BaseModelOutputWithPooling(pooler_output=made)


def find_join(whole: Tensor, parts: Sequence[Tensor], *, listed: bool) -> Join | None:
    """Find how to join features of two halves to those of the whole; `None` = they cannot be joined.

    >>> rows = torch.arange(6.0).view(1, 6, 1)
    >>> find_join(rows, (rows[:, :3], rows[:, 3:]), listed=False)
    Join(dim=1, tail=0, listed=False)
    >>> find_join(rows, (rows[:, :3] + 1, rows[:, 3:]), listed=False)
    """
    largest = float(whole.abs().max())
    tolerance = TOLERANCE.get(whole.dtype, HALF_TOLERANCE) * largest
    for dim in range(whole.ndim):
        tail = sum(part.shape[dim] for part in parts) - whole.shape[dim]
        if 0 <= tail < min(part.shape[dim] for part in parts) and len(parts) == 2:
            join = Join(dim, tail, listed)
            with suppress(RuntimeError):  # other dimensions differ
                made: Any = join(parts).pooler_output
                found: Tensor = made[0] if listed else made
                if found.shape == whole.shape and bool(((found - whole).abs() <= tolerance).all()):
                    return join
    return None


class _Site:
    """A thread that encodes shares: on CPU cores of its own, or on a GPU with a copy of the encoder.

    Args:
        function: the encoder.
        group: where.
        home: the target's device, on which features are wanted.
    """

    def __init__(self, function: FeatureFunction, group: DeviceGroup, home: torch.device) -> None:
        self._device, self._home = home if group.cores else torch.device(group.device), home
        here = self._device == home
        self._function = function if here else FeatureFunction(copy.deepcopy(function.model).to(self._device))
        cores = group.cores or None
        self._thread = ThreadPoolExecutor(1, f"encode-{group}", initializer=pin, initargs=(cores,))

    def begin(self, inputs: Inputs) -> "Future[list[Tensor]]":
        """Have a share encoded."""
        return self._thread.submit(self._encode, dict(inputs))

    @torch.inference_mode()
    def _encode(self, inputs: Inputs) -> list[Tensor]:
        if self._device.type == "cpu":
            return self._function.pooled(inputs)
        with torch.cuda.device(self._device):
            there = {name: value.to(self._device) for name, value in inputs.items()}
            made = [part.to(self._home) for part in self._function.pooled(there)]
            torch.cuda.synchronize(self._device)
        return made

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


class SpreadEncoder:
    """Video features of a model, computed on several devices or core groups at once. May be used by many threads.

    Args:
        model: its `base_model` has `get_video_features`.
        groups: where; all on devices of the model's own type.
        probe: visual inputs of at least two frames, with which it is tried.

    Raises:
        CrossdraftError: the model has no such function, its features of a frame depend on others, or the groups do not
            fit its device.
    """

    def __init__(self, model: Any, groups: Sequence[DeviceGroup], probe: Inputs) -> None:
        self._home = FeatureFunction(model.base_model)
        self._kind = type(model).__name__
        self._lock = threading.Lock()
        self._sites: list[_Site] = []
        self._weights = tuple(len(group.cores) or 1 for group in groups)
        if not hasattr(model.base_model, "get_video_features"):
            raise CrossdraftError(f"{self._kind} has no video features of its own to spread; leave out encode_devices.")
        if {torch.device(group.device).type for group in groups} != {model.device.type}:
            raise CrossdraftError(
                f"encode_devices names {groups[0]}, but the target is on {model.device}; name groups of its own kind."
            )
        for group in groups:
            if not group.cores:
                usable_device(group.device, "encode_devices")
        try:
            self._join = self._begin(model, groups, probe)
        except BaseException:
            self.close()
            raise

    @torch.inference_mode()
    def _begin(self, model: Any, groups: Sequence[DeviceGroup], probe: Inputs) -> Join:
        if PIXELS not in probe:
            raise CrossdraftError(f"{self._kind} reads a clip as images, which encode_devices does not spread.")
        two = frame_span(probe, 0, 2) if frame_count(probe) >= 2 else None
        if two is None:
            raise CrossdraftError(f"{self._kind} was given no two frames to try encode_devices with.")
        function, encoded = self._needed(model.base_model, two)
        if getattr(encoded, "deepstack_features", None) is not None:
            raise CrossdraftError(
                f"{self._kind} adds features of a clip behind several decoder layers (DeepStack), and only those that "
                "replace placeholders are spread; leave out encode_devices."
            )
        pooled = encoded.pooler_output
        self._sites += (_Site(function, group, model.device) for group in groups)
        first, last = self._sites[0], self._sites[-1]
        begun = [first.begin(frame_span(two, 0, 1)), last.begin(frame_span(two, 1, 2))]
        parts = [one.result() for one in begun]
        listed = not isinstance(pooled, Tensor)
        whole = list(pooled) if listed else [pooled]
        alike = len(whole) == len(parts[0]) == len(parts[1]) == 1
        join = find_join(whole[0], [part[0] for part in parts], listed=listed) if alike else None
        if join is None:
            raise CrossdraftError(
                f"The vision encoder of {self._kind} does not read each frame by itself, so that its frames cannot be "
                "spread; leave out encode_devices."
            )
        return join

    def _needed(self, model: Any, inputs: Inputs) -> tuple[FeatureFunction, Any]:
        """The model without the children that its video features do not use; and what it makes of the inputs."""
        used: set[str] = set()
        hooks = [
            child.register_forward_pre_hook(lambda *_, name=name: used.add(name))
            for name, child in model.named_children()
        ]
        try:
            encoded = self._whole(inputs)
        finally:
            for hook in hooks:
                hook.remove()
        part = copy.copy(model)
        part._modules = {name: child for name, child in model.named_children() if name in used}  # noqa: SLF001
        return FeatureFunction(part), encoded

    def __call__(self, inputs: Inputs) -> Any:
        """Compute the output of the model's `get_video_features`, without hidden states.

        Args:
            inputs: where the model is, in its dtype.
        """
        with self._lock:
            return self._spread(inputs) if self._sites else self._whole(inputs)

    def _whole(self, inputs: Inputs) -> Any:
        function: Callable[..., Any] = getattr(self._home.model, "get_video_features")  # noqa: B009
        return function(**inputs, return_dict=True)

    def _spread(self, inputs: Inputs) -> Any:
        spans = shares(frame_count(inputs), self._weights)
        if len(spans) < 2:
            return self._whole(inputs)
        begun = [site.begin(frame_span(inputs, *span)) for site, span in zip(self._sites, spans, strict=False)]
        wait(begun)  # all of them, whatever one of them raises
        return self._join([part for one in begun for part in one.result()])

    def close(self) -> None:
        """End the threads; from now on the model encodes by itself."""
        with self._lock:
            sites, self._sites = self._sites, []
        for site in sites:
            site.close()
