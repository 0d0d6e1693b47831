"""Loads a head that is trained while it serves."""

from pathlib import Path
from typing import Any

from crossdraft.engine.target import Target
from crossdraft.heads.drafting.head_drafter import HeadDrafter
from crossdraft.heads.files import load_head
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.load import target_fingerprint
from crossdraft_lab.drafters.online import HeadOrigin, OnlineDrafter, check_folder


def load_learning_drafter(
    drafter: HeadDrafter[Any],
    network: str,
    host: Target,
    source: str,
    seconds: float,
    keep: int,
    rate: float,
    folder: Path | None = None,
) -> OnlineDrafter:
    """A head's drafter that is trained online while it serves.

    Args:
        drafter: around the head, loaded with `packed=False`.
        network: the head's.
        host, source: as in `load_head_drafter`.
        seconds, keep, rate: see `OnlineDrafter`.
        folder: where the weights are saved, and loaded from if there are any.

    Raises:
        CrossdraftError: the folder holds something else, or a head that does not fit; and as `OnlineDrafter`.
    """
    shared, origin = SharedWeights.of(host.model), HeadOrigin(network, target_fingerprint(source))
    head = drafter.head
    if folder is not None and check_folder(folder):
        head.restore(load_head(folder, shared, origin.target, network).stored())
    lm_head = shared.lm_head.to(host.device)[head.draft_ids]
    return OnlineDrafter(drafter, lm_head, seconds, keep, rate=rate, origin=origin, folder=folder)
