"""Training data of adapters: one text, the target's own answer, read by both models.

    the drafter   its own view of the clip, the question, then the target's answer     ->  states h(t), read here
    the target    its own view of the clip, the question, its answer                   ->  features f(t), captured

Both have read the same tokens when they are at t: so f(t) is a function of the text and of the scene, and h(t) knows
the text and what the drafter saw of the scene. (States of two free-running models, paired by their index, have no such
relation: from the first token that differs on they are about different texts.)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from crossdraft.engine.target import Target
from crossdraft.heads.glance.frame_encoder import frame_features
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.models.eventgpt import EventGPTProcessor
from crossdraft_lab.align.networks.base import TARGET
from crossdraft_lab.align.networks.visual import VisualConfig
from crossdraft_lab.train.capture.shard import CapturedAnswer
from crossdraft_lab.train.capture.sources import ClipSource
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.dist import MicroBatch
from crossdraft_lab.train.heads.event_data import FeatureCache, FeatureSource
from crossdraft_lab.train.heads.state_file import StateFile
from crossdraft_lab.train.reference.batches import IGNORE, Branches, pack
from crossdraft_lab.train.reference.models import TrainableEventGPT
from crossdraft_lab.train.reference.packed import JoinedLayer, greedy_decode, read_prefix, read_together

WHOLE = MicroBatch()


class DrafterPrompt(Protocol):
    """A drafter's prompt in token ids, cut where a clip's questions part; see `reference.tokenizer.PromptCodec`."""

    @property
    def pad_id(self) -> int:
        """Any id: it is never looked at."""
        ...

    @property
    def eos_id(self) -> int:
        """The id that ends an answer."""
        ...

    def prefix_ids(self) -> list[int]:
        """Ids in front of the visual tokens."""
        ...

    def question_ids(self, question: str) -> list[int]:
        """Ids between the visual tokens and the answer."""
        ...


@dataclass(frozen=True)
class EventPromptCodec:
    """The prompt of any EventGPT, by its own processor."""

    processor: EventGPTProcessor

    @property
    def pad_id(self) -> int:
        pad: Any = self.processor.tokenizer.pad_token_id
        return int(pad or 0)

    @property
    def eos_id(self) -> int:
        return cast("int", self.processor.tokenizer.eos_token_id)

    def prefix_ids(self) -> list[int]:
        ids = self.processor.prompt_ids("?")
        return ids[: ids.index(self.processor.config.event_token_id)]

    def question_ids(self, question: str) -> list[int]:
        ids = self.processor.prompt_ids(question)
        return ids[ids.index(self.processor.config.event_token_id) + self.processor.config.event_seq_length :]


@dataclass(frozen=True)
class ClipAnswers:
    """Answers, step by step, all about a clip together; a pure function of the step.

    Args:
        store: a capture with the target's last layer.
        features: the order of the clips, and what is seen of them.
        by_clip: numbers of the answers about each clip.
        clips, each: how many clips a step, and answers about each.
        seed: of the choice among a clip's answers, where it has more.
    """

    store: CaptureStore
    features: FeatureSource
    by_clip: Mapping[int, Sequence[int]]
    clips: int
    each: int
    seed: int

    def numbers(self, step: int, share: MicroBatch = WHOLE) -> list[int]:
        """The answers of the share's clips of a step, clip-major."""
        rng = np.random.default_rng([self.seed, step])
        found: list[list[int]] = []
        for clip in self.features.numbers(step, self.clips):
            known = self.by_clip[clip]
            chosen = known if len(known) == self.each else rng.permutation(np.asarray(known))[: self.each].tolist()
            found.append(sorted(chosen))
        return [number for chosen in share.take(found) for number in chosen]

    def visual(self, step: int, share: MicroBatch = WHOLE) -> Tensor:
        """[clips, …] what is seen of the share's clips of a step."""
        return self.features.visual(step, share.take(self.features.numbers(step, self.clips)))


@dataclass(frozen=True)
class PairedAnswers(ClipAnswers):
    """Answers with the target's last features, which a drafter reads after what it sees of the clip.

    Args:
        codec: prompts with the drafter's placeholder.
        question_of: the question of the answer of that number.
    """

    codec: DrafterPrompt
    question_of: Callable[[int], str]

    def read(self, numbers: Sequence[int], between: Sequence[Sequence[int]] = ()) -> tuple[Branches, Tensor]:
        """Questions and answers as the drafter reads them, and [rows, T, H] the target's features of the answers.

        A feature stands at the position of the drafter's row that has read the same tokens of the answer. Elsewhere 0.
        `between` are tokens that stand between each question and answer.
        """
        depth = self.store.index.owner.depth
        answers = [self.store.answer(number, (depth,)) for number in numbers]
        pairs = [self._row(number, answer) for number, answer in zip(numbers, answers, strict=True)]
        if between:
            pairs = [([*question, *more], said) for (question, said), more in zip(pairs, between, strict=True)]
        rows = pack(pairs, self.codec.pad_id)
        features = torch.zeros(*rows.tokens.shape, answers[0].hidden[depth].shape[-1])
        for row, (answer, start) in enumerate(zip(answers, rows.answer_start.tolist(), strict=True)):
            own = answer.hidden[depth][answer.start - 1 :].float()
            features[row, start : start + len(own)] = own
        return rows, features

    def question(self, number: int) -> list[int]:
        """A question's ids in the drafter's prompt."""
        return self.codec.question_ids(self.question_of(number))

    def _row(self, number: int, answer: CapturedAnswer) -> tuple[list[int], list[int]]:
        """The question's ids in the drafter's prompt, and the answer's, which are the target's own."""
        ids = answer.tokens.tolist()
        return self.question(number), ids[answer.start :]


def clip_answers(
    store: CaptureStore, source: ClipSource, features: FeatureSource, seed: int, answers: int
) -> ClipAnswers:
    """Group the answers of a capture by these clips, about `answers` a step.

    Raises:
        CrossdraftError: the target's last layer was not captured, or a feature of it is NaN or infinite.
    """
    store.require_finite((store.index.owner.depth,))  # a step that comes to it would be the hundredth, and lost
    by_clip: dict[int, list[int]] = {}
    for number in range(len(store)):
        by_clip.setdefault(source.locate(number)[0], []).append(number)
    each = min(map(len, by_clip.values()))
    return ClipAnswers(store, features, by_clip, clips_of_step(answers, each, len(source)), each, seed)


def clips_of_step(answers: int, each: int, clips: int) -> int:
    """Clips of a step of about `answers` answers, `each` of them about one clip, of so many.

    >>> clips_of_step(64, 10, 1200), clips_of_step(4, 10, 1200), clips_of_step(64, 4, 3)
    (6, 1, 3)
    """
    return min(max(1, answers // each), clips)


def train_batch(rows: Branches, hidden: Mapping[int, Tensor]) -> TrainBatch:
    """Rows, with hidden states of the drafter, as networks learn from them."""
    starts = rows.answer_start + 1
    return TrainBatch(rows.tokens, hidden, starts, starts + (rows.targets != IGNORE).sum(1))


def drafter_states(
    model: TrainableEventGPT,
    codec: DrafterPrompt,
    visual: Tensor,
    rows: Branches,
    layers: Sequence[JoinedLayer] | None = None,
) -> list[Tensor]:
    """Every hidden state [rows, T, S] of the drafter at the rows' positions, after what it sees of each clip.

    `layers` as in `read_together`.
    """
    llama = model.llama
    prefix = model.prefix_embeds(codec.prefix_ids(), visual)
    return read_together(llama, prefix, llama.embed_tokens(rows.tokens), layers)


def own_answers(
    model: TrainableEventGPT, answers: PairedAnswers, visual: Tensor, numbers: Sequence[int], most: int
) -> list[list[int]]:
    """Decode the drafter's own answers to these answers' questions, greedily, in at most `most` tokens each."""
    codec = answers.codec
    head = cast("Callable[[Tensor], Tensor]", model.model.get_output_embeddings())
    prefix = read_prefix(model.llama, model.prefix_embeds(codec.prefix_ids(), visual))
    questions = [answers.question(number) for number in numbers]
    nothing: list[list[int]] = [[] for _ in numbers]
    said, _ = greedy_decode(
        model.llama, head, prefix, questions, nothing, eos_id=codec.eos_id, max_new_tokens=most, window=1
    )
    return said


def kept_by_clip(
    answers: ClipAnswers,
    kept: StateFile,
    step: int,
    numbers: Sequence[int],
    read: Callable[[int, Sequence[int]], Mapping[int, Sequence[Tensor]]],
) -> dict[int, Sequence[Tensor]]:
    """Load or compute a frozen drafter's tensors of a step's answers, by number; new ones are kept if there is room.

    Args:
        answers: which, step by step.
        kept: what was read before.
        step: of training.
        numbers: those that are wanted; the result may have more.
        read: computes the tensors of all answers about a clip from the clip's number and theirs, so that an answer has
            the same bits whichever of them a step takes.
    """
    found: dict[int, Sequence[Tensor]] = {}
    for clip in answers.features.numbers(step, answers.clips):
        about = sorted(answers.by_clip[clip])
        wanted = [number for number in numbers if number in about]
        if all(number in kept for number in wanted):
            found |= {number: kept.read(number) for number in wanted}
            continue
        of_clip = read(clip, about)
        for number, tensors in of_clip.items():
            kept.keep(number, tensors)
        found |= of_clip
    return found


@dataclass(frozen=True)
class AlignmentData:
    """Batches for adapters, whose drafter is frozen: its states of an answer are read once, and kept on disk.

    All answers about a clip are read together, whichever of them a step takes: an answer has the same states, bit by
    bit, in every step, whether they were kept or are read anew because there was no room for them.

    Args:
        answers: which, step by step.
        model: the drafter.
        layers: its hidden states that are wanted.
        frames: the target's visual features of each clip, for an adapter that reads them.
        own: most tokens of the drafter's own answers, for an adapter that reads these and no states of it; 0 = none.
        kept: the states of answers that were read.
    """

    answers: PairedAnswers
    model: TrainableEventGPT
    layers: tuple[int, ...]
    frames: FeatureSource | None = None
    own: int = 0
    kept: StateFile = field(default_factory=StateFile)
    _said: dict[int, list[int]] = field(default_factory=dict)  # by answer: the drafter's own

    @property
    def device(self) -> torch.device:
        """The drafter's, where batches are."""
        return self.model.model.device

    @torch.no_grad()
    def batch(self, step: int) -> tuple[TrainBatch, Tensor]:
        """The drafter's states of the step's answers, and [rows, T, H] the target's features: `TARGET` there, too."""
        numbers = self.answers.numbers(step)
        if self.own:
            rows, features = self.answers.read(numbers, self._own_answers(step, numbers))
            return train_batch(rows, {TARGET: features}), features
        rows, features = self.answers.read(numbers)
        rows, features = rows.to(self.device), features.to(self.device)
        states = self._states(step, numbers)
        width = rows.tokens.shape[1]
        hidden = {
            layer: _padded([states[number][index].to(self.device) for number in numbers], width)
            for index, layer in enumerate(self.layers)
        }
        return replace(train_batch(rows, {**hidden, TARGET: features}), visual=self._visual(step)), features

    def _states(self, step: int, numbers: Sequence[int]) -> dict[int, Sequence[Tensor]]:
        """States of at least the step's answers, by number: [T, S] of each layer."""
        return kept_by_clip(self.answers, self.kept, step, numbers, partial(self._read, step))

    def _read(self, step: int, clip: int, numbers: Sequence[int]) -> dict[int, Sequence[Tensor]]:
        """Compute the drafter's states of these answers, all about one of the step's clips."""
        rows = self.answers.read(numbers)[0].to(self.device)
        visual = self.answers.features.visual(step, [clip]).to(self.device)
        states = drafter_states(self.model, self.answers.codec, visual, rows)
        lengths = train_batch(rows, {}).lengths.tolist()
        return {
            number: [states[layer][row, :length] for layer in self.layers]
            for row, (number, length) in enumerate(zip(numbers, lengths, strict=True))
        }

    def _own_answers(self, step: int, numbers: Sequence[int]) -> list[list[int]]:
        """The drafter's own greedy answers to the step's questions."""
        if any(number not in self._said for number in numbers):
            visual = self.answers.visual(step)
            said = own_answers(self.model, self.answers, visual, numbers, self.own)
            self._said.update(zip(numbers, said, strict=True))
        return [self._said[number] for number in numbers]

    def _visual(self, step: int) -> dict[int, Tensor]:
        """Visual layer 0 of the step's answers, clip-major."""
        if self.frames is None:
            return {}
        clips = self.answers.features.numbers(step, self.answers.clips)
        return {0: self.frames.visual(step, clips).repeat_interleave(self.answers.each, 0).to(self.device)}


class FrameCache(FeatureCache):
    """A feature source of the target's visual features of a few frames of each clip.

    Args:
        config: how many frames, and features of each.
        Others as of `FeatureCache`; `model` is the target.
    """

    kind = "frames"

    def __init__(
        self, model: Target, source: ClipSource, seed: int, folder: Path, owner: str, config: VisualConfig
    ) -> None:
        super().__init__(model, source, seed, folder, owner)
        self.config = config

    def _encode(self, clip: int) -> Tensor:
        request = self.source.read(clip).requests(1)[0]
        with torch.autocast(self.model.device.type, enabled=False):
            return frame_features(request, self.config.frames, self.config.patches, self.model).float().cpu().clone()


def _padded(rows: Sequence[Tensor], width: int) -> Tensor:
    """[n, width, S] of rows [T, S], zeros on the right."""
    padded = pad_sequence(list(rows), batch_first=True)
    return torch.nn.functional.pad(padded, (0, 0, 0, width - padded.shape[1]))
