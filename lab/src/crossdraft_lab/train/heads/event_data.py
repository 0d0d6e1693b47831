"""Training data of heads on an event model: the target's answers, read by the event model after its view of the clip.

A batch is as in `networks.train_batch`, with the event model's features instead of the target's, and the target's
answers as the text.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from crossdraft.engine.arrivals import evenly
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path
from crossdraft.heads.glance.frame_encoder import PIXELS
from crossdraft.heads.glance.network import GlanceConfig
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft_lab import scenes
from crossdraft_lab.train.capture.sources import ClipSource, SceneSource
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.heads.batches import EpochSampler
from crossdraft_lab.train.reference.batches import IGNORE, Branches, QAPair, pack_pairs
from crossdraft_lab.train.reference.clips import clip_seed
from crossdraft_lab.train.reference.losses import QASource
from crossdraft_lab.train.reference.models import TrainableEventGPT
from crossdraft_lab.train.reference.packed import read_prefix, run_branches
from crossdraft_lab.train.reference.tokenizer import PromptCodec

BEFORE, AFTER = "\n", " ASSISTANT:"  # what stands round a question; see `PromptCodec`
FEATURES = "features"
WRITE_EVERY = 100  # clips between two writings of the feature cache


class FeatureSource(Protocol):
    """The clips of each step, and the event model's features of them."""

    def numbers(self, step: int, count: int) -> list[int]:
        """Numbers of a step's clips, at most `count`; a pure function of the step."""
        ...

    def visual(self, step: int, clips: Sequence[int]) -> Tensor:
        """[clips, n, H] event features that replace the placeholders; of one clip for a blind head."""
        ...


class FeatureCache(EpochSampler):
    """A feature source of a capture's clips: each is encoded once, and kept in a file for other trainings on them.

    Args:
        model: the event model behind its adapter.
        source: the clips.
        seed: of their order.
        folder: of the capture, which gets a folder `features`; where nothing can be written, nothing is kept.
        owner: what tells these features from others of their kind: model and clips.

    Raises:
        CrossdraftError: a list names a clip without events.
    """

    kind: ClassVar[str] = "seen"  # of the features, in the file's name
    reads_events: ClassVar[bool] = True

    def __init__(self, model: Target, source: ClipSource, seed: int, folder: Path, owner: str) -> None:
        super().__init__(len(source), seed)
        if self.reads_events and not isinstance(source, SceneSource):
            for clip in range(len(source)):
                clip_events(source, clip)  # what is not there is missed now, and not when a step comes to it
        precision = sorted({str(value.dtype) for value in model.model.state_dict().values()})
        self.model, self.source, self.owner = model, source, f"{owner} {' '.join(precision)}"
        self.file = folder / FEATURES / f"{self.kind}-{sha256(self.owner.encode()).hexdigest()[:12]}.safetensors"
        self.cached = self._read()
        self._written = len(self.cached)

    @torch.inference_mode()
    def visual(self, step: int, clips: Sequence[int]) -> Tensor:
        for clip in clips:
            if clip not in self.cached:
                self.cached[clip] = self._encode(clip)
        if len(self.cached) >= min(self._written + WRITE_EVERY, self.pool) and len(self.cached) > self._written:
            self._write()
        return torch.stack([self.cached[clip] for clip in clips])

    def _encode(self, clip: int) -> Tensor:
        """[n, H], in the model's own precision, whatever that of the training is."""
        prompt = self.model.prepare(Request("?", events=clip_events(self.source, clip)))
        with torch.autocast(self.model.device.type, enabled=False):
            encoded = cast("Any", self.model.encode(prompt))
        return encoded["video"].pooler_output[0].cpu().clone()

    def _read(self) -> dict[int, Tensor]:
        """Load the features that an earlier run kept; a file that cannot be read is made anew."""
        try:
            with safe_open(self.file, "pt") as kept:
                if (kept.metadata() or {}).get("owner") == self.owner:
                    return {int(name): kept.get_tensor(name) for name in kept.keys()}  # noqa: SIM118
        except (OSError, SafetensorError):
            pass
        return {}

    def _write(self) -> None:
        with suppress(CrossdraftError), atomic_path(self.file) as path:
            save_file({str(clip): features for clip, features in self.cached.items()}, path, {"owner": self.owner})
        self._written = len(self.cached)


class NoFeatures(EpochSampler):
    """A feature source without features, for a control that sees nothing."""

    def visual(self, step: int, clips: Sequence[int]) -> Tensor:
        return torch.zeros(1, 0, 0)


def clip_events(source: ClipSource, clip: int) -> object:
    """The events of a captured clip, as `Request.events`: simulated for a scene, recorded for a clip of a list.

    Raises:
        CrossdraftError: the list names none.
    """
    if isinstance(source, SceneSource):
        seed = clip_seed(source.split, source.first + clip)
        return scenes.simulate_events(scenes.make_scene(seed))
    found = source.read(clip)
    if found.events is None:
        raise CrossdraftError(
            f"The clip {found.name} of the capture has no events, which heads on an event model look at; capture a "
            "list that names an event recording for every clip, or scenes."
        )
    return found.events


@dataclass(frozen=True)
class EventBatch:
    """A step's answers.

    Args:
        visual: as `FeatureSource.visual` gives it.
        rows: questions and answers, clip-major.
    """

    visual: Tensor
    rows: Branches

    @property
    def starts(self) -> Tensor:
        """[rows] position of each answer's first token."""
        return self.rows.answer_start + 1

    @property
    def lengths(self) -> Tensor:
        """[rows] tokens of each row."""
        return self.starts + (self.rows.targets != IGNORE).sum(1)


@dataclass(frozen=True)
class EventAnswers:
    """Answers step by step; a pure function of the step.

    Args:
        model: the event model; it is not trained.
        features: the order of the clips, and what the model sees of them.
        codec: prompts with the event model's placeholder.
        texts_of: questions about a step's clips and the target's answers; see `losses.recorded_qa`.
        clips: how many a step.
    """

    model: TrainableEventGPT
    features: FeatureSource
    codec: PromptCodec
    texts_of: QASource
    clips: int

    def numbers(self, step: int) -> list[int]:
        """The step's clips."""
        return self.features.numbers(step, self.clips)

    @torch.no_grad()
    def event_batch(self, step: int) -> EventBatch:
        """The batch that the step learns from."""
        clips = self.numbers(step)
        return EventBatch(self.features.visual(step, clips), pack_pairs(self.codec, self.texts_of(step, clips)))

    @torch.no_grad()
    def batch(self, step: int) -> TrainBatch:
        """The event model's last features all along the step's answers."""
        events, llama = self.event_batch(step), self.model.llama
        prefix = read_prefix(llama, self.model.prefix_embeds(self.codec.prefix_ids(), events.visual))
        hidden = run_branches(llama, prefix, llama.embed_tokens(events.rows.tokens))
        return TrainBatch(events.rows.tokens, {len(llama.layers): hidden}, events.starts, events.lengths)


def answers_by_clip(
    store: CaptureStore, codec: PromptCodec, locate: Callable[[int], tuple[int, int]]
) -> dict[int, list[QAPair]]:
    """The captured answers by clip, for `losses.recorded_qa`.

    Questions are read from the captured prompts, whose tokens both models share.

    Args:
        store: a capture.
        codec: either model's.
        locate: (clip, prompt) of an answer; see `ClipSource`.
    """
    end = codec.tokenizer.eos_token_id
    known: dict[int, list[QAPair]] = {}
    for number in range(len(store)):
        answer = store.answer(number)
        ids, start = answer.tokens.tolist(), answer.start
        question = str(codec.tokenizer.decode(ids[:start])).removeprefix(BEFORE).removesuffix(AFTER)
        qa = QAPair(question, codec.text(ids[start:]), whole=ids[-1] == end)
        known.setdefault(locate(number)[0], []).append(qa)
    return known


@dataclass(frozen=True)
class GlanceData:
    """Answers step by step; a pure function of the step.

    Args:
        answers: after events.
        store: the capture, with layer 0 of the visual part: the features of the target's vision encoder.
        first_answer: by clip, the number of one of its answers.
        visual_ids: ids that stand for something visual in the target's prompts.
        config: which frames are read.
    """

    answers: EventAnswers
    store: CaptureStore
    first_answer: Mapping[int, int]
    visual_ids: Collection[int]
    config: GlanceConfig

    def batch(self, step: int) -> TrainBatch:
        """As `EventAnswers.batch`, with the features of the clip's frames in front of each answer."""
        batch = self.answers.batch(step)
        clips = self.answers.numbers(step)
        features = torch.stack([self.frame_features(clip) for clip in clips])
        return replace(batch, visual={0: features.repeat_interleave(len(batch) // len(clips), 0)})

    def frame_features(self, clip: int) -> Tensor:
        """[frames · n, E] of the frames that the head reads.

        Raises:
            CrossdraftError: the capture lacks layer 0 of the visual part, or a frame has another number of features.
        """
        answer = self.store.answer(self.first_answer[clip], visual_layers=(0,))
        visual = [i for i, token in enumerate(answer.visual_ids.tolist()) if token in self.visual_ids]
        rows, patches = answer.visual[0][visual].float(), self.config.patches
        if len(rows) == 0:
            raise CrossdraftError(
                f"The capture {self.store.folder} has no visual features; a glance learns from clips that are seen."
            )
        if len(rows) % patches:
            raise CrossdraftError(
                f"A clip of the capture has {len(rows)} visual features, not a multiple of the glance's "
                f"patches={patches}; give the recipe as many as the target has for a frame."
            )
        frames = rows.view(-1, patches, rows.shape[-1])
        return frames[evenly(len(frames), self.config.frames)].flatten(0, 1)


def first_answers(store: CaptureStore, locate: Callable[[int], tuple[int, int]]) -> dict[int, int]:
    """By clip, the number of its first answer; `locate` gives an answer's (clip, prompt)."""
    first_answer: dict[int, int] = {}
    for number in range(len(store)):
        first_answer.setdefault(locate(number)[0], number)
    return first_answer


def patches_per_frame(prompt: Prompt, visual_ids: Collection[int]) -> int:
    """Number of the target's visual features per frame, counted in a prompt with a clip in it.

    Raises:
        CrossdraftError: the target does not see a clip frame by frame.
    """
    pixels = prompt.features.get(PIXELS)
    count = sum(token in visual_ids for token in prompt.input_ids.tolist())
    frames = pixels.shape[1] if isinstance(pixels, Tensor) and pixels.ndim == 5 else 0
    if not frames or not count or count % frames:
        raise CrossdraftError(
            "A glance needs a target that encodes a clip frame by frame, as Video-LLaVA and LLaVA-NeXT-Video do; "
            f"this one has {count} visual features for a clip. Train another head, for example event_medusa."
        )
    return count // frames
