"""Loads drafters with heads: weights from a folder, checked against the model that they belong to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch

from crossdraft.checkpoints.locate import shipped_at
from crossdraft.drafters.event.load import load_drafter
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.fast.packed_linear import has_bf16, prepack
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.drafting.head_drafter import ACCEPTANCE, TREES, HeadDrafter, static_tree
from crossdraft.heads.event_medusa.drafter import DrafterMedusaDrafter, shared_weights_of
from crossdraft.heads.event_medusa.network import DrafterMedusa
from crossdraft.heads.files import load_head, read_config
from crossdraft.heads.folders import check_event_head
from crossdraft.heads.glance.frame_encoder import FrameEncoder
from crossdraft.heads.glance.network import Glance
from crossdraft.heads.networks.base import Head, SharedWeights
from crossdraft.heads.registry import HEADS, STATIC, weights_of
from crossdraft.load import event_fingerprint, target_fingerprint


def load_head_drafter(
    name: str,
    host: Target,
    source: str = "reference",
    folder: Path | None = None,
    tree: str | None = None,
    banned: Sequence[int] = (),
    *,
    packed: bool = True,
) -> HeadDrafter[Any]:
    """Load a drafter with a head on its target's features; it runs in the target's process.

    Args:
        name: name of the method; see `HEADS`.
        host: the target.
        source: name or folder that the target was loaded from.
        folder: folder of the head; default the shipped one.
        tree: `static`, or one of `TREES`; default the method's own, but `dynamic` instead of `static` if the head's
            acceptance was not measured, as for an imported head.
        banned, packed: as in `load_drafter`.

    Raises:
        CrossdraftError: the head is missing, damaged, another target's or another method's, or an unknown tree.
    """
    record = HEADS[name]
    path = folder or shipped_at(f"heads/{weights_of(name)}")
    head = load_head(path, SharedWeights.of(host.model), target_fingerprint(source), record.network)
    head = head.to(host.device, _head_dtype(host))
    if packed:
        prepack(head)
    unmeasured = record.tree == STATIC and not (path / ACCEPTANCE).is_file()
    tree = tree or ("dynamic" if unmeasured else record.tree)
    if tree not in TREES and tree != STATIC:
        raise CrossdraftError(f"Unknown tree '{tree}'; choose one of {', '.join((STATIC, *TREES))}.")
    grow = static_tree(path) if tree == STATIC else TREES[tree]
    return record.drafter_class(head, grow, sorted(host.eos), banned)


def load_event_head(
    source: str = "event",
    folder: Path | None = None,
    device: str | None = None,
    dtype: str | None = None,
    banned: Sequence[int] = (),
    vocabulary: dict[str, int] | None = None,
    *,
    words: int | None = None,
    packed: bool = True,
) -> DrafterMedusaDrafter:
    """Load an event model with Medusa heads on it as a drafter.

    Args:
        source, device, dtype, banned, vocabulary, packed: settings of the event model, as in `load_drafter`.
        folder: folder of the head; default the shipped one.
        words: number of likeliest tokens of a position that may become nodes; default the drafter's own.

    Raises:
        CrossdraftError: as `load_drafter`, or the head is missing, damaged, or another event model's.
    """
    path = _event_head_folder("event_medusa", folder, source)
    model = load_drafter(source, device, dtype, banned, vocabulary, packed=packed).model
    head = _event_head("event_medusa", path, source, model, packed=packed)
    more: Any = {} if words is None else {"words": words}
    return DrafterMedusaDrafter(model, cast("DrafterMedusa", head), banned, **more)


def load_glance_drafter(
    drafter: IndependentDrafter,
    host: Target | None,
    target: str,
    source: str = "event",
    folder: Path | None = None,
    banned: Sequence[int] = (),
    *,
    packed: bool = True,
) -> IndependentDrafter:
    """Load `glance`: an event drafter with cross-attention to the target's visual features.

    Args:
        drafter: a drafter without glance on the event model `source`; both share their networks.
        host: the target, if it is in this process; see `FrameEncoder`.
        target: name or folder that the target was loaded from.
        folder: folder of the glance; default the shipped one.
        banned: ids that must never be drafted.
        packed: as in `load_target`.

    Raises:
        CrossdraftError: the glance is missing, damaged, another event model's, or of another target's vision encoder.
    """
    path = _event_head_folder("glance", folder, source)
    glance = cast("Glance", _event_head("glance", path, source, drafter.model, packed=packed))
    if glance.config.tower != target_fingerprint(target):
        raise CrossdraftError(
            f"The glance in {path} reads the vision encoder of another target than '{target}'; train one for this "
            "target, or use the drafter 'event_medusa'."
        )
    more: Any = {"words": drafter.words, "glance": FrameEncoder(glance, host)}
    if isinstance(drafter, DrafterMedusaDrafter):
        return DrafterMedusaDrafter(drafter.model, drafter.head, banned, **more)
    return IndependentDrafter(drafter.model, banned, **more)


def _head_dtype(host: Target) -> torch.dtype:
    """Dtype of a head for a target: bfloat16 where it is faster than float32, as drafts need not be exact."""
    slow = host.device.type == "cpu" and host.model.dtype is torch.float32
    return torch.bfloat16 if slow and has_bf16() else host.model.dtype


def _event_head_folder(name: str, folder: Path | None, source: str) -> Path:
    """Folder of a head on the event model `source`, after a check that they belong together."""
    path = folder or shipped_at(f"heads/{name}")
    check_event_head(path, read_config(path).target, event_fingerprint(source), source)
    return path


def _event_head(name: str, path: Path, source: str, model: Target, *, packed: bool) -> Head:
    """Load the head in the folder `path`, on the event model `source`, which is loaded as `model`."""
    head = load_head(path, shared_weights_of(model), event_fingerprint(source), name)
    head = head.to(model.device, model.model.dtype)
    if packed:
        prepack(head)
    return head
