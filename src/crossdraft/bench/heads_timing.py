"""Time of a draft, and of the pass that verifies it: all drafters and the target, in turn, on the same states.

The text is the target's own (teacher forcing). Every few tokens each drafter drafts once from the same position, and
the target makes a pass over as many nodes and one over a single token; then the next tokens are committed to all, as if
a draft had held them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from crossdraft.bench.common import orders
from crossdraft.bench.identity import ReferenceAnswer
from crossdraft.bench.scale_measure import clocked
from crossdraft.bench.statistics import Quartiles, quartiles
from crossdraft.engine.drafter import Budget, Draft, Drafter, Needs, PromptFeatures, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.target import Chunk, Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

STEP = 4  # tokens of the text that are accepted from one position to the next, the bonus token not counted
WIDE, SINGLE = "V(n)", "V(1)"


@dataclass(frozen=True, slots=True)
class DraftTime:
    """Seconds of one drafter at one position.

    Args:
        draft: the commit, and drafting the next tree.
        commit: the commit alone.
        nodes: mean size of its drafts.
    """

    draft: Quartiles
    commit: Quartiles
    nodes: float


@dataclass(frozen=True, slots=True)
class DraftTimes:
    """Of every drafter, and of the target: V(1 + nodes) and t = V(1), in seconds."""

    nodes: int
    positions: int
    wide: Quartiles
    single: Quartiles
    drafters: Mapping[str, DraftTime]

    def ratios(self, name: str) -> tuple[float, float]:
        """A draft against the pass that verifies it, and against t; medians."""
        draft = self.drafters[name].draft.median
        return draft / self.wide.median, draft / self.single.median


@torch.inference_mode()
def time_drafts(
    target: Target,
    drafters: Mapping[str, Drafter[Any]],
    known: Sequence[ReferenceAnswer],
    nodes: int,
    tick: Callable[[str], None] | None = None,
) -> DraftTimes:
    """Time every drafter along the target's own answers, but for the first position, where a prompt is read too.

    Raises:
        CrossdraftError: no answer is long enough for a second position.
    """
    clock = _Clock(target, drafters, nodes)
    for pair in known:
        clock.walk(pair)
        if tick is not None:
            tick("clock")
    return clock.times()


class _Clock:
    """Samples by name, in seconds."""

    def __init__(self, target: Target, drafters: Mapping[str, Drafter[Any]], nodes: int) -> None:
        self.target, self.drafters, self.nodes = target, drafters, nodes
        self.needs = Needs.of_all([drafter.needs for drafter in drafters.values()])
        self.turns = orders([*drafters, WIDE, SINGLE])
        self.seconds: dict[str, list[float]] = {name: [] for name in (*drafters, WIDE, SINGLE)}
        self.committing: dict[str, list[float]] = {name: [] for name in drafters}
        self.drafted: dict[str, list[int]] = {name: [] for name in drafters}

    def walk(self, pair: ReferenceAnswer) -> None:
        """Through one answer."""
        states = {name: drafter.begin([pair.item.request]) for name, drafter in self.drafters.items()}
        forced = _TeacherForced(self.target, pair.item.request, pair.tokens, self.nodes, self.needs)
        commits: dict[str, float] = {}
        drafts: dict[str, Draft] = {}
        behind: dict[str, Tensor] = {}
        for position, step in enumerate(forced):
            for name, drafter in self.drafters.items():
                output = step.output_for(drafter.needs, drafts.get(name), behind.get(name))
                commits[name] = clocked(self.target.device, partial(drafter.commit, states[name], [output]))
            for name in next(self.turns):
                spent = self._turn(name, states, drafts, forced)
                if position:
                    self._note(name, spent, commits, drafts)
            behind = {name: forced.probe(draft) for name, draft in drafts.items() if draft.probes}
        for name, drafter in self.drafters.items():
            drafter.end(states[name])

    def times(self) -> DraftTimes:
        """What was clocked."""
        if not self.seconds[SINGLE]:
            raise CrossdraftError(
                f"No answer has {STEP + 2} tokens or more, so no draft can be clocked; ask for longer answers."
            )
        return DraftTimes(
            self.nodes,
            len(self.seconds[SINGLE]),
            quartiles(self.seconds[WIDE]),
            quartiles(self.seconds[SINGLE]),
            {
                name: DraftTime(
                    quartiles(self.seconds[name]),
                    quartiles(self.committing[name]),
                    sum(self.drafted[name]) / len(self.drafted[name]),
                )
                for name in self.drafters
            },
        )

    def _turn(
        self, name: str, states: Mapping[str, list[Any]], drafts: dict[str, Draft], forced: "_TeacherForced"
    ) -> float:
        if name not in self.drafters:
            nodes = self.nodes if name == WIDE else 0
            return clocked(self.target.device, lambda: forced.verify(nodes))

        def draft() -> None:
            (drafts[name],) = self.drafters[name].propose(states[name], [Budget(self.nodes)])

        return clocked(self.target.device, draft)

    def _note(self, name: str, spent: float, commits: Mapping[str, float], drafts: Mapping[str, Draft]) -> None:
        if name in self.drafters:
            self.committing[name].append(commits[name])
            self.drafted[name].append(len(drafts[name].tree))
        self.seconds[name].append(spent + commits.get(name, 0.0))


@dataclass(frozen=True, slots=True)
class _TargetStep:
    """What the target's pass over the last tokens gave; see `VerifyOutput`."""

    tokens: tuple[int, ...]
    hidden: Mapping[int, Tensor]
    logits: Tensor
    prompt: PromptFeatures | None = None

    def output_for(self, needs: Needs, draft: Draft | None, behind: Tensor | None) -> VerifyOutput:
        """For a drafter with these needs, whose own draft was verified; `behind` [m, V]: logits of its probes."""
        path = () if draft is None else tuple(draft.tree.follow(self.tokens[:-1]))
        prompt = None
        if self.prompt is not None and not needs.nothing:
            seen = self.prompt.visual
            visual = {layer: seen[layer] for layer in needs.visual_layers if layer in seen}
            prompt = PromptFeatures(self.prompt.tokens, self.prompt.visual_tokens, visual)
        hidden = {layer: self.hidden[layer] for layer in needs.hidden_layers}
        output = VerifyOutput(path, self.tokens, hidden, prompt)
        asked = None if draft is None else draft.probes
        return output if asked is None or behind is None else output.with_probes(asked, behind)


class _TeacherForced:
    """An answer that is known, fed to the target anew: iterating yields what it makes of the prompt, then of each step.

    In between, `verify` makes a pass from where the text is, and leaves nothing behind.
    """

    def __init__(self, target: Target, request: Request, tokens: Sequence[int], nodes: int, needs: Needs) -> None:
        self.target, self.tokens, self.needs = target, tuple(tokens), needs
        self.prompt = target.prepare(request)
        self.cache = target.new_cache()
        self.row = self.cache.add_row(len(self.prompt) + len(tokens) + nodes + needs.probes + 1)
        self.done = 0  # tokens of the answer in front of the root

    def __iter__(self) -> Iterator[_TargetStep]:
        yield self._read()
        while self.done + STEP + 1 < len(self.tokens):
            yield self._step()

    def verify(self, nodes: int) -> None:
        """One pass over the root and a chain of so many nodes."""
        self._try(DraftTree.chain([self.tokens[self.done]] * nodes))

    def probe(self, draft: Draft) -> Tensor:
        """[m, V] what the target says behind a draft's probes."""
        return self._try(draft.input_tree, draft.probe_embeds)[1 + len(draft.tree) :]

    def _read(self) -> _TargetStep:
        pieces, offset = self.target.chunks(self.prompt, self.target.encode(self.prompt))
        self.cache.rope_deltas[self.row] = offset
        *front, last = pieces
        nothing, layers = DraftTree.empty(), self.needs.visual_layers
        outs = [self._extend(piece, nothing, layers) for piece in front]
        visual = {layer: torch.cat([hidden[i] for hidden, _ in outs]) for i, layer in enumerate(layers) if outs}
        ids = tuple(token for piece in front for token in piece.tokens.tolist())
        hidden, logits = self._extend(last, nothing, self.needs.hidden_layers)
        prompt = PromptFeatures(tuple(last.tokens.tolist()), ids, visual)
        return _TargetStep(self.tokens[:1], self._named(hidden), logits, prompt)

    def _step(self) -> _TargetStep:
        root, *step = self.tokens[self.done : self.done + STEP + 1]
        self.done += STEP + 1
        chain = DraftTree.chain(step)
        hidden, logits = self._extend(Chunk(torch.tensor([root])), chain, self.needs.hidden_layers)
        self.cache.keep(self.row, range(STEP))
        return _TargetStep((*step, self.tokens[self.done]), self._named(hidden), logits)

    def _try(self, tree: DraftTree, tail: Tensor | None = None) -> Tensor:
        """[1 + n, V] logits of a pass that is taken back."""
        length = self.cache.lengths[self.row]
        _, logits = self._extend(Chunk(torch.tensor([self.tokens[self.done]])), tree, (), tail)
        self.cache.truncate(self.row, length)
        return logits

    def _named(self, hidden: Sequence[Tensor]) -> dict[int, Tensor]:
        return dict(zip(self.needs.hidden_layers, hidden, strict=True))

    def _extend(
        self, chunk: Chunk, tree: DraftTree, layers: Sequence[int], tail: Tensor | None = None
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """[m + n, h] features of each layer, and [1 + n, V] logits."""
        rows = slice(self.row, self.row + 1)
        out = self.target.extend(self.cache, rows, [chunk], [tree], layers, [tail])
        return out.hidden[0], out.logits[0]
