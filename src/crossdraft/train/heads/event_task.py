"""The course of heads on an event model: the target's captured answers, read behind events (`events`).

The event model is small, and stays on the CPU.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from crossdraft.load import event_fingerprint, load_drafter, vocabulary_of
from crossdraft.train.capture.store import CaptureStore
from crossdraft.train.core.dist import LossFn, full_batch
from crossdraft.train.heads.event_data import (
    EventAnswers,
    GlanceAnswers,
    Heard,
    Seen,
    Unseen,
    events_of,
    firsts_of,
    patches_of,
    spoken_of,
)
from crossdraft.train.heads.measure import figures_of, measure_hidden
from crossdraft.train.heads.task import Given, Lectures, check_of, draft_ids_of, kept_back_questions, source_behind
from crossdraft.train.reference.losses import recorded_qa
from crossdraft.train.reference.models import TrainableEventGPT
from crossdraft.train.reference.tokenizer import EVENT, PromptCodec


def cross_loss(head: Head, batch_of: Callable[[int], TrainBatch], objective: Objective, rows: Tensor) -> LossFn:
    """The loss of a step, for `core.trainer.Trainer`; its figure `tau` counts the target's words, as everywhere.

    Args:
        head: what is trained.
        batch_of: a step's features and words.
        objective: which losses, and how they weigh.
        rows: [D, H] the event model's own output rows of the draft vocabulary.
    """
    layer = head.config.num_layers
    lookup = target_to_draft(head.draft_ids, head.config.vocab_size)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        lesson = batch_of(step)
        logits, labels = teacher(lesson, rows, layer, lookup)
        return score(objective, head(lesson), lesson, logits, labels)

    return full_batch(loss_of)


def fast_loss(head: Fast, answers: EventAnswers) -> LossFn:
    """The loss of a step, for `core.trainer.Trainer`.

    Figures: `right`, the share of the places whose likeliest word is the target's; `tau`, tokens of a first pass with
    the chain of these: 1 + those right in a row from the answer's beginning.
    """
    lookup = target_to_draft(head.draft_ids, head.config.vocab_size)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        heard = answers.heard(step)
        logits = said(head, heard)
        labels, there = first_words(heard, head.config.steps)
        known = torch.where(there, lookup[labels], OUTSIDE)
        loss = F.cross_entropy(logits.flatten(0, 1), known.flatten(), ignore_index=OUTSIDE)
        return loss, accepted(logits, known, there)

    return full_batch(loss_of)


def said(head: Fast, heard: Heard) -> Tensor:
    """[rows, N, D] what the head says of each answer."""
    pairs = zip(heard.rows.tokens, heard.starts.tolist(), strict=True)
    questions = torch.stack([head.asked(tokens[:start]) for tokens, start in pairs])
    if not head.config.sees:
        return head.marginal_logits(None, questions)
    each = len(questions) // len(heard.visual)
    return head.marginal_logits(heard.visual.repeat_interleave(each, 0), questions)


def first_words(heard: Heard, count: int) -> tuple[Tensor, Tensor]:
    """[rows, count] ids that each answer begins with, and where there are any."""
    places = heard.starts[:, None] + torch.arange(count)
    there = places < heard.lengths[:, None]
    return heard.rows.tokens.gather(1, places.clamp(max=heard.rows.tokens.shape[1] - 1)), there


@torch.no_grad()
def accepted(logits: Tensor, known: Tensor, there: Tensor) -> dict[str, float]:
    """See `fast_loss`."""
    right = (logits.argmax(-1) == known) & there
    row = right.long().cumprod(1).sum(1)
    return {"right": float(right.sum() / there.sum().clamp(min=1)), "tau": 1 + float(row.float().mean())}


@dataclass(frozen=True)
class EventCourse:
    """See `course.Course`.

    Args:
        given: what the training begins with.
        store: its capture.
        host: the event model behind its adapter.
    """

    given: Given
    store: CaptureStore
    host: Target

    @classmethod
    def of(cls, given: Given) -> "EventCourse":
        """The course with its event model.

        Raises:
            CrossdraftError: there is no capture, or the event model cannot draft for the target.
        """
        if given.store is None:
            raise CrossdraftError(
                f"The network '{given.recipe.network}' learns from what was said about recorded clips; give --capture "
                "FOLDER instead of --online."
            )
        words = vocabulary_of(given.source)
        banned = tuple(sorted(given.target.reserved))
        drafter = load_drafter(given.event, "cpu", "float32", banned, words, packed=False)
        return cls(given, given.store, drafter.model)

    @property
    def fingerprint(self) -> str:
        return event_fingerprint(self.given.event)

    @property
    def draft_ids(self) -> Sequence[int]:
        """Words of the answers that the event model can say."""
        ids = draft_ids_of(self.store, self.given.recipe.vocabulary.most, sorted(self.given.target.reserved))
        head: Any = self.host.model.get_output_embeddings()
        if not isinstance(head, ShortHead):
            return ids
        own = set(head.rows.tolist())
        return [token for token in ids if token in own]

    @property
    def about(self) -> str:
        settings = self.given.recipe.measure
        return (
            f"Tokens a verify pass under the engine, bonus included, on {self.given.questions} questions about "
            f"validation clips: `hidden` the pass that verifies the hidden draft, and the share of those drafts "
            f"accepted up to each position; `rounds` the passes after it, of at most {settings.nodes} nodes."
        )

    def measured_sizes(self, kind: type[HeadConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
        """`visual_size` and `patches` of a glance: those of the target's visual features."""
        if not issubclass(kind, GlanceConfig):
            return {}
        target = self.given.target
        found = {"visual_size": target.text_config.hidden_size}
        if "patches" not in settings:
            request = source_behind(self.store).read(0).requests(1)[0]
            found["patches"] = patches_of(target.prepare(request), target.traits.visual_ids)
        return {name: value for name, value in found.items() if name not in settings}

    def tables(self) -> SharedWeights:
        return shared_weights_of(self.host)

    def lectures(self, head: Head) -> Lectures:
        answers, kept_back = self._answers(self.store, head), self.given.kept_back
        count = answers.clips

        def describe(step: int) -> str:
            clips = ", ".join(map(str, answers.look.clips(step, count)))
            return f"the answers about clips {clips} of {self.store.folder}"

        check = None
        if kept_back is not None:
            loss = self._loss(head, self._answers(kept_back, head), kept_back)
            check = check_of(loss)
        return Lectures(self._loss(head, answers, self.store), describe, check)

    def measured(self, head: Head, folder: Path) -> dict[str, object]:
        settings, store, target = self.given.recipe.measure, self.given.kept_back, self.given.target
        asked = kept_back_questions(store, settings.pairs)
        if store is None or not asked:
            return {}
        source = source_behind(store)
        requests = [replace(request, events=events_of(source, clip)) for clip, request in asked]
        banned = sorted(target.reserved)
        drafter: Drafter[Any]
        match head:
            case DrafterMedusa():
                drafter = DrafterMedusaDrafter(self.host, head, banned)
            case Glance():
                drafter = IndependentDrafter(self.host, banned, glance=FrameEncoder(head, target))
            case _:
                drafter = FastDrafter(self.host, cast("Fast", head), banned)
        return figures_of(measure_hidden(target, drafter, requests, settings.nodes))

    def _answers(self, store: CaptureStore, head: Head) -> EventAnswers:
        """A step's answers are all those about some clips, for a clip is read once for all of them."""
        source, seed = source_behind(store), self.given.recipe.seed
        codec = PromptCodec(cast("Any", self.host.prepare).processor.tokenizer, EVENT)
        spoken = spoken_of(store, codec, source.locate)
        each = min(map(len, spoken.values()))
        clips = min(max(1, self.given.recipe.optim.clips // each), len(source))
        owner = f"{self.fingerprint} {store.index.asked_sha256}"
        file = self.given.out / f"seen-{store.index.asked_sha256[:12]}.safetensors"
        blind = isinstance(head, Fast) and not head.config.sees
        sight = Unseen(len(source), seed) if blind else Seen(self.host, source, seed, file, owner)
        seer = TrainableEventGPT(cast("Any", self.host.model))
        return EventAnswers(seer, sight, codec, recorded_qa(spoken, each, seed), clips)

    def _loss(self, head: Head, answers: EventAnswers, store: CaptureStore) -> LossFn:
        recipe = self.given.recipe
        if isinstance(head, DrafterMedusa | Glance):
            rows = self.tables().head[head.draft_ids].float()
            batch_of = self._glancing(head, answers, store) if isinstance(head, Glance) else answers.lesson
            return cross_loss(head, batch_of, Objective(recipe.loss, recipe.step_weight), rows)
        if set(recipe.loss) != {"cross_entropy"}:
            raise CrossdraftError(
                f"The fast head learns by cross_entropy alone, not by {', '.join(recipe.loss)}; correct the recipe's "
                "loss."
            )
        return fast_loss(cast("Fast", head), answers)

    def _glancing(self, head: Glance, answers: EventAnswers, store: CaptureStore) -> Callable[[int], TrainBatch]:
        firsts = firsts_of(store, source_behind(store).locate)
        ids = self.given.target.traits.visual_ids
        glances = GlanceAnswers(answers, store, firsts, ids, head.config)
        glances.seen(next(iter(firsts)))  # what a capture lacks is told before anything is learned
        return glances.lesson
