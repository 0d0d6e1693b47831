"""Adapters and packers at the size of any pair, with random weights: measures their sizes and times.

Each is made from its recipe, run forward and backward over one answer, saved, loaded again, and timed; one after the
other, so that only one is in memory.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.checkpoints.memory import free_memory
from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import WEIGHTS, config_of, load_head, make, save_head
from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.heads.registry import NETWORKS
from crossdraft_lab.align.networks.attention import TargetAdapter
from crossdraft_lab.align.networks.base import TARGET, Adapter
from crossdraft_lab.align.networks.own_answer import IndexedBatch, OwnAnswer, OwnAnswerAdapter
from crossdraft_lab.align.networks.token import TokenAdapter
from crossdraft_lab.align.networks.vision import VisionAdapter
from crossdraft_lab.align.networks.visual import VisualAdapter
from crossdraft_lab.compression.packer import default_heads, default_levels
from crossdraft_lab.compression.packer_network import TokenPacker
from crossdraft_lab.networks import ALIGNED, PACKERS, VISION_ADAPTERS
from crossdraft_lab.sizes import sizes_of, source_layers
from crossdraft_lab.train.heads.recipe import load_head_recipe, recipe_names

NAMES = (*ALIGNED, *VISION_ADAPTERS, *PACKERS)
LM_HEAD = "the target's LM head"
DRAFT_IDS = 32000  # largest number of drafted ids
FRAMES = 8  # frames of a clip
LENGTH = 32  # tokens of the answer that is learned from
PAST = 64  # positions before a token that is timed
RUNS = 5  # least number of timed runs
SPARE = 1e9  # bytes of a pass besides weights and gradients


@dataclass(frozen=True)
class NetworkCost:
    """Size and processor time of one network.

    Args:
        network: name of the network, or `LM_HEAD`, which turns an adapter's features into logits.
        parameters: number of its own parameters, frozen ones included; those shared with the target are not counted.
        stored_bytes: bytes of its weights in a file.
        seconds: processor time per drafted token without its logits, or per clip for a network that reads a clip once.
        per: unit of `seconds`, `token` or `clip`.
    """

    network: str
    parameters: int
    stored_bytes: int
    seconds: float
    per: str

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        found = {"network": self.network, "parameters": self.parameters, "stored_bytes": self.stored_bytes}
        return {**found, f"ms_per_{self.per}": round(self.seconds * 1e3, 3)}


@dataclass(frozen=True)
class PairShapes:
    """Sizes of a target and of an event model, as their configurations state them."""

    target: Any
    drafter: Any

    @property
    def per_frame(self) -> int:
        """Number of visual tokens of a frame, its class token included."""
        vision = self.target.vision_config
        return (vision.image_size // vision.patch_size) ** 2 + 1

    def config(self, network: str) -> HeadConfig:
        """Configuration of the network by its recipe."""
        kind, text, vision = NETWORKS[network].config_class, self.target.text_config, self.drafter.vision_config
        # The attributes of a target that `sizes_of` reads.
        host = SimpleNamespace(text_config=text, context=text.max_position_embeddings)
        recipe = load_head_recipe(network).config if network in recipe_names() else {}
        sizes: dict[str, Any] = {
            "hidden_size": text.hidden_size,
            "vocab_size": text.vocab_size,
            "num_layers": text.num_hidden_layers,
            "draft_ids": tuple(range(min(text.vocab_size, DRAFT_IDS))),
        }
        if network in ALIGNED:
            own, several = self.drafter.text_config, cast("type[Adapter]", NETWORKS[network].network_class).fuses
            sizes |= {"drafter": "", "source_size": own.hidden_size}
            sizes["source_layers"] = source_layers(own.num_hidden_layers, several=several)
            if issubclass(NETWORKS[network].network_class, VisualAdapter):
                sizes |= {"visual_size": text.hidden_size, "patches": self.per_frame}
        elif network in VISION_ADAPTERS:
            sizes |= {"drafter": "", "source_size": vision.hidden_size, "tokens": self.per_frame}
            sizes["source_frames"], sizes["length"] = self.drafter.num_event_frames, FRAMES * self.per_frame
            sizes["source_tokens"] = (vision.image_size // vision.patch_size) ** 2 + 1
        else:
            vision = self.target.vision_config
            sizes |= {"source_size": vision.hidden_size, "side": vision.image_size // vision.patch_size}
            sizes |= {"class_token": True, "levels": default_levels(self.target)}
            sizes["heads"] = default_heads(vision.hidden_size)
        return config_of(network, sizes_of(kind, cast("Any", host)) | sizes | recipe, f"The shape of {network}")


def network_costs(shapes: PairShapes, names: Sequence[str] = NAMES, budget_s: float = 3.0) -> Iterator[NetworkCost]:
    """Measure one network after the other, then the target's LM head, in float32, on the threads that torch has.

    Args:
        budget_s: seconds for each measurement.

    Raises:
        CrossdraftError: an unknown name, or a network that does not fit into memory or has weights without a gradient.
    """
    for name in names:
        if name not in NAMES:
            raise CrossdraftError(f"'{name}' is no adapter or packer; choose among {', '.join(NAMES)}.")
    text = shapes.target.text_config
    for name in names:
        _check_memory(name, shapes.config(name))
    generator = torch.Generator().manual_seed(0)
    rows = torch.empty(text.vocab_size, text.hidden_size).normal_(0, 0.02, generator=generator)
    shared = SharedWeights(rows, rows)
    for name in names:
        yield _cost(name, shapes.config(name), shared, budget_s)
    feature, head = torch.randn(1, text.hidden_size), rows[: min(text.vocab_size, DRAFT_IDS)]
    yield NetworkCost(LM_HEAD, head.numel(), 0, _least_s(lambda: feature @ head.T, budget_s), "token")


def parameters_of(name: str, config: HeadConfig) -> int:
    """Number of a head's own parameters, counted without allocating them."""
    with torch.device("meta"):
        empty = torch.empty(config.vocab_size, config.hidden_size)
        return sum(value.numel() for value in make(name, config, SharedWeights(empty, empty)).stored().values())


def _check_memory(name: str, config: HeadConfig) -> None:
    """Refuse a network that does not fit: its weights, gradients and loaded copy, the target's embeddings and head."""
    numbers = 3 * parameters_of(name, config) + 2 * config.vocab_size * config.hidden_size
    needed, free = 4 * numbers + SPARE, free_memory(torch.device("cpu"))
    if needed > free:
        raise CrossdraftError(
            f"The network {name} of this size needs {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; leave it "
            "out, or choose a smaller pair."
        )


def _cost(name: str, config: HeadConfig, shared: SharedWeights, budget_s: float) -> NetworkCost:
    torch.manual_seed(0)
    head = make(name, config, shared)
    _learn(name, head)
    with tempfile.TemporaryDirectory() as folder:
        save_head(Path(folder), head, name, "")
        stored = (Path(folder) / WEIGHTS).stat().st_size
        parameters = sum(value.numel() for value in head.stored().values())
        del head
        head = load_head(Path(folder), shared, "", name)
    per = "token" if isinstance(head, Adapter) else "clip"
    with torch.inference_mode():
        return NetworkCost(name, parameters, stored, _least_s(_step(head), budget_s), per)


def _learn(name: str, head: Head) -> None:
    """Run one pass forward and backward; check that every trainable weight gets a gradient."""
    if not any(weight.requires_grad for weight in head.parameters()):
        return
    if isinstance(head, Adapter):
        predictions, tokens = head(_batch(head)), _tokens(head, LENGTH)
        loss = sum((F.cross_entropy(one.logits[0], tokens[0]) for one in predictions), torch.zeros(()))
        if isinstance(head, OwnAnswerAdapter):  # its logits do not depend on its features
            loss = loss + sum(one.features.square().mean() for one in predictions if one.features is not None)
    else:
        loss = cast("VisionAdapter | TokenPacker", head).predict(_clip(head)).square().mean()
    loss.backward()
    for weight_name, weight in head.named_parameters():
        if weight.requires_grad and (weight.grad is None or not bool(weight.grad.isfinite().all())):
            raise CrossdraftError(f"The weight {weight_name} of the network {name} learns nothing at this size.")
    head.zero_grad(set_to_none=True)


def _batch(adapter: Adapter) -> TrainBatch:
    """Batch of one answer with random features."""
    config = adapter.config
    hidden = {layer: torch.randn(1, LENGTH, config.source_size) for layer in config.source_layers}
    hidden[TARGET] = torch.randn(1, LENGTH, config.hidden_size)
    visual: Mapping[int, Tensor] = {}
    if isinstance(adapter, VisualAdapter):
        visual = {0: torch.randn(1, adapter.config.frames * adapter.config.patches, adapter.config.visual_size)}
    rows = _tokens(adapter, LENGTH), hidden, torch.tensor([4]), torch.tensor([LENGTH]), visual
    if isinstance(adapter, OwnAnswerAdapter):
        return IndexedBatch(*rows, own=_own_answer(adapter, LENGTH))
    return TrainBatch(*rows)


def _own_answer(adapter: OwnAnswerAdapter, count: int) -> OwnAnswer:
    """Own answer of `count` random tokens, in place of a drafter's."""
    states = torch.randn(1, count, adapter.config.source_size)
    best = torch.randn(1, count, adapter.config.vocab_size).log_softmax(-1).topk(adapter.top)
    return OwnAnswer(best.indices[..., 0], states, best.indices, best.values, torch.tensor([count]))


def _tokens(head: Head, count: int) -> Tensor:
    return torch.randint(0, len(head.draft_ids), (1, count))


def _clip(head: Head) -> Tensor:
    """Random features of one clip."""
    if isinstance(head, VisionAdapter):
        one = head.config
        return torch.randn(1, one.source_frames, one.source_tokens, one.source_size)
    config = cast("TokenPacker", head).config
    return torch.randn(1, FRAMES, config.grid.tokens, len(config.levels) * config.source_size)


def _step(head: Head) -> Callable[[], object]:
    """Build a call that drafts one token after `PAST` positions, or reads one clip, for networks that read once."""
    if not isinstance(head, Adapter):
        clip = _clip(head)
        return lambda: cast("VisionAdapter | TokenPacker", head).predict(clip)
    if isinstance(head, OwnAnswerAdapter):
        own = _own_answer(head, 1)
        return lambda: head.translate(own)
    width = head.config.source_size * len(head.config.source_layers)
    source, tokens = torch.randn(1, PAST + 1, 0 if isinstance(head, TokenAdapter) else width), _tokens(head, PAST + 1)
    if isinstance(head, VisualAdapter):
        seen = head.keys_values(_batch(head).visual[0])
        _, past = head.align(source[:, :PAST], tokens[:, :PAST], (), seen)
        return lambda: head.align(source[:, PAST:], tokens[:, PAST:], past, seen)
    _, past = head.align(source[:, :PAST], tokens[:, :PAST])
    if isinstance(head, TargetAdapter):
        before = torch.randn(1, 1, head.config.hidden_size)
        return lambda: head.fuse(source[:, PAST:], before, tokens[:, PAST:], past)
    return lambda: head.align(source[:, PAST:], tokens[:, PAST:], past)


def _least_s(run: Callable[[], object], budget_s: float) -> float:
    """Least processor time of several calls, in seconds: other programs on the machine only add to it."""
    times, begin = list[float](), time.perf_counter()
    while len(times) < RUNS or time.perf_counter() - begin < budget_s:
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)
