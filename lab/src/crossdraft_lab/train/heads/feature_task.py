"""Training of heads that read the target's features: from a capture, or from a target that answers during training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossdraft.heads.drafting.head_drafter import ACCEPTANCE
from crossdraft.heads.networks.base import Head, HeadConfig
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft_lab.objective import Objective, acceptance_counts, score, target_to_draft, teacher
from crossdraft_lab.train.capture.sources import SceneSource
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.dist import LossFn, MicroBatch
from crossdraft_lab.train.heads.batches import BatchSource, OnlineBatches, StoredBatches, add_noise
from crossdraft_lab.train.heads.measure import figures_json, measure_methods, methods_of
from crossdraft_lab.train.heads.recipe import HeadRecipe, levels_read, scales_of
from crossdraft_lab.train.heads.task import CHECKED, Check, HeadTask, TaskData, validation_questions

SCALE_SAMPLE = 16  # answers from which scales are computed


@dataclass(frozen=True)
class HeadLoss:
    """Loss and figures of a head on the target's answers.

    Args:
        head: the network.
        rows: the target's output rows [D, H] of the draft vocabulary.
        recipe: recipe with the losses' weights and the noise.
    """

    head: Head
    rows: Tensor
    recipe: HeadRecipe

    def loss_of(self, batches: BatchSource) -> LossFn:
        """Loss of a step's micro-batch, of the head's logits and features."""
        recipe = self.recipe
        objective = Objective(recipe.loss, recipe.step_weight)

        def loss_of(step: int, share: MicroBatch) -> tuple[Tensor, dict[str, float]]:
            batch = batches.batch(step, recipe.optim.clips, share).to(self.rows.device)
            logits, labels = self._teacher(batch)
            first = share.take(range(recipe.optim.clips))[0]
            drafts = self.head(add_noise(batch, recipe.noise, recipe.seed, step, first))
            return score(objective, drafts, batch, logits, labels, self.head.last_feature(batch.hidden))

        return loss_of

    @torch.inference_mode()
    def figures(self, batches: BatchSource, steps: int, passes: int = 1) -> dict[str, float]:
        """Compute τ of chains and the share right at each offset, teacher-forced, over all of `steps` batches.

        Each batch is cut into `passes`, because its logits over a large vocabulary may not fit into memory.

        Offsets without a loss position are left out.
        """
        totals: dict[str, tuple[int, int]] = {}
        for step, part in product(range(steps), range(passes)):
            batch = batches.batch(step, self.recipe.optim.clips, MicroBatch(part, passes)).to(self.rows.device)
            _, labels = self._teacher(batch)
            drafts = sorted(self.head(batch), key=lambda draft: draft.offset)
            for name, (right, count) in acceptance_counts(drafts, batch, labels).items():
                known = totals.get(name, (0, 0))
                totals[name] = known[0] + right, known[1] + count
        return {name: right / count for name, (right, count) in totals.items()}

    def _teacher(self, batch: TrainBatch) -> tuple[Tensor, Tensor]:
        config = self.head.config
        lookup = target_to_draft(config.draft_ids, config.vocab_size)
        return teacher(batch, self.rows, config.num_layers, lookup)


class FeatureTask(HeadTask):
    """Training of heads that read the target's features; see `task.HeadTask`."""

    @property
    def drafted(self) -> str:
        settings = self.inputs.recipe.measure
        return f"trees of {settings.nodes} nodes, chains of {settings.chain}"

    def measured_settings(self, kind: type[HeadConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
        """`level_scales`: 1 / root mean square of each level that the head fuses, over a few answers.

        Before one norm of all levels they are 1: its weights undo them, and no other project's files hold them there.
        """
        levels = levels_read(kind, settings)
        if not levels or "level_scales" in settings:
            return {}
        if settings.get("norm_before_fc"):
            return {"level_scales": (1.0,) * len(levels)}
        batch = self._source(sorted(set(levels)), ()).batch(0, SCALE_SAMPLE, MicroBatch())
        return {"level_scales": scales_of(batch.hidden, batch.lengths.tolist(), levels)}

    def data(self, head: Head) -> TaskData:
        recipe, validation = self.inputs.recipe, self.inputs.validation
        rows = self.shared_weights().lm_head.to(self.host.device)[head.draft_ids].float()
        loss = HeadLoss(head, rows, recipe)
        # The layers that the head reads, and the last layer, from which its labels are computed.
        layers = sorted({*head.reads, head.config.num_layers}), head.visual_reads
        batches = self._source(*layers)
        if self.inputs.questions:
            methods_of(recipe.network)  # raises before training, not after, if nothing can measure the network
        check: Check | None = None
        if validation is not None:
            held_out = self._stored(validation, *layers)
            optim = recipe.optim
            passes = min(optim.accumulate, *(len(held_out.indices(step, optim.clips)) for step in range(CHECKED)))
            check = partial(_check, loss, held_out, passes)

        return TaskData(loss.loss_of(batches), lambda step: batches.describe(step, recipe.optim.clips), check)

    def measured_figures(self, head: Head, folder: Path) -> dict[str, object]:
        """τ of every way of drafting with this network; acceptance by rank is written beside the weights."""
        recipe = self.inputs.recipe
        requests = [request for _, request in validation_questions(self.inputs.validation, recipe.measure.pairs)]
        if not requests:
            return {}
        found, counts = measure_methods(self.host, head, recipe.network, requests, recipe.measure)
        counts.save(folder / ACCEPTANCE)
        return figures_json(found)

    def _source(self, layers: Sequence[int], visual: Sequence[int]) -> BatchSource:
        """Source of the training batches with these layers' features."""
        if self.inputs.store is not None:
            return self._stored(self.inputs.store, layers, visual)
        scenes = SceneSource(clips=self.inputs.online, seed=self.inputs.recipe.seed)
        return OnlineBatches(self.host, scenes, layers, visual)

    def _stored(self, store: CaptureStore, layers: Sequence[int], visual: Sequence[int]) -> StoredBatches:
        store.require_finite(layers, visual)  # raises before training, not after the first steps
        return StoredBatches(store, layers, visual, self.inputs.recipe.seed)


def _check(loss: HeadLoss, batches: BatchSource, passes: int, _: int) -> Mapping[str, float]:
    return loss.figures(batches, CHECKED, passes)
