"""Training of adapters on the vision side: from an event encoder to a few of the target's visual tokens.

Losses of features (`mse`, `cosine`, `info_nce`) compare predicted tokens with those that the target's own encoder makes
of the same frames. Losses of logits and labels (`kl`, `cross_entropy`) compare what the target's frozen language model
says after the predicted tokens with what it said after the whole clip: they tell which differences matter to a token,
and cost a pass of it forwards and back. So the first steps may do without (`feature_steps`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaModel

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.arrivals import evenly
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head, HeadConfig, target_to_draft
from crossdraft.heads.networks.objective import LOSS_POSITIONS, LOSSES, OUTSIDE, Objective, score, teacher
from crossdraft.heads.networks.train_batch import DraftLogits
from crossdraft.load import event_fingerprint, tokenizer_of
from crossdraft_lab.align.gate import GATE_FIGURES, PrefillGate, save_gate
from crossdraft_lab.align.networks.vision import VisionAdapter, VisionConfig, spread
from crossdraft_lab.align.predicted import PredictedPrefill, check_readable, encoder_features
from crossdraft_lab.train.capture.sources import ClipSource
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.dist import LossFn, full_batch
from crossdraft_lab.train.core.log import say
from crossdraft_lab.train.core.provenance import write_json
from crossdraft_lab.train.heads.align_data import ClipAnswers
from crossdraft_lab.train.heads.align_task import paired_answers, prefix_figures
from crossdraft_lab.train.heads.event_data import FeatureCache, clip_events, patches_per_frame
from crossdraft_lab.train.heads.gate import ASKED, LEAST, MOST, Agreements, answer_losses, fit_gate, gate_figures
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
from crossdraft_lab.train.reference.packed import read_prefix, run_branches

SCALED, SOME = 16, 64  # clips by which visual tokens are measured, and over which their mean is taken


class EncoderFeatures(FeatureCache):
    """Features of each clip from the event encoder, before they are projected and pooled: [T, P, S]."""

    kind = "encoded"

    def _encode(self, clip: int) -> Tensor:
        prompt = self.model.prepare(Request("?", events=clip_events(self.source, clip)))
        return encoder_features(self.model, prompt).clone()


class ReadsVisual(Protocol):
    """A network that makes visual tokens of what it reads; see `Head`."""

    config: HeadConfig
    draft_ids: Tensor

    def predict(self, source: Tensor) -> Tensor:
        """[B, …] -> [B, K, H]."""
        ...


class FrameTokens(FeatureCache):
    """The target's visual tokens [K, H] of those frames of each clip that an adapter predicts.

    Args:
        target, source, seed, folder, owner: as in `FeatureCache`, the model being the target.
        config: which frames.
    """

    kind = "shown"

    def __init__(
        self, target: Target, source: ClipSource, seed: int, folder: Path, owner: str, config: VisionConfig
    ) -> None:
        super().__init__(target, source, seed, folder, owner)
        self.config = config

    def _encode(self, clip: int) -> Tensor:
        rows = clip_tokens(self.model, self.source, clip)
        if len(rows) != self.config.length:
            raise CrossdraftError(
                f"Clip {clip} of the capture has {len(rows)} visual tokens, the adapter stands for "
                f"{self.config.length}; capture clips of which the target reads equally many frames."
            )
        frames = rows.view(-1, self.config.tokens, rows.shape[-1])
        return frames[evenly(len(frames), self.config.frames)].flatten(0, 1).clone()


@torch.inference_mode()
def clip_tokens(target: Target, source: ClipSource, clip: int) -> Tensor:
    """[N, H] the target's visual tokens of a clip."""
    prompt = target.prepare(source.read(clip).requests(1)[0])
    rows = target.visual_features(target.encode(prompt))
    if rows is None:
        raise CrossdraftError(f"The target finds nothing visual in clip {clip} of the capture; capture clips.")
    return rows


@dataclass(frozen=True)
class FrozenDecoder:
    """A target's language model, as adapters are trained through it.

    Args:
        llama: its decoder.
        before: [B] ids in front of the clip.
        places: [K] where visual tokens stand among those of the whole clip.
        length: N, how many those are.
        rows: [D, H] of its LM head, of the draft vocabulary.
    """

    llama: LlamaModel
    before: Tensor
    places: Tensor
    length: int
    rows: Tensor

    def logits(self, visual: Tensor, tokens: Tensor) -> Tensor:
        """[rows, T, D] after each of the tokens [rows, T], clip-major, that follow visual tokens [clips, K, H]."""
        first = len(self.before)
        text = self.llama.embed_tokens(self.before).expand(len(visual), -1, -1)
        positions = torch.cat((torch.arange(first), first + self.places))
        prefix = read_prefix(self.llama, torch.cat((text, visual), 1), positions, first + self.length)
        return run_branches(self.llama, prefix, self.llama.embed_tokens(tokens)) @ self.rows.T


class VisualExamples(Protocol):
    """Training examples of each step: its clips, their visual input, and the answers about them."""

    @property
    def answers(self) -> ClipAnswers:
        """Step by step."""
        ...

    @property
    def scale(self) -> float:
        """In which unit visual tokens are compared."""
        ...

    def visual(self, step: int) -> tuple[Tensor, Tensor]:
        """[clips, …] what the network reads, and [clips, K, H] visual tokens that features are compared with."""
        ...


@dataclass(frozen=True)
class VisionAnswers:
    """`VisualExamples` of an adapter.

    Args:
        answers: which clips, what the event encoder makes of them, and which answers about them.
        frames: the target's visual tokens.
    """

    answers: ClipAnswers
    frames: FrameTokens

    @property
    def scale(self) -> float:
        return self.frames.config.scale

    def visual(self, step: int) -> tuple[Tensor, Tensor]:
        """[clips, T, P, S] features of the event encoder, and [clips, K, H] tokens of the target."""
        clips = self.answers.features.numbers(step, self.answers.clips)
        # Copies: what was made in inference mode cannot be learned through.
        return self.answers.visual(step).clone(), self.frames.visual(step, clips).clone()

    def some_tokens(self) -> Tensor:
        """[clips, K, H] of the first clips."""
        return self.frames.visual(0, range(min(SOME, self.frames.pool))).clone()


def vision_loss(
    network: ReadsVisual, data: VisualExamples, decoder: FrozenDecoder, loss: Mapping[str, float], feature_steps: int
) -> LossFn:
    """Loss of an adapter; see the module's text.

    Tokens are compared in units of the examples' scale. Figures: every loss; `similarity`, the mean cosine of predicted
    and true tokens; and, where the language model is asked, `prefix`, the mean accepted prefix of hidden drafts.

    Args:
        feature_steps: steps in which only features are compared.
    """
    of_tokens = {name: weight for name, weight in loss.items() if LOSSES[name].compares == "features"}
    of_text = {name: weight for name, weight in loss.items() if name not in of_tokens}
    store, depth = data.answers.store, data.answers.store.index.owner.depth
    lookup = target_to_draft(network.draft_ids, network.config.vocab_size)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        seen, shown = data.visual(step)
        predicted = network.predict(seen)
        flat, true = predicted.flatten(0, 1), shown.flatten(0, 1)
        scale = data.scale
        parts = {name: LOSSES[name].measure(flat / scale, true / scale).mean() for name in of_tokens}
        total = flat.new_zeros(()) + sum(of_tokens[name] * part for name, part in parts.items())
        figures = {name: float(part.detach()) for name, part in parts.items()}
        figures["similarity"] = float(F.cosine_similarity(flat.detach(), true, dim=-1).mean())
        if not of_text or step < feature_steps:
            return total, figures | {LOSS_POSITIONS: float(len(flat))}
        batch = store.batch(data.answers.numbers(step), (depth,))
        with torch.autocast("cpu", enabled=False):
            wanted, labels = teacher(batch, decoder.rows, depth, lookup)
        logits = decoder.logits(predicted, batch.tokens)
        words, more = score(Objective(of_text), [DraftLogits(0, logits)], batch, wanted, labels)
        return total + words, figures | more | prefix_figures(logits, batch, labels)

    return full_batch(loss_of)


@torch.no_grad()
def agreements(adapter: VisionAdapter, data: VisionAnswers, decoder: FrozenDecoder) -> Agreements:
    """Measure the share of answer tokens about each clip that survive its predicted tokens; one epoch."""
    answers, lookup = data.answers, target_to_draft(adapter.draft_ids, adapter.config.vocab_size)
    depth = answers.store.index.owner.depth
    pooled, shares, clips = [], [], list[int]()
    for step in range(data.frames.pool // answers.clips):
        seen, batch = answers.visual(step), answers.store.batch(answers.numbers(step), (depth,))
        _, labels = teacher(batch, decoder.rows, depth, lookup)
        asked = batch.loss_mask(0) & (labels != OUTSIDE)
        right = asked & (decoder.logits(adapter.predict(seen), batch.tokens).argmax(-1) == labels)
        counts = (one.sum(1).view(answers.clips, -1).sum(1) for one in (right, asked))
        pooled.append(PrefillGate.pool(seen))
        shares.append(torch.div(*counts))
        clips += answers.features.numbers(step, answers.clips)
    return Agreements(torch.cat(pooled), torch.cat(shares), tuple(clips))


class FrozenTargetTask(HeadTask):
    """Training of a network whose visual tokens a frozen target reads, from a capture; see `task.HeadTask`.

    Raises:
        CrossdraftError: there is no capture, an unknown loss, or the target cannot read such tokens or is no Llama.
    """

    in_one_piece = True

    def __init__(self, inputs: TaskInputs) -> None:
        super().__init__(inputs)
        self.store = inputs.captured(f"'{inputs.recipe.network}' learns from answers about captured clips")
        self.store.require_layers((self.store.index.owner.depth,), ())
        Objective(inputs.recipe.loss)
        target = inputs.target
        check_readable(target)
        if target.device.type != "cpu":
            raise CrossdraftError("Visual tokens are learned on the CPU; leave out --device.")
        self.llama: Any = getattr(target.model.base_model, "language_model", None)
        if not isinstance(self.llama, LlamaModel):
            raise CrossdraftError(
                f"Visual tokens are learned through a Llama, which {type(target.model).__name__} does not have; train "
                "something else, such as the adapter l2."
            )
        target.model.requires_grad_(False)
        self.prompt = target.prepare(captured_source(self.store).read(0).requests(1)[0])

    @classmethod
    def default_device(cls, recipe: HeadRecipe) -> str:
        return "cpu"

    def decoder(self, network: Head, places: Tensor, length: int) -> FrozenDecoder:
        """The target's language model; arguments as there."""
        visual = self.inputs.target.traits.visual_ids
        first = next(i for i, token in enumerate(self.prompt.input_ids.tolist()) if token in visual)
        rows = network.lm_head.weight.detach()
        return FrozenDecoder(self.llama, self.prompt.input_ids[:first], places, length, rows)

    def examples(
        self, network: Head, data: VisualExamples, validation: VisualExamples | None, decoder: FrozenDecoder
    ) -> TaskData:
        """Build the network's training and validation data."""
        recipe, reads = self.inputs.recipe, cast("ReadsVisual", network)

        def describe(step: int) -> str:
            return f"answers {', '.join(map(str, data.answers.numbers(step)))} of {self.store.folder}"

        check = None if validation is None else check_of(vision_loss(reads, validation, decoder, recipe.loss, 0))
        return TaskData(vision_loss(reads, data, decoder, recipe.loss, recipe.feature_steps), describe, check)


class VisionTask(FrozenTargetTask):
    """Training of adapters on the vision side.

    Raises:
        CrossdraftError: as `FrozenTargetTask`, or the event model cannot draft for the target.
    """

    def __init__(self, inputs: TaskInputs) -> None:
        super().__init__(inputs)
        self.events = load_event_model(inputs)

    @property
    def drafted(self) -> str:
        return (
            "`hidden` the pass that verifies the hidden draft, and the share of those drafts accepted up to each "
            f"position; `rounds` the passes after it, of at most {self.inputs.recipe.measure.nodes} nodes"
        )

    def measured_settings(self, kind: type[HeadConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of the event encoder's features, and of the visual tokens that the target reads of a clip."""
        events, visual_ids = cast("Any", self.events.model.config), self.inputs.target.traits.visual_ids
        vision = events.vision_config
        return {
            "drafter": event_fingerprint(self.inputs.event),
            "source_size": vision.hidden_size,
            "source_frames": events.num_event_frames,
            "source_tokens": (vision.image_size // vision.patch_size) ** 2 + 1,
            "length": sum(token in visual_ids for token in self.prompt.input_ids.tolist()),
            "tokens": patches_per_frame(self.prompt, visual_ids),
            "scale": self._scale(),
        }

    def _scale(self) -> float:
        """The standard deviation of visual tokens from their mean over clips, to two digits."""
        source = captured_source(self.store)
        rows = [clip_tokens(self.inputs.target, source, clip) for clip in range(min(SCALED, len(source)))]
        if len({len(one) for one in rows}) > 1:
            raise CrossdraftError(
                "The clips of the capture have different numbers of visual tokens, for which no adapter can stand; "
                "capture clips of which the target reads equally many frames."
            )
        tokens = torch.stack(rows).float()
        spread_out = float((tokens - tokens.mean(0)).square().mean().sqrt())
        return float(f"{spread_out:.2g}") if spread_out else 1.0

    def data(self, head: Head) -> TaskData:
        validation, adapter = self.inputs.validation, cast("VisionAdapter", head)
        answers = self._answers(self.store, adapter)
        adapter.begin_at(answers.some_tokens())
        others = None if validation is None else self._answers(validation, adapter)
        return self.examples(adapter, answers, others, self._decoder(adapter))

    def measured_figures(self, head: Head, folder: Path) -> dict[str, object]:
        settings, store, target = self.inputs.recipe.measure, self.inputs.validation, self.inputs.target
        model = PredictedPrefill(target, self.events, cast("VisionAdapter", head), tokenizer_of(self.inputs.source))
        self._leave_gate(model, folder)
        questions = validation_questions(store, settings.pairs)
        if store is None or not questions:
            return {}
        source = captured_source(store)
        requests = [replace(request, events=clip_events(source, clip)) for clip, request in questions]
        drafter = IndependentDrafter(model, sorted(target.reserved))
        return figures_json(measure_hidden(target, drafter, requests, settings.nodes))

    def _leave_gate(self, model: PredictedPrefill, folder: Path) -> None:
        """Fit and calibrate the gate of a speculative prefill on validation clips, and leave it beside the adapter.

        And its figures on clips that it did not learn from. Where there are too few clips, there is no gate.
        """
        store, adapter = self.inputs.validation, model.adapter
        if store is None or len(captured_source(store)) < LEAST:
            say(f"The adapter gets no gate of a speculative prefill, which takes {LEAST} validation clips.")
            return
        fitted, others = agreements(adapter, self._answers(store, adapter), self._decoder(adapter)).parts()
        gate = PrefillGate(adapter.config.source_frames, adapter.config.source_size)
        fit_gate(gate, fitted)
        step = max(1, len(others.clips) // MOST)
        known = range(0, len(others.clips), step)
        say(f"calibrating the gate: {len(known)} clips")
        sure = gate.logits(others.pooled[known]).sigmoid().detach()
        gate.calibrate(sure, torch.stack([_lost(model, store, others.clips[row]) for row in known]))
        save_gate(gate, folder)
        figures = {name: round(value, 4) for name, value in gate_figures(gate, others).items()}
        write_json(folder / GATE_FIGURES, figures)
        say("gate, on clips that it did not learn from: " + ", ".join(f"{name} {of:g}" for name, of in figures.items()))

    def _decoder(self, adapter: VisionAdapter) -> FrozenDecoder:
        config = adapter.config
        return self.decoder(adapter, spread(config.predicted, config.length), config.length)

    def _answers(self, store: CaptureStore, adapter: VisionAdapter) -> VisionAnswers:
        recipe, target, config = self.inputs.recipe, self.inputs.target, adapter.config
        answers = paired_answers(
            store, self.events, self.inputs.event, recipe.seed, recipe.optim.clips, EncoderFeatures
        )
        owner = f"{self.inputs.fingerprint} {store.index.asked_sha256} {config.frames}"
        shown = FrameTokens(target, captured_source(store), recipe.seed, store.folder, owner, config)
        return VisionAnswers(answers, shown)


def _lost(model: PredictedPrefill, store: CaptureStore, clip: int) -> Tensor:
    """Mean loss that a clip's predicted tokens cause in the answers to its first questions."""
    source = captured_source(store)
    read, events = source.read(clip), clip_events(source, clip)
    numbers = [number for number in range(len(store)) if source.locate(number)[0] == clip][:ASKED]
    requests = read.requests(store.index.wanted.max_new_tokens)
    asked = []
    for number in numbers:
        answer = store.answer(number)
        request = replace(requests[source.locate(number)[1]], events=events)
        asked.append((request, answer.tokens[answer.start :].tolist()))
    return answer_losses(model, asked).mean()
