"""Heads carried to and from other projects' folders: read, translated, written, and read again before it counts."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder
from crossdraft.heads.convert.check import TOLERANCE, as_long, difference
from crossdraft.heads.convert.converter import Converter, ForeignHead, NativeHead, TargetInfo
from crossdraft.heads.convert.registry import CONVERTERS, converter_for, recognised
from crossdraft.heads.files import CONFIG, load_head, read_config, revived, save_head, stored_weights
from crossdraft.heads.networks.base import Head
from crossdraft.models.shards import SINGLE, read_json, read_weights

FILES = (SINGLE[0], "medusa_lm_head.safetensors", SINGLE[1], "medusa_lm_head.pt")


@dataclass(frozen=True)
class ConversionReport:
    """What was done.

    Args:
        network: of the head.
        layout: of the foreign folder.
        tensors, parameters: how many were written.
        difference: between what the head says before and after; `None` = there was nothing to compare with.
        notes: what to know of it there.
    """

    network: str
    layout: str
    tensors: int
    parameters: int
    difference: float | None
    notes: tuple[str, ...] = ()


def export_head(source: Path, out: Path, layout: str, host: TargetInfo) -> ConversionReport:
    """A head of ours into another project's layout, in its own dtype. `out` is whole or absent.

    Raises:
        CrossdraftError: the head is no head, another target's or unknown to the layout, `out` exists, or what was
            written does not say the same when it is read again.
    """
    described = read_config(source)
    chosen = converter_for(layout, described.network)
    head = load_head(source, host.shared, host.sha256)
    ours = NativeHead(described.network, described.config, stored_weights(source))
    foreign = chosen.write(ours, host)
    with _new_folder(out) as folder:
        write_foreign(folder, foreign, chosen.weights)
        apart = difference(head, reloaded(folder, chosen, ours, host))
        if not apart <= TOLERANCE:
            raise CrossdraftError(
                f"The head that was written to {out} says something else when it is read again (logits differ by "
                f"{apart:.1e}, {TOLERANCE:.0e} are allowed), so it was removed; this is a fault of ours, report it."
            )
    return ConversionReport(ours.network, layout, len(foreign.tensors), _count(foreign.tensors), apart, foreign.notes)


def import_head(source: Path, out: Path, host: TargetInfo) -> ConversionReport:
    """A head of another project into ours, for that target, in its own dtype. `out` is whole or absent.

    Raises:
        CrossdraftError: the folder is none that we can read, not whole, or another target's; or `out` exists.
    """
    foreign = read_foreign(source)
    layout = recognised(foreign.config, str(source / CONFIG))
    ours = CONVERTERS[layout].read(foreign, host)
    head = _made(ours, host)
    with _new_folder(out) as folder:
        save_head(folder, head, ours.network, host.sha256, ours.dtype)
    return ConversionReport(ours.network, layout, len(ours.weights), _count(ours.weights), None)


def reloaded(folder: Path, layout: Converter, ours: NativeHead, host: TargetInfo) -> Head:
    """A foreign folder as a fresh head, unrolled as far as `ours`."""
    again = layout.read(read_foreign(folder), host)
    return _made(NativeHead(again.network, as_long(again.config, ours.config), again.weights), host)


def read_foreign(folder: Path) -> ForeignHead:
    """Another project's folder: safetensors, or PyTorch's files read without running code.

    Raises:
        CrossdraftError: a file is missing or damaged.
    """
    if not folder.is_dir():
        raise CrossdraftError(f"{folder} is no folder; name one that holds a head's config.json and weights.")
    return ForeignHead(read_json(folder / CONFIG), read_weights(folder, singles=FILES))


def write_foreign(folder: Path, foreign: ForeignHead, weights: str) -> None:
    """Into a folder that exists."""
    (folder / CONFIG).write_text(json.dumps(foreign.config, indent=2) + "\n", encoding="utf-8")
    tensors = {name: value.detach().cpu().contiguous() for name, value in foreign.tensors.items()}
    save_file(tensors, folder / weights, {"format": "pt"})


def _made(ours: NativeHead, host: TargetInfo) -> Head:
    return revived(ours.network, ours.config, host.shared, ours.weights)


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder to fill that becomes `out`; nothing that is there is written over."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CrossdraftError(f"{out} is there already; name a new folder.")
    with atomic_folder(out) as folder:
        yield folder


def _count(tensors: Mapping[str, Tensor]) -> int:
    return sum(value.numel() for value in tensors.values() if value.is_floating_point())
