"""Time of a draft, and of the pass that verifies it: all drafters and the target, in turn, on the same states.

The text is the target's own (teacher forcing). Every few tokens each drafter drafts once from the same position, and
the target makes a pass over the draft's number of nodes and one over a single token; then the next tokens are committed
to all, as if a draft had held them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from crossdraft.comparisons import orders
from crossdraft.engine.drafter import Budget, Draft, Drafter, Needs, PromptFeatures, VerifyOutput
from crossdraft.engine.passes import Chunk, PassRow, TargetOut
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.experiments.record import Tick
from crossdraft_lab.bench.identity import ReferenceAnswer
from crossdraft_lab.bench.scale_measure import clocked
from crossdraft_lab.bench.statistics import quartiles

STEP = 4  # tokens of the text that are accepted from one position to the next, the bonus token not counted
WIDE, SINGLE = "V(n)", "V(1)"
Json = dict[str, Any]


@torch.inference_mode()
def time_drafts(
    target: Target,
    drafters: Mapping[str, Drafter[Any]],
    known: Sequence[ReferenceAnswer],
    nodes: int,
    tick: Tick = lambda _: None,
) -> tuple[Json, dict[str, Json]]:
    """Time every drafter along the target's own answers, except at the first position, where a prompt is read too.

    Returns:
        The target's passes, over one token and over 1 + `nodes`; and for each drafter the commit with drafting of the
        next tree, the commit alone, the mean size of its drafts, and its time as a ratio to those passes (medians).

    Raises:
        CrossdraftError: no answer is long enough for a second position.
    """
    timer = _DraftTimer(target, drafters, nodes)
    for pair in known:
        timer.walk(pair)
        tick("timing")
    return timer.times()


class _DraftTimer:
    """Timer that collects samples by name, in seconds."""

    def __init__(self, target: Target, drafters: Mapping[str, Drafter[Any]], nodes: int) -> None:
        self.target, self.drafters, self.nodes = target, drafters, nodes
        self.needs = Needs.of_all([drafter.needs for drafter in drafters.values()])
        self.turns = orders([*drafters, WIDE, SINGLE])
        self.seconds: dict[str, list[float]] = {name: [] for name in (*drafters, WIDE, SINGLE)}
        self.committing: dict[str, list[float]] = {name: [] for name in drafters}
        self.drafted: dict[str, list[int]] = {name: [] for name in drafters}

    def walk(self, pair: ReferenceAnswer) -> None:
        """Time the drafters along one answer."""
        states = {name: drafter.begin([pair.item.request]) for name, drafter in self.drafters.items()}
        forced = _TeacherForced(self.target, pair.item.request, pair.tokens, self.nodes, self.needs)
        commits: dict[str, float] = {}
        drafts: dict[str, Draft] = {}
        for position, step in enumerate(forced):
            for name, drafter in self.drafters.items():
                output = step.output_for(drafter.needs, drafts.get(name))
                commits[name] = clocked(self.target.device, partial(drafter.commit, states[name], [output]))
            for name in next(self.turns):
                spent = self._turn(name, states, drafts, forced)
                if position:
                    self._note(name, spent, commits, drafts)
        for name, drafter in self.drafters.items():
            drafter.end(states[name])

    def times(self) -> tuple[Json, dict[str, Json]]:
        """Times measured so far, as plain values."""
        if not self.seconds[SINGLE]:
            raise CrossdraftError(
                f"No answer has {STEP + 2} tokens or more, so no draft can be clocked; ask for longer answers."
            )
        single, wide = quartiles(self.seconds[SINGLE]), quartiles(self.seconds[WIDE])
        drafters = {
            name: {
                "draft_ms": draft.ms(),
                "of_it_commit_ms": quartiles(self.committing[name]).ms(),
                "mean_nodes": round(fmean(self.drafted[name]), 1),
                "over_verifying_pass": round(draft.median / wide.median, 3),
                "over_t": round(draft.median / single.median, 3),
            }
            for name in self.drafters
            for draft in [quartiles(self.seconds[name])]
        }
        positions = len(self.seconds[SINGLE])
        return {"positions": positions, "t_ms": single.ms(), f"v{self.nodes + 1}_ms": wide.ms()}, drafters

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
    """Result of the target's pass over the last tokens; see `VerifyOutput`."""

    tokens: tuple[int, ...]
    hidden: Mapping[int, Tensor]
    prompt: PromptFeatures | None = None

    def output_for(self, needs: Needs, draft: Draft | None) -> VerifyOutput:
        """Output for a drafter with these needs and its own draft."""
        path = () if draft is None else tuple(draft.tree.follow(self.tokens[:-1]))
        prompt = None
        if self.prompt is not None and not needs.nothing:
            features = self.prompt.visual
            visual = {layer: features[layer] for layer in needs.visual_layers if layer in features}
            prompt = replace(self.prompt, visual=visual)
        hidden = {layer: self.hidden[layer] for layer in needs.hidden_layers}
        return VerifyOutput(path, self.tokens, hidden, prompt)


class _TeacherForced:
    """Known answer that is fed to the target: iterating yields the target's output for the prompt, then for each step.

    In between, `verify` makes a pass from the current position, and leaves no trace.
    """

    def __init__(self, target: Target, request: Request, tokens: Sequence[int], nodes: int, needs: Needs) -> None:
        self.target, self.tokens, self.needs = target, tuple(tokens), needs
        prompt = target.prepare(request)
        self.cache = target.new_cache()
        room = len(prompt) + len(tokens) + nodes + 1
        hidden, visual = needs.hidden_layers, needs.visual_layers
        (*front, last), delta = target.chunks(prompt, target.encode(prompt))
        self.cache.add_row(room)
        self.cache.rope_deltas[0] = delta
        seen = [target.extend(self.cache, [PassRow(0, chunk, capture=visual)]).hidden[0] for chunk in front]
        self.read = target.extend(self.cache, [PassRow(0, last, capture=hidden)])
        cut, ids = target.visual_end(prompt), tuple(prompt.input_ids.tolist())
        features = {layer: torch.cat(parts) for layer, *parts in zip(visual, *seen, strict=True)} if seen else {}
        self.prompt = PromptFeatures(ids[cut:], ids[:cut], features)
        self.done = 0  # tokens of the answer in front of the root

    def __iter__(self) -> Iterator[_TargetStep]:
        yield _TargetStep(self.tokens[:1], self._by_layer(self.read), self.prompt)
        while self.done + STEP + 1 < len(self.tokens):
            yield self._step()

    def verify(self, nodes: int) -> None:
        """Make one pass over the root and a chain of `nodes` nodes."""
        length = self.cache.lengths[0]
        self._extend(self.tokens[self.done], DraftTree.chain([self.tokens[self.done]] * nodes), ())
        self.cache.truncate(0, length)

    def _step(self) -> _TargetStep:
        root, *step = self.tokens[self.done : self.done + STEP + 1]
        self.done += STEP + 1
        out = self._extend(root, DraftTree.chain(step), self.needs.hidden_layers)
        self.cache.keep(0, range(STEP))
        return _TargetStep((*step, self.tokens[self.done]), self._by_layer(out))

    def _by_layer(self, out: TargetOut) -> dict[int, Tensor]:
        return dict(zip(self.needs.hidden_layers, out.hidden[0], strict=True))

    def _extend(self, root: int, tree: DraftTree, layers: Sequence[int]) -> TargetOut:
        """Run a pass over the root and a tree."""
        row = PassRow(0, Chunk(torch.tensor([root])), tree, tuple(layers))
        return self.target.extend(self.cache, [row])
