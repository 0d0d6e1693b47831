"""The drafter `guided`: a small VLM that reads the visual tokens to which the target attends (SpecVLM: Ji 2025)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from crossdraft.checkpoints.models import check_target
from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Limit, Share, Spec

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter


@dataclass(frozen=True)
class GuidedSettings:
    """The drafting model; share of visual tokens that it reads; share of attention for the first choice of tokens."""

    dir: str | None = None
    keep: Share = 0.1
    mass: Share = 0.4
    layers: (
        Annotated[tuple[int, ...], Limit("numbers of layers, such as 2+4", lambda value: min(value) >= 0)] | None
    ) = None


def check(spec: Spec, settings: GuidedSettings, target: str | None) -> None:
    """Check that the drafting model is a video VLM from a folder, or the target itself."""
    if settings.dir is not None:
        check_target(settings.dir)


def build(spec: Spec, settings: GuidedSettings, context: DrafterContext) -> "Drafter[Any]":
    """A VLM that reads the visual tokens to which the target attends; without a folder the target itself."""
    from crossdraft.load import load_target
    from crossdraft_lab.drafters.guided.drafter import GuidedDrafter

    target = model = context.load_host()
    if settings.dir is not None:
        device, dtype = context.device, context.dtype
        model = load_target(settings.dir, device, dtype, packed=context.packed, quantize=context.quantize)
    return GuidedDrafter(model, target, context.banned, layers=settings.layers, keep=settings.keep, mass=settings.mass)


RECORD = Method(
    "guided", "a small VLM that reads the visual tokens the target attends to (guided:dir=FOLDER)",
    "SpecVLM: Ji 2025", build,
    check=check,
    settings=GuidedSettings, senses=("video",), needs_target=True, weights={"dir": ""},
)  # fmt: skip
