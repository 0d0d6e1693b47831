"""What the commands of `crossdraft bench` take alike: the pair, and its cores."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.cli.options import Device, Dtype, Target
from crossdraft.cli.reporting import core_each

if TYPE_CHECKING:
    from crossdraft.bench.assembly import Models
    from crossdraft.bench.cores import Cores

MaxTokens = Annotated[int, typer.Option("--max-new-tokens", help="Longest answer, in tokens.")]
Blind = Annotated[str, typer.Option(help="Ablation without events: 'blind', or the folder of an EventGPT.")]


@dataclass(frozen=True, slots=True)
class BenchModels:
    """The pair, and the target's device."""

    target: Target = "reference"
    event: Annotated[str, typer.Option(help="Event drafter: 'event', or the folder of an EventGPT.")] = "event"
    device: Device = None
    dtype: Dtype = None

    def models(
        self,
        blind: str = "blind",
        draft_device: str | None = None,
        frames: int | None = None,
        quantize: str | None = None,
    ) -> "Models":
        """All of them."""
        from crossdraft.bench.assembly import Models

        bits = None if quantize == "none" else quantize
        pair = self.target, self.event, blind
        return Models(*pair, self.device, self.dtype, draft_device, num_frames=frames, quantize=bits)


@dataclass(frozen=True, slots=True)
class Float32Models(BenchModels):
    """The same where tokens are compared: in other precisions the shape of a pass may flip a near-tie."""

    dtype: Dtype = "float32"


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """Which CPU cores each side may use."""

    target_cores: Annotated[str | None, typer.Option(help="CPU cores of the target, as 0 or 0-3; by default one.")] = (
        None
    )
    draft_cores: Annotated[
        str | None, typer.Option(help="CPU cores of a drafter's own process; by default one other.")
    ] = None

    def cores(self, device: str | None) -> "Cores | None":
        """The cores of the pair, the target being on that device."""
        return core_each(device, self.target_cores, self.draft_cores)
