"""E2VID: grey frames from events, by a recurrent U-Net (Rebecq et al., TPAMI 2019).

Weights are safetensors with the names of the released checkpoint; sizes are read off them. An exported program is not
taken: a TorchScript decides what is computed, and torch.export falls back to a pickle, which may run anything.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError
from crossdraft.events.stream import Events

State = tuple[Tensor, Tensor]  # hidden and cell [1, C, h, w]
PREFIX = "unetrecurrent."
MOST_BYTES = 1 << 30  # of the weights' file


class Convolution(nn.Module):
    """A convolution of 5x5 (1x1 for the last), a batch norm if there is one in the weights, ReLU but for the last.

    Args:
        channels: number of channels in and out.
        kernel: side of the kernel.
        stride: 2 halves the sides.
        norm: use a batch norm, and no bias.
        last: leave out the activation.
    """

    def __init__(self, channels: tuple[int, int], kernel: int, stride: int, norm: bool, last: bool = False) -> None:
        super().__init__()
        self.conv2d = nn.Conv2d(*channels, kernel, stride, kernel // 2, bias=not norm)
        self.norm_layer = nn.BatchNorm2d(channels[1]) if norm else nn.Identity()
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_layer(self.conv2d(x))
        return x if self.last else F.relu(x)


class Upsampling(nn.Module):
    """Doubles the sides: bilinear upsampling and a convolution, or a transposed convolution."""

    def __init__(self, channels: tuple[int, int], norm: bool, transposed: bool) -> None:
        super().__init__()
        if transposed:
            self.transposed_conv2d = nn.ConvTranspose2d(*channels, 5, 2, 2, output_padding=1, bias=not norm)
        else:
            self.conv2d = nn.Conv2d(*channels, 5, 1, 2, bias=not norm)
        self.norm_layer = nn.BatchNorm2d(channels[1]) if norm else nn.Identity()
        self.transposed = transposed

    def forward(self, x: Tensor) -> Tensor:
        if self.transposed:
            x = self.transposed_conv2d(x)
        else:
            x = self.conv2d(F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False))
        return F.relu(self.norm_layer(x))


class RecurrentEncoder(nn.Module):
    """A strided convolution and a convolutional LSTM (Shi et al. 2015), whose four gates are one convolution."""

    def __init__(self, channels: tuple[int, int], norm: bool) -> None:
        super().__init__()
        self.conv = Convolution(channels, 5, 2, norm)
        self.recurrent_block = nn.ModuleDict({"Gates": nn.Conv2d(2 * channels[1], 4 * channels[1], 3, padding=1)})

    def forward(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        x = self.conv(x)
        hidden, cell = (torch.zeros_like(x), torch.zeros_like(x)) if state is None else state
        gates = self.recurrent_block["Gates"](torch.cat([x, hidden], 1)).chunk(4, 1)
        let_in, keep, show = (torch.sigmoid(gate) for gate in gates[:3])
        cell = keep * cell + let_in * torch.tanh(gates[3])
        hidden = show * torch.tanh(cell)
        return hidden, (hidden, cell)


class ResidualConvolutions(nn.Module):
    """Two convolutions of 3x3 beside the identity (He et al. 2016)."""

    def __init__(self, channels: int, norm: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=not norm) for _ in range(2))
        self.bn1, self.bn2 = (nn.BatchNorm2d(channels) if norm else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class E2vidNetwork(nn.Module):
    """E2VID's recurrent U-Net, whose skip connections are added.

    Args:
        bins: bins of the voxel grid, which are the input's channels.
        base: channels at full size; each encoder doubles them.
        encoders: number of encoders.
        residuals: blocks at the lowest size.
        norm: use batch norms.
        transposed: upsample by transposed convolutions.
    """

    def __init__(self, bins: int, base: int, encoders: int, residuals: int, norm: bool, transposed: bool) -> None:
        super().__init__()
        widths = [base << level for level in range(encoders + 1)]
        pairs = list(pairwise(widths))
        self.head = Convolution((bins, base), 5, 1, norm=False)
        self.encoders = nn.ModuleList(RecurrentEncoder(pair, norm) for pair in pairs)
        self.resblocks = nn.ModuleList(ResidualConvolutions(widths[-1], norm) for _ in range(residuals))
        self.decoders = nn.ModuleList(Upsampling((high, low), norm, transposed) for low, high in reversed(pairs))
        self.pred = Convolution((base, 1), 1, 1, norm, last=True)

    def forward(self, voxels: Tensor, states: list[State] | None) -> tuple[Tensor, list[State]]:
        """Voxel grids [1, bins, H, W], sides multiples of 2^encoders -> brightness [1, 1, H, W] in 0..1, new states."""
        x = head = self.head(voxels)
        skips, new = list[Tensor](), list[State]()
        for number, encoder in enumerate(self.encoders):
            x, state = encoder(x, None if states is None else states[number])
            skips.append(x)
            new.append(state)
        for block in self.resblocks:
            x = block(x)
        for decoder, skip in zip(self.decoders, reversed(skips), strict=True):
            x = decoder(x + skip)
        return torch.sigmoid(self.pred(x + head)), new


class Reconstructor:
    """Makes frames from consecutive windows of events; its state lasts for one call of `frames`."""

    def __init__(self, network: E2vidNetwork, bins: int) -> None:
        self.network, self._bins = network.eval(), bins

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load from a safetensors file.

        Raises:
            CrossdraftError: the file is missing, of another kind, or holds no weights of E2VID.
        """
        try:
            if path.suffix != ".safetensors" or path.stat().st_size > MOST_BYTES:
                raise CrossdraftError(f"{path} must be .safetensors of at most 1 GB; docs/data.md says how to convert.")
            weights = {name.removeprefix(PREFIX): tensor.float() for name, tensor in load_file(path).items()}
            network, bins = _network_of(weights)
            network.load_state_dict(weights)
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise CrossdraftError(f"{path} does not hold the weights of E2VID ({reason}).") from error
        return cls(network, bins)

    @torch.inference_mode()
    def frames(self, windows: Iterable[Events]) -> Iterator[NDArray[np.uint8]]:
        """Yield a grey frame [H, W, 3] for each window."""
        states: list[State] | None = None
        step = 1 << len(self.network.encoders)
        for window in windows:
            voxels = torch.from_numpy(normalised_voxels(voxel_grid(window, self._bins)))[None]
            right, below = -window.width % step, -window.height % step
            brightness, states = self.network(F.pad(voxels, (0, right, 0, below)), states)
            grey = (255 * brightness[0, 0, : window.height, : window.width]).round().to(torch.uint8).numpy()
            yield np.repeat(grey[..., None], 3, axis=2)


def voxel_grid(events: Events, bins: int) -> NDArray[np.float32]:
    """[bins, H, W]: each event's polarity (-1, +1) shared linearly between the two bins that its time lies between.

    The first event is at bin 0, the last at `bins` - 1 (Zhu et al. 2019).
    """
    grid = np.zeros(bins * events.height * events.width, np.float64)
    if len(events):
        place = (bins - 1) * (events.t - events.t0) / max(1, events.duration_us)
        low = np.minimum(place.astype(np.int64), bins - 1)
        sign = 2.0 * events.p - 1
        pixel = events.y.astype(np.int64) * events.width + events.x
        for number, share in ((low, 1 - (place - low)), (low + 1, place - low)):
            inside = number < bins
            index = number[inside] * events.height * events.width + pixel[inside]
            grid += np.bincount(index, (sign * share)[inside], minlength=len(grid))
    return grid.reshape(bins, events.height, events.width).astype(np.float32)


def normalised_voxels(grid: NDArray[np.float32]) -> NDArray[np.float32]:
    """A voxel grid with mean 0 and standard deviation 1 over the voxels that are not 0."""
    filled = grid != 0
    if np.count_nonzero(filled) < 2 or not (spread := float(grid[filled].std(ddof=1))):
        return grid
    return np.where(filled, (grid - grid[filled].mean()) / spread, 0).astype(np.float32)


def _network_of(weights: Mapping[str, Tensor]) -> tuple[E2vidNetwork, int]:
    """Build the network that `weights` belong to; also return the number of bins that it takes."""
    base, bins = weights["head.conv2d.weight"].shape[:2]
    counts = {
        part: len({found[1] for name in weights if (found := re.match(rf"{part}\.(\d+)\.", name))})
        for part in ("encoders", "resblocks")
    }
    if not 1 <= counts["encoders"] <= 6 or counts["resblocks"] > 16 or not 1 <= bins <= 64 or base > 256:
        raise KeyError("its sizes are not those of any release")
    norm = "encoders.0.conv.norm_layer.weight" in weights
    transposed = "decoders.0.transposed_conv2d.weight" in weights
    return E2vidNetwork(bins, base, counts["encoders"], counts["resblocks"], norm, transposed), bins
