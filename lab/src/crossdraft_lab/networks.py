"""The table of the laboratory's networks: one record each, beside those of `crossdraft.heads.registry`.

Importing this table needs no PyTorch. Entry points of the group `crossdraft.networks` name the records.
"""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

from crossdraft.checkpoints.locate import shipped_at
from crossdraft.errors import CrossdraftError
from crossdraft.heads.registry import HeadRecord
from crossdraft.methods import METHODS


def _adapter(name: str, model: str, summary: str, paper: str) -> HeadRecord:
    return HeadRecord(
        name, f"networks.{model}", "drafter.AlignedDrafter", summary, paper, package="crossdraft_lab.align"
    )


LEVELS = "the levels of xifan-zhang/EventGPT"
ADAPTERS: Mapping[str, HeadRecord] = {
    record.network: record
    for record in (
        _adapter("none", "pointwise.NoAdapter", "the drafter's feature padded with zeros: the control", "crossdraft"),
        _adapter("linear", "pointwise.LinearAdapter", "a linear map", "crossdraft"),
        _adapter("mlp", "pointwise.MLPAdapter", "a linear map and an inner layer beside it", "LLaVA 1.5: Liu 2023"),
        _adapter("l1", "pointwise.Bottleneck", "a residual bottleneck", LEVELS),
        _adapter("l2", "pointwise.Bottleneck", "three of them", LEVELS),
        _adapter("l3", "pointwise.Wide", "three wide blocks", LEVELS),
        _adapter("l4", "attention.AttentionAdapter", "a causal decoder layer", LEVELS),
        _adapter(
            "l4v", "visual.VisualAdapter", "l4 with cross-attention to the target's visual features",
            "ParallelPrefillAdapter of xifan-zhang/EventGPT",
        ),
        _adapter("l5", "attention.AutoregressiveAdapter", "l4 with positions, tokens and its own outputs", LEVELS),
        _adapter("b1", "attention.TargetAdapter", "l5 on the target's features alone: the ceiling", LEVELS),
        _adapter("l5f", "attention.GatedAdapter", "l5 on a gated mean of both models' features", LEVELS),
        _adapter("token", "token.TokenAdapter", "rewrites the drafter's own answer, token by token", LEVELS),
        _adapter("levels", "pointwise.FusedAdapter", "fuses several layers of the drafter", "EAGLE-3: Li 2025"),
    )
}  # fmt: skip
"""Adapters from a drafter's features to the target's, all with the drafter `aligned`."""

ANSWER_ADAPTERS: Mapping[str, HeadRecord] = {
    record.network: record
    for record in (
        _adapter(
            "token_projection", "own_answer.TokenProjection", "maps the drafter's i-th token to the target's i-th",
            "TokenProjection of xifan-zhang/EventGPT",
        ),
        _adapter(
            "logit_alignment", "own_answer.LogitAlignment", "an MLP of the drafter's largest logits at the i-th token",
            "LogitAlignment of xifan-zhang/EventGPT",
        ),
    )
}  # fmt: skip
"""Adapters from a drafter's own answer to the target's words."""

ALIGNED: Mapping[str, HeadRecord] = {**ADAPTERS, **ANSWER_ADAPTERS}


def _vision_adapter(name: str, model: str, summary: str, paper: str) -> HeadRecord:
    drafter = "predicted.PredictedPrefill"
    return HeadRecord(name, f"networks.vision.{model}", drafter, summary, paper, package="crossdraft_lab.align")


VISION_ADAPTERS: Mapping[str, HeadRecord] = {
    record.network: record
    for record in (
        _vision_adapter("vision_linear", "LinearVision", "a mixture of patches and a linear map", "crossdraft"),
        _vision_adapter("vision_mlp", "MLPVision", "the same and an inner layer beside it", "LLaVA 1.5: Liu 2023"),
        _vision_adapter("vision_queries", "QueriesVision", "queries that attend to all patches", "BLIP-2: Li 2023"),
    )
}
"""Adapters from an event encoder to the target's visual tokens, all with the drafter `predicted`."""

PACKERS: Mapping[str, HeadRecord] = {
    "token_packer": HeadRecord("token_packer", "packer_network.TokenPacker", package="crossdraft_lab.compression")
}
"""Networks that read the target's own vision encoder, each with the compression of its name."""


RECORDS = SimpleNamespace(**ALIGNED, **VISION_ADAPTERS, **PACKERS)
"""All records above as attributes, which entry points can name."""


def task_of(network: str) -> str:
    """The task that trains a network; `features`, unless it is an adapter or a drafter's record names another."""
    if network in ALIGNED:
        return "alignment"
    if network in VISION_ADAPTERS:
        return "vision"
    if network in PACKERS:
        return "packing"
    return next((method.task for method in METHODS.values() if method.network == network), "features")


def shipped_folder(network: str, target: str, written: str) -> Path:
    """Folder of a network that is shipped for the reference target.

    Args:
        network: name of the network.
        target: fingerprint of the target that the network is for.
        written: setting that names another folder, such as `token_packer:dir=FOLDER`.

    Raises:
        CrossdraftError: `target` is not the reference target.
    """
    from crossdraft.load import target_fingerprint

    if target != target_fingerprint("reference"):
        raise CrossdraftError(
            f"The {network} that is shipped is the reference target's; write {written}, a folder of 'crossdraft train "
            f"{network}'."
        )
    return shipped_at(f"heads/{network}")
