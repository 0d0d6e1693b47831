"""Training of networks whose visual tokens a frozen target reads: adapters on the vision side, and TokenPacker.

An adapter predicts some of the target's visual tokens from an event encoder's features; TokenPacker packs those of the
target's own encoder. Losses of features (`mse`, `cosine`, `info_nce`) compare predicted tokens with those of the
target's own encoder for the same frames (for a packer: pooled). Losses of logits and labels (`kl`, `cross_entropy`)
compare the output of the target's frozen language model after the predicted tokens with that after the whole clip: they
weigh differences by their effect on answers, and cost a forward and backward pass of it. So the first steps may do
without them (`feature_steps`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaModel

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.arrivals import evenly
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head, HeadConfig
from crossdraft.heads.networks.train_batch import DraftLogits
from crossdraft.load import event_fingerprint, tokenizer_of
from crossdraft_lab.align.gate import PrefillGate
from crossdraft_lab.align.networks.vision import VisionAdapter, spread
from crossdraft_lab.align.predicted import check_readable, encoder_features, predicted_target
from crossdraft_lab.compression.packer import default_heads, default_levels, encoder_levels
from crossdraft_lab.compression.packer_network import TokenPacker
from crossdraft_lab.compression.visionzip import check_tower
from crossdraft_lab.objective import LOSS_POSITIONS, LOSSES, OUTSIDE, Objective, score, target_to_draft, teacher
from crossdraft_lab.train.capture.sources import ClipSource
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.dist import LossFn, full_batch
from crossdraft_lab.train.heads.align_task import prefix_figures
from crossdraft_lab.train.heads.clip_answers import ClipAnswers, clip_answers, paired_answers
from crossdraft_lab.train.heads.clip_features import FeatureCache, patches_per_frame
from crossdraft_lab.train.heads.gate import Agreements, leave_gate
from crossdraft_lab.train.heads.recipe import HeadRecipe
from crossdraft_lab.train.heads.task import HeadTask, TaskData, TaskInputs, captured_source, check_of, load_event_model
from crossdraft_lab.train.reference.packed import read_prefix, run_branches

SCALED, SOME = 16, 64  # clips for the scale of visual tokens, and for their mean


@torch.inference_mode()
def clip_tokens(target: Target, source: ClipSource, clip: int) -> Tensor:
    """Visual tokens [N, H] that the target reads of a clip."""
    prompt = target.prepare(source.read(clip).requests(1)[0])
    rows = target.visual_features(target.encode(prompt))
    if rows is None:
        raise CrossdraftError(f"The target finds nothing visual in clip {clip} of the capture; capture clips.")
    return rows


def deviation(tokens: Tensor) -> float:
    """Standard deviation of visual tokens [clips, K, H] from their mean over clips; 1 if it is 0."""
    return float((tokens - tokens.mean(0)).square().mean().sqrt()) or 1.0


@dataclass(frozen=True)
class FrozenDecoder:
    """A target's frozen language model, through which networks are trained.

    Args:
        llama: decoder of the target.
        before: [B] ids before the clip.
        places: [K] positions of the visual tokens among those of the whole clip.
        length: N, number of visual tokens of the whole clip.
        rows: [D, H] rows of its LM head for the draft vocabulary.
    """

    llama: LlamaModel
    before: Tensor
    places: Tensor
    length: int
    rows: Tensor

    def logits(self, visual: Tensor, tokens: Tensor) -> Tensor:
        """Compute logits [rows, T, D] after each token of [rows, T], clip-major, behind visual tokens [clips, K, H]."""
        first = len(self.before)
        text = self.llama.embed_tokens(self.before).expand(len(visual), -1, -1)
        positions = torch.cat((torch.arange(first), first + self.places))
        prefix = read_prefix(self.llama, torch.cat((text, visual), 1), positions, first + self.length)
        return run_branches(self.llama, prefix, self.llama.embed_tokens(tokens)) @ self.rows.T


@dataclass(frozen=True)
class VisualExamples:
    """Training examples of each step: its clips, their visual input, and the answers about them.

    Args:
        answers: clips of each step, the network's inputs, and the answers about them.
        shown: computes, from the step and the network's input, the visual tokens [clips, K, H] to compare with.
        scale: unit in which tokens are compared.
    """

    answers: ClipAnswers
    shown: Callable[[int, Tensor], Tensor]
    scale: float = 1.0

    def visual(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the network's input [clips, …], and the visual tokens [clips, K, H] that its own are compared with."""
        # Copies: tensors made in inference mode cannot take part in training.
        seen = self.answers.visual(step).clone().float()
        return seen, self.shown(step, seen).clone()


def vision_loss(
    network: VisionAdapter | TokenPacker,
    data: VisualExamples,
    decoder: FrozenDecoder,
    loss: Mapping[str, float],
    feature_steps: int,
) -> LossFn:
    """Loss of a network; see the module's docstring.

    Tokens are compared in units of the examples' scale. Figures: every loss; `similarity`, the mean cosine of predicted
    and true tokens; and, where the language model is used, `prefix`, the mean accepted prefix of hidden drafts.

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
def agreements(adapter: VisionAdapter, answers: ClipAnswers, decoder: FrozenDecoder) -> Agreements:
    """Measure the share of answer tokens about each clip that stay equal after its predicted tokens; one epoch."""
    lookup, depth = target_to_draft(adapter.draft_ids, adapter.config.vocab_size), answers.store.index.owner.depth
    pooled, shares, clips = [], [], list[int]()
    for step in range(answers.features.pool // answers.clips):
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
        CrossdraftError: there is no capture, a loss is unknown, or the target cannot read such tokens or is no Llama.
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

    @property
    def length(self) -> int:
        """Number of visual tokens of a clip as the target reads it by itself."""
        visual_ids = self.inputs.target.traits.visual_ids
        return sum(token in visual_ids for token in self.prompt.input_ids.tolist())

    def decoder(self, network: Head, places: Tensor, length: int) -> FrozenDecoder:
        """Build the target's language model for training; arguments as in `FrozenDecoder`."""
        visual = self.inputs.target.traits.visual_ids
        first = next(i for i, token in enumerate(self.prompt.input_ids.tolist()) if token in visual)
        rows = network.lm_head.weight.detach()
        return FrozenDecoder(self.llama, self.prompt.input_ids[:first], places, length, rows)

    def examples(
        self,
        network: VisionAdapter | TokenPacker,
        data: VisualExamples,
        validation: VisualExamples | None,
        decoder: FrozenDecoder,
    ) -> TaskData:
        """Build the network's training and validation data."""
        recipe = self.inputs.recipe
        check = None if validation is None else check_of(vision_loss(network, validation, decoder, recipe.loss, 0))
        loss = vision_loss(network, data, decoder, recipe.loss, recipe.feature_steps)
        return TaskData(loss, data.answers.describe, check)

    def target_features(
        self, kind: str, store: CaptureStore, which: object, encode: Callable[[ClipSource, int], Tensor]
    ) -> FeatureCache:
        """Cache of the target's features of a capture's clips; `which` distinguishes caches of one kind."""
        inputs, source = self.inputs, captured_source(store)
        owner = f"{inputs.fingerprint} {store.index.asked_sha256} {which}"
        seed, folder = inputs.recipe.seed, store.folder
        return FeatureCache(kind, lambda clip: encode(source, clip), inputs.target, source, seed, folder, owner)


class VisionTask(FrozenTargetTask):
    """Training of adapters on the vision side.

    Raises:
        CrossdraftError: as `FrozenTargetTask`, or the event model cannot draft for the target.
    """

    def __init__(self, inputs: TaskInputs) -> None:
        super().__init__(inputs)
        self.events = load_event_model(inputs)

    def measured_settings(self, kind: type[HeadConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of the event encoder's features, and of the visual tokens that the target reads of a clip."""
        events = cast("Any", self.events.model.config)
        vision = events.vision_config
        return {
            "drafter": event_fingerprint(self.inputs.event),
            "source_size": vision.hidden_size,
            "source_frames": events.num_event_frames,
            "source_tokens": (vision.image_size // vision.patch_size) ** 2 + 1,
            "length": self.length,
            "tokens": patches_per_frame(self.prompt, self.inputs.target.traits.visual_ids),
            "scale": self._scale(),
        }

    def _scale(self) -> float:
        """Standard deviation of visual tokens from their mean over clips, to two digits."""
        source = captured_source(self.store)
        rows = [clip_tokens(self.inputs.target, source, clip) for clip in range(min(SCALED, len(source)))]
        if len({len(one) for one in rows}) > 1:
            raise CrossdraftError(
                "The clips of the capture have different numbers of visual tokens, for which no adapter can stand; "
                "capture clips of which the target reads equally many frames."
            )
        return float(f"{deviation(torch.stack(rows).float()):.2g}")

    def data(self, head: Head) -> TaskData:
        validation, adapter = self.inputs.validation, cast("VisionAdapter", head)
        frames = self._frames(self.store, adapter)
        adapter.begin_at(frames.visual(0, range(min(SOME, frames.pool))).clone())
        others = None if validation is None else self._examples(validation, adapter)
        return self.examples(adapter, self._examples(self.store, adapter), others, self._decoder(adapter))

    def measured_figures(self, head: Head, folder: Path) -> dict[str, object]:
        target, adapter, store = self.inputs.target, cast("VisionAdapter", head), self.inputs.validation
        model = predicted_target(target, self.events, adapter, tokenizer_of(self.inputs.source))

        def survival() -> Agreements:
            return agreements(adapter, self._answers(cast("CaptureStore", store)), self._decoder(adapter))

        leave_gate(model, adapter, store, survival, folder)
        return self.hidden_figures(lambda: IndependentDrafter(model, sorted(target.reserved)))

    def _decoder(self, adapter: VisionAdapter) -> FrozenDecoder:
        config = adapter.config
        return self.decoder(adapter, spread(config.predicted, config.length), config.length)

    def _answers(self, store: CaptureStore) -> ClipAnswers:
        recipe, event = self.inputs.recipe, self.inputs.event
        return paired_answers(store, self.events, event, recipe.seed, recipe.optim.clips, "encoded", encoder_features)

    def _frames(self, store: CaptureStore, adapter: VisionAdapter) -> FeatureCache:
        """Cache of the target's visual tokens [K, H] of the frames of each clip that the adapter predicts."""
        target, config = self.inputs.target, adapter.config

        def encode(source: ClipSource, clip: int) -> Tensor:
            rows = clip_tokens(target, source, clip)
            if len(rows) != config.length:
                raise CrossdraftError(
                    f"Clip {clip} of the capture has {len(rows)} visual tokens, the adapter stands for "
                    f"{config.length}; capture clips of which the target reads equally many frames."
                )
            frames = rows.view(-1, config.tokens, rows.shape[-1])
            return frames[evenly(len(frames), config.frames)].flatten(0, 1)

        return self.target_features("shown", store, config.frames, encode)

    def _examples(self, store: CaptureStore, adapter: VisionAdapter) -> VisualExamples:
        answers, frames = self._answers(store), self._frames(store, adapter)

        def shown(step: int, _: Tensor) -> Tensor:
            return frames.visual(step, frames.numbers(step, answers.clips))

        return VisualExamples(answers, shown, adapter.config.scale)


class PackerTask(FrozenTargetTask):
    """Training of TokenPacker: the target's answers after packed tokens must be those after the whole clip.

    Raises:
        CrossdraftError: as `FrozenTargetTask`, or the target's clips do not go through a separate vision encoder.
    """

    def __init__(self, inputs: TaskInputs) -> None:
        super().__init__(inputs)
        check_tower(inputs.target, "TokenPacker")
        self.projector: nn.Module = cast("Any", inputs.target.model.base_model).multi_modal_projector

    @property
    def drafted(self) -> str:
        return "nothing is drafted"

    def measured_settings(self, kind: type[HeadConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings that the target's vision encoder determines."""
        config = cast("Any", self.inputs.target.model.config)
        vision = config.vision_config
        side, size = vision.image_size // vision.patch_size, vision.hidden_size
        tokens = patches_per_frame(self.prompt, self.inputs.target.traits.visual_ids)
        levels = default_levels(config)
        if "levels" in settings and settings["levels"][-1] != levels[-1]:
            raise CrossdraftError(
                f"The last of a packer's levels must be {levels[-1]}, which the target's projector reads; it is "
                f"{settings['levels'][-1]}."
            )
        found = {
            "source_size": size,
            "levels": levels,
            "side": side,
            "class_token": tokens == side**2 + 1,
            "heads": default_heads(size),
        }
        return {name: value for name, value in found.items() if name not in settings}

    def data(self, head: Head) -> TaskData:
        packer, validation = cast("TokenPacker", head), self.inputs.validation
        packer.begin_at(self.projector)
        clips = self._examples(self.store, packer)
        features = clips.answers.features
        seen = features.visual(0, range(min(SCALED, features.pool))).float()
        clips = replace(clips, scale=deviation(self._pooled(packer, seen)))
        others = None if validation is None else replace(self._examples(validation, packer), scale=clips.scale)
        grid, factor = packer.config.grid, packer.config.factor
        decoder = self.decoder(packer, grid.places(self.length // grid.tokens, factor), self.length)
        return self.examples(packer, clips, others, decoder)

    def measured_figures(self, head: Head, folder: Path) -> dict[str, object]:
        """Return no figures: `bench compression` measures a packer's loss of quality."""
        return {}

    def _examples(self, store: CaptureStore, packer: TokenPacker) -> VisualExamples:
        recipe, levels = self.inputs.recipe, packer.config.levels

        def encode(source: ClipSource, clip: int) -> Tensor:
            """Hidden states [F, P, L·S] of the target's vision encoder, kept in bfloat16."""
            prompt = self.inputs.target.prepare(source.read(clip).requests(1)[0])
            return encoder_levels(self.inputs.target, prompt, levels).bfloat16()

        features = self.target_features("levels", store, levels, encode)
        answers = clip_answers(store, captured_source(store), features, recipe.seed, recipe.optim.clips)
        return VisualExamples(answers, lambda step, seen: self._pooled(packer, seen))

    @torch.no_grad()
    def _pooled(self, packer: TokenPacker, seen: Tensor) -> Tensor:
        """The target's own tokens [clips, K, H], pooled, from features [clips, F, P, L·S]."""
        config = packer.config
        tokens = self.projector(seen[..., -config.source_size :]).flatten(0, 2)
        return config.grid.pool(tokens, config.factor).unflatten(0, (len(seen), -1))
