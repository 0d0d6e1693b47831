"""Import of heads: another project's head is read, converted, and written as ours."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder
from crossdraft.heads.convert.converter import ForeignHead, NativeHead, TargetInfo
from crossdraft.heads.convert.dflash import read_dflash
from crossdraft.heads.convert.eagle import read_eagle, read_speculators
from crossdraft.heads.convert.layouts import LEVELS, check_new, foreign_config, layout_of
from crossdraft.heads.convert.medusa import read_medusa
from crossdraft.heads.files import CONFIG, revived, save_head
from crossdraft.models.shards import SINGLE, read_weights

FILES = (SINGLE[0], "medusa_lm_head.safetensors", SINGLE[1], "medusa_lm_head.pt")
READERS: Mapping[str, Callable[[ForeignHead, TargetInfo], NativeHead]] = {
    "eagle": read_eagle, "speculators": read_speculators, "medusa": read_medusa, "dflash": read_dflash,
}  # fmt: skip


@dataclass(frozen=True)
class ConversionReport:
    """The result of a conversion.

    Args:
        network: network of the head.
        layout: layout of the foreign folder.
        tensors, parameters: numbers of tensors and of parameters that were written.
    """

    network: str
    layout: str
    tensors: int
    parameters: int


def import_head(
    source: Path, out: Path, host: TargetInfo, corrections: Mapping[str, Any] | None = None
) -> ConversionReport:
    """Write another project's head to `out` as ours, for the target `host`, in its dtype. `out` is whole or absent.

    Args:
        source, out: folder of the head, and the new folder.
        host: the target.
        corrections: settings that the head was trained with and its files state wrongly, by our names.

    Raises:
        CrossdraftError: the folder has an unknown layout, is incomplete, or is for another target; or `out` exists.
    """
    foreign = read_foreign(source)
    layout = layout_of(foreign.config, str(source / CONFIG))
    levels = (corrections or {}).get("levels")
    if levels is not None and any(name.endswith("hidden_norm.weight") for name in foreign.tensors):
        config = {key: value for key, value in foreign.config.items() if key != "aux_hidden_states_layer_ids"}
        if isinstance(inner := config.get("eagle_config"), Mapping):
            config["eagle_config"] = {**inner, LEVELS: None}
        foreign = replace(foreign, config={**config, LEVELS: list(levels)})
    ours = READERS[layout](foreign, host)
    if unknown := [name for name in corrections or {} if not hasattr(ours.config, name)]:
        raise CrossdraftError(f"A head of the network {ours.network} has no {unknown[0]}; leave it out.")
    ours = replace(ours, config=replace(ours.config, **(corrections or {})))
    head = revived(ours.network, ours.config, host.shared, ours.weights)
    if bad := [name for name, value in ours.weights.items() if not bool(value.isfinite().all())]:
        raise CrossdraftError(f"The head in {source} has numbers that are not finite, in {bad[0]}; take it anew.")
    with new_folder(out) as folder:
        save_head(folder, head, ours.network, host.sha256, ours.dtype)
    return ConversionReport(ours.network, layout, len(ours.weights), parameters(ours.weights))


def read_foreign(folder: Path) -> ForeignHead:
    """Read another project's folder: safetensors, or PyTorch's files without running their code.

    Raises:
        CrossdraftError: a file is missing or damaged.
    """
    return ForeignHead(foreign_config(folder), read_weights(folder, singles=FILES))


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder to fill that becomes `out`; an existing `out` is refused unless it is an empty folder."""
    check_new(out)
    with atomic_folder(out) as folder:
        yield folder


def parameters(tensors: Mapping[str, Tensor]) -> int:
    """Number of parameters of a head's tensors."""
    return sum(value.numel() for value in tensors.values() if value.is_floating_point())
