"""The two losses of the reference pair: attributes from a vision encoder's features, and answers from a whole VLM.

With next-token loss alone a small VLM stays on a long plateau, in which it writes likely answers without looking.
Classification of the scene's attributes gives vision encoder and prefix a gradient from the first minute. The attribute
heads for it are thrown away after training.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.engine.fast.packed_linear import has_bf16
from crossdraft_lab import scenes
from crossdraft_lab.scenes.answers import ANSWERS, AnswerTable
from crossdraft_lab.train.core.dist import LossFn, full_batch
from crossdraft_lab.train.reference.batches import (
    IGNORE,
    BatchSpec,
    Branches,
    QAPair,
    attribute_labels,
    augment_questions,
    draw_questions,
    pack_pairs,
)
from crossdraft_lab.train.reference.models import TrainableVLM
from crossdraft_lab.train.reference.packed import Prefix, read_prefix, run_branches
from crossdraft_lab.train.reference.recipe import AnswerPhase
from crossdraft_lab.train.reference.tokenizer import PromptCodec

QASource = Callable[[int, Sequence[int]], list[QAPair]]
"""(step, clips) -> questions and answers to learn, clip-major."""


class VisionAttributeHead(nn.Module):
    """One learned query an attribute, cross-attending over every patch of every frame; linear read-out."""

    def __init__(self, dim: int, frames: int, vocabulary: Mapping[str, Sequence[str]]) -> None:
        """`vocabulary`: attribute -> its values, in the order of the labels' columns."""
        super().__init__()
        self.frame = nn.Parameter(torch.randn(frames, dim) * 0.02)
        self.queries = nn.Parameter(torch.randn(len(vocabulary), dim) * 0.02)
        self.norm = nn.LayerNorm(dim)
        self.first = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.between = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.second = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.out = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, len(values)))
            for values in vocabulary.values()
        )

    def forward(self, patches: Tensor) -> list[Tensor]:
        """[clips, frames, n, d] -> per attribute [clips, values]."""
        memory = self.norm(patches + self.frame[:, None]).flatten(1, 2)
        query = self.queries.expand(patches.shape[0], -1, -1)
        query = query + self.first(query, memory, memory, need_weights=False)[0]
        query = query + self.between(query)
        query = query + self.second(query, memory, memory, need_weights=False)[0]
        return [head(query[:, i]) for i, head in enumerate(self.out)]


class PrefixAttributeHead(nn.Module):
    """Linear read-out of the language model's hidden states over the last visual tokens.

    It reads the states that the branches attend to: whatever it can read, a question token can attend to.
    """

    def __init__(self, dim: int, vocabulary: Mapping[str, Sequence[str]], last: int) -> None:
        """Read the mean of the `last` prefix positions."""
        super().__init__()
        self.last = last
        self.norm = nn.LayerNorm(dim)
        self.out = nn.ModuleList(nn.Linear(dim, len(values)) for values in vocabulary.values())

    def forward(self, hidden: Tensor) -> list[Tensor]:
        """[clips, P, d] -> per attribute [clips, values]."""
        pooled = self.norm(hidden[:, -self.last :].mean(1))
        return [head(pooled) for head in self.out]


def attribute_heads(vlm: TrainableVLM, frames: int, last: int) -> tuple[VisionAttributeHead, PrefixAttributeHead]:
    """New attribute heads for a VLM's vision encoder and prefix."""
    return (
        VisionAttributeHead(vlm.vision_encoder.config.hidden_size, frames, scenes.ATTRIBUTES),
        PrefixAttributeHead(vlm.llama.config.hidden_size, scenes.ATTRIBUTES, last),
    )


def attribute_loss(logits: Sequence[Tensor], labels: Tensor) -> tuple[Tensor, float]:
    """Mean cross-entropy, and the mean share of clips right; labels int64 [clips, attributes]."""
    losses = [F.cross_entropy(row.float(), labels[:, i]) for i, row in enumerate(logits)]
    right = [float((row.argmax(-1) == labels[:, i]).float().mean()) for i, row in enumerate(logits)]
    return torch.stack(losses).mean(), float(np.mean(right))


def vision_loss(vlm: TrainableVLM, head: VisionAttributeHead, spec: BatchSpec, clips: int) -> LossFn:
    """Attribute cross-entropy of the vision encoder's features."""

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        step_clips = spec.clips(step, clips)
        with autocast():
            logits = head(vlm.patches(spec.pixels(step, step_clips)))
            loss, right = attribute_loss(logits, attribute_labels(step_clips))
        return loss, {"right": right}

    return full_batch(loss_of)


def answer_loss(
    vlm: TrainableVLM, head: PrefixAttributeHead, spec: BatchSpec, codec: PromptCodec, phase: AnswerPhase, qa: QASource
) -> LossFn:
    """Next-token cross-entropy on the answers, plus attributes read from the prefix."""
    prefix_ids = codec.prefix_ids()
    weight = 0.0 if spec.blank else phase.attribute_weight

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        step_clips = spec.clips(step, phase.optim.clips)
        pairs = qa(step, step_clips)
        if phase.word_dropout:
            pairs = augment_questions(pairs, phase.word_dropout, spec.seed, step)
        rows = pack_pairs(codec, pairs)
        with autocast():
            visual = vlm.visual_tokens(vlm.patches(spec.pixels(step, step_clips)))
            prefix = read_prefix(vlm.llama, vlm.prefix_embeds(prefix_ids, visual))
            loss, right = token_loss(vlm, prefix, rows)
            figures = {"answers": float(loss.detach()), "right": right}
            if weight:
                attributes, figures["attributes"] = attribute_loss(head(prefix.hidden), attribute_labels(step_clips))
                loss = loss + weight * attributes
        return loss, figures

    return full_batch(loss_of)


def token_loss(vlm: TrainableVLM, prefix: Prefix, rows: Branches) -> tuple[Tensor, float]:
    """Return mean cross-entropy over answer tokens, and the share whose argmax is right; the head runs there only."""
    hidden = run_branches(vlm.llama, prefix, vlm.llama.embed_tokens(rows.tokens))
    wanted = rows.targets != IGNORE
    logits = vlm.head(hidden[wanted]).float()
    targets = rows.targets[wanted]
    return F.cross_entropy(logits, targets), float((logits.argmax(-1) == targets).float().mean())


def ground_truth_qa(questions: int, seed: int, answers: AnswerTable = ANSWERS) -> QASource:
    """Source of questions and true answers, drawn from (seed, step), in the words of `answers`."""

    def qa_of(step: int, clips: Sequence[int]) -> list[QAPair]:
        rng = np.random.default_rng([seed, step])
        return [
            QAPair(qa.question, qa.answer)
            for clip in clips
            for qa in draw_questions("train", clip, questions, rng, answers=answers)
        ]

    return qa_of


def recorded_qa(answers: Mapping[int, Sequence[QAPair]], questions: int, seed: int) -> QASource:
    """Source of the target's own answers: `questions` of those recorded for each clip, drawn from (seed, step)."""

    def qa_of(step: int, clips: Sequence[int]) -> list[QAPair]:
        rng = np.random.default_rng([seed, step])
        drawn = []
        for clip in clips:
            known = answers[clip]
            drawn += [known[i] for i in rng.permutation(len(known))[:questions].tolist()]
        return drawn

    return qa_of


def autocast() -> torch.autocast:
    """Context for bf16 products over fp32 weights, on a processor that has them."""
    return torch.autocast("cpu", torch.bfloat16, enabled=has_bf16())
