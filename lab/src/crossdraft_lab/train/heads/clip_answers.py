"""Training data of networks on an event model: one text, the target's own answer, read by both models.

    the drafter   its own view of the clip, the question, then the target's answer     ->  states h(t), read here
    the target    its own view of the clip, the question, its answer                   ->  features f(t), captured

At position t both have read the same tokens: so f(t) is a function of the text and of the scene, and h(t) knows the
text and the drafter's view of the scene. (States of two free-running models, paired by their index, have no such
relation: from the first token that differs on, they are about different texts.)
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from crossdraft.engine.prompt import Prompt
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.load import event_fingerprint
from crossdraft.models.eventgpt import EventGPTProcessor
from crossdraft_lab.align.networks.base import TARGET
from crossdraft_lab.align.networks.own_answer import IndexedBatch, OwnAnswer
from crossdraft_lab.align.token_drafter import own_answer_of
from crossdraft_lab.objective import pad_batch
from crossdraft_lab.train.capture.sources import ClipSource
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.dist import MicroBatch
from crossdraft_lab.train.heads.batches import describe_answers
from crossdraft_lab.train.heads.clip_features import ClipFeatures, event_features, seen_events
from crossdraft_lab.train.heads.state_file import StateFile
from crossdraft_lab.train.heads.task import captured_source, question_of
from crossdraft_lab.train.reference.batches import IGNORE, Branches, pack
from crossdraft_lab.train.reference.models import TrainableEventGPT
from crossdraft_lab.train.reference.packed import JoinedLayer, greedy_decode, read_prefix, read_together

WHOLE = MicroBatch()


@dataclass(frozen=True)
class EventPromptCodec:
    """An EventGPT's prompt in token ids, made by its own processor and split where the questions about a clip begin."""

    processor: EventGPTProcessor

    @property
    def pad_id(self) -> int:
        """Id that pads rows; any id will do, for padding is never read."""
        padding: Any = self.processor.tokenizer.pad_token_id
        return int(padding or 0)

    @property
    def eos_id(self) -> int:
        """The id that ends an answer."""
        return cast("int", self.processor.tokenizer.eos_token_id)

    def prefix_ids(self) -> list[int]:
        """Ids in front of the visual tokens."""
        ids = self.processor.prompt_ids("?")
        return ids[: ids.index(self.processor.config.event_token_id)]

    def question_ids(self, question: str) -> list[int]:
        """Ids between the visual tokens and the answer."""
        ids = self.processor.prompt_ids(question)
        return ids[ids.index(self.processor.config.event_token_id) + self.processor.config.event_seq_length :]


@dataclass(frozen=True)
class ClipAnswers:
    """Answers of each step, grouped by clip; a pure function of the step.

    Args:
        store: a capture.
        features: order of the clips, and features of them.
        by_clip: numbers of the answers about each clip.
        clips, each: number of clips a step, and number of answers about each.
        seed: seed of the choice among a clip's answers, where it has more.
    """

    store: CaptureStore
    features: ClipFeatures
    by_clip: Mapping[int, Sequence[int]]
    clips: int
    each: int
    seed: int

    def numbers(self, step: int, share: MicroBatch = WHOLE) -> list[int]:
        """Numbers of the answers about the share's clips of a step, clip-major."""
        rng = np.random.default_rng([self.seed, step])
        found: list[list[int]] = []
        for clip in self.features.numbers(step, self.clips):
            known = self.by_clip[clip]
            chosen = known if len(known) == self.each else rng.permutation(np.asarray(known))[: self.each].tolist()
            found.append(sorted(chosen))
        return [number for chosen in share.take(found) for number in chosen]

    def describe(self, step: int) -> str:
        """Describe the data of a step in words."""
        return describe_answers(self.numbers(step), self.store)

    def visual(self, step: int, share: MicroBatch = WHOLE) -> Tensor:
        """Features [clips, …] of the share's clips of a step."""
        return self.features.visual(step, share.take(self.features.numbers(step, self.clips)))


@dataclass(frozen=True)
class PairedAnswers(ClipAnswers):
    """Answers that a drafter reads after its view of the clip, with the target's last features along them.

    Args:
        codec: prompts with the drafter's placeholder.
        question_of: returns the question of the answer of that number.
    """

    codec: EventPromptCodec
    question_of: Callable[[int], str]

    def rows(self, numbers: Sequence[int], between: Sequence[Sequence[int]] = ()) -> Branches:
        """Pack questions, in the drafter's prompt, and answers, the target's own tokens, as rows.

        `between` are tokens that stand between each question and answer.
        """
        more = between or [()] * len(numbers)
        questions = [[*self.question(number), *own] for number, own in zip(numbers, more, strict=True)]
        answers = [self.store.answer(number) for number in numbers]
        said = [answer.tokens[answer.start :].tolist() for answer in answers]
        return pack(list(zip(questions, said, strict=True)), self.codec.pad_id)

    def read(self, numbers: Sequence[int], between: Sequence[Sequence[int]] = ()) -> tuple[Branches, Tensor]:
        """Return `rows` of the numbers, and [rows, T, H] the target's features of the answers.

        A feature is stored at the drafter's position that has read the same tokens of the answer; others are 0.
        """
        rows, depth = self.rows(numbers, between), self.store.index.owner.depth
        answers = [self.store.answer(number, (depth,)) for number in numbers]
        features = torch.zeros(*rows.tokens.shape, answers[0].hidden[depth].shape[-1])
        for row, (answer, start) in enumerate(zip(answers, rows.answer_start.tolist(), strict=True)):
            own = answer.hidden[depth][answer.start - 1 :].float()
            features[row, start : start + len(own)] = own
        return rows, features

    def question(self, number: int) -> list[int]:
        """Ids of a question in the drafter's prompt."""
        return self.codec.question_ids(self.question_of(number))


def clip_answers(
    store: CaptureStore, source: ClipSource, features: ClipFeatures, seed: int, answers: int, *, finite: bool = True
) -> ClipAnswers:
    """Group the answers of a capture by clip, with about `answers` of them in a step.

    Raises:
        CrossdraftError: with `finite`, the target's last layer was not captured, or a feature of it is NaN or infinite.
    """
    if finite:
        store.require_finite((store.index.owner.depth,))  # else training might fail only after many steps
    by_clip: dict[int, list[int]] = {}
    for number in range(len(store)):
        by_clip.setdefault(source.locate(number)[0], []).append(number)
    each = min(map(len, by_clip.values()))
    return ClipAnswers(store, features, by_clip, clips_of_step(answers, each, len(source)), each, seed)


def paired_answers(
    store: CaptureStore,
    drafter: Target,
    event: str,
    seed: int,
    answers: int,
    kind: str = "seen",
    encode: Callable[[Target, Prompt], Tensor] = seen_events,
    *,
    finite: bool = True,
) -> PairedAnswers:
    """Pair a capture's answers with the drafter's view of their clips; the answers about a clip stay together.

    Args:
        store: the capture; with `finite`, it has the target's last layer.
        drafter: the event model.
        event: name or folder that the event model was loaded from.
        seed: seed of the clips' order.
        answers: approximate number of answers a step.
        kind, encode: kind of the clips' features and how they are computed, as in `event_features`.

    Raises:
        CrossdraftError: an answer has a token that the drafter does not know; also as `clip_answers`.
    """
    largest = max(int(tokens.max()) for tokens in store.answer_tokens())
    known = len(cast("Any", drafter.model).get_input_embeddings().weight)
    if largest >= known:
        raise CrossdraftError(
            f"An answer of the capture {store.folder} has the token {largest}, and the drafter {event} knows tokens 0 "
            f"to {known - 1}; a trained target never says such a token."
        )
    source = captured_source(store)
    codec = EventPromptCodec(cast("Any", drafter.prepare).processor)
    owner = f"{event_fingerprint(event)} {store.index.asked_sha256}"
    features = event_features(drafter, source, seed, store.folder, owner, kind, encode)
    found = clip_answers(store, source, features, seed, answers, finite=finite)
    return PairedAnswers(
        store, features, found.by_clip, found.clips, found.each, seed, codec, partial(question_of, source)
    )


def clips_of_step(answers: int, each: int, clips: int) -> int:
    """Number of clips in a step of about `answers` answers, `each` about one clip; at most `clips`.

    >>> clips_of_step(64, 10, 1200), clips_of_step(4, 10, 1200), clips_of_step(64, 4, 3)
    (6, 1, 3)
    """
    return min(max(1, answers // each), clips)


def train_batch(rows: Branches, hidden: Mapping[int, Tensor]) -> TrainBatch:
    """Batch that networks learn from: rows, with the drafter's hidden states."""
    starts = rows.answer_start + 1
    return TrainBatch(rows.tokens, hidden, starts, starts + (rows.targets != IGNORE).sum(1))


def drafter_states(
    model: TrainableEventGPT,
    codec: EventPromptCodec,
    visual: Tensor,
    rows: Branches,
    layers: Sequence[JoinedLayer] | None = None,
) -> list[Tensor]:
    """Compute every hidden state [rows, T, S] of the drafter at the rows' positions, after its view of each clip.

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


@dataclass(frozen=True)
class FrozenDrafterData(ABC):
    """Batches of a frozen drafter's outputs for the steps' answers, computed once and kept on disk.

    All answers about a clip are read together, even if a step takes only some of them: so an answer's outputs have the
    same bits in every step, whether they were kept or are computed again for lack of space.

    Args:
        answers: answers of each step.
        model: the drafter.
        kept: outputs computed so far, by answer.
    """

    answers: PairedAnswers
    model: TrainableEventGPT
    kept: StateFile = field(default_factory=StateFile, kw_only=True)

    @abstractmethod
    def batch(self, step: int) -> tuple[TrainBatch, Tensor]:
        """Return the step's batch, and the target's features [rows, T, H]."""

    @abstractmethod
    def _read(self, step: int, clip: int, numbers: Sequence[int]) -> Mapping[int, Sequence[Tensor]]:
        """Compute the tensors of these answers, all about one of the step's clips."""

    def _tensors(self, step: int, numbers: Sequence[int]) -> list[Sequence[Tensor]]:
        """Load or compute the tensors of a step's answers; new ones are kept if there is room."""
        found: dict[int, Sequence[Tensor]] = {}
        for clip in self.answers.features.numbers(step, self.answers.clips):
            about = sorted(self.answers.by_clip[clip])
            wanted = [number for number in numbers if number in about]
            if all(number in self.kept for number in wanted):
                found |= {number: self.kept.read(number) for number in wanted}
                continue
            of_clip = self._read(step, clip, about)
            for number, tensors in of_clip.items():
                self.kept.keep(number, tensors)
            found |= of_clip
        return [found[number] for number in numbers]


@dataclass(frozen=True)
class AlignmentData(FrozenDrafterData):
    """Batches for adapters on the drafter's states along the target's answer.

    Args:
        layers: layers of the drafter whose hidden states are read.
        frames: the target's visual features of each clip, for an adapter that reads them.
        own: largest number of tokens of the drafter's own answers, for an adapter that reads these; 0 = none.
    """

    layers: tuple[int, ...]
    frames: ClipFeatures | None = None
    own: int = 0
    _said: dict[int, list[int]] = field(default_factory=dict)  # the drafter's own answers, by number

    @property
    def device(self) -> torch.device:
        """Device of the drafter and of the batches."""
        return self.model.model.device

    @torch.no_grad()
    def batch(self, step: int) -> tuple[TrainBatch, Tensor]:
        """Return the drafter's states of the step's answers, and the target's features [rows, T, H] (also `TARGET`)."""
        numbers = self.answers.numbers(step)
        if self.own:
            rows, features = self.answers.read(numbers, self._own_answers(step, numbers))
            return train_batch(rows, {TARGET: features}), features
        rows, features = self.answers.read(numbers)
        rows, features = rows.to(self.device), features.to(self.device)
        states = self._tensors(step, numbers)
        width = rows.tokens.shape[1]
        hidden = {
            layer: _padded([found[index].to(self.device) for found in states], width)
            for index, layer in enumerate(self.layers)
        }
        return replace(train_batch(rows, {**hidden, TARGET: features}), visual=self._visual(step)), features

    def _read(self, step: int, clip: int, numbers: Sequence[int]) -> Mapping[int, Sequence[Tensor]]:
        """Compute each layer's states [T, S] of each answer."""
        rows = self.answers.rows(numbers).to(self.device)
        visual = self.answers.features.visual(step, [clip]).to(self.device)
        states = drafter_states(self.model, self.answers.codec, visual, rows)
        lengths = train_batch(rows, {}).lengths.tolist()
        return {
            number: [states[layer][row, :length] for layer in self.layers]
            for row, (number, length) in enumerate(zip(numbers, lengths, strict=True))
        }

    def _own_answers(self, step: int, numbers: Sequence[int]) -> list[list[int]]:
        """Decode the drafter's own greedy answers to the step's questions."""
        if any(number not in self._said for number in numbers):
            visual = self.answers.visual(step)
            said = own_answers(self.model, self.answers, visual, numbers, self.own)
            self._said.update(zip(numbers, said, strict=True))
        return [self._said[number] for number in numbers]

    def _visual(self, step: int) -> dict[int, Tensor]:
        """Visual layer 0 for the step's answers, clip-major."""
        if self.frames is None:
            return {}
        clips = self.answers.features.numbers(step, self.answers.clips)
        return {0: self.frames.visual(step, clips).repeat_interleave(self.answers.each, 0).to(self.device)}


@dataclass(frozen=True)
class OwnAnswerData(FrozenDrafterData):
    """Batches for adapters on the drafter's own answer: the drafter's and the target's answers to one question.

    position      0     1     2    …   A
    tokens        pad   x(0)  x(1) …   x(A-1)     the target's answer; at t stands the token before x(t)
    target        f(0)  f(1)  f(2) …              the target's feature from which x(t) was computed
    drafter       o(0)  o(1)  o(2) …  o(n-1)      the drafter's t-th token, feature and logits; n is its length

    Args:
        own: largest number of tokens of the drafter's answers.
        top: number of the drafter's likeliest tokens that are read at each position.
    """

    own: int
    top: int

    @torch.no_grad()
    def batch(self, step: int) -> tuple[IndexedBatch, Tensor]:
        """Return the target's and the drafter's answers to the step's questions, and target features [rows, T, H]."""
        answers = self.answers
        numbers, depth = answers.numbers(step), answers.store.index.owner.depth
        said = self._tensors(step, numbers)
        stored = [answers.store.answer(number, (depth,)) for number in numbers]
        tokens = [pad(one.tokens[one.start :], (1, 0), value=answers.codec.pad_id) for one in stored]
        features = [one.hidden[depth][one.start - 1 :].float() for one in stored]
        plain = pad_batch(tokens, [1] * len(stored), {TARGET: features})
        own = _side_by_side(said, plain.tokens.shape[1])
        batch = IndexedBatch(plain.tokens, plain.hidden, plain.starts, plain.lengths, own=own)
        return batch, plain.hidden[TARGET]

    def _read(self, step: int, clip: int, numbers: Sequence[int]) -> Mapping[int, Sequence[Tensor]]:
        """Compute tokens [n], features [n, S], ids and log-probabilities [n, K] of each answer; see `OwnAnswer`."""
        answers, model = self.answers, self.model
        visual = answers.features.visual(step, [clip])
        said = own_answers(model, answers, visual, numbers, self.own)
        pairs = [(answers.question(number), own) for number, own in zip(numbers, said, strict=True)]
        rows = pack(pairs, answers.codec.pad_id)
        states = drafter_states(model, answers.codec, visual, rows)[-1]
        found: dict[int, Sequence[Tensor]] = {}
        for row, (number, own, start) in enumerate(zip(numbers, said, rows.answer_start.tolist(), strict=True)):
            mine = states[row : row + 1, start : start + len(own)].clone()
            answer = own_answer_of(torch.tensor([own]), mine, model.model.get_output_embeddings(), self.top)
            found[number] = (answer.tokens[0], answer.states[0], answer.ids[0], answer.log_probs[0])
        return found


def _side_by_side(said: Sequence[Sequence[Tensor]], width: int) -> OwnAnswer:
    """Stack the first `width` entries of each answer, padded to `width`."""
    cut = [[part[:width] for part in parts] for parts in zip(*said, strict=True)]
    lengths = torch.tensor([len(tokens) for tokens in cut[0]])
    rows = [pad_sequence(parts, batch_first=True) for parts in cut]
    tokens, states, ids, log_probs = (pad(one, (0, 0) * (one.ndim - 2) + (0, width - one.shape[1])) for one in rows)
    return OwnAnswer(tokens, states, ids, log_probs, lengths)


def _padded(rows: Sequence[Tensor], width: int) -> Tensor:
    """Stack rows [T, S] to [n, width, S], with zeros on the right."""
    padded = pad_sequence(list(rows), batch_first=True)
    return pad(padded, (0, 0, 0, width - padded.shape[1]))
