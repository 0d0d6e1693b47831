"""The tuned drafter as a network: the weights that learn, and how all its weights are held during training.

Ranks may share all of its weights (FSDP2), the frozen ones too: each keeps its part, and one decoder layer at a time
is gathered for its forward and once more for its backward, then freed again. So a rank needs memory for its share of
the model, one layer, and the vision encoder, which stays whole within a step: it is run only for clips that are new.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from crossdraft.checkpoints.files import INDEX
from crossdraft.checkpoints.weights import Fill
from crossdraft.drafters.event.load import event_model
from crossdraft.dtypes import DTYPES
from crossdraft.engine.fast.quantized_linear import bytes_saved
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.load import Reduction
from crossdraft.models.eventgpt import EventGPTForConditionalGeneration
from crossdraft_lab.train.align.low_rank import attach_low_rank, to_int4_base
from crossdraft_lab.train.core.dist import MicroBatch, full_tensors, shard_units
from crossdraft_lab.train.core.finite import weight_files
from crossdraft_lab.train.heads.clip_answers import PairedAnswers, drafter_states, train_batch
from crossdraft_lab.train.reference.models import TrainableEventGPT
from crossdraft_lab.train.reference.packed import joined_layers

CONFIG = "config.json"
NOTHING: Mapping[str, Tensor] = MappingProxyType({})
Change = Callable[[str, Tensor], Tensor]
"""(name, weight before the training) -> present weight."""


def write_changed(
    source: Path, folder: Path | None, names: Collection[str], change: Change, added: Mapping[str, Tensor] = NOTHING
) -> None:
    """Write a checkpoint's weights into another folder in bf16, with new values for the weights that have changed.

    Memory: one file of the checkpoint, and one weight.

    Args:
        source: folder of the checkpoint.
        folder: folder to write to; `None` calls `change` in the same order but writes nothing. Where ranks share a
            weight, `change` gathers it, for which every rank must call it.
        names: names of the weights that have changed.
        change: called for each changed weight.
        added: further weights; they go into the last file, and replace any of the same name.

    Raises:
        CrossdraftError: the checkpoint has no weight of one of these names.
    """
    files, written, size = weight_files(source), {}, 0
    for path in files:
        tensors = dict(added) if path == files[-1] else {}
        with safe_open(path, "pt") as kept:
            for name in kept.keys():  # noqa: SIM118 - it is no dict
                if name in added or (folder is None and name not in names):
                    continue
                weight = kept.get_tensor(name)
                tensors[name] = change(name, weight).detach().cpu() if name in names else weight
        if folder is None:
            continue
        for name, weight in tensors.items():
            tensors[name] = (weight.to(torch.bfloat16) if weight.is_floating_point() else weight).cpu().contiguous()
        written |= dict.fromkeys(tensors, path.name)
        size += sum(weight.nbytes for weight in tensors.values())
        save_file(tensors, folder / path.name, {"format": "pt"})
    if folder is None:
        return
    lacking = sorted(set(names) - written.keys())
    if lacking:
        raise CrossdraftError(
            f"The checkpoint {source} has no weight '{lacking[0]}', into which something was learned; save it with "
            "crossdraft convert eventgpt first."
        )
    if len(files) > 1:
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(written.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def write_untied(source: Path, folder: Path) -> None:
    """Write a checkpoint's `config.json` into another folder, with LM head and token embeddings untied."""
    config: dict[str, Any] = json.loads((source / CONFIG).read_text(encoding="utf-8"))
    config["tie_word_embeddings"] = False
    if isinstance(text := config.get("text_config"), dict):
        text["tie_word_embeddings"] = False
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def read_weight(source: Path, names: Collection[str]) -> Tensor:
    """Read the first weight with one of these names that a checkpoint has.

    Raises:
        CrossdraftError: the checkpoint has no weight of these names.
    """
    for name in names:
        for path in weight_files(source):
            with safe_open(path, "pt") as kept:
                if name in kept.keys():  # noqa: SIM118 - it is no dict
                    return kept.get_tensor(name)
    raise CrossdraftError(f"The checkpoint {source} has no weight {' or '.join(names)}.")


LM_HEAD = "lm_head.weight"
HEADS = (LM_HEAD, "model.language_model.embed_tokens.weight")  # names of the head's weight; the second if it is tied
LANGUAGE = "model.language_model."  # prefix of the language model's layers
Base = Literal["float32", "bfloat16", "int4"]


class DraftHead(nn.Module):
    """Some rows of an LM head, as a module, because FSDP gathers weights when a module is called.

    Args:
        head: the LM head.
        draft_ids: [D] ids of the rows.
    """

    def __init__(self, head: nn.Module, draft_ids: Tensor) -> None:
        super().__init__()
        self.head, self.draft_ids = head, draft_ids

    def forward(self, states: Tensor) -> Tensor:
        """[..., H] -> [..., D]."""
        return states @ cast("Tensor", self.head.weight)[self.draft_ids].T


class TunedDrafter(nn.Module):
    """An EventGPT whose language model learns.

    Args:
        model: the model; it is changed in place, so load one for this. Its weights may still be unread.
        draft_ids: [D] ids that the drafter may draft, on the device where the model will be.
        rank, scale: rank and factor of the additions; rank 0 = all of the language model learns.
        head: [V, H] frozen head of the target, used in place of the drafter's own; `None` = the drafter's own.
        projection: [H, S] trained projection before that head, where the drafter is not as wide as the target.
    """

    def __init__(
        self,
        model: EventGPTForConditionalGeneration,
        draft_ids: Sequence[int] | Tensor,
        rank: int,
        scale: float,
        head: Tensor | None = None,
        projection: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.head = None if head is None else head.detach().to(torch.bfloat16).cpu()  # in the dtype of the file
        self.draft_ids = torch.as_tensor(draft_ids)
        self.rows = None if head is None else head.detach()[self.draft_ids.to(head.device)].to(self.draft_ids.device)
        self.projection = None if projection is None else nn.Parameter(projection.to(self.draft_ids.device))
        self.vlm = TrainableEventGPT(model)
        tied = model.lm_head.weight is self.vlm.llama.embed_tokens.weight
        self.unties = head is not None and tied  # its embeddings are not its head any more
        model.requires_grad_(False)
        self.additions = attach_low_rank(self.vlm.llama, rank, scale) if rank else {}
        if not rank:
            self.vlm.llama.requires_grad_(True)
            if head is None:
                model.lm_head.requires_grad_(True)
        for layer in self.additions.values():
            layer.low_rank.requires_grad_(True)
        self.learning = nn.ModuleList(
            [layer.low_rank for layer in self.additions.values()]
            or [self.vlm.llama, *([model.lm_head] if head is None else [])]
        )
        """What learns, and therefore what a checkpoint holds."""
        if self.projection is not None:
            self.learning.append(nn.ParameterList((self.projection,)))
        self.layers = joined_layers(self.vlm.llama)
        self.draft_head = DraftHead(model.lm_head, self.draft_ids)
        self.called = nn.ModuleList((*self.layers, self.draft_head))  # modules that FSDP shards

    def shard(self, mesh: DeviceMesh, fill: Fill) -> None:
        """Shard the weights of the language model and the head over the ranks while they are read.

        The trainer shards the other weights: the vision encoder's and the norms'.

        Args:
            mesh: mesh of the ranks.
            fill: reads the weights of a module.
        """
        units: list[nn.Module] = list(self.layers)
        words = self.vlm.llama.embed_tokens
        if words.weight is not self.model.lm_head.weight:  # one weight cannot belong to two units
            units += [words, self.draft_head]
        shard_units(units, mesh, fill)

    def batch_of(self, answers: PairedAnswers, step: int, share: MicroBatch) -> tuple[TrainBatch, Tensor]:
        """Return the drafter's last states along the share's answers, with gradients, and the target's features."""
        numbers, where = answers.numbers(step, share), self.draft_ids.device
        rows, features = answers.read(numbers)
        rows = rows.to(where)
        visual = answers.visual(step, share).to(where)
        states = drafter_states(self.vlm, answers.codec, visual, rows, self.layers)
        return train_batch(rows, {len(states) - 1: states[-1]}), features.to(where)

    def predict(self, batch: TrainBatch) -> list[DraftLogits]:
        """Compute logits with the drafter's own head, or with the target's, fed with the drafter's last state."""
        (states,) = batch.hidden.values()
        if self.rows is None:
            return [DraftLogits(0, self.draft_head(states))]
        features = states if self.projection is None else states @ self.projection.to(states.dtype).T
        return [DraftLogits(0, features @ self.rows.to(features.dtype).T, features)]

    def write(self, source: Path, folder: Path | None) -> None:
        """Write the checkpoint `source`, with the learned weights, into `folder`, in bf16, a weight at a time.

        Where ranks share the weights, every rank must call this; ranks without a folder only help to gather them.

        Raises:
            CrossdraftError: as `write_changed`.
        """
        added = {LM_HEAD: self.changed(LM_HEAD, read_weight(source, HEADS))} if self.unties else {}
        write_changed(source, folder, self.names, self.changed, added)
        if self.unties and folder is not None:
            write_untied(source, folder)

    @torch.no_grad()
    def changed(self, name: str, weight: Tensor) -> Tensor:
        """Return the present value of a weight in `names`; `weight` is its value before the training."""
        if self.head is not None and name == LM_HEAD:
            rows = min(len(weight), len(self.head))  # checkpoints pad their heads differently
            head = self.head[:rows]
            if self.projection is not None:
                head = (head.float() @ full_tensors(self.projection.detach()).float().cpu()).to(torch.bfloat16)
            return torch.cat((head, weight[rows:].to(head)))
        if not self.additions:
            return full_tensors(dict(self.model.named_parameters(remove_duplicate=False))[name])
        layer = self.additions[name.removeprefix(LANGUAGE).removesuffix(".weight")]
        return weight.float() + layer.addition().to("cpu", torch.float32)

    @property
    def names(self) -> set[str]:
        """Names of the weights that changed."""
        head = set() if self.head is None or self.unties else {LM_HEAD}
        if self.additions:
            return head | {f"{LANGUAGE}{name}.weight" for name in self.additions}
        return head | {name for name, weight in self.model.named_parameters() if weight.requires_grad}


@torch.no_grad()
def closest_projection(head: Tensor, source: Path) -> Tensor | None:
    """Projection [H, S] that brings a target's LM head [V, H] closest to a checkpoint's [V', S] (least squares).

    `None` if both are equally wide. Checkpoints pad their heads differently: the ids that both have are compared.

    Raises:
        CrossdraftError: as `read_weight`.
    """
    own = read_weight(source, HEADS)
    if own.shape[1] == head.shape[1]:
        return None
    rows = min(len(head), len(own))
    return torch.linalg.lstsq(head[:rows].double().cpu(), own[:rows].double()).solution.to(head)


def load_tuned(
    source: str,
    device: str,
    base: Base,
    make: Callable[[EventGPTForConditionalGeneration], TunedDrafter],
    mesh: DeviceMesh | None = None,
) -> tuple[Target, TunedDrafter]:
    """Load a drafter to be tuned; return it as a `Target`, and as the drafter that `make` builds.

    Args:
        source: name or folder, as in `load_drafter`.
        device: device of the drafter.
        base: precision of its frozen weights.
        make: builds the drafter from the model, before weights are read.
        mesh: ranks that share its weights: none of them ever holds them all, except in 4 bits during loading.

    Raises:
        CrossdraftError: as `load_drafter`.
    """
    dtype, made = "float32" if base == "float32" else "bfloat16", list[TunedDrafter]()

    def apply(model: Any, fill: Fill) -> None:
        if base == "int4":
            to_int4_base(model, fill)
        made.append(make(model))
        if mesh is not None:
            made[0].shard(mesh, fill)

    def saved(model: Any) -> int:
        if base == "int4":
            return bytes_saved(model, base)  # all of it is in 4 bits before it is shared out
        stored = sum(weight.numel() for weight in model.parameters()) * DTYPES[dtype].itemsize
        return 0 if mesh is None else stored - stored // mesh.size()

    reduction = Reduction(apply, saved)
    return event_model(source, device, dtype, packed=False, quantize=None, reduction=reduction)[0], made[0]
