"""The drafter `pass` (PaSS: Monea et al. 2023): learned look-ahead embeddings that the target reads."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossdraft.heads.drafting import check
from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Spec

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter


@dataclass(frozen=True)
class PassSettings:
    """The folder of the look-ahead embeddings."""

    dir: Path | None = None


def build(spec: Spec, settings: PassSettings, context: DrafterContext) -> "Drafter[Any]":
    """Build the drafter of PaSS's look-ahead embeddings."""
    from crossdraft.heads.load import load_pass_drafter

    return load_pass_drafter(context.load_host(), context.source, settings.dir, context.banned)


RECORDS = (
    Method(
        "pass", "learned look-ahead embeddings in extra rows of the target's passes", "PaSS: Monea 2023",
        build, check=check,
        settings=PassSettings, trained=True, needs_target=True, probes=True,
        weights={"dir": "pass"}, network="pass", task="rows",
    ),
)  # fmt: skip
