"""The drafter `event_medusa`: Medusa heads on the event drafter."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossdraft.checkpoints.locate import shipped_at
from crossdraft.checkpoints.models import check_event_model
from crossdraft.drafters import Words
from crossdraft.files import fingerprint
from crossdraft.heads.folders import check_event_head, check_head, head_json
from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Spec

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter


@dataclass(frozen=True)
class EventHeadSettings:
    """Folder of the head, the event model that it belongs to, and number of likeliest tokens of a position."""

    dir: Path | None = None
    model: str = "event"
    words: Words | None = None


def check(spec: Spec, settings: EventHeadSettings, target: str | None) -> None:
    """Check a head on an event model: they must belong together."""
    check_folder(spec.name, settings.dir, settings.model)


def check_folder(network: str, given: Path | None, model: str) -> None:
    """Raise CrossdraftError unless the head in a folder, default the shipped one, belongs to that event model."""
    own, folder = check_event_model(model), given or shipped_at(f"heads/{network}")
    found = head_json(folder)
    check_head(folder, found["network"], network)
    check_event_head(folder, str(found.get("target", "")), fingerprint(own), model)


def build(spec: Spec, settings: EventHeadSettings, context: DrafterContext) -> "Drafter[Any]":
    """Build the drafter of a head on an event model, which is loaded too."""
    from crossdraft.heads.load import load_event_head

    return load_event_head(
        settings.model,
        settings.dir,
        context.device,
        context.dtype,
        context.banned,
        context.read_tokenizer().get_vocab(),
        words=settings.words,
        packed=context.packed,
    )


RECORDS = (
    Method(
        "event_medusa", "the event drafter with Medusa heads on its own features",
        "Medusa: Cai 2024; Hydra: Ankner 2024", build, check=check,
        settings=EventHeadSettings, trained=True, senses=("events",), weights={"dir": "event_medusa"},
        model="event", network="event_medusa", task="events",
    ),
)  # fmt: skip
