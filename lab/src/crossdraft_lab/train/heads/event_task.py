"""Training of heads on an event model, on the target's captured answers, which the model reads after the clip.

The event model is small, and stays on the CPU. Losses of logits (`kl`, …) teach a head the event model's own next
tokens, which decides how many of the head's tokens the event model accepts; losses of labels (`cross_entropy`) teach
the target's tokens, which decides how many are accepted in the end. Where the two models agree, both losses do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.drafters.short_head import ShortHead
from crossdraft.engine.arrivals import evenly
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.event_medusa.drafter import DrafterMedusaDrafter, shared_weights_of
from crossdraft.heads.event_medusa.network import DrafterMedusa
from crossdraft.heads.glance.frame_encoder import FrameEncoder
from crossdraft.heads.glance.network import Glance, GlanceConfig
from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.load import event_fingerprint
from crossdraft_lab.objective import Objective, score, target_to_draft, teacher
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.dist import LossFn, full_batch
from crossdraft_lab.train.heads.clip_answers import PairedAnswers, drafter_states, paired_answers, train_batch
from crossdraft_lab.train.heads.clip_features import patches_per_frame
from crossdraft_lab.train.heads.recipe import HeadRecipe
from crossdraft_lab.train.heads.task import HeadTask, TaskData, TaskInputs, captured_source, check_of, load_event_model
from crossdraft_lab.train.reference.models import TrainableEventGPT

BatchOf = Callable[[int], TrainBatch]
"""Makes a step's batch: the target's answers, with the event model's features in place of the target's."""


@dataclass(frozen=True)
class EventBatches:
    """Batches of a step's answers; see `BatchOf`.

    Args:
        answers: answers of each step.
        model: the event model; it is not trained.
    """

    answers: PairedAnswers
    model: TrainableEventGPT

    @torch.no_grad()
    def __call__(self, step: int) -> TrainBatch:
        """Read the step's answers after the event model's view of their clips; its last features are kept."""
        rows, visual = self.answers.rows(self.answers.numbers(step)), self.answers.visual(step)
        states = drafter_states(self.model, self.answers.codec, visual, rows)
        return train_batch(rows, {len(self.model.llama.layers): states[-1]})


@dataclass(frozen=True)
class GlanceBatches:
    """`EventBatches` with visual layer 0, the features of the frames that a glance reads, before each answer.

    Args:
        events: the batches.
        visual_ids: ids of visual placeholders in the target's prompts.
        config: configuration that says which frames are read.
    """

    events: EventBatches
    visual_ids: frozenset[int]
    config: GlanceConfig

    def __call__(self, step: int) -> TrainBatch:
        batch, answers = self.events(step), self.events.answers
        clips = answers.features.numbers(step, answers.clips)
        features = torch.stack([self.frame_features(clip) for clip in clips])
        return replace(batch, visual={0: features.repeat_interleave(len(batch) // len(clips), 0)})

    def frame_features(self, clip: int) -> Tensor:
        """Features [frames · n, E] of the frames that the head reads.

        Raises:
            CrossdraftError: the capture lacks layer 0 of the visual part, or a frame has another number of features.
        """
        store = self.events.answers.store
        answer = store.answer(self.events.answers.by_clip[clip][0], visual_layers=(0,))
        visual = [i for i, token in enumerate(answer.visual_ids.tolist()) if token in self.visual_ids]
        rows, patches = answer.visual[0][visual].float(), self.config.patches
        if len(rows) == 0:
            raise CrossdraftError(
                f"The capture {store.folder} has no visual features; a glance learns from clips that are seen."
            )
        if len(rows) % patches:
            raise CrossdraftError(
                f"A clip of the capture has {len(rows)} visual features, not a multiple of the glance's "
                f"patches={patches}; give the recipe as many as the target has for a frame."
            )
        frames = rows.view(-1, patches, rows.shape[-1])
        return frames[evenly(len(frames), self.config.frames)].flatten(0, 1)


def event_head_loss(head: Head, batch_of: BatchOf, objective: Objective, rows: Tensor) -> LossFn:
    """Loss of Medusa heads and of `glance`; its figure `tau` counts the target's tokens.

    Args:
        head: head that is trained.
        batch_of: makes a step's batch of features and tokens.
        objective: losses and their weights.
        rows: the event model's own output rows [D, H] of the draft vocabulary.
    """
    layer = head.config.num_layers
    lookup = target_to_draft(head.draft_ids, head.config.vocab_size)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        batch = batch_of(step)
        logits, labels = teacher(batch, rows, layer, lookup)
        return score(objective, head(batch), batch, logits, labels)

    return full_batch(loss_of)


class EventTask(HeadTask):
    """Training of heads on an event model, from a capture; see `task.HeadTask`.

    Raises:
        CrossdraftError: there is no capture, or the event model cannot draft for the target.
    """

    in_one_piece = True

    def __init__(self, inputs: TaskInputs) -> None:
        super().__init__(inputs)
        network = inputs.recipe.network
        self.store = inputs.captured(f"The network '{network}' learns from answers about captured clips")
        self._host = load_event_model(inputs)

    @classmethod
    def default_device(cls, recipe: HeadRecipe) -> str:
        return "cpu"

    @property
    def host(self) -> Target:
        return self._host

    @property
    def fingerprint(self) -> str:
        return event_fingerprint(self.inputs.event)

    @property
    def draft_ids(self) -> Sequence[int]:
        """Draft vocabulary: tokens of the answers that the event model has, too."""
        head: Any = self.host.model.get_output_embeddings()
        if not isinstance(head, ShortHead):
            return super().draft_ids
        own = set(head.rows.tolist())
        return [token for token in super().draft_ids if token in own]

    def measured_settings(self, kind: type[HeadConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a glance: its target's fingerprint, and size and number per frame of the features it sees."""
        if not issubclass(kind, GlanceConfig):
            return {}
        target = self.inputs.target
        found = {"tower": self.inputs.fingerprint, "visual_size": target.text_config.hidden_size}
        if "patches" not in settings:
            request = captured_source(self.store).read(0).requests(1)[0]
            found["patches"] = patches_per_frame(target.prepare(request), target.traits.visual_ids)
        return {name: value for name, value in found.items() if name not in settings}

    def shared_weights(self) -> SharedWeights:
        return shared_weights_of(self.host)

    def data(self, head: Head) -> TaskData:
        answers, validation = self._answers(self.store), self.inputs.validation
        check = None if validation is None else check_of(self._loss(head, self._answers(validation)))
        return TaskData(self._loss(head, answers), answers.describe, check)

    def measured_figures(self, head: Head, folder: Path) -> dict[str, object]:
        def drafter() -> Drafter[Any]:
            banned = sorted(self.inputs.target.reserved)
            match head:
                case DrafterMedusa():
                    return DrafterMedusaDrafter(self.host, head, banned)
                case _:
                    glance = FrameEncoder(cast("Glance", head), self.inputs.target)
                    return IndependentDrafter(self.host, banned, glance=glance)

        return self.hidden_figures(drafter)

    def _answers(self, store: CaptureStore) -> PairedAnswers:
        """Answers for each step: all answers about some clips, because a clip is read once for all of them."""
        recipe = self.inputs.recipe
        return paired_answers(store, self.host, self.inputs.event, recipe.seed, recipe.optim.clips, finite=False)

    def _loss(self, head: Head, answers: PairedAnswers) -> LossFn:
        recipe, rows = self.inputs.recipe, self.shared_weights().lm_head[head.draft_ids].float()
        batches: BatchOf = EventBatches(answers, TrainableEventGPT(cast("Any", self.host.model)))
        if isinstance(head, Glance):
            batches = GlanceBatches(batches, self.inputs.target.traits.visual_ids, head.config)
            batches.frame_features(next(iter(answers.by_clip)))  # missing features are reported before training
            answers.store.require_finite((), (0,))
        return event_head_loss(head, batches, Objective(recipe.loss, recipe.step_weight), rows)
