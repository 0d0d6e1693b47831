"""Medusa-2's joint recipe (Cai et al. 2024, §2.2.2): target and heads learn together.

**The target's words change.** What comes out is a new target in a folder of its own, and heads for that one; drafting
with them is lossless with respect to the new target, and says nothing of the one it began from. Measure its answers
before it takes the other's place.

The target's attention gets low-rank additions (LoRA: Hu et al. 2022), the rest of it is frozen. The loss is

    LM(answers) + λ0 · heads        answers: what the target said before; λ0 = 0.2

whose first term keeps the target at its words. The paper trains the heads four times as fast as the target, and on
their own first; so give heads that have learned already, and here it is the additions that are slowed down (`SLOW`).
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from transformers import PreTrainedModel

from crossdraft.engine.target import Prompt
from crossdraft.errors import CrossdraftError
from crossdraft.fingerprint import fingerprint
from crossdraft.folders import atomic_folder
from crossdraft.models.heads.base import Head, positions_of
from crossdraft.models.heads.files import save_head
from crossdraft.models.heads.lesson import Lesson
from crossdraft.models.heads.objective import Objective, score, teacher
from crossdraft.train.share import LossOf, Share

RANK, HEADS_WEIGHT, SLOW = 32, 0.2, 0.25
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj")
Asked = tuple[Prompt, Sequence[int]]
"""A prompt, and what the target answered before."""


class LowRank(nn.Module):
    """W + scale · B·A over a frozen W [out, in]; B is zero at first, so that nothing is added yet."""

    def __init__(self, weight: Tensor, rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.down = nn.Parameter(torch.randn(rank, weight.shape[1]).to(weight) * weight.shape[1] ** -0.5)
        self.up = nn.Parameter(weight.new_zeros(weight.shape[0], rank))

    def forward(self, weight: Tensor) -> Tensor:
        """[out, in] -> [out, in]."""
        return weight + self.scale * self.up @ self.down


class Joint(nn.Module):
    """A target and its head while they learn together.

    Args:
        model: the target; it is changed in place, so load it for this.
        head: reads the target's last feature and nothing else of it.
        objective: losses of the head's guesses.
        visual_ids: ids that stand for something visual in prompts.
        rank: of the additions.
        heads_weight: λ0.

    Raises:
        CrossdraftError: the head reads more of the target, or there is no attention to add to.
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
                f"Only heads on the target's last feature learn jointly with it; {type(head).__name__} reads more."
            )
        self.model, self.head, self.objective = model, head, objective
        self.visual_ids, self.heads_weight = visual_ids, heads_weight
        self.layers = adapt(model, rank)

    def loss_of(self, asked: Callable[[int], Sequence[Asked]]) -> LossOf:
        """The loss of a step's share, as `train.loop.optimise` wants it; `asked` says what a step learns from."""

        def loss_of(step: int, share: Share) -> tuple[Tensor, dict[str, float]]:
            parts = [self.loss(*pair) for pair in share.take(asked(step))]
            names = parts[0][1]
            figures = {name: sum(found.get(name, 0.0) for _, found in parts) / len(parts) for name in names}
            return torch.stack([loss for loss, _ in parts]).mean(), figures

        return loss_of

    def loss(self, prompt: Prompt, answer: Sequence[int]) -> tuple[Tensor, dict[str, float]]:
        """Of one answer: the target's own loss and the heads'."""
        out, ids = self._read(prompt, answer)
        start, end = len(prompt), len(ids)
        own = F.cross_entropy(out.logits[0, start - 1 : end - 1].float(), ids[start:])
        lesson = self._lesson(out.hidden_states[-1], ids, start)
        rows = cast("Any", self.model.get_output_embeddings()).weight.detach()[self.head.draft_ids]
        last, lookup = (
            self.head.config.num_layers,
            positions_of(self.head.draft_ids, self.head.config.vocab_size),
        )
        with torch.no_grad():
            said, labels = teacher(lesson, rows, last, lookup)
        guessed, figures = score(self.objective, self.head(lesson), lesson, said, labels)
        figures |= {"own": float(own.detach()), "heads": float(guessed.detach())}
        return own + self.heads_weight * guessed, figures

    def merge(self) -> None:
        """Make the additions part of the target's weights: an ordinary model again."""
        for layer in self.layers:
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
        self.layers = []

    def _read(self, prompt: Prompt, answer: Sequence[int]) -> tuple[Any, Tensor]:
        device, dtype = self.model.device, self.model.dtype
        ids = torch.cat((prompt.input_ids.cpu(), torch.tensor(answer))).to(device)
        features = {
            name: value.to(device, dtype if value.is_floating_point() else None)
            for name, value in prompt.features.items()
            if name != "mm_token_type_ids"  # of the prompt's length; serves positions alone
        }
        out: Any = self.model(input_ids=ids[None], **features, use_cache=False, output_hidden_states=True)
        return out, ids

    def _lesson(self, features: Tensor, ids: Tensor, start: int) -> Lesson:
        """The text behind the last visual token; gradients go through its features into the target."""
        visual = [place for place, token in enumerate(ids[:start].tolist()) if token in self.visual_ids]
        cut = min(visual[-1] + 1, start - 1) if visual else 0
        starts, lengths = (
            torch.tensor([count], device=ids.device) for count in (start - cut, len(ids) - cut)
        )
        hidden: Mapping[int, Tensor] = {self.head.config.num_layers: features[:, cut:]}
        return Lesson(ids[None, cut:], hidden, starts, lengths)


def adapt(model: PreTrainedModel, rank: int = RANK) -> list[nn.Linear]:
    """Freeze a model but for low-rank additions to its text decoder's attention; returns the layers that got some.

    Raises:
        CrossdraftError: it has no such layers under their usual names.
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
        parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, rank, SLOW))
    return layers


def save_joint(out: Path, joint: Joint, network: str, source: Path) -> None:
    """Write `out/target`, the merged checkpoint with the tokenizer and the like of `source`, and `out/head` for it."""
    joint.merge()
    with atomic_folder(out) as folder:
        joint.model.save_pretrained(folder / "target")
        for path in source.iterdir():
            if (
                path.is_file()
                and path.suffix != ".safetensors"
                and not (folder / "target" / path.name).exists()
            ):
                shutil.copy(path, folder / "target")
        (folder / "head").mkdir()
        save_head(folder / "head", joint.head, network, fingerprint(folder / "target"))
