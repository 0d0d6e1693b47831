"""Training of heads on an event model, on the target's captured answers (`event_data`).

The event model is small, and stays on the CPU. Losses of logits (`kl`, …) teach a head what the event model itself
will say, which decides how many of its tokens that keeps; losses of labels (`cross_entropy`) teach the target's tokens,
which decide how many of those are kept in the end. Where the two models agree, they are one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.drafters.short_head import ShortHead
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.event_medusa.drafter import DrafterMedusaDrafter, shared_weights_of
from crossdraft.heads.event_medusa.network import DrafterMedusa
from crossdraft.heads.fast.drafter import FastDrafter
from crossdraft.heads.fast.network import Fast
from crossdraft.heads.glance.frame_encoder import FrameEncoder
from crossdraft.heads.glance.network import Glance, GlanceConfig
from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights, target_to_draft
from crossdraft.heads.networks.objective import OUTSIDE, Objective, score, teacher
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.load import event_fingerprint
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.dist import LossFn, full_batch
from crossdraft_lab.train.heads.event_data import (
    EventAnswers,
    EventBatch,
    FeatureCache,
    FeatureSource,
    GlanceData,
    NoFeatures,
    answers_by_clip,
    clip_events,
    first_answers,
    patches_per_frame,
)
from crossdraft_lab.train.heads.measure import figures_json, measure_hidden
from crossdraft_lab.train.heads.recipe import HeadRecipe
from crossdraft_lab.train.heads.task import (
    HeadTask,
    TaskData,
    TaskInputs,
    captured_source,
    check_of,
    load_event_model,
    validation_questions,
)
from crossdraft_lab.train.reference.losses import recorded_qa
from crossdraft_lab.train.reference.models import TrainableEventGPT
from crossdraft_lab.train.reference.tokenizer import EVENT, PromptCodec


def event_head_loss(head: Head, batch_of: Callable[[int], TrainBatch], objective: Objective, rows: Tensor) -> LossFn:
    """Loss of Medusa heads and of `glance`; its figure `tau` counts the target's tokens, as everywhere.

    Args:
        head: what is trained.
        batch_of: a step's features and tokens.
        objective: which losses, and their weights.
        rows: [D, H] the event model's own output rows of the draft vocabulary.
    """
    layer = head.config.num_layers
    lookup = target_to_draft(head.draft_ids, head.config.vocab_size)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        batch = batch_of(step)
        logits, labels = teacher(batch, rows, layer, lookup)
        return score(objective, head(batch), batch, logits, labels)

    return full_batch(loss_of)


def fast_loss(head: Fast, answers: EventAnswers) -> LossFn:
    """Loss of the fast draft head (`heads.fast.network`): cross-entropy over the first tokens of the target's answers.

    Figures: `right`, the share of positions whose likeliest token is the target's; `tau`, tokens of a first pass with
    the chain of these: 1 + those right in a row from the answer's beginning.
    """
    lookup = target_to_draft(head.draft_ids, head.config.vocab_size)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        event_batch = answers.event_batch(step)
        logits = fast_logits(head, event_batch)
        labels, there = first_words(event_batch, head.config.steps)
        known = torch.where(there, lookup[labels], OUTSIDE)
        loss = F.cross_entropy(logits.flatten(0, 1), known.flatten(), ignore_index=OUTSIDE)
        return loss, fast_figures(logits, known, there)

    return full_batch(loss_of)


def fast_logits(head: Fast, event_batch: EventBatch) -> Tensor:
    """[rows, N, D] the head's logits for the first tokens of each answer."""
    pairs = zip(event_batch.rows.tokens, event_batch.starts.tolist(), strict=True)
    questions = torch.stack([head.question(tokens[:start]) for tokens, start in pairs])
    if not head.config.sees:
        return head.marginal_logits(None, questions)
    each = len(questions) // len(event_batch.visual)
    return head.marginal_logits(event_batch.visual.repeat_interleave(each, 0), questions)


def first_words(event_batch: EventBatch, count: int) -> tuple[Tensor, Tensor]:
    """[rows, count] ids that each answer begins with, and where there are any."""
    positions = event_batch.starts[:, None] + torch.arange(count)
    there = positions < event_batch.lengths[:, None]
    return event_batch.rows.tokens.gather(1, positions.clamp(max=event_batch.rows.tokens.shape[1] - 1)), there


@torch.no_grad()
def fast_figures(logits: Tensor, known: Tensor, there: Tensor) -> dict[str, float]:
    """See `fast_loss`."""
    right = (logits.argmax(-1) == known) & there
    row = right.long().cumprod(1).sum(1)
    return {"right": float(right.sum() / there.sum().clamp(min=1)), "tau": 1 + float(row.float().mean())}


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
        """Tokens of the answers that the event model can say."""
        head: Any = self.host.model.get_output_embeddings()
        if not isinstance(head, ShortHead):
            return super().draft_ids
        own = set(head.rows.tolist())
        return [token for token in super().draft_ids if token in own]

    @property
    def drafted(self) -> str:
        return (
            "`hidden` the pass that verifies the hidden draft, and the share of those drafts accepted up to each "
            f"position; `rounds` the passes after it, of at most {self.inputs.recipe.measure.nodes} nodes"
        )

    def measured_settings(self, kind: type[HeadConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a glance: its target's fingerprint, and the size and number per frame of the features it sees."""
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
        answers, validation = self._answers(self.store, head), self.inputs.validation

        def describe(step: int) -> str:
            return f"the answers about clips {', '.join(map(str, answers.numbers(step)))} of {self.store.folder}"

        check = None
        if validation is not None:
            check = check_of(self._loss(head, self._answers(validation, head), validation))
        return TaskData(self._loss(head, answers, self.store), describe, check)

    def measured_figures(self, head: Head, folder: Path) -> dict[str, object]:
        settings, store, target = self.inputs.recipe.measure, self.inputs.validation, self.inputs.target
        questions = validation_questions(store, settings.pairs)
        if store is None or not questions:
            return {}
        source = captured_source(store)
        requests = [replace(request, events=clip_events(source, clip)) for clip, request in questions]
        banned = sorted(target.reserved)
        drafter: Drafter[Any]
        match head:
            case DrafterMedusa():
                drafter = DrafterMedusaDrafter(self.host, head, banned)
            case Glance():
                drafter = IndependentDrafter(self.host, banned, glance=FrameEncoder(head, target))
            case _:
                drafter = FastDrafter(self.host, cast("Fast", head), banned)
        return figures_json(measure_hidden(target, drafter, requests, settings.nodes))

    def _answers(self, store: CaptureStore, head: Head) -> EventAnswers:
        """A step's answers are all those about some clips, for a clip is read once for all of them."""
        source, seed = captured_source(store), self.inputs.recipe.seed
        codec = PromptCodec(cast("Any", self.host.prepare).processor.tokenizer, EVENT)
        known = answers_by_clip(store, codec, source.locate)
        each = min(map(len, known.values()))
        clips = min(max(1, self.inputs.recipe.optim.clips // each), len(source))
        features: FeatureSource = NoFeatures(len(source), seed)
        if not isinstance(head, Fast) or head.config.sees:
            owner = f"{self.fingerprint} {store.index.asked_sha256}"
            features = FeatureCache(self.host, source, seed, store.folder, owner)
        model = TrainableEventGPT(cast("Any", self.host.model))
        return EventAnswers(model, features, codec, recorded_qa(known, each, seed), clips)

    def _loss(self, head: Head, answers: EventAnswers, store: CaptureStore) -> LossFn:
        recipe = self.inputs.recipe
        if isinstance(head, DrafterMedusa | Glance):
            rows = self.shared_weights().lm_head[head.draft_ids].float()
            batch_of = self._with_frames(head, answers, store) if isinstance(head, Glance) else answers.batch
            return event_head_loss(head, batch_of, Objective(recipe.loss, recipe.step_weight, recipe.keep_top), rows)
        if set(recipe.loss) != {"cross_entropy"}:
            raise CrossdraftError(
                f"The fast head learns by cross_entropy alone, not by {', '.join(recipe.loss)}; correct the recipe's "
                "loss."
            )
        return fast_loss(cast("Fast", head), answers)

    def _with_frames(self, head: Glance, answers: EventAnswers, store: CaptureStore) -> Callable[[int], TrainBatch]:
        first = first_answers(store, captured_source(store).locate)
        data = GlanceData(answers, store, first, self.inputs.target.traits.visual_ids, head.config)
        data.frame_features(next(iter(first)))  # what a capture lacks is reported before training begins
        store.require_finite((), (0,))
        return data.batch
