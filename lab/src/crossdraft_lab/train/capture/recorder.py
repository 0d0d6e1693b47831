"""Recording a target's answers: a drafter that keeps the outputs that the engine's loop commits to it.

The target decodes greedily, whatever its generation_config says. Drafts from a memory of earlier answers let a pass
give several tokens, and neighbouring questions about a clip share its prefill; neither changes an answer.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from crossdraft.drafters.memory.drafter import MemoryDrafter, MemoryState
from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Budget, Draft, PromptFeatures, VerifyOutput
from crossdraft.engine.generation import GenerationDefaults
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.passes import Chunk, PassRow, TargetOut
from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft_lab.drafters.evaluate import decode_all
from crossdraft_lab.train.capture.plan import check_length
from crossdraft_lab.train.capture.shard import CapturedAnswer, CaptureSpec
from crossdraft_lab.train.capture.sources import ClipRequest, PromptedClip

NODES, CONFIDENCE = 6, 0.25  # most nodes of a draft, and the least path probability of a node
SPANNING = "mm_token_type_ids"  # one value for each token of the prompt; gives positions, is not encoded


@dataclass(frozen=True)
class _Prefix:
    """A prompt's first piece, which shows the clip, as the target read it, with keys and values [1, heads, n, d]."""

    chunk: Chunk
    layers: tuple[int, ...]
    out: TargetOut
    stores: list[tuple[Tensor, Tensor]]

    def serves(self, chunk: Chunk, layers: Sequence[int]) -> bool:
        """True if reading `chunk` would give this prefix; features of equal pixels must be one object."""
        if chunk.encoded is not self.chunk.encoded or self.layers != tuple(layers):
            return False
        same = torch.equal(chunk.tokens, self.chunk.tokens)
        if chunk.positions is None or self.chunk.positions is None:
            return same and chunk.positions is self.chunk.positions
        return same and torch.equal(chunk.positions, self.chunk.positions)


class CaptureReader:
    """Makes a target read a clip once for all successive questions about it."""

    def __init__(self, target: Target, spec: CaptureSpec) -> None:
        self._inner, self._spec = target, spec
        self._encoded: tuple[Prompt, Encoded] | None = None
        self._prefix: _Prefix | None = None

    def encode(self, prompt: Prompt) -> Encoded:
        """Encode as `Target.encode` does; successive prompts with equal visual features share one object."""
        if self._encoded is None or not _same_features(self._encoded[0], prompt):
            self._encoded = prompt, self._inner.encode(prompt)
        return self._encoded[1]

    def extend(self, cache: KVCache, rows: Sequence[PassRow]) -> TargetOut:
        """Extend as `Target.extend` does; a prompt's first piece that was read before is copied."""
        first = [row for row in rows if row.chunk.skip_logits and not cache.lengths[row.index]]
        fronts = {row.index: self._front(cache, row) for row in first}
        others = [row for row in rows if row.index not in fronts]
        if not fronts:
            return self._inner.extend(cache, rows)
        outs = list(fronts.values())
        if others:
            outs.append(self._inner.extend(cache, others))
        order = [*fronts, *(row.index for row in others)]
        logits = dict(zip(order, (one for out in outs for one in out.logits), strict=True))
        hidden = dict(zip(order, (one for out in outs for one in out.hidden), strict=True))
        last = outs[-1]
        return replace(last, logits=[logits[row.index] for row in rows], hidden=[hidden[row.index] for row in rows])

    def _front(self, cache: KVCache, row: PassRow) -> TargetOut:
        """Read a prompt's first piece, or copy it if it was read before."""
        length, prefix = len(row.chunk.tokens), self._prefix
        if prefix is None or not prefix.serves(row.chunk, row.capture):
            out = self._inner.extend(cache, [row])
            layers = range(self._inner.text_config.num_hidden_layers)
            stores = [(keys.clone(), values.clone()) for keys, values in (cache.first(i, length) for i in layers)]
            self._prefix = _Prefix(row.chunk, row.capture, out, stores)
            return out
        cache.open_window(slice(row.index, row.index + 1), length)
        for layer, (keys, values) in enumerate(prefix.stores):
            cache.update(keys, values, layer)
        cache.advance(row.index, length)
        return prefix.out

    def prepare(self, request: Request) -> Prompt:
        """Prepare as `Target.prepare` does; refuse a prompt that leaves no room for its answer."""
        prompt = self._inner.prepare(request)
        name = request.clip_name if isinstance(request, ClipRequest) else "a clip"
        check_length(prompt, self._inner, name, self._spec)
        return prompt


def capture_target(target: Target, spec: CaptureSpec) -> Target:
    """Build a target that answers greedily, and reads clips through a `CaptureReader`."""
    reader = CaptureReader(target, spec)
    made = target.reading(reader.prepare, reader.encode, reader.extend)
    made.defaults = GenerationDefaults(eos=tuple(sorted(target.eos)))
    return made


def _same_features(one: Prompt, other: Prompt) -> bool:
    """True if the visual inputs of two prompts are exactly equal."""
    names = one.features.keys() - {SPANNING}
    if names != other.features.keys() - {SPANNING}:
        return False
    return all(torch.equal(one.features[name], other.features[name]) for name in sorted(names))


@dataclass(eq=False)
class RecorderState:
    """State of recording one answer: `hidden` of each pass in turn, [layers, n, H] bfloat16."""

    memory: MemoryState
    number: int
    prompt: PromptFeatures | None = None
    answer: list[int] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)


class RecordingDrafter:
    """Drafts like `memory`, and records every answer with the target's features.

    Args:
        memory: memory of earlier answers.
        spec: the features to record.

    `recorded` has the answers by the number of their request.
    """

    def __init__(self, memory: MemoryDrafter, spec: CaptureSpec) -> None:
        self.memory, self.spec = memory, spec
        self.needs = replace(memory.needs, hidden_layers=spec.layers, visual_layers=spec.visual_layers)
        self.recorded: dict[int, CapturedAnswer] = {}
        self._last: CapturedAnswer | None = None

    def begin(self, requests: Sequence[Request]) -> list[RecorderState]:
        clip_requests = [request for request in requests if isinstance(request, ClipRequest)]
        if len(clip_requests) < len(requests):
            raise CrossdraftError("A recorder answers requests of `PromptedClip.requests` alone.")
        states = self.memory.begin([replace(request, video=request.clip_name) for request in clip_requests])
        return [RecorderState(state, request.number) for state, request in zip(states, clip_requests, strict=True)]

    def propose(self, states: Sequence[RecorderState], budgets: Sequence[Budget]) -> list[Draft]:
        confident = [replace(budget, min_confidence=CONFIDENCE) for budget in budgets]
        return self.memory.propose([state.memory for state in states], confident)

    def commit(self, states: Sequence[RecorderState], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            state.prompt = state.prompt or output.prompt
            state.answer += output.tokens
            state.hidden.append(torch.stack([output.hidden[layer].bfloat16() for layer in self.spec.layers]))
        self.memory.commit([state.memory for state in states], outputs)

    def fork(self, states: Sequence[RecorderState]) -> list[RecorderState]:
        memories = self.memory.fork([state.memory for state in states])
        return [
            replace(state, memory=memory, answer=[*state.answer], hidden=[*state.hidden])
            for state, memory in zip(states, memories, strict=True)
        ]

    def end(self, states: Sequence[RecorderState]) -> None:
        for state in states:
            if state.prompt is not None:
                self.recorded[state.number] = self._record(state, state.prompt)
        self.memory.end([state.memory for state in states])

    def _record(self, state: RecorderState, prompt: PromptFeatures) -> CapturedAnswer:
        tokens = torch.tensor([*prompt.tokens, *state.answer])
        hidden = torch.cat(state.hidden, 1)[:, : len(tokens) - 1].cpu()  # an answer cut short has one more
        nothing = torch.zeros(0, hidden.shape[-1])  # for a prompt without visual tokens
        answer = CapturedAnswer(
            tokens,
            len(prompt.tokens),
            dict(zip(self.spec.layers, hidden, strict=True)),
            torch.tensor(prompt.visual_tokens, dtype=torch.int64),
            {layer: prompt.visual.get(layer, nothing).bfloat16().cpu() for layer in self.spec.visual_layers},
        )
        if self._last is not None and answer.same_piece(self._last):  # share the piece in memory
            answer = replace(answer, visual_ids=self._last.visual_ids, visual=self._last.visual)
        self._last = answer
        return answer


class FeatureRecorder:
    """Lets a target answer questions, and records its answers and features.

    Args:
        target: target that answers.
        spec: features that are kept; layers as `plan.canonical` returns them.
        batch: number of answers decoded in one batch.
        nodes: most nodes of a draft; 0 drafts nothing.
        learns: draft from the answers of earlier calls too. If false, a call's result depends on its clips alone, to
            the last bit.

    `seconds` is the total time spent in `record`.
    """

    def __init__(
        self, target: Target, spec: CaptureSpec, batch: int = 8, *, nodes: int = NODES, learns: bool = True
    ) -> None:
        self.target, self.spec, self.batch = target, spec, batch
        self.nodes, self.learns = nodes, learns
        self.seconds = 0.0
        self._memory = MemoryDrafter()

    def record(self, clips: Sequence[PromptedClip]) -> list[list[CapturedAnswer]]:
        """Return the answers about each clip, in the order of its questions.

        Raises:
            CrossdraftError: a clip cannot be read, or a prompt and its answer exceed the model's context.
        """
        start = time.perf_counter()
        if not self.learns:
            self._memory = MemoryDrafter()
        unnumbered = [request for clip in clips for request in clip.requests(self.spec.max_new_tokens)]
        requests = [replace(request, number=number) for number, request in enumerate(unnumbered)]
        recorder = RecordingDrafter(self._memory, self.spec)
        answers = decode_all(capture_target(self.target, self.spec), recorder, requests, self.nodes, self.batch)
        recorded = [recorder.recorded.get(number) for number in range(len(requests))]
        for answer, found in zip(answers, recorded, strict=True):
            if found is None or tuple(found.tokens[found.start :].tolist()) != answer.tokens:
                raise CrossdraftError(f"An answer was not recorded whole ({'; '.join(answer.notes)}); capture anew.")
        whole = iter([found for found in recorded if found is not None])
        self.seconds += time.perf_counter() - start
        return [[next(whole) for _ in clip.prompts] for clip in clips]


class InterleavedRecorder(FeatureRecorder):
    """A recorder and the plain target in turns, with batches of equal size; each goes first every other time.

    Both get the same requests, and prepare them themselves.
    """

    def __init__(self, target: Target, spec: CaptureSpec, batch: int) -> None:
        super().__init__(target, spec, batch)
        self.plain = DecodeLoop(target, max_batch=batch)
        self.generated_s = 0.0
        self.answers = 0
        self.identical = 0
        self._turns = 0

    def warm_up(self, clip: PromptedClip) -> None:
        """Capture and generate a clip's answers once, uncounted; no drafter learns from them."""
        FeatureRecorder(self.target, self.spec, self.batch).record([clip])
        self.plain.generate(clip.requests(self.spec.max_new_tokens))

    def record(self, clips: Sequence[PromptedClip]) -> list[list[CapturedAnswer]]:
        self._turns += 1
        if self._turns % 2:
            recorded = super().record(clips)
            generated = self._generate(clips)
        else:
            generated = self._generate(clips)
            recorded = super().record(clips)
        captured = [tuple(one.tokens[one.start :].tolist()) for some in recorded for one in some]
        self.answers += len(generated)
        self.identical += sum(mine == own for mine, own in zip(captured, generated, strict=True))
        return recorded

    def _generate(self, clips: Sequence[PromptedClip]) -> list[tuple[int, ...]]:
        longest = self.spec.max_new_tokens
        start = time.perf_counter()
        answers = self.plain.generate([request for clip in clips for request in clip.requests(longest)])
        self.generated_s += time.perf_counter() - start
        return [answer.tokens for answer in answers]


@dataclass(frozen=True)
class CaptureComparison:
    """Comparison of capturing answers with generating them plainly.

    Args:
        captured_s, generated_s: seconds for all answers; `captured_s` includes writing files.
        ratio: captured answers a second over plainly generated ones.
        identical, answers: number of answers with the same tokens, and of all. In float32 a near-tie may flip between
            passes of different shapes.
    """

    captured_s: float
    generated_s: float
    ratio: float
    identical: int
    answers: int

    @classmethod
    def of(cls, turns: InterleavedRecorder, filing_s: float) -> "CaptureComparison":
        captured = turns.seconds + filing_s
        ratio = round(turns.generated_s / captured, 3) if captured else 0.0
        return cls(round(captured, 3), round(turns.generated_s, 3), ratio, turns.identical, turns.answers)

    def sentence(self) -> str:
        """Sentence for people."""
        return (
            f"Captured {self.ratio:.2f}x as fast as the target alone generates ({self.captured_s:.1f} s for "
            f"{self.answers} answers, {self.generated_s:.1f} s alone); {self.identical} of them are identical."
        )
