"""The loss of PaSS's look-ahead embeddings (`heads.pass_.network`): through the frozen target, to its input rows.

The engine itself reads prompt and answer, as it will when it drafts; of that only keys and values are kept. Behind a
few places of the answer the embeddings then stand as the probes of `heads.pass_.drafter` will,

    place p of the answer      A     red   car   …
    read behind it             e1 e2 …  e1 e2 …        e(j) sees the text up to p, and e1 … e(j) of its own place
    says                       the word at p + 1 + j

and in that pass alone gradients flow: L·H numbers learn, all else stays as it is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from crossdraft.engine.target import Prompt, Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights
from crossdraft.heads.networks.losses import LOSSES
from crossdraft.heads.networks.objective import PLACES, Objective
from crossdraft.heads.pass_.drafter import PassDrafter
from crossdraft.heads.pass_.network import LookaheadEmbeddings
from crossdraft.train.capture.store import CaptureStore
from crossdraft.train.core.dist import LossFn, MicroBatch
from crossdraft.train.heads.event_data import Walk
from crossdraft.train.heads.measure import figures_of, measure
from crossdraft.train.heads.task import Given, Lectures, check_of, draft_ids_of, kept_back_requests, source_behind


@dataclass(frozen=True)
class Passage:
    """A prompt, and the target's greedy answer to it."""

    prompt: Prompt
    answer: tuple[int, ...]


@dataclass(frozen=True)
class ReadPassage:
    """What the target made of a passage.

    Args:
        keys, values: [1, heads, P + n - 1, d] of each layer: the prompt's, then all but the answer's last token's.
        logits: [n, V] what it says at each place of the answer.
        length: P, tokens of the prompt.
        offset: added to positions of text; see `KVCache`.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    logits: Tensor
    length: int
    offset: int


PassagesOf = Callable[[int], Sequence[Passage]]
"""step -> the answers it learns from."""


def pass_loss(
    target: Target,
    head: LookaheadEmbeddings,
    passages_of: PassagesOf,
    objective: Objective,
    places: int = 12,
    seed: int = 0,
) -> LossFn:
    """The loss of a step's share, for `core.trainer.Trainer`.

    Args:
        target: with plain layers, not packed ones (`load_target(…, packed=False)`), and sdpa attention.
        head: the embeddings; the objective's step weight falls from the first of them to the last.
        passages_of: answers.
        objective: losses of labels or logits, over the whole vocabulary.
        places: of each answer, drawn from (seed, step).

    Raises:
        CrossdraftError: the objective weighs a loss of features.
    """
    for name in objective.weights:
        if LOSSES[name].compares == "features":
            raise CrossdraftError(f"PaSS guesses no features, so '{name}' teaches it nothing; weigh a loss of words.")
    target.model.requires_grad_(False)

    def loss_of(step: int, share: MicroBatch) -> tuple[Tensor, dict[str, float]]:
        passages = passages_of(step)
        rng = np.random.default_rng([seed, step])
        drawn = [_drawn(len(passage.answer), places, rng) for passage in passages]
        parts = [
            _part(target, head, passage, some, objective)
            for passage, some in share.take(list(zip(passages, drawn, strict=True)))
            if len(some)
        ]
        count = sum(part[1] for part in parts)
        if not count:
            return head.ahead.sum() * 0, {PLACES: 0.0}
        loss = torch.stack([part[0] for part in parts]).sum() / count
        right = torch.cat([part[2] for part in parts])
        return loss, {PLACES: float(count)} | _figures(right)

    return loss_of


@torch.inference_mode()
def read_passage(target: Target, passage: Passage) -> ReadPassage:
    """Read prompt and answer in the engine's own passes."""
    told = DraftTree.chain(passage.answer[:-1])
    capacity = len(passage.prompt) + len(told)
    cache = target.new_cache(capacity=capacity)
    encoded = target.encode(passage.prompt)
    logits = target.prefill(cache, passage.prompt, encoded, capacity, lambda: (told, None)).out.logits[0]
    cache.keep(0, range(len(told)))
    end = cache.lengths[0]
    stores = [(layer.keys, layer.values) for layer in cache.layers]
    keys, values = (tuple(store[i][:, :, :end] for store in stores) for i in (0, 1))  # pyright: ignore[reportOptionalSubscript]
    return ReadPassage(keys, values, logits, len(passage.prompt), cache.rope_deltas[0])


def look_ahead(target: Target, head: LookaheadEmbeddings, read: ReadPassage, places: Sequence[int]) -> Tensor:
    """[places, L, V] what the target says behind the embeddings, `places[i]` tokens of the answer having been said."""
    model, steps, past = target.model, head.config.steps, read.keys[0].shape[2]
    embeds = head.ahead.to(model.dtype).repeat(len(places), 1)[None]
    said = torch.tensor(places, device=target.device).repeat_interleave(steps)
    ahead = torch.arange(1, steps + 1, device=target.device).repeat(len(places))
    positions = (read.length + read.offset - 1 + said + ahead)[None]
    if target.traits.mrope:
        positions = positions.expand(3, 1, -1)
    text = torch.arange(past, device=target.device) < read.length + said[:, None]
    own = torch.block_diag(*[torch.ones(steps, steps).tril()] * len(places)).bool().to(target.device)
    cache = DynamicCache()
    for layer, (key, value) in enumerate(zip(read.keys, read.values, strict=True)):
        cache.update(key.clone(), value.clone(), layer)  # plain tensors again: gradients pass through them
    out = model(
        inputs_embeds=embeds,
        position_ids=positions,
        attention_mask=torch.cat((text, own), 1)[None, None],
        past_key_values=cache,
        use_cache=True,
    )
    return out.logits[0].unflatten(0, (len(places), steps))


def _drawn(length: int, places: int, rng: np.random.Generator) -> list[int]:
    """Some of the places behind which at least one word can be foreseen."""
    able = max(0, length - 1)
    return sorted(rng.permutation(able)[:places].tolist())


def _part(
    target: Target, head: LookaheadEmbeddings, passage: Passage, places: Sequence[int], objective: Objective
) -> tuple[Tensor, int, Tensor]:
    """One answer: its summed loss, its places, and [places, L] what was right: 1, wrong: 0, not there: -1."""
    read = read_passage(target, passage)
    said, end = look_ahead(target, head, read, places), len(passage.answer)
    labels, teacher = torch.tensor(passage.answer, device=said.device), read.logits.clone()
    loss = said.new_zeros((), dtype=torch.float32)
    right = torch.full(said.shape[:2], -1)
    for step in range(said.shape[1]):
        there = [i for i, place in enumerate(places) if place + 1 + step < end]
        if not there:
            break
        wanted = torch.tensor([places[i] + 1 + step for i in there], device=said.device)
        rows = said[there, step]
        right[there, step] = (rows.argmax(-1) == labels[wanted]).long().cpu()
        for name, weight in objective.weights.items():
            about = labels[wanted] if LOSSES[name].compares == "labels" else teacher[wanted]
            loss = loss + weight * objective.step_weight**step * LOSSES[name].measure(rows, about).sum()
    return loss, len(places), right


def _figures(right: Tensor) -> dict[str, float]:
    """`right_j` of each embedding where there was a word to foresee, and `tau` of their chains."""
    figures = {
        f"right_{step + 1}": float((column == 1).sum() / (column >= 0).sum())
        for step, column in enumerate(right.T)
        if (column >= 0).any()
    }
    return figures | {"tau": 1 + float((right == 1).long().cumprod(1).sum(1).float().mean())}


@dataclass(frozen=True)
class PassCourse:
    """See `course.Course`.

    Args:
        given: what the training begins with.
        store: its capture.
    """

    given: Given
    store: CaptureStore

    @classmethod
    def of(cls, given: Given) -> "PassCourse":
        """The course.

        Raises:
            CrossdraftError: there is no capture.
        """
        if given.store is None:
            raise CrossdraftError(
                "PaSS learns from answers that have been given; give --capture FOLDER instead of --online."
            )
        return cls(given, given.store)

    @property
    def host(self) -> Target:
        return self.given.target

    @property
    def fingerprint(self) -> str:
        return self.given.fingerprint

    @property
    def draft_ids(self) -> Sequence[int]:
        return draft_ids_of(self.store, self.given.recipe.vocabulary.most, sorted(self.host.reserved))

    @property
    def about(self) -> str:
        return (
            f"Tokens a verify pass under the engine, bonus included, on {self.given.questions} questions about "
            "validation clips; chains as long as there are embeddings."
        )

    def measured_sizes(self, kind: type[HeadConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def tables(self) -> SharedWeights:
        return SharedWeights.of(self.host.model)

    def lectures(self, head: Head) -> Lectures:
        back = self.given.kept_back
        walk, order = self._walk(self.store)

        def describe(step: int) -> str:
            return f"answers {', '.join(map(str, order(step)))} of {self.store.folder}"

        check = None if back is None else check_of(self._loss(head, self._walk(back)[0]))
        return Lectures(self._loss(head, walk), describe, check)

    def measured(self, head: Head, folder: Path) -> dict[str, object]:
        requests = kept_back_requests(self.given.kept_back, self.given.recipe.measure.pairs)
        if not requests:
            return {}
        rows = cast("LookaheadEmbeddings", head)
        drafter = PassDrafter(rows, sorted(self.host.reserved))
        return figures_of({"pass": measure(self.host, drafter, requests, rows.config.steps)})

    def _walk(self, store: CaptureStore) -> tuple[PassagesOf, Callable[[int], list[int]]]:
        """What a step learns from: answers, each to a clip of its own more often than not, and their numbers."""
        source, recipe = source_behind(store), self.given.recipe
        walk = Walk(len(store), recipe.seed)

        def order(step: int) -> list[int]:
            return walk.clips(step, recipe.optim.clips)

        def passage(number: int) -> Passage:
            clip, prompt = source.locate(number)
            captured = store.answer(number)
            request = source.read(clip).requests(1)[prompt]
            return Passage(self.host.prepare(request), tuple(captured.tokens[captured.start :].tolist()))

        return lambda step: [passage(number) for number in order(step)], order

    def _loss(self, head: Head, passages_of: PassagesOf) -> LossFn:
        recipe = self.given.recipe
        objective = Objective(recipe.loss, recipe.step_weight)
        return pass_loss(self.host, cast("LookaheadEmbeddings", head), passages_of, objective, seed=recipe.seed)
