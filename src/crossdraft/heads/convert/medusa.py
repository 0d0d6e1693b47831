"""Medusa checkpoints: a short config, and each head's ResBlocks and LM head under its number.

Medusa's heads have the target's whole vocabulary.
"""

from crossdraft.config_keys import check
from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert.converter import ForeignHead, NativeHead, TargetInfo, number, renamed, shared_ids
from crossdraft.heads.convert.layouts import MEDUSA_KEYS
from crossdraft.heads.networks.recurrent import RecurrentConfig


def read_medusa(foreign: ForeignHead, host: TargetInfo) -> NativeHead:
    """Convert Medusa's heads to ours, over all ids that they share with the target.

    Raises:
        CrossdraftError: they are incomplete, or another target's.
    """
    theirs = foreign.config
    check(theirs, MEDUSA_KEYS, host.sizes)
    heads, layers = number(theirs, "medusa_num_heads"), number(theirs, "medusa_num_layers", 1)
    tensors = {name.removeprefix("medusa_head."): value for name, value in foreign.tensors.items()}
    for head in range(heads):
        rows = tensors.get(f"{head}.{layers}.weight")
        if rows is not None and (rows.dim() != 2 or rows.shape[1] != host.hidden_size):
            raise CrossdraftError(
                f"Medusa's head {head} has {tuple(rows.shape)} output rows, the target "
                f"{tuple(host.shared.lm_head.shape)}; name the target it was made for."
            )
        if rows is not None:  # its vocabulary may be padded otherwise than the target's
            tensors[f"{head}.{layers}.weight"] = rows[: shared_ids({"vocab_size": len(rows)}, host)]
    weights = renamed(tensors, medusa_names(heads, layers))
    known = tuple(range(len(weights[f"heads.0.{layers}.weight"])))
    config = RecurrentConfig(**host.sizes, draft_ids=known, steps=heads, layers=layers)
    return NativeHead("medusa", config, weights)


def medusa_names(heads: int, layers: int) -> dict[str, str]:
    """Medusa's name of each tensor -> our name."""
    parts = [f"{layer}.linear.{kind}" for layer in range(layers) for kind in ("weight", "bias")]
    theirs = [f"{head}.{part}" for head in range(heads) for part in (*parts, f"{layers}.weight")]
    return {name: f"heads.{name}" for name in theirs}
