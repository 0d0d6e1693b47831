"""Training of adapters that map the features of a drafter unfamiliar with the target's answers to the target's own.

The drafter is frozen, and on the target's device. Losses of features (`mse`, `cosine`) bring the drafter's features to
the target's; losses through the target's frozen head (`cross_entropy`, `kl`) weigh differences by their effect.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from crossdraft.errors import CrossdraftError
from crossdraft.heads.glance.frame_encoder import frame_features
from crossdraft.heads.networks.base import Head, HeadConfig
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.load import event_fingerprint
from crossdraft_lab.align.drafter import AlignedOptions
from crossdraft_lab.align.load import aligned_drafter
from crossdraft_lab.align.networks.base import Adapter
from crossdraft_lab.align.networks.own_answer import OwnAnswerAdapter
from crossdraft_lab.align.networks.token import TokenConfig
from crossdraft_lab.align.networks.visual import VisualConfig
from crossdraft_lab.networks import ALIGNED
from crossdraft_lab.objective import OUTSIDE, PREFIX, PREFIXES, Objective, score, target_to_draft, teacher
from crossdraft_lab.sizes import source_layers
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.dist import LossFn, full_batch
from crossdraft_lab.train.heads.clip_answers import (
    AlignmentData,
    FrozenDrafterData,
    OwnAnswerData,
    PairedAnswers,
    paired_answers,
)
from crossdraft_lab.train.heads.clip_features import FEATURES, FeatureCache, patches_per_frame
from crossdraft_lab.train.heads.recipe import HeadRecipe
from crossdraft_lab.train.heads.state_file import StateFile
from crossdraft_lab.train.heads.task import HeadTask, TaskData, TaskInputs, captured_source, check_of, load_event_model
from crossdraft_lab.train.reference.models import TrainableEventGPT


@dataclass(frozen=True)
class TargetHead:
    """Rows of the target's LM head for the tokens that may be drafted: `rows` [D, H] of `draft_ids`, of V tokens."""

    rows: Tensor
    draft_ids: Tensor
    vocab_size: int


ExtraLosses = Callable[[TrainBatch, Sequence[DraftLogits]], Mapping[str, tuple[float, Tensor]]]
"""Weights and losses of a batch's further losses, by name."""


def alignment_loss(
    predict: Callable[[TrainBatch], Sequence[DraftLogits]],
    batch_of: Callable[[int], tuple[TrainBatch, Tensor]],
    objective: Objective,
    target: TargetHead,
    *,
    hides: bool = True,
    extra: ExtraLosses | None = None,
) -> LossFn:
    """Loss against the target's features and, through its head, against its distribution and tokens.

    Its figure `prefix` is the mean accepted prefix of hidden drafts: tokens right in a row from the answer's first on.

    Args:
        predict: what is trained.
        batch_of: makes a step's batch with the drafter's states, and the target's features.
        objective: losses and their weights.
        target: rows of the target's head.
        hides: true if the first prediction at a position belongs to a hidden draft, which sees nothing of the target;
            if false, there is no `prefix`.
        extra: further losses that are added.
    """
    lookup = target_to_draft(target.draft_ids, target.vocab_size)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        batch, features = batch_of(step)
        with torch.autocast(features.device.type, enabled=False):
            logits, labels = teacher(replace(batch, hidden={0: features}), target.rows, 0, lookup)
        predictions = predict(batch)
        loss, figures = score(objective, predictions, batch, logits, labels, features)
        for name, (weight, value) in (extra(batch, predictions) if extra else {}).items():
            loss = loss + weight * value
            figures[name] = float(value.detach())
        if not hides:
            return loss, figures
        first = predictions[0]
        known = labels if first.valid is None else labels.masked_fill(~first.valid, OUTSIDE)
        return loss, figures | prefix_figures(first.logits, batch, known)

    return full_batch(loss_of)


@torch.no_grad()
def prefix_figures(logits: Tensor, batch: TrainBatch, labels: Tensor) -> dict[str, float]:
    """Mean number of tokens that the target accepts from greedy drafts made before its first token.

    If all tokens before a position are right, the drafter's own text is the target's; so the number follows from the
    predictions [B, T, D] along the target's answer.
    """
    asked = batch.loss_mask(0)
    right = (logits.argmax(-1) == labels) & (labels != OUTSIDE) & asked
    positions = torch.arange(labels.shape[1], device=labels.device)
    before = positions < batch.starts[:, None] - 1
    accepted = (right | before).long().cumprod(1).bool() & asked
    return {PREFIX: float(accepted.sum() / len(batch)), PREFIXES: float(len(batch))}


def check_layers(layers: Sequence[int], depth: int) -> None:
    """Refuse hidden states that the drafter does not have.

    Raises:
        CrossdraftError: the drafter lacks one of the layers.
    """
    missing, some = [layer for layer in layers if layer > depth], source_layers(depth, several=True)
    if missing:
        raise CrossdraftError(
            f"An adapter cannot read layer {missing[0]} of this drafter, whose {depth} layers have hidden states 0 to "
            f"{depth}; set config.source_layers, for example to {','.join(map(str, some))}."
        )


def reads_own_answers(network: str) -> bool:
    """True if an adapter reads the drafter's own answer, and not the drafter's states along the target's answer."""
    kind = cast("Any", ALIGNED[network].network_class)
    return issubclass(kind, OwnAnswerAdapter) or issubclass(kind.config_class, TokenConfig)


class AlignTask(HeadTask):
    """Training of adapters, from a capture; see `task.HeadTask`. Their host is the target, whose head they share.

    Raises:
        CrossdraftError: there is no capture, or the event model cannot draft for the target.
    """

    in_one_piece = True

    def __init__(self, inputs: TaskInputs) -> None:
        super().__init__(inputs)
        self.store = inputs.captured(f"The adapter '{inputs.recipe.network}' learns from answers about captured clips")
        device = inputs.target.device
        if device.type != "cpu" and reads_own_answers(inputs.recipe.network):
            raise CrossdraftError(
                f"The adapter '{inputs.recipe.network}' reads what the drafter says, which is written on the CPU while "
                "it is trained; leave out --device."
            )
        self.drafter = load_event_model(inputs, str(device))

    @classmethod
    def default_device(cls, recipe: HeadRecipe) -> str:
        return "cpu" if reads_own_answers(recipe.network) else super().default_device(recipe)

    def measured_settings(self, kind: type[HeadConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of the drafter's features, and its fingerprint; for `l4v`, also of the target's visual features."""
        text, network = self.drafter.text_config, cast("Any", ALIGNED[self.inputs.recipe.network].network_class)
        found: dict[str, Any] = {
            "source_size": text.hidden_size,
            "drafter": event_fingerprint(self.inputs.event),
            "source_layers": source_layers(text.num_hidden_layers, several=network.fuses),
        }
        if issubclass(kind, VisualConfig):
            target = self.inputs.target
            prompt = target.prepare(captured_source(self.store).read(0).requests(1)[0])
            found["visual_size"] = target.text_config.hidden_size
            found["patches"] = patches_per_frame(prompt, target.traits.visual_ids)
        layers, depth = settings.get("source_layers", found["source_layers"]), text.num_hidden_layers
        check_layers(layers, depth)
        if issubclass(network, OwnAnswerAdapter) and list(layers) != [depth]:
            raise CrossdraftError(
                f"The adapter '{self.inputs.recipe.network}' reads what the drafter's own tokens came from, its last "
                "layer; leave out config.source_layers."
            )
        return {name: value for name, value in found.items() if name not in settings}

    def data(self, head: Head) -> TaskData:
        recipe, validation = self.inputs.recipe, self.inputs.validation
        model = TrainableEventGPT(cast("Any", self.drafter.model))
        adapter = cast("Adapter", head)
        layers, config = adapter.reads, head.config
        own = config.own if isinstance(config, TokenConfig) else 0
        visual = config if isinstance(config, VisualConfig) else None
        losses = {name: weight for name, weight in recipe.loss.items() if name not in adapter.extras}
        objective = Objective(losses, recipe.step_weight)
        answers = self._answers(self.store)

        shared = TargetHead(head.lm_head.weight.detach(), head.draft_ids, head.config.vocab_size)

        def loss_of(some: PairedAnswers) -> LossFn:
            batches: FrozenDrafterData
            kept = StateFile(some.store.folder / FEATURES)
            if isinstance(adapter, OwnAnswerAdapter):
                batches = OwnAnswerData(some, model, adapter.config.own, adapter.top, kept=kept)
            else:
                frames = None if visual is None else self._frames(some, visual)
                batches = AlignmentData(some, model, layers, frames, own, kept=kept)
            hides, more = not adapter.reads_target, extra if losses != recipe.loss else None
            return alignment_loss(head, batches.batch, objective, shared, hides=hides, extra=more)

        def extra(batch: TrainBatch, predictions: Sequence[DraftLogits]) -> dict[str, tuple[float, Tensor]]:
            found = adapter.extra_losses(batch, predictions)
            return {name: (recipe.loss[name], value) for name, value in found.items()}

        check = None
        if validation is not None:
            check = check_of(loss_of(self._answers(validation)))
        return TaskData(loss_of(answers), answers.describe, check)

    def _answers(self, store: CaptureStore) -> PairedAnswers:
        recipe = self.inputs.recipe
        return paired_answers(store, self.drafter, self.inputs.event, recipe.seed, recipe.optim.clips)

    def _frames(self, answers: PairedAnswers, config: VisualConfig) -> FeatureCache:
        """Cache of the clips' frames that an adapter sees through the target's vision encoder."""
        inputs, store, source = self.inputs, answers.store, captured_source(answers.store)

        def encode(clip: int) -> Tensor:
            request = source.read(clip).requests(1)[0]
            return frame_features(request, config.frames, config.patches, inputs.target).float()

        owner = f"{inputs.fingerprint} {store.index.asked_sha256} {config.frames}"
        return FeatureCache("frames", encode, inputs.target, source, inputs.recipe.seed, store.folder, owner)

    def measured_figures(self, head: Head, folder: Path) -> dict[str, object]:
        options = AlignedOptions(sorted(self.inputs.target.reserved), host=self.inputs.target)
        return self.hidden_figures(lambda: aligned_drafter(self.drafter, cast("Adapter", head), options))
