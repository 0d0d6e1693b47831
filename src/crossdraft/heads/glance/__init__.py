"""The drafter `glance`: cross-attention from the event drafter to the target's visual features of a few frames."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from crossdraft.drafters import Words
from crossdraft.heads import event_medusa
from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Spec

if TYPE_CHECKING:
    from crossdraft.drafters.independent import IndependentDrafter
    from crossdraft.engine.drafter import Drafter


@dataclass(frozen=True)
class GlanceSettings:
    """Folders of the cross-attention and of the Medusa heads, the event model, and number of likeliest tokens."""

    dir: Path | None = None
    heads: Path | None = None
    model: str = "event"
    words: Words | None = None


def check(spec: Spec, settings: GlanceSettings, target: str | None) -> None:
    """Check the cross-attention and, if they are named, the Medusa heads of an event model."""
    event_medusa.check_folder(spec.name, settings.dir, settings.model)
    if settings.heads is not None:
        event_medusa.check_folder("event_medusa", settings.heads, settings.model)


def build(spec: Spec, settings: GlanceSettings, context: DrafterContext) -> "Drafter[Any]":
    """Build the event drafter with cross-attention to a few frames."""
    from crossdraft.drafters.event.load import load_drafter
    from crossdraft.heads.load import load_glance_drafter

    # The shipped heads belong to the shipped model; another model has no heads unless its own are given.
    if settings.model == "event" or settings.heads is not None:
        own = event_medusa.EventHeadSettings(settings.heads, settings.model, settings.words)
        drafter = cast("IndependentDrafter", event_medusa.build(Spec("event_medusa"), own, context))
    else:
        drafter = load_drafter(
            settings.model,
            context.device,
            context.dtype,
            context.banned,
            context.read_tokenizer().get_vocab(),
            packed=context.packed,
            quantize=context.quantize,
        )
        drafter.words = settings.words or 1
    host, banned, packed = context.host, context.banned, context.packed
    return load_glance_drafter(drafter, host, context.source, settings.model, settings.dir, banned, packed=packed)


RECORDS = (
    Method(
        "glance",
        "the event drafter with cross-attention to a few frames, of which the target hands over its visual features",
        "crossdraft; GLIDE: Du 2024", build, check=check,
        settings=GlanceSettings, trained=True, senses=("events", "video"),
        weights={"dir": "glance", "heads": "event_medusa"}, model="event", network="glance", task="events",
    ),
)  # fmt: skip
