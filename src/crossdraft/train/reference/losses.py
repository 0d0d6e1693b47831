"""The two losses of the reference pair: attributes from a tower, and answers from a whole VLM."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft import scenes
from crossdraft.engine.fast.packed_linear import has_bf16
from crossdraft.train.core.dist import LossFn, full_batch
from crossdraft.train.reference.attributes import PrefixHead, SightHead, attribute_accuracy, attribute_loss
from crossdraft.train.reference.batches import Look, Spoken, draw_questions, labels, question_rows, question_words, wear
from crossdraft.train.reference.models import Seer, prefix_embeds
from crossdraft.train.reference.packed import Prefix, read_prefix, run_branches
from crossdraft.train.reference.packing import IGNORE, Branches
from crossdraft.train.reference.prompt import PromptCodec
from crossdraft.train.reference.recipe import AnswerPhase

TextsOf = Callable[[int, Sequence[int]], list[Spoken]]
"""(step, clips) -> what was asked and said, clip-major."""


def sight_loss(seer: Seer, head: SightHead, look: Look, clips: int) -> LossFn:
    """Attribute cross-entropy of the tower's features."""

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        seen = look.clips(step, clips)
        truth = labels(seen)
        with autocast():
            logits = head(seer.patches(look.pixels(step, seen)))
            loss = attribute_loss(logits, truth)
        return loss, {"right": float(np.mean(attribute_accuracy(logits, truth)))}

    return full_batch(loss_of)


def answer_loss(
    seer: Seer, head: PrefixHead, look: Look, codec: PromptCodec, train: AnswerPhase, texts_of: TextsOf
) -> LossFn:
    """Next-token cross-entropy on the answers, plus attributes read from the prefix."""
    prefix_ids = torch.tensor([codec.prefix_ids()])
    words = question_words()
    weight = 0.0 if look.blank else train.attribute_weight

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        seen = look.clips(step, train.optim.clips)
        spoken = texts_of(step, seen)
        if train.question_wear:
            rng = np.random.default_rng([look.seed, step, 3])
            spoken = [replace(s, question=wear(s.question, train.question_wear, words, rng)) for s in spoken]
        rows = question_rows(codec, spoken)
        with autocast():
            visual = seer.visual_tokens(seer.patches(look.pixels(step, seen)))
            prefix = read_prefix(seer.llama, prefix_embeds(seer, prefix_ids, visual))
            answers, right = token_loss(seer, prefix, rows)
            figures = {"answers": float(answers.detach()), "right": right}
            loss = answers
            if weight:
                logits, truth = head(prefix.hidden), labels(seen)
                loss = answers + weight * attribute_loss(logits, truth)
                figures["attributes"] = float(np.mean(attribute_accuracy(logits, truth)))
        return loss, figures

    return full_batch(loss_of)


def token_loss(seer: Seer, prefix: Prefix, rows: Branches) -> tuple[Tensor, float]:
    """Mean cross-entropy over answer tokens, and the share whose argmax is right; the head runs there only."""
    hidden = run_branches(seer.llama, prefix, seer.llama.embed_tokens(rows.tokens))
    wanted = rows.targets != IGNORE
    logits = seer.head(hidden[wanted]).float()
    targets = rows.targets[wanted]
    return F.cross_entropy(logits, targets), float((logits.argmax(-1) == targets).float().mean())


def drawn_texts(questions: int, seed: int) -> TextsOf:
    """Ground truth: questions and answers drawn from (seed, step)."""

    def texts_of(step: int, clips: Sequence[int]) -> list[Spoken]:
        rng = np.random.default_rng([seed, step])
        return [
            Spoken(qa.question, qa.answer) for clip in clips for qa in draw_questions("train", clip, questions, rng)
        ]

    return texts_of


def answered_texts(answers: Mapping[int, Sequence[Spoken]], questions: int, seed: int) -> TextsOf:
    """The target's own answers: `questions` of those recorded for each clip, drawn from (seed, step)."""

    def texts_of(step: int, clips: Sequence[int]) -> list[Spoken]:
        rng = np.random.default_rng([seed, step])
        drawn = []
        for clip in clips:
            known = answers[clip]
            drawn += [known[i] for i in rng.permutation(len(known))[:questions].tolist()]
        return drawn

    return texts_of


def autocast() -> torch.autocast:
    """bf16 products over fp32 weights, on a processor that has them."""
    return torch.autocast("cpu", torch.bfloat16, enabled=has_bf16())


def heads_for(seer: Seer, frames: int, tokens_per_frame: int) -> tuple[SightHead, PrefixHead]:
    """Fresh attribute heads for a seer's tower and prefix."""
    width = seer.tower.config.hidden_size
    return (
        SightHead(width, frames, scenes.ATTRIBUTES),
        PrefixHead(seer.llama.config.hidden_size, scenes.ATTRIBUTES, tokens_per_frame),
    )


def together(**modules: nn.Module) -> nn.ModuleDict:
    """Named modules as one, for the optimiser and the checkpoint."""
    return nn.ModuleDict(modules)
