"""Export of heads: a head is read, converted, written, and read again before it is there."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert.convert import READERS, ConversionReport, new_folder, parameters, read_foreign
from crossdraft.heads.convert.converter import ForeignHead, NativeHead, TargetInfo
from crossdraft.heads.files import CONFIG, load_head, read_config, revived, stored_weights
from crossdraft.heads.networks.base import Head
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft_lab.objective import target_to_draft
from crossdraft_lab.train.heads.foreign import foreign_layout

TOLERANCE = 1e-5  # for float32 logits of this size: a wider output layer sums in another order
TRAINING_SETTINGS = ("steps", "anchors")  # settings that foreign files leave out
ROWS, LONG, START, VISUAL = 2, 24, 8, 6


@dataclass(frozen=True)
class ExportReport(ConversionReport):
    """The result of an export.

    Args:
        difference: largest difference between the logits before and after.
        notes: settings that other programs do not take from the files.
    """

    difference: float
    notes: tuple[str, ...]


def export_head(source: Path, out: Path, layout: str, host: TargetInfo) -> ExportReport:
    """Write one of our heads to `out` in another project's layout, in the head's dtype. `out` is whole or absent.

    Raises:
        CrossdraftError: the head is no head, another target's or unknown to the layout, `out` exists, or the written
            head has other logits when it is read again.
    """
    file = read_config(source)
    written = foreign_layout(layout, file.network)
    head = load_head(source, host.shared, host.sha256)
    ours = NativeHead(file.network, file.config, stored_weights(source))
    foreign = written.write(ours, host)
    with new_folder(out) as folder:
        write_foreign(folder, foreign, written.weights)
        error = difference(head, reloaded(folder, layout, ours, host))
        if not error <= TOLERANCE:
            raise CrossdraftError(
                f"The head that was written to {out} has other logits when it is read again (they differ by "
                f"{error:.1e}, {TOLERANCE:.0e} are allowed), so it was removed; this is a fault of ours, report it."
            )
    return ExportReport(ours.network, layout, len(foreign.tensors), parameters(foreign.tensors), error, foreign.notes)


def reloaded(folder: Path, layout: str, ours: NativeHead, host: TargetInfo) -> Head:
    """Read a foreign folder as a fresh head, with the training settings of `ours`."""
    again = READERS[layout](read_foreign(folder), host)
    known = {name: getattr(ours.config, name) for name in TRAINING_SETTINGS if hasattr(again.config, name)}
    return revived(again.network, replace(again.config, **known), host.shared, again.weights)


def write_foreign(folder: Path, foreign: ForeignHead, weights: str) -> None:
    """Write a foreign head into an existing folder."""
    (folder / CONFIG).write_text(json.dumps(foreign.config, indent=2) + "\n", encoding="utf-8")
    tensors = {name: value.detach().cpu().contiguous() for name, value in foreign.tensors.items()}
    save_file(tensors, folder / weights, {"format": "pt"})


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
