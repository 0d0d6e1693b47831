"""The capture of a wave of clips: the first piece of each once, all answers side by side, and what the target thought.

    first piece ──fork──► last pieces, one pass ──► rounds, one pass each, until every answer has ended

Drafts from a memory of the answers before make a round worth several tokens. They are judged greedily, so that the
answers are those of the target alone, whatever is drafted.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from crossdraft.drafters.memory.drafter import MemoryDrafter, MemoryState
from crossdraft.engine.cache import KVCache
from crossdraft.engine.decode import Decoder
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.rules.greedy import judge
from crossdraft.engine.target import Chunk, Prompt, Target, TargetOut
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.train.capture.clip import Clip
from crossdraft.train.capture.shard import ClipRecord, Told, Wanted

SPANNING = "mm_token_type_ids"  # as long as the whole prompt, and only serves positions, which are compared themselves


@dataclass(frozen=True)
class Question:
    """One prompt: its last piece, behind the shared one, and the offset of later positions."""

    text: str
    last: Chunk
    offset: int


@dataclass(frozen=True)
class Reading:
    """Prompts with the same first piece; `first` is None where nothing is visual, and then each stands alone."""

    clip: Clip
    first: Chunk | None
    prompt: Prompt
    questions: tuple[Question, ...]

    @property
    def shared(self) -> int:
        """Tokens of the first piece."""
        return 0 if self.first is None else len(self.first.tokens)

    @property
    def longest(self) -> int:
        """Tokens of the longest last piece."""
        return max(len(question.last.tokens) for question in self.questions)


def read_prompts(target: Target, clip: Clip, max_new_tokens: int) -> list[Reading]:
    """A clip's prompts in order, neighbours with the same first piece together: as a rule all, which is encoded once.

    Raises:
        CrossdraftError: the clip cannot be read, or a prompt and its answer exceed the model's context.
    """
    readings: list[Reading] = []
    for request in clip.requests(max_new_tokens):
        prompt = target.prepare(request)
        if len(prompt) + max_new_tokens > target.context:
            raise CrossdraftError(
                f"A prompt about {clip.name} has {len(prompt)} tokens, and behind it the model's context has room for "
                f"{max(0, target.context - len(prompt))}, not for {max_new_tokens}; lower --max-new-tokens."
            )
        pieces, offset = target.chunks(prompt, None)
        question = Question(request.prompt, pieces[-1], offset)
        first = pieces[0] if len(pieces) > 1 else None
        if readings and first is not None and _same(readings[-1], first, prompt):
            readings[-1] = replace(readings[-1], questions=(*readings[-1].questions, question))
        else:
            whole = None if first is None else replace(first, encoded=target.encode(prompt))
            readings.append(Reading(clip, whole, prompt, (question,)))
    return readings


def _same(reading: Reading, first: Chunk, prompt: Prompt) -> bool:
    """True if a prompt begins as the reading does, to the last pixel."""
    known = reading.first
    if known is None or not torch.equal(first.tokens, known.tokens):
        return False
    if first.positions is not None and not (
        known.positions is not None and torch.equal(first.positions, known.positions)
    ):
        return False
    names = (prompt.features.keys() | reading.prompt.features.keys()) - {SPANNING}
    return all(_equal(prompt, reading.prompt, name) for name in sorted(names))


def _equal(one: Prompt, other: Prompt, name: str) -> bool:
    if name not in one.features or name not in other.features:
        return False
    return torch.equal(one.features[name], other.features[name])


NODES, CONFIDENCE = 6, 0.25  # most nodes a row and round, and the least chance of one
NOTHING = DraftTree.empty()


@dataclass(eq=False)
class _Row:
    """An answer in the making."""

    pending: Chunk
    memory: MemoryState
    written: list[int]  # the prompt's last piece, then the answer
    start: int
    features: list[Tensor] = field(default_factory=list)  # [layers, n, H] of one pass
    top: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    ended: bool = False

    @property
    def said(self) -> int:
        return len(self.written) - self.start

    def told(self, wanted: Wanted) -> Told:
        features = torch.cat(self.features, 1).cpu()
        ids, logits = (torch.cat(parts).cpu() for parts in zip(*self.top, strict=True))
        hidden = {layer: features[i] for i, layer in enumerate(wanted.layers)}
        return Told(torch.tensor(self.written), self.start, hidden, ids, logits)


class Scribe:
    """Has a target answer, and writes down what is wanted.

    Args:
        target: whose answers.
        wanted: what is kept of them; layers as `layers.canonical` has them.
        nodes: most nodes drafted for each answer and round; 0 drafts nothing.
        learns: drafts from the answers of earlier calls too. Without, a call is a function of its clips alone, to the
            last bit.
    """

    def __init__(self, target: Target, wanted: Wanted, *, nodes: int = NODES, learns: bool = True) -> None:
        self.target = target
        self.wanted = wanted
        self.nodes = nodes
        self.learns = learns
        self._memory = MemoryDrafter()
        self._cache = target.new_cache(0)
        self._generator = torch.Generator()  # greedy judgement draws nothing

    @torch.inference_mode()
    def write(self, clips: Sequence[Clip]) -> list[list[ClipRecord]]:
        """The records of each clip: one, if all its prompts begin alike."""
        if not self.learns:
            self._memory = MemoryDrafter()
        readings = [read_prompts(self.target, clip, self.wanted.max_new_tokens) for clip in clips]
        flat = [reading for some in readings for reading in some]
        cache = self._room(flat)
        try:
            seen, rows = [], []
            for reading in flat:
                seen.append(self._see(cache, reading))
                rows.append([self._begin(reading, question) for question in reading.questions])
            self._answer(cache, [row for some in rows for row in some])
        except BaseException:
            self._cache = self.target.new_cache(0)  # with rows that nobody will close
            raise
        records = iter(
            ClipRecord(_ids(reading), tuple(row.told(self.wanted) for row in some), visual)
            for reading, some, visual in zip(flat, rows, seen, strict=True)
        )
        return [[next(records) for _ in some] for some in readings]

    def _room(self, readings: Sequence[Reading]) -> KVCache:
        """An empty cache with a row for every question; kept from one call to the next, because zeros take time."""
        rows = sum(len(reading.questions) for reading in readings)
        prompt = max(reading.shared for reading in readings) + max(reading.longest for reading in readings)
        longest = prompt + self.wanted.max_new_tokens + self.nodes + 1
        if self._cache.max_rows < rows or self._cache.capacity < longest:
            self._cache = self.target.new_cache(rows, longest)
        return self._cache

    def _see(self, cache: KVCache, reading: Reading) -> dict[int, Tensor]:
        """Read the first piece, and open a row behind it for every question; returns its features."""
        capacity = cache.capacity
        row = cache.add_row(capacity)
        layers = self.wanted.visual_layers
        visual: dict[int, Tensor] = {layer: torch.zeros(0, self.target.text_config.hidden_size) for layer in layers}
        if reading.first is not None:
            out = self.target.extend(cache, slice(row, row + 1), [reading.first], [NOTHING], layers)
            visual = {layer: states.bfloat16().cpu() for layer, states in zip(layers, out.hidden[0], strict=True)}
        rows = [row, *(cache.fork(row, cache.lengths[row], capacity) for _ in reading.questions[1:])]
        for row, question in zip(rows, reading.questions, strict=True):
            cache.rope_deltas[row] = question.offset
        return visual

    def _begin(self, reading: Reading, question: Question) -> _Row:
        request = Request(question.text, video=reading.clip.name)  # to the memory a clip is its name
        written = question.last.tokens.tolist()
        return _Row(question.last, self._memory.begin([request])[0], written, len(written))

    def _answer(self, cache: KVCache, rows: Sequence[_Row]) -> None:
        """Rounds until every row has ended; cache rows leave as their answers end, the last into the gap."""
        live = list(rows)
        while live:
            trees = [self._draft(row) for row in live]
            chunks = [row.pending for row in live]
            out = self.target.extend(cache, slice(0, len(live)), chunks, trees, self.wanted.layers)
            self._take(cache, live, trees, out)
            for place in range(len(live) - 1, -1, -1):
                if live[place].ended:
                    cache.drop_row(place)
                    self._memory.end([live[place].memory])
                    live[place] = live[-1]
                    live.pop()

    def _draft(self, row: _Row) -> DraftTree:
        """No more than may still be said: the target itself says the last token."""
        nodes = min(self.nodes, self.wanted.max_new_tokens - row.said - 1)
        if nodes <= 0:
            return NOTHING
        return self._memory.propose([row.memory], [Budget(nodes, CONFIDENCE)])[0].tree

    def _take(self, cache: KVCache, live: Sequence[_Row], trees: Sequence[DraftTree], out: TargetOut) -> None:
        """Judge each row's tree, commit its path, and keep the features of what was fed and stays."""
        chosen: list[Tensor] = []
        for place, (row, tree, logits, layers) in enumerate(zip(live, trees, out.logits, out.hidden, strict=True)):
            fed = len(row.pending.tokens)
            output = judge(tree, logits, self._generator)
            cache.keep(place, output.path)
            said = self._until_end(row, (*(tree.tokens[node] for node in output.path), output.bonus))
            path = output.path[: len(said) - 1]  # the last token of an answer is not fed
            row.features.append(_picked(layers, fed, path))
            chosen.append(logits[[0, *(node + 1 for node in path)]])
            row.written += said
            row.pending = Chunk(torch.tensor(said[-1:]))
            self._memory.commit([row.memory], [VerifyOutput(output.path[: len(said)], said)])
        top = torch.cat(chosen).float().topk(self.wanted.top_k)
        sizes = [len(scores) for scores in chosen]
        for row, ids, scores in zip(live, top.indices.split(sizes), top.values.split(sizes), strict=True):
            row.top.append((ids, scores))

    def _until_end(self, row: _Row, tokens: Sequence[int]) -> tuple[int, ...]:
        """The leading tokens that belong to the answer, which has room for all; sets `ended` where it ends."""
        end = next((i for i, token in enumerate(tokens) if token in self.target.eos), len(tokens))
        said = tuple(tokens[: end + 1])
        row.ended = end < len(tokens) or row.said + len(said) == self.wanted.max_new_tokens
        return said


def _picked(layers: Sequence[Tensor], fed: int, path: Sequence[int]) -> Tensor:
    """[layers, fed + path, H] bfloat16: the features of the pending tokens, then of the accepted nodes."""
    if list(path) == list(range(len(path))):  # a chain's beginning, as most paths are
        return torch.stack([states[: fed + len(path)].bfloat16() for states in layers])
    places = torch.tensor([*range(fed), *(fed + node for node in path)], device=layers[0].device)
    return torch.stack([states[places].bfloat16() for states in layers])


def _ids(reading: Reading) -> Tensor:
    return torch.empty(0, dtype=torch.int64) if reading.first is None else reading.first.tokens


class Alone:
    """A scribe with a watch; `seconds` it has written for."""

    def __init__(self, scribe: Scribe) -> None:
        self.scribe = scribe
        self.seconds = 0.0

    def write(self, clips: Sequence[Clip]) -> list[list[ClipRecord]]:
        """The records of a wave."""
        start = time.perf_counter()
        records = self.scribe.write(clips)
        self.seconds += time.perf_counter() - start
        return records


class Interleaved(Alone):
    """A scribe, and the target alone with as many rows at a time, who has the first turn in every other wave.

    Both get the same requests, and prepare them themselves.
    """

    def __init__(self, scribe: Scribe, batch: int) -> None:
        super().__init__(scribe)
        self.decoder = Decoder(scribe.target, max_batch=batch)
        self.generated_s = 0.0
        self.answers = 0
        self.identical = 0
        self._waves = 0

    def warm_up(self, clip: Clip) -> None:
        """Both once, before anything counts, with a scribe that remembers nothing of it."""
        Scribe(self.scribe.target, self.scribe.wanted).write([clip])
        self.decoder.generate(clip.requests(self.scribe.wanted.max_new_tokens))

    def write(self, clips: Sequence[Clip]) -> list[list[ClipRecord]]:
        self._waves += 1
        if self._waves % 2:
            records = super().write(clips)
            answers = self._generate(clips)
        else:
            answers = self._generate(clips)
            records = super().write(clips)
        told = [told for some in records for record in some for told in record.told]
        captured = [tuple(one.tokens[one.start :].tolist()) for one in told]
        self.answers += len(answers)
        self.identical += sum(mine == own for mine, own in zip(captured, answers, strict=True))
        return records

    def _generate(self, clips: Sequence[Clip]) -> list[tuple[int, ...]]:
        longest = self.scribe.wanted.max_new_tokens
        start = time.perf_counter()
        answers = self.decoder.generate([request for clip in clips for request in clip.requests(longest)])
        self.generated_s += time.perf_counter() - start
        return [answer.tokens for answer in answers]


@dataclass(frozen=True)
class Comparison:
    """What came of it.

    Args:
        captured_s, generated_s: seconds for all answers; those of the capture include writing its files.
        ratio: captured answers a second over generated ones.
        identical, answers: how many have the same tokens, of how many. In float32 a near-tie may flip between passes of
            different shapes.
    """

    captured_s: float
    generated_s: float
    ratio: float
    identical: int
    answers: int

    @classmethod
    def of(cls, turns: Interleaved, filing_s: float) -> "Comparison":
        captured = turns.seconds + filing_s
        return cls(
            round(captured, 3),
            round(turns.generated_s, 3),
            round(turns.generated_s / captured, 3) if captured else 0.0,
            turns.identical,
            turns.answers,
        )

    def sentence(self) -> str:
        """For people."""
        return (
            f"Captured {self.ratio:.2f}x as fast as the target alone generates ({self.captured_s:.1f} s for "
            f"{self.answers} answers, {self.generated_s:.1f} s alone); {self.identical} of them are identical."
        )
