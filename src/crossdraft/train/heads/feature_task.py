"""The course of heads that read the target's features: from a capture, or from a target that is asked meanwhile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossdraft.engine.target import Target
from crossdraft.heads.drafting.static import ACCEPTANCE
from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights, target_to_draft
from crossdraft.heads.networks.objective import Objective, acceptance_counts, score, teacher
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.train.capture.online import OnlineBatches
from crossdraft.train.capture.sources import SceneSource
from crossdraft.train.capture.store import CaptureStore
from crossdraft.train.core.dist import LossFn, MicroBatch
from crossdraft.train.heads.batches import Lessons, Stored, noisy
from crossdraft.train.heads.measure import figures_of, methods_of, worth
from crossdraft.train.heads.recipe import HeadRecipe, levels_read, scales_of
from crossdraft.train.heads.task import CHECKED, Check, Given, Lectures, draft_ids_of, kept_back_requests


@dataclass(frozen=True)
class Teaching:
    """A head, and what it is taught by.

    Args:
        head: the network.
        rows: [D, H] the target's output rows of the draft vocabulary.
        recipe: weights of losses, noise.
    """

    head: Head
    rows: Tensor
    recipe: HeadRecipe

    def loss_of(self, lessons: Lessons) -> LossFn:
        """The loss of a step's share."""
        objective = self._objective()
        extra = {name: weight for name, weight in self.recipe.loss.items() if name in self.head.extras}

        def loss_of(step: int, share: MicroBatch) -> tuple[Tensor, dict[str, float]]:
            lesson = lessons.batch(step, self.recipe.optim.clips, share).to(self.rows.device)
            logits, labels = self._teacher(lesson)
            first = share.take(range(self.recipe.optim.clips))[0]
            heard = noisy(lesson, self.recipe.noise, self.recipe.seed, step, first)
            guesses = self.head(heard)
            loss, figures = score(objective, guesses, lesson, logits, labels, self.head.last(lesson.hidden))
            for name, value in self.head.extra_losses(lesson, guesses).items() if extra else ():
                loss = loss + extra[name] * value
                figures[name] = float(value.detach())
            return loss, figures

        return loss_of

    @torch.inference_mode()
    def figures(self, lessons: Lessons, steps: int) -> dict[str, float]:
        """τ of chains and the share right at each offset, teacher-forced, over all places of `steps` batches.

        What no place was judged at is left out.
        """
        totals: dict[str, tuple[int, int]] = {}
        for step in range(steps):
            lesson = lessons.batch(step, self.recipe.optim.clips, MicroBatch()).to(self.rows.device)
            _, labels = self._teacher(lesson)
            guesses = sorted(self.head(lesson), key=lambda guess: guess.offset)
            for name, (right, count) in acceptance_counts(guesses, lesson, labels).items():
                known = totals.get(name, (0, 0))
                totals[name] = known[0] + right, known[1] + count
        return {name: right / count for name, (right, count) in totals.items()}

    def _teacher(self, lesson: TrainBatch) -> tuple[Tensor, Tensor]:
        config = self.head.config
        lookup = target_to_draft(config.draft_ids, config.vocab_size)
        return teacher(lesson, self.rows, config.num_layers, lookup)

    def _objective(self) -> Objective:
        """The losses of guesses: all but those that the network gives itself."""
        weights = {name: w for name, w in self.recipe.loss.items() if name not in self.head.extras}
        return Objective(weights, self.recipe.step_weight)


SIZED = 16  # answers on which scales are measured


@dataclass(frozen=True)
class FeatureCourse:
    """See `course.Course`."""

    given: Given

    @property
    def host(self) -> Target:
        return self.given.target

    @property
    def fingerprint(self) -> str:
        return self.given.fingerprint

    @cached_property
    def draft_ids(self) -> Sequence[int]:
        store, target = self.given.store, self.given.target
        if store is None:
            return [token for token in range(target.vocab_size) if token not in target.reserved]
        return draft_ids_of(store, self.given.recipe.vocabulary.most, sorted(target.reserved))

    @property
    def about(self) -> str:
        settings = self.given.recipe.measure
        return (
            f"Tokens a verify pass under the engine, bonus included, on {self.given.questions} questions about "
            f"validation clips; trees of {settings.nodes} nodes, chains of {settings.chain}."
        )

    def measured_sizes(self, kind: type[HeadConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
        """`level_scales`: one over the root mean square of each level that the head fuses, on a few answers."""
        levels = levels_read(kind, settings)
        if not levels or "level_scales" in settings:
            return {}
        lesson = self._source(sorted(set(levels)), ()).batch(0, SIZED, MicroBatch())
        return {"level_scales": scales_of(lesson.hidden, lesson.lengths.tolist(), levels)}

    def tables(self) -> SharedWeights:
        return SharedWeights.of(self.given.target.model)

    def lectures(self, head: Head) -> Lectures:
        recipe, back = self.given.recipe, self.given.kept_back
        rows = self.tables().head.to(self.host.device)[head.draft_ids].float()
        teaching = Teaching(head, rows, recipe)
        lessons = self._source(*_wanted(head))
        if self.given.questions:
            methods_of(recipe.network)  # what cannot be measured is missed now, and not when all is learned
        check = None if back is None else _check(teaching, self._stored(back, *_wanted(head)))
        return Lectures(teaching.loss_of(lessons), lambda step: lessons.describe(step, recipe.optim.clips), check)

    def measured(self, head: Head, folder: Path) -> dict[str, object]:
        """τ of every way of drafting with this network; acceptance by rank is left beside the weights."""
        recipe = self.given.recipe
        requests = kept_back_requests(self.given.kept_back, recipe.measure.pairs)
        if not requests:
            return {}
        found, counts = worth(self.host, head, recipe.network, requests, recipe.measure)
        counts.save(folder / ACCEPTANCE)
        return figures_of(found)

    def _source(self, layers: Sequence[int], visual: Sequence[int]) -> Lessons:
        """What is learned from, with these layers."""
        store = self.given.store
        if store is not None:
            return self._stored(store, layers, visual)
        scenes = SceneSource(clips=self.given.online, seed=self.given.recipe.seed)
        return OnlineBatches(self.host, scenes, layers, visual)

    def _stored(self, store: CaptureStore, layers: Sequence[int], visual: Sequence[int]) -> Stored:
        store.require_layers(layers, visual)  # what is not there is missed now, and not after the first steps
        return Stored(store, layers, visual, self.given.recipe.seed)


def _wanted(head: Head) -> tuple[Sequence[int], Sequence[int]]:
    """What the head reads, and the last layer, by which it is judged."""
    return sorted({*head.reads, head.config.num_layers}), head.visual_reads


def _check(teaching: Teaching, kept_back: Lessons) -> Check:
    def check(step: int) -> Mapping[str, float]:
        return teaching.figures(kept_back, CHECKED)

    return check
