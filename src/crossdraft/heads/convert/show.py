"""What there is to say of a head's folder without its target."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import WEIGHTS, make, read_config
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.models.shards import read_weights

OF_TARGET = ("hidden_size", "vocab_size", "num_layers", "draft_ids")


@dataclass(frozen=True)
class HeadSummary:
    """See `lines`; `reads` and `visual_reads` are canonical layer numbers, `settings` the network's own."""

    network: str
    parameters: int
    dtype: str
    target: str
    hidden_size: int
    vocab_size: int
    num_layers: int
    draft_vocabulary: int
    reads: tuple[int, ...]
    visual_reads: tuple[int, ...]
    settings: dict[str, Any]

    def lines(self) -> Iterator[str]:
        """The same for people."""
        visual = f"; at visual places {_listed(self.visual_reads)}" if self.visual_reads else ""
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        yield f"network           {self.network}: {settings}"
        yield f"parameters        {self.parameters:,} of its own, {self.dtype}"
        yield (
            f"target            {self.target[:12] or 'unnamed'}…: {self.num_layers} layers, {self.hidden_size} "
            f"features, {self.vocab_size} ids"
        )
        yield f"draft vocabulary  {self.draft_vocabulary} ids"
        yield f"reads             hidden states {_listed(self.reads)} of the text{visual}"


def summarize(folder: Path) -> HeadSummary:
    """The facts of a head's folder.

    Raises:
        CrossdraftError: it holds no head, or its weights do not fit its configuration.
    """
    described = read_config(folder)
    config, weights = described.config, read_weights(folder, singles=(WEIGHTS,))
    # On `meta` a network has shapes and no weights: which of them it owns is known without its target.
    with torch.device("meta"):
        rows = torch.empty(config.vocab_size, config.hidden_size)
        head = make(described.network, config, SharedWeights(rows, rows))
    own = head.stored()
    if own.keys() != weights.keys() or any(own[name].shape != weights[name].shape for name in own):
        raise CrossdraftError(f"The weights in {folder} do not fit its config.json; is the folder whole?")
    return HeadSummary(
        described.network,
        sum(value.numel() for value in weights.values()),
        str(next(iter(weights.values())).dtype).removeprefix("torch."),
        described.target,
        config.hidden_size,
        config.vocab_size,
        config.num_layers,
        len(config.draft_ids),
        head.reads,
        head.visual_reads,
        {name: value for name, value in asdict(config).items() if name not in OF_TARGET},
    )


def _listed(layers: tuple[int, ...]) -> str:
    return ", ".join(map(str, layers))
