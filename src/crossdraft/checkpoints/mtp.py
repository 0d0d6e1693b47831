"""Layouts of multi-token-prediction (MTP) layers in a target's own checkpoint, found by the names of its tensors.

    mtp.{fc,pre_fc_norm_embedding,pre_fc_norm_hidden,norm}, mtp.layers.k.*      Qwen3-Next, Qwen3.5, Mellum
    …layers.{L+k}.{eh_proj,enorm,hnorm,shared_head.norm}, …layers.{L+k}.*       DeepSeek, GLM, Kimi, Step

L is the number of the target's layers. All other tensors of a layer are a decoder layer's.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from crossdraft.checkpoints.files import read_config, stored_tensors
from crossdraft.checkpoints.locate import TARGETS, shipped_or_found
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)
PARTS = "project", "embed_norm", "hidden_norm", "norm"
SHARED = dict(zip(("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"), PARTS, strict=True))
OWN = dict(zip(("eh_proj", "enorm", "hnorm", "shared_head.norm"), PARTS, strict=True))
COPIES = ("embed_tokens.weight", "shared_head.head.weight")  # the target's own, stored once more
LAYER = re.compile(r"(?:.*\.)?layers\.(\d+)\.(.+)")
FLOATS = "F64", "F32", "F16", "BF16"


def mtp_names(names: Iterable[str], config: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
    """Find MTP layers: for each, names in the files by `project.weight`, …, and `block.` + a decoder layer's names.

    >>> mtp_names(["layers.1.mlp.w", "layers.2.eh_proj.weight", "layers.2.mlp.w"], {"num_hidden_layers": 2})
    ({'project.weight': 'layers.2.eh_proj.weight', 'block.mlp.w': 'layers.2.mlp.w'},)
    """
    text = config.get("text_config")
    own_layers = (text if isinstance(text, dict) else config).get("num_hidden_layers") or 0
    shared: dict[str, str] = {}
    layers: dict[int, dict[str, str]] = {}
    for name in names:
        above, found = name.startswith("mtp."), LAYER.fullmatch(name)
        part, _, kind = (found[2] if found and not above else name.removeprefix("mtp.")).rpartition(".")
        if above and part in SHARED:
            shared[f"{SHARED[part]}.{kind}"] = name
        elif found and (above or int(found[1]) >= own_layers):
            own = f"{OWN[part]}.{kind}" if part in OWN else f"{'copy' if found[2] in COPIES else 'block'}.{found[2]}"
            layers.setdefault(int(found[1]), {})[own] = name
    if shared:
        return tuple(shared | layers[number] for number in sorted(layers)) or (shared,)
    every = (layers[number] for number in sorted(layers))
    return tuple(layer for layer in every if any(name.partition(".")[0] in PARTS for name in layer))


def find_mtp(folder: Path) -> tuple[dict[str, str], ...]:
    """Find a checkpoint's MTP layers, as `mtp_names` does.

    Raises:
        CrossdraftError: a part of a layer is missing or stored quantised, or as `stored_tensors`.
    """
    stored = stored_tensors(folder)
    found = mtp_names(stored, read_config(folder))
    for number, layer in enumerate(found):
        parts = {name.removesuffix(".weight").partition(".")[0] for name in layer}
        names = SHARED if any(name.startswith("mtp.") for name in layer.values()) else OWN
        faults = [f"its {name}.weight is missing" for name, part in names.items() if part not in parts]
        faults += [] if "block" in parts else ["its decoder layer is missing"]
        faults += [f"{name} is quantised" for name in layer.values() if stored[name].dtype not in FLOATS]
        if faults:
            raise CrossdraftError(
                f"Multi-token-prediction layer {number} in {folder} cannot be used: {faults[0]}; take the whole "
                "checkpoint, in 16 or 32 bits, or name another drafter, such as union:memory,ngram."
            )
    return found


def has_mtp(source: str) -> bool:
    """True if a target's checkpoint is here and has MTP layers, whole; the fault of others is logged once."""
    try:
        stored = stored_tensors(folder := shipped_or_found(source, TARGETS))
    except CrossdraftError:  # it is said when the target itself is loaded
        return False
    try:
        found = find_mtp(folder)
    except CrossdraftError as error:
        _left_alone(str(error))
        return False
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, tensor in stored.items():
        if not name.startswith("mtp.") and (layer := LAYER.fullmatch(name)) is not None:
            layers.setdefault(name.removesuffix(layer[2]), {})[layer[2]] = tensor.shape
    for parts in found:
        shapes = {name: stored[own].shape for name, own in parts.items()}
        block = {name.removeprefix("block."): shape for name, shape in shapes.items() if name.startswith("block.")}
        width = shapes["norm.weight"][-1]
        if block not in layers.values() or shapes["project.weight"] != (width, 2 * width):
            _left_alone(f"A multi-token-prediction layer in {folder} has not the shapes of the others.")
            return False
    return bool(found)


@cache
def _left_alone(why: str) -> None:
    """Log once that the default drafter is another one."""
    log.warning("The checkpoint's multi-token-prediction layers are left alone. %s", why)
