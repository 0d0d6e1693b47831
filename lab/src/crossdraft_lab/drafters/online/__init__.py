"""The drafter `online`: a head that is trained while it serves (online speculative decoding: Liu 2024)."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossdraft.errors import CrossdraftError
from crossdraft.heads.drafting import HeadSettings
from crossdraft.heads.drafting import build as build_head
from crossdraft.heads.registry import HEADS
from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Count, Spec, read_settings

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter


@dataclass(frozen=True)
class OnlineSettings:
    """Seconds of training that each round earns; newest answers kept; learning rate; where weights are saved."""

    seconds: float = 0.005
    keep: Count = 64
    rate: float = 2e-4
    save: Path | None = None


def check(spec: Spec, settings: OnlineSettings, target: str | None) -> None:
    """Check that one head is named, and that its weights are saved in a folder."""
    if spec.parts[0].name not in HEADS:
        raise CrossdraftError(f"'{spec}' must name one head that is to learn, such as online:eagle2.")
    if settings.save is not None and settings.save.exists() and not settings.save.is_dir():
        raise CrossdraftError(f"'{spec}' saves its weights in {settings.save}, which is no folder; name another.")


def build(spec: Spec, settings: OnlineSettings, context: DrafterContext) -> "Drafter[Any]":
    """A head that is trained while it serves."""
    from crossdraft.heads.drafting.head_drafter import HeadDrafter
    from crossdraft_lab.drafters.online.drafter import load_learning_drafter

    (head,) = spec.parts
    check(spec, settings, context.target)
    host = context.load_host()
    # Packed layers could not be written to.
    own = replace(context, host=host, packed=False)
    drafter = build_head(head, read_settings(HeadSettings, head), own)
    if not isinstance(drafter, HeadDrafter):
        raise CrossdraftError(
            f"The drafter '{head.name}' cannot learn while it serves; online takes heads such as eagle2."
        )
    network, source = HEADS[head.name].network, context.source
    return load_learning_drafter(
        drafter, network, host, source, settings.seconds, settings.keep, settings.rate, settings.save
    )


RECORD = Method(
    "online", "a head that is trained online while it serves (online:eagle2)",
    "Online speculative decoding: Liu 2024", build,
    check=check,
    settings=OnlineSettings, joins=(1, 1), trained=True, drafts_trees=True, needs_target=True,
    examples=(),  # it drafts as its head does
)  # fmt: skip
