"""Medusa-2's joint training of target and heads (Cai et al. 2024, §2.2.2).

**The target's answers change.** The result is a new target in a folder of its own, with heads for it; drafting with
these is lossless with respect to the new target, not to the original one. Measure the new target's answers before
replacing the old one.

The target's attention gets low-rank additions (LoRA: Hu et al. 2022); the rest of it is frozen. The loss is

    LM(answers) + λ0 · heads        answers: the target's earlier ones; λ0 = 0.2

whose first term keeps the target's answers as they were. The paper trains the heads four times as fast as the target,
and alone at first; so start from trained heads, and here the additions are slowed down (`SLOW`) instead.
`train.heads.medusa2` runs this training.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from transformers import PreTrainedModel

from crossdraft.engine.prompt import Prompt
from crossdraft.errors import CrossdraftError
from crossdraft.files import fingerprint
from crossdraft.heads.files import save_head
from crossdraft.heads.networks.base import Head
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft_lab.objective import LOSS_POSITIONS, Objective, score, target_to_draft, teacher
from crossdraft_lab.train.capture.check import full_pass
from crossdraft_lab.train.core.dist import LossFn, MicroBatch, MicroLoss, merge_losses

RANK, HEADS_WEIGHT, SLOW = 32, 0.2, 0.25
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj")
# Files of a checkpoint that stay valid for the new one (tokenizer, settings, licence), and those that do not.
WORDS = (".json", ".txt", ".model", ".jinja", "")
OUTDATED = ("provenance.json", ".index.json")
PromptAnswer = tuple[Prompt, Sequence[int]]
"""A prompt, and the target's answer to it before the training."""


class LowRank(nn.Module):
    """W + scale · B·A over a frozen W [out, in]; B is zero at first, so that the addition is zero.

    B and A are float32 at least: in bfloat16 a small step is lost in rounding.
    """

    def __init__(self, weight: Tensor, rank: int, scale: float) -> None:
        super().__init__()
        self.scale, self.on = scale, True
        wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
        self.down = nn.Parameter(torch.randn(rank, weight.shape[1]).to(wide) * weight.shape[1] ** -0.5)
        self.up = nn.Parameter(wide.new_zeros(weight.shape[0], rank))

    def forward(self, weight: Tensor) -> Tensor:
        """Add to a weight [out, in]."""
        return weight + (self.scale * self.up @ self.down).to(weight.dtype) if self.on else weight


class JointModel(nn.Module):
    """A target and its head in joint training.

    Args:
        model: the target; it is changed in place, so load it for this.
        head: head that reads only the last feature of the target.
        objective: losses of the head's logits.
        visual_ids: ids of visual placeholders in prompts.
        rank: rank of the additions.
        heads_weight: λ0.

    Raises:
        CrossdraftError: the head reads other features of the target, or there is no attention to add to.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: Head,
        objective: Objective,
        visual_ids: frozenset[int],
        rank: int = RANK,
        heads_weight: float = HEADS_WEIGHT,
    ) -> None:
        super().__init__()
        last = head.config.num_layers
        if head.reads != (last,) or head.visual_reads:
            raise CrossdraftError(
                "Only heads that read the target's last feature, and nothing else of it, learn jointly with it; "
                f"{type(head).__name__} does not; take Medusa, Hydra or ReDrafter."
            )
        self.model, self.head, self.objective = model, head, objective
        self.visual_ids, self.heads_weight = visual_ids, heads_weight
        self.layers = add_low_rank(model, rank)
        self.learning = nn.ModuleDict({"head": head, "additions": nn.ModuleList(map(low_rank_of, self.layers))})
        """What learns, and therefore what a checkpoint holds."""

    @contextmanager
    def without_additions(self) -> Iterator[None]:
        """Switch the additions off: within the context the target computes what it did before training, to the bit."""
        additions = [low_rank_of(layer) for layer in self.layers]
        for one in additions:
            one.on = False
        try:
            yield
        finally:
            for one in additions:
                one.on = True

    def loss_of(self, answers_of: Callable[[int], Sequence[PromptAnswer]]) -> LossFn:
        """Loss of a step's micro-batch, for `core.trainer.Trainer`; `answers_of` gives the answers of a step."""

        def loss_of(step: int, share: MicroBatch) -> tuple[Tensor, dict[str, float]]:
            found = [self.loss(*pair) for pair in share.take(answers_of(step))]
            parts = [MicroLoss(float(loss.detach()), figures[LOSS_POSITIONS], figures) for loss, figures in found]
            # An answer weighs by its number of positions, so that micro-batches add up to the batch, as for heads.
            total = torch.stack([loss * figures[LOSS_POSITIONS] for loss, figures in found]).sum()
            return total / (sum(part.weight for part in parts) or 1.0), merge_losses(parts)[1]

        return loss_of

    def loss(self, prompt: Prompt, answer: Sequence[int]) -> tuple[Tensor, dict[str, float]]:
        """Compute the loss of one answer: the target's own and the heads'."""
        out, ids = full_pass(self.model, prompt, answer)
        start, end = len(prompt), len(ids)
        own = F.cross_entropy(out.logits[0, start - 1 : end - 1].float(), ids[start:])
        batch = self._batch(out.hidden_states[-1], ids, start)
        rows = cast("Any", self.model.get_output_embeddings()).weight.detach()[self.head.draft_ids]
        last, lookup = (self.head.config.num_layers, target_to_draft(self.head.draft_ids, self.head.config.vocab_size))
        with torch.no_grad():
            logits, labels = teacher(batch, rows, last, lookup)
        drafted, figures = score(self.objective, self.head(batch), batch, logits, labels)
        figures |= {"own": float(own.detach()), "heads": float(drafted.detach())}
        return own + self.heads_weight * drafted, figures

    def merge(self) -> None:
        """Merge the additions into the target's weights, so that it is an ordinary model again."""
        merge_low_rank(self.layers)
        self.layers = []

    def _batch(self, features: Tensor, ids: Tensor, start: int) -> TrainBatch:
        """Batch of the text after the last visual token; gradients go through its features into the target."""
        visual = [i for i, token in enumerate(ids[:start].tolist()) if token in self.visual_ids]
        cut = min(visual[-1] + 1, start - 1) if visual else 0
        starts, lengths = (torch.tensor([count], device=ids.device) for count in (start - cut, len(ids) - cut))
        features = features[:, cut:].to(next(self.head.parameters()).dtype)
        hidden: Mapping[int, Tensor] = {self.head.config.num_layers: features}
        return TrainBatch(ids[None, cut:], hidden, starts, lengths)


def add_low_rank(model: PreTrainedModel, rank: int = RANK, scale: float = SLOW) -> list[nn.Linear]:
    """Freeze a model except low-rank additions to its text decoder's attention; return the layers that got some.

    Args:
        model, rank: the model, and the rank of the additions.
        scale: factor of the additions.

    Raises:
        CrossdraftError: the model has no such layers under their usual names.
    """
    model.requires_grad_(False)
    decoder: Any = model.get_decoder()
    layers = [
        layer
        for name, layer in decoder.named_modules()
        if isinstance(layer, nn.Linear) and name.rpartition(".")[2] in ADAPTED
    ]
    if not layers:
        raise CrossdraftError(
            f"{type(model).__name__} has no {', '.join(ADAPTED)} that could learn; train the heads alone."
        )
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, rank, scale))
    return layers


def merge_low_rank(layers: Sequence[nn.Linear]) -> None:
    """Merge additions into the weights of the layers that have them."""
    for layer in layers:
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def low_rank_of(layer: nn.Linear) -> LowRank:
    """The parametrization that `add_low_rank` gave a layer."""
    return cast("Any", layer).parametrizations.weight[0]


def save_joint(folder: Path, joint: JointModel, network: str, source: Path) -> None:
    """Write `folder/target`, the merged checkpoint with the tokenizer and the like of `source`, and `folder/head`.

    The source's weights are not copied, nor its model card, which describes the old target.
    """
    joint.merge()
    target, head = folder / "target", folder / "head"
    joint.model.save_pretrained(target)
    copy_settings(source, target)
    head.mkdir()
    save_head(head, joint.head, network, fingerprint(target))


def copy_settings(source: Path, folder: Path) -> None:
    """Copy the files that stay valid after training: tokenizer, settings, licence; existing ones are kept."""
    for path in source.iterdir():
        stays = path.suffix in WORDS and not path.name.endswith(OUTDATED)
        if path.is_file() and stays and not (folder / path.name).exists():
            shutil.copy(path, folder)
