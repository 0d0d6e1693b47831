"""Loads the drafter `aligned`: an adapter from its folder, checked against the two models that it belongs to."""

from pathlib import Path
from typing import cast

from crossdraft.drafters.event.load import load_drafter
from crossdraft.engine.fast.packed_linear import prepack
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import load_head, read_config
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.load import event_fingerprint, target_fingerprint
from crossdraft_lab.align.drafter import PLAIN, AlignedDrafter, AlignedOptions, FusedDrafter
from crossdraft_lab.align.embeddings import load_embeddings
from crossdraft_lab.align.networks.attention import TargetAdapter
from crossdraft_lab.align.networks.base import Adapter
from crossdraft_lab.align.networks.own_answer import OwnAnswerAdapter
from crossdraft_lab.align.networks.token import TokenAdapter
from crossdraft_lab.align.networks.visual import VisualAdapter
from crossdraft_lab.align.token_drafter import OwnAnswerDrafter, TokenDrafter
from crossdraft_lab.align.visual_drafter import VisualDrafter
from crossdraft_lab.networks import ALIGNED


def load_adapter(folder: Path, target: str, event: str, device: str | None = None) -> Adapter:
    """Load an adapter in float32.

    Args:
        folder: folder of the adapter.
        target: name or folder of the target; only its embeddings are read.
        event: the event model, `event`, `blind` or a folder.
        device: device of the adapter; default CUDA if there is a GPU.

    Raises:
        CrossdraftError: the adapter is missing, damaged, no adapter, or belongs to another pair of models.
    """
    found = read_config(folder)
    if found.network not in ALIGNED:
        raise CrossdraftError(
            f"{folder} holds a head of the network '{found.network}', not an adapter ({', '.join(ALIGNED)})."
        )
    shared = SharedWeights(*load_embeddings(target, device, "float32"))
    adapter = cast("Adapter", load_head(folder, shared, target_fingerprint(target)))
    check_event_model(adapter.config.drafter, event, folder)
    return adapter.to(shared.lm_head.device)


def check_event_model(known: str, event: str, folder: Path) -> None:
    """Raise CrossdraftError unless an adapter is for this event model.

    Args:
        known: fingerprint of the event model that the adapter reads.
        event: name or folder as in `load_adapter`.
        folder: folder of the adapter.
    """
    if known != event_fingerprint(event):
        raise CrossdraftError(
            f"The adapter in {folder} reads another event model than '{event}'; name its own with model=FOLDER, or "
            "train one for this model."
        )


def load_aligned_drafter(
    folder: Path,
    target: str,
    event: str = "event",
    device: str | None = None,
    dtype: str | None = None,
    options: AlignedOptions = PLAIN,
    vocabulary: dict[str, int] | None = None,
    *,
    packed: bool = True,
    quantize: str | None = None,
) -> AlignedDrafter | TokenDrafter:
    """Load an event model and an adapter as a drafter.

    Args:
        folder, target, event: as in `load_adapter`.
        device, dtype, vocabulary, packed, quantize: settings of the event model, as in `load_drafter`.
        options: options of the drafter; see `AlignedOptions`.

    Raises:
        CrossdraftError: as `load_adapter`, `load_drafter` and `AlignedDrafter`.
    """
    adapter = load_adapter(folder, target, event, device)
    model = load_drafter(event, device, dtype, options.banned, vocabulary, packed=packed, quantize=quantize).model
    adapter = adapter.to(model.device, model.model.dtype)
    if packed:
        prepack(adapter)
    return aligned_drafter(model, adapter, options)


def aligned_drafter(model: Target, adapter: Adapter, options: AlignedOptions = PLAIN) -> AlignedDrafter | TokenDrafter:
    """Make the drafter of an adapter; arguments and errors as in `AlignedDrafter`."""
    if isinstance(adapter, OwnAnswerAdapter):
        return OwnAnswerDrafter(model, adapter, options)
    if isinstance(adapter, TokenAdapter):
        return TokenDrafter(model, adapter, options)
    if isinstance(adapter, TargetAdapter):
        return FusedDrafter(model, adapter, options)
    if isinstance(adapter, VisualAdapter):
        return VisualDrafter(model, adapter, options)
    return AlignedDrafter(model, adapter, options)
