"""Export and import of heads: a head is read, converted, written, and read again before a command succeeds."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder
from crossdraft.heads.convert.converter import Converter, ForeignHead, NativeHead, TargetInfo
from crossdraft.heads.convert.dflash import DFLASH
from crossdraft.heads.convert.eagle import EAGLE, SPECULATORS
from crossdraft.heads.convert.layouts import LEVELS, check_new, foreign_config, layout_of
from crossdraft.heads.convert.medusa import MEDUSA
from crossdraft.heads.files import CONFIG, load_head, read_config, revived, save_head, stored_weights
from crossdraft.heads.networks.base import Head, target_to_draft
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.models.shards import SINGLE, read_weights

FILES = (SINGLE[0], "medusa_lm_head.safetensors", SINGLE[1], "medusa_lm_head.pt")


@dataclass(frozen=True)
class ConversionReport:
    """The result of an export or import.

    Args:
        network: network of the head.
        layout: layout of the foreign folder.
        tensors, parameters: numbers of tensors and of parameters that were written.
        difference: largest difference between the logits before and after; `None` = no comparison was possible.
        notes: settings that other programs do not take from the files.
    """

    network: str
    layout: str
    tensors: int
    parameters: int
    difference: float | None
    notes: tuple[str, ...] = ()


def export_head(source: Path, out: Path, layout: str, host: TargetInfo) -> ConversionReport:
    """Write one of our heads to `out` in another project's layout, in the head's dtype. `out` is whole or absent.

    Raises:
        CrossdraftError: the head is no head, another target's or unknown to the layout, `out` exists, or the written
            head has other logits when it is read again.
    """
    file = read_config(source)
    converter = converter_for(layout, file.network)
    head = load_head(source, host.shared, host.sha256)
    ours = NativeHead(file.network, file.config, stored_weights(source))
    foreign = converter.write(ours, host)
    with _new_folder(out) as folder:
        write_foreign(folder, foreign, converter.weights)
        error = difference(head, reloaded(folder, converter, ours, host))
        if not error <= TOLERANCE:
            raise CrossdraftError(
                f"The head that was written to {out} has other logits when it is read again (they differ by "
                f"{error:.1e}, {TOLERANCE:.0e} are allowed), so it was removed; this is a fault of ours, report it."
            )
    return ConversionReport(ours.network, layout, len(foreign.tensors), _count(foreign.tensors), error, foreign.notes)


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
    ours = CONVERTERS[layout].read(foreign, host)
    if unknown := [name for name in corrections or {} if not hasattr(ours.config, name)]:
        raise CrossdraftError(f"A head of the network {ours.network} has no {unknown[0]}; leave it out.")
    ours = replace(ours, config=replace(ours.config, **(corrections or {})))
    head = revived(ours.network, ours.config, host.shared, ours.weights)
    if bad := [name for name, value in ours.weights.items() if not bool(value.isfinite().all())]:
        raise CrossdraftError(f"The head in {source} has numbers that are not finite, in {bad[0]}; take it anew.")
    with _new_folder(out) as folder:
        save_head(folder, head, ours.network, host.sha256, ours.dtype)
    return ConversionReport(ours.network, layout, len(ours.weights), _count(ours.weights), None)


def reloaded(folder: Path, layout: Converter, ours: NativeHead, host: TargetInfo) -> Head:
    """Read a foreign folder as a fresh head, with the training settings of `ours`."""
    again = layout.read(read_foreign(folder), host)
    known = {name: getattr(ours.config, name) for name in TRAINING_SETTINGS if hasattr(again.config, name)}
    return revived(again.network, replace(again.config, **known), host.shared, again.weights)


def read_foreign(folder: Path) -> ForeignHead:
    """Read another project's folder: safetensors, or PyTorch's files without running their code.

    Raises:
        CrossdraftError: a file is missing or damaged.
    """
    return ForeignHead(foreign_config(folder), read_weights(folder, singles=FILES))


def write_foreign(folder: Path, foreign: ForeignHead, weights: str) -> None:
    """Write a foreign head into an existing folder."""
    (folder / CONFIG).write_text(json.dumps(foreign.config, indent=2) + "\n", encoding="utf-8")
    tensors = {name: value.detach().cpu().contiguous() for name, value in foreign.tensors.items()}
    save_file(tensors, folder / weights, {"format": "pt"})


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder to fill that becomes `out`; an existing `out` is refused unless it is an empty folder."""
    check_new(out)
    with atomic_folder(out) as folder:
        yield folder


def _count(tensors: Mapping[str, Tensor]) -> int:
    return sum(value.numel() for value in tensors.values() if value.is_floating_point())


TOLERANCE = 1e-5  # for float32 logits of this size: a wider output layer sums in another order
TRAINING_SETTINGS = ("steps", "anchors")  # settings that foreign files leave out
ROWS, LONG, START, VISUAL = 2, 24, 8, 6


def random_batch(head: Head) -> TrainBatch:
    """Random tokens and features, of every hidden state that the target has, in the head's dtype."""
    config, generator = head.config, torch.Generator().manual_seed(0)

    def features(length: int) -> dict[int, torch.Tensor]:
        shape = (ROWS, length, config.hidden_size)
        layers = range(config.num_layers + 1)
        return {k: torch.randn(shape, generator=generator).to(head.embeddings.dtype) for k in layers}

    return TrainBatch(
        torch.randint(config.vocab_size, (ROWS, LONG), generator=generator),
        features(LONG),
        torch.full((ROWS,), START),
        torch.full((ROWS,), LONG),
        features(VISUAL),
        torch.randint(config.vocab_size, (ROWS, VISUAL), generator=generator),
    )


@torch.inference_mode()
def difference(head: Head, other: Head) -> float:
    """Largest |Δ| between two heads' logits, over the ids that `head` drafts; relative where logits are larger than 1.

    Infinite if the other head drafts fewer tokens in a row or fewer ids, or if its logits are NaN.
    """
    batch = random_batch(head)
    ids = target_to_draft(other.config.draft_ids, other.config.vocab_size)[torch.tensor(head.config.draft_ids)]
    before, after = ({one.offset: one.logits for one in network(batch)} for network in (head, other))
    if bool((ids < 0).any()) or not before.keys() <= after.keys():
        return float("inf")
    errors = (
        (after[offset][..., ids] - logits).abs().max() / logits.abs().max().clamp(min=1)
        for offset, logits in before.items()
    )
    return max(float(error.nan_to_num(nan=float("inf"))) for error in errors)


CONVERTERS: Mapping[str, Converter] = {"eagle": EAGLE, "speculators": SPECULATORS, "medusa": MEDUSA, "dflash": DFLASH}


def converter_for(name: str, network: str) -> Converter:
    """Return the layout called `name`, for a head of that network.

    Raises:
        CrossdraftError: there is no such layout, or it cannot hold such a head.
    """
    if name not in CONVERTERS:
        raise CrossdraftError(f"There is no layout '{name}'; there are {', '.join(CONVERTERS)}.")
    layout = CONVERTERS[name]
    if network not in layout.networks:
        fitting = [other for other, known in CONVERTERS.items() if network in known.networks]
        hint = f"it fits into {' and '.join(fitting)}" if fitting else "no layout for such a head is written"
        raise CrossdraftError(
            f"The layout '{name}' holds {' and '.join(layout.networks)}, this head is a '{network}'; {hint}."
        )
    return layout
