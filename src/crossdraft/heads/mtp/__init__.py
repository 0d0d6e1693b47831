"""The drafter `mtp`: the target's own multi-token-prediction layers, which come with its checkpoint."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossdraft.checkpoints.locate import TARGETS, shipped_or_found
from crossdraft.checkpoints.mtp import find_mtp
from crossdraft.errors import CrossdraftError
from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Spec

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter


@dataclass(frozen=True)
class MtpSettings:
    """The way its trees grow."""

    tree: str = "dynamic"


def check(spec: Spec, settings: MtpSettings, target: str | None) -> None:
    """Raise CrossdraftError unless the target's checkpoint has MTP layers, whole."""
    if target is not None and not find_mtp(folder := shipped_or_found(target, TARGETS)):
        raise CrossdraftError(
            f"{folder} holds no multi-token-prediction layers of a known layout, from which '{spec}' drafts; name "
            "another drafter, such as union:memory,ngram."
        )


def build(spec: Spec, settings: MtpSettings, context: DrafterContext) -> "Drafter[Any]":
    """Build the drafter from the folder of the target."""
    from crossdraft.engine.fast.packed_linear import prepack
    from crossdraft.heads.drafting.head_drafter import TREES
    from crossdraft.heads.mtp.drafter import MtpDrafter
    from crossdraft.heads.mtp.load import load_mtp

    check(spec, settings, context.source)
    if settings.tree not in TREES:
        raise CrossdraftError(f"Unknown tree '{settings.tree}'; choose one of {', '.join(TREES)}.")
    host = context.load_host()
    head = load_mtp(host, context.source)
    if context.packed and host.device.type == "cpu":
        prepack(head.mtp)
    return MtpDrafter(head, TREES[settings.tree], sorted(host.eos), context.banned)


RECORDS = (
    Method(
        "mtp", "the target's own multi-token-prediction layers, which come with its checkpoint",
        "Gloeckle 2024; DeepSeek-V3: 2024", build, check=check,
        settings=MtpSettings, drafts_trees=True, senses=("video",), needs_target=True, examples=(),
    ),
)  # fmt: skip
