"""Adapters between two models' features, and the drafter that drafts through them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from crossdraft.checkpoints.models import check_event_model
from crossdraft.drafters import Words
from crossdraft.errors import CrossdraftError
from crossdraft.heads.folders import head_json
from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Limit, Spec
from crossdraft_lab.networks import ALIGNED as ADAPTERS
from crossdraft_lab.networks import VISION_ADAPTERS

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter


@dataclass(frozen=True)
class AlignedSettings:
    """The adapter's folder, the event model that it reads, and the number of likeliest tokens of a position.

    `alone` is the number of tokens that the adapter drafts by itself after each pass of the event model (l5, b1 only).
    """

    dir: Path | None = None
    model: str = "event"
    words: Words | None = None
    alone: Annotated[int, Limit("0 or more", lambda value: value >= 0)] = 0


@dataclass(frozen=True)
class PredictedSettings:
    """The adapter's folder, the event model whose encoder it reads, and the number of likeliest tokens a position."""

    dir: Path | None = None
    model: str = "event"
    words: Words | None = None


def check_aligned(spec: Spec, settings: AlignedSettings, target: str | None) -> None:
    """Check that the spec names an adapter between an event model and the target."""
    if settings.dir is None:
        raise CrossdraftError(f"The drafter '{spec.name}' needs the folder of an adapter; write aligned:dir=FOLDER.")
    found = head_json(settings.dir)["network"]
    if found not in ADAPTERS:
        raise CrossdraftError(
            f"{settings.dir} holds a head of the network '{found}', not an adapter ({', '.join(ADAPTERS)})."
        )
    check_event_model(settings.model)


def build_aligned(spec: Spec, settings: AlignedSettings, context: DrafterContext) -> "Drafter[Any]":
    """Build a drafter of an event model whose features an adapter translates into the target's."""
    from crossdraft_lab.align.drafter import AlignedOptions
    from crossdraft_lab.align.load import load_aligned_drafter

    check_aligned(spec, settings, context.target)
    return load_aligned_drafter(
        cast("Path", settings.dir),
        context.source,
        settings.model,
        context.device,
        context.dtype,
        AlignedOptions(context.banned, settings.words or 1, settings.alone, context.host),
        context.read_tokenizer().get_vocab(),
        packed=context.packed,
        quantize=context.quantize,
    )


def check_predicted(spec: Spec, settings: PredictedSettings, target: str | None) -> None:
    """Check that the spec names an adapter on the vision side."""
    if settings.dir is not None:
        found = head_json(settings.dir)["network"]
        if found not in VISION_ADAPTERS:
            raise CrossdraftError(
                f"{settings.dir} holds a head of the network '{found}', not an adapter on the vision side "
                f"({', '.join(VISION_ADAPTERS)})."
            )
    check_event_model(settings.model)


def build_predicted(spec: Spec, settings: PredictedSettings, context: DrafterContext) -> "Drafter[Any]":
    """Build a drafter of the target's own language model, which reads predicted visual tokens."""
    from crossdraft_lab.align.predicted import load_predicted_drafter, shipped_vision

    return load_predicted_drafter(
        settings.dir or shipped_vision(context.source),
        context.load_host(),
        context.source,
        settings.model,
        context.read_tokenizer(),
        context.banned,
        words=settings.words or 1,
        packed=context.packed,
    )


ALIGNED = Method(
    "aligned",
    "an event drafter whose features an adapter translates into the target's (aligned:dir=FOLDER,model=FOLDER)",
    "crossdraft; EAGLE: Li 2024", build_aligned,
    check=check_aligned,
    settings=AlignedSettings, trained=True, senses=("events",), weights={"dir": ""}, model="event",
    examples=(),  # no example, as it needs an adapter; it drafts as `event` does
)  # fmt: skip
PREDICTED = Method(
    "predicted",
    "the target's own language model after visual tokens predicted from events; weighs as much as that",
    "crossdraft", build_predicted,
    check=check_predicted,
    settings=PredictedSettings, trained=True, senses=("events",), weights={"dir": "vision_queries"},
    model="target", examples=(),  # it needs a folder
)  # fmt: skip
