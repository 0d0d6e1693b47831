"""Training of PaSS's look-ahead embeddings (`heads.pass_.network`): through the frozen target, to its input rows.

The engine itself reads prompt and answer, as it does when drafting; only their keys and values are kept. After a few
positions of the answer the embeddings then stand where the probes of `heads.pass_.drafter` will stand,

    position p of the answer   A     red   car   …
    read after it             e1 e2 …  e1 e2 …        e(j) sees the text up to p, and e1 … e(j) of its own position
    predicts                   the token at p + 1 + j

and only in that pass gradients flow: L·H numbers learn, everything else stays unchanged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from crossdraft.engine.prefill import prefill
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head
from crossdraft.heads.networks.objective import LOSS_POSITIONS, LOSSES, Objective
from crossdraft.heads.pass_.drafter import PassDrafter
from crossdraft.heads.pass_.network import LookaheadEmbeddings
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.dist import LossFn, MicroBatch
from crossdraft_lab.train.heads.batches import EpochSampler, describe_answers
from crossdraft_lab.train.heads.measure import figures_json, measure
from crossdraft_lab.train.heads.task import (
    HeadTask,
    TaskData,
    TaskInputs,
    captured_source,
    check_of,
    validation_questions,
)


@dataclass(frozen=True)
class AnsweredPrompt:
    """A prompt, and the target's greedy answer to it."""

    prompt: Prompt
    answer: tuple[int, ...]


@dataclass(frozen=True)
class ReadAnswer:
    """Keys, values and logits of a prompt and its answer, as the target read them.

    Args:
        keys, values: [1, heads, P + n - 1, d] of each layer: for the prompt and the answer without its last token.
        logits: [n, V] at the position before each token of the answer.
        length: P, number of tokens of the prompt.
        offset: number added to positions of text; see `KVCache.rope_deltas`.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    logits: Tensor
    length: int
    offset: int


AnsweredOf = Callable[[int], Sequence[AnsweredPrompt]]
"""Returns the answers that a step learns from."""


def pass_loss(
    target: Target,
    head: LookaheadEmbeddings,
    answered_of: AnsweredOf,
    objective: Objective,
    anchors: int = 12,
    seed: int = 0,
) -> LossFn:
    """Loss of a step's micro-batch, for `core.trainer.Trainer`.

    Args:
        target: target with plain layers, not packed ones (`load_target(…, packed=False)`), and sdpa attention.
        head: the embeddings; the objective's step weight falls from the first embedding to the last.
        answered_of: returns a step's answers.
        objective: losses of labels or logits, over the whole vocabulary.
        anchors: number of positions in each answer after which the embeddings stand, drawn from (seed, step).

    Raises:
        CrossdraftError: the objective weighs a loss of features.
    """
    for name in objective.weights:
        if LOSSES[name].compares == "features":
            raise CrossdraftError(
                f"PaSS predicts no features, so the loss '{name}' does not apply; choose one of labels or logits."
            )
    target.model.requires_grad_(False)

    def loss_of(step: int, share: MicroBatch) -> tuple[Tensor, dict[str, float]]:
        rng = np.random.default_rng([seed, step])
        answered = [(one, _draw_positions(len(one.answer), anchors, rng)) for one in answered_of(step)]
        parts = [_loss_of_answer(target, head, one, drawn, objective) for one, drawn in share.take(answered) if drawn]
        count = sum(part[1] for part in parts)
        if not count:
            return head.ahead.sum() * 0, {LOSS_POSITIONS: 0.0}
        loss = torch.stack([part[0] for part in parts]).sum() / count
        right = torch.cat([part[2] for part in parts])
        return loss, {LOSS_POSITIONS: float(count)} | _figures(right)

    return loss_of


@torch.inference_mode()
def read_answer(target: Target, answered: AnsweredPrompt) -> ReadAnswer:
    """Read prompt and answer in the engine's own passes."""
    tree, length = DraftTree.chain(answered.answer[:-1]), len(answered.prompt)
    cache = target.new_cache(capacity=length + len(tree))
    out = prefill(target, cache, answered.prompt, target.encode(answered.prompt), cache.capacity, tree)
    cache.keep(0, range(len(tree)))
    layers = range(target.text_config.num_hidden_layers)
    keys, values = zip(*(cache.first(layer, cache.lengths[0]) for layer in layers), strict=True)
    return ReadAnswer(keys, values, out.logits[0], length, cache.rope_deltas[0])


def lookahead_logits(target: Target, head: LookaheadEmbeddings, read: ReadAnswer, anchors: Sequence[int]) -> Tensor:
    """Compute logits [anchors, L, V] after the embeddings, which stand after `anchors[i]` tokens of the answer."""
    model, steps, past = target.model, head.config.steps, read.keys[0].shape[2]
    embeds = head.ahead.to(model.dtype).repeat(len(anchors), 1)[None]
    before = torch.tensor(anchors, device=target.device).repeat_interleave(steps)
    number = torch.arange(1, steps + 1, device=target.device).repeat(len(anchors))
    index = read.length - 1 + before + number
    positions = (index + read.offset)[None]
    if target.traits.mrope:
        positions = positions.expand(3, 1, -1)
    text = torch.arange(past, device=target.device) < read.length + before[:, None]
    own = torch.block_diag(*[torch.ones(steps, steps).tril()] * len(anchors)).bool().to(target.device)
    seen = torch.cat((text, own), 1)[None, None]
    mask: Tensor | dict[str, Tensor] = seen
    if target.traits.window is not None:
        keys = torch.cat((torch.arange(past, device=target.device), index))
        near = keys > index[:, None] - target.traits.window
        mask = {"full_attention": seen, "sliding_attention": seen & near}
    cache = DynamicCache()
    for layer, (key, value) in enumerate(zip(read.keys, read.values, strict=True)):
        cache.update(key.clone(), value.clone(), layer)  # plain tensors again: gradients pass through them
    out = model(
        inputs_embeds=embeds, position_ids=positions, attention_mask=mask, past_key_values=cache, use_cache=True
    )
    return out.logits[0].unflatten(0, (len(anchors), steps))


def _draw_positions(length: int, anchors: int, rng: np.random.Generator) -> list[int]:
    """Draw positions after which there is at least one token to predict."""
    able = max(0, length - 1)
    return sorted(rng.permutation(able)[:anchors].tolist())


def _loss_of_answer(
    target: Target, head: LookaheadEmbeddings, answered: AnsweredPrompt, anchors: Sequence[int], objective: Objective
) -> tuple[Tensor, int, Tensor]:
    """Return an answer's summed loss, its number of positions, and [anchors, L]: 1 right, 0 wrong, -1 absent."""
    read = read_answer(target, answered)
    logits, end = lookahead_logits(target, head, read, anchors), len(answered.answer)
    labels, teacher = torch.tensor(answered.answer, device=logits.device), read.logits.clone()
    loss = logits.new_zeros((), dtype=torch.float32)
    right = torch.full(logits.shape[:2], -1)
    for step in range(logits.shape[1]):
        there = [i for i, anchor in enumerate(anchors) if anchor + 1 + step < end]
        if not there:
            break
        wanted = torch.tensor([anchors[i] + 1 + step for i in there], device=logits.device)
        rows = logits[there, step]
        right[there, step] = (rows.argmax(-1) == labels[wanted]).long().cpu()
        for name, weight in objective.weights.items():
            about = labels[wanted] if LOSSES[name].compares == "labels" else teacher[wanted]
            loss = loss + weight * objective.step_weight**step * LOSSES[name].measure(rows, about).sum()
    return loss, len(anchors), right


def _figures(right: Tensor) -> dict[str, float]:
    """Figures: `right_j` of each embedding where there was a token to predict, and `tau` of the chains."""
    figures = {
        f"right_{step + 1}": float((column == 1).sum() / (column >= 0).sum())
        for step, column in enumerate(right.T)
        if (column >= 0).any()
    }
    return figures | {"tau": 1 + float((right == 1).long().cumprod(1).sum(1).float().mean())}


class PassTask(HeadTask):
    """Training of PaSS's look-ahead embeddings; see `task.HeadTask`.

    Raises:
        CrossdraftError: there is no capture.
    """

    def __init__(self, inputs: TaskInputs) -> None:
        super().__init__(inputs)
        self.store = inputs.captured("PaSS learns from captured answers")

    @property
    def drafted(self) -> str:
        return "chains as long as there are embeddings"

    def data(self, head: Head) -> TaskData:
        validation = self.inputs.validation
        loss, sampler = self._loss(head, self.store)

        def describe(step: int) -> str:
            return describe_answers(sampler.numbers(step, self.inputs.recipe.optim.clips), self.store)

        return TaskData(loss, describe, None if validation is None else check_of(self._loss(head, validation)[0]))

    def measured_figures(self, head: Head, folder: Path) -> dict[str, object]:
        questions = validation_questions(self.inputs.validation, self.inputs.recipe.measure.pairs)
        if not questions:
            return {}
        embeddings = cast("LookaheadEmbeddings", head)
        drafter = PassDrafter(embeddings, sorted(self.host.reserved))
        requests = [request for _, request in questions]
        return figures_json({"pass": measure(self.host, drafter, requests, embeddings.config.steps)})

    def _loss(self, head: Head, store: CaptureStore) -> tuple[LossFn, EpochSampler]:
        """Build the loss on a capture's answers, mostly about different clips, and the order of the answers."""
        source, recipe = captured_source(store), self.inputs.recipe
        sampler = EpochSampler(len(store), recipe.seed)

        def answered(number: int) -> AnsweredPrompt:
            clip, question = source.locate(number)
            captured = store.answer(number)
            request = source.read(clip).requests(1)[question]
            return AnsweredPrompt(self.host.prepare(request), tuple(captured.tokens[captured.start :].tolist()))

        def answered_of(step: int) -> list[AnsweredPrompt]:
            return [answered(number) for number in sampler.numbers(step, recipe.optim.clips)]

        objective = Objective(recipe.loss, recipe.step_weight, recipe.keep_top)
        embeddings = cast("LookaheadEmbeddings", head)
        return pass_loss(self.host, embeddings, answered_of, objective, seed=recipe.seed), sampler
