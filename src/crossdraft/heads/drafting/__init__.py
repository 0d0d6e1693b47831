"""Drafters around heads that read the target's features. `head_drafter` holds what all of them share."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossdraft.checkpoints.locate import TARGETS, shipped_at, shipped_or_found
from crossdraft.files import fingerprint
from crossdraft.heads.folders import check_head, check_trained_for, head_json
from crossdraft.heads.registry import HEADS, HeadRecord, weights_of
from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Spec

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter


@dataclass(frozen=True)
class HeadSettings:
    """Folder of the head, and the way its trees grow."""

    dir: Path | None = None
    tree: str | None = None


def check(spec: Spec, settings: Any, target: str | None) -> None:
    """Check the folder of a head on the target's features."""
    folder = settings.dir or shipped_at(f"heads/{weights_of(spec.name)}")
    found = head_json(folder)
    check_head(folder, found["network"], HEADS[spec.name].network if spec.name in HEADS else spec.name)
    if target is not None:
        check_trained_for(folder, str(found.get("target", "")), fingerprint(shipped_or_found(target, TARGETS)))


def build(spec: Spec, settings: HeadSettings, context: DrafterContext) -> "Drafter[Any]":
    """Build the drafter of a head on the target's features."""
    from crossdraft.heads.load import load_head_drafter

    host, banned, packed = context.load_host(), context.banned, context.packed
    return load_head_drafter(spec.name, host, context.source, settings.dir, settings.tree, banned, packed=packed)


def method_of_head(name: str, head: HeadRecord) -> Method:
    """Make the method of a head's drafter. It has no examples: `bench heads` compares the drafts of all heads."""
    return Method(
        name, head.summary, head.paper, build, check=check,
        settings=HeadSettings, trained=True, drafts_trees=head.tree != "chain",
        senses=("video",) if head.sees else (), needs_target=True, weights={"dir": weights_of(name)},
        network=head.network, examples=(),
    )  # fmt: skip


RECORDS = tuple(method_of_head(name, head) for name, head in HEADS.items())
