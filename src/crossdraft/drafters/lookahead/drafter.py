"""The drafter `lookahead`: n-grams that the target generates in extra rows of its passes (Fu et al. 2024).

Beside the answer the target refines a window of future tokens, all positions at once, by Jacobi iteration. The window's
levels are the last iterations, and their diagonals are n-grams that the target generated:

    root ─ a1 ─ a2                level 0: `window` columns, the root is the first one's
     │     │     │
     b0    b1    b2               level 1 after it, at the positions one further
     │     │     │
     c0    c1    c2               … `level - 1` of them; after the last one new tokens n0 n1 n2 are read

Every column is a text (root a1 b1 c1, then n1), so the window is a tree of probes. Each pass yields the n-grams
(b0 c0 n0) after the root, (b1 c1 n1) after a1, and so on; then the oldest level goes and the window moves on by
one: b1 b2 are the next level 0. The newest n-grams known after the last token are the draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from crossdraft.drafters.base import PerRequestDrafter, show
from crossdraft.drafters.lookahead import LookaheadSettings
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.probes import Probes
from crossdraft.engine.prompt import GAP, PromptIds
from crossdraft.engine.request import Request
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError

Levels = list[list[int]]


@dataclass(eq=False)
class LookaheadState:
    """One answer: the window, and the n-grams found so far, the newest of each token last."""

    prompt: PromptIds | None  # its end fills the first window, if it is known at the first request for a draft
    levels: Levels = field(default_factory=list[list[int]])  # the first one without the root
    pool: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    root: int | None = None  # unknown while the target reads
    asked: bool = False  # true while the target's pass reads the window


class LookaheadDrafter(PerRequestDrafter[LookaheadState]):
    """Drafts n-grams that the target itself generated.

    Args:
        window: columns, W in the paper.
        level: length of the n-grams with their first token, N in the paper.
        grams: number of n-grams kept, and drafted, for each first token; G in the paper.
        banned: ids that the target must not see as text.

    Raises:
        CrossdraftError: n-grams of one token.
    """

    def __init__(
        self,
        window: int = LookaheadSettings.window,
        level: int = LookaheadSettings.level,
        grams: int = LookaheadSettings.grams,
        banned: Sequence[int] = (),
    ) -> None:
        if level < 2 or window < 1 or grams < 1:
            raise CrossdraftError(
                f"Lookahead needs a level of 2 or more, a window and grams of 1 or more; got level={level}, "
                f"window={window}, grams={grams}."
            )
        self.window, self.level, self.grams = window, level, grams
        self.banned = frozenset(banned)
        self.filler = next(token for token in range(len(banned) + 1) if token not in self.banned)
        # While it fills, the window has fewer levels and more columns.
        widest = (filled * (window + level - 1 - filled) - 1 for filled in range(1, level))
        self.needs = Needs(probes=max(widest), prompt=True)

    def _begin(self, request: Request) -> LookaheadState:
        return LookaheadState(request.prompt_ids)

    def _propose(self, state: LookaheadState, budget: Budget) -> Draft:
        if not state.levels:
            known = state.prompt.result() if state.prompt is not None and state.prompt.done() else ()
            state.levels = [self._some(known, self.window + self.level - 3)]
        known = state.pool.get(state.root, []) if state.root is not None else []
        tree = DraftTree.from_paths(known[::-1]).first(budget.nodes)
        show(known[-1][: budget.nodes] if known else (), budget)
        state.asked = True
        return Draft(tree, probes=probes_of(state.levels, len(tree)))

    def _commit(self, state: LookaheadState, output: VerifyOutput) -> None:
        if state.asked and len(output.probe_top) == sum(map(len, state.levels)):
            self._learn(state, output.tokens[0], [top[0] for top in output.probe_top])
        state.asked = False
        state.root = output.tokens[-1]

    def _learn(self, state: LookaheadState, first: int, read: Sequence[int]) -> None:
        """Learn from the target's tokens: `first` after the root, and `read` after the window's tokens."""
        found = [first, *read] if len(state.levels) == 1 else list(read[-len(state.levels[-1]) :])
        if len(state.levels) == self.level - 1:
            for start, gram in ngrams(state.root, state.levels, found):
                self._keep(state.pool, start, gram)
        usable = [self.filler if token in self.banned else token for token in found]
        state.levels = moved_on([*state.levels, usable], self.level - 1)

    def _keep(self, pool: dict[int, list[tuple[int, ...]]], start: int, gram: tuple[int, ...]) -> None:
        if self.banned.isdisjoint(gram):
            older = [known for known in pool.get(start, []) if known != gram]
            pool[start] = [*older, gram][-self.grams :]

    def _some(self, tokens: Sequence[int], count: int) -> list[int]:
        """Tokens of the first window: any will do, as the target soon refines them."""
        fit = [token for token in tokens if token != GAP and token not in self.banned][-count:] or [self.filler]
        return [fit[i % len(fit)] for i in range(count)]


def probes_of(levels: Levels, nodes: int) -> Probes | None:
    """The window as probes after a tree of `nodes` nodes, level by level; `None` if it has only the root's column.

    >>> probes_of([[1], [5, 6]], 0)
    Probes(tokens=(1, 5, 6), parents=(-1, -1, 0), top=1)
    """
    first, *later = levels
    row = [ROOT, *range(nodes, nodes + len(first))]  # the probe at each column, level by level
    parents = row[:-1]
    for level in later:
        parents += row[: len(level)]
        row = list(range(nodes + len(parents) - len(level), nodes + len(parents)))
    tokens = tuple(token for level in levels for token in level)
    return Probes(tokens, tuple(parents), top=1) if tokens else None


def ngrams(root: int | None, levels: Levels, found: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Each column's first token with the n-gram that follows it.

    >>> ngrams(7, [[1], [5, 6]], [8, 9])
    [(7, (5, 8)), (1, (6, 9))]
    """
    columns = zip([root, *levels[0]], zip(*levels[1:], found, strict=True), strict=True)
    return [(start, gram) for start, gram in columns if start is not None]


def moved_on(levels: Levels, most: int) -> Levels:
    """The window after the next root, of at most `most` levels: the oldest of too many is dropped.

    >>> moved_on([[1, 2], [5, 6, 7]], 2)
    [[2], [6, 7]]
    >>> moved_on([[1], [5, 6], [8, 9]], 2)
    [[6], [8, 9]]
    """
    if len(levels) <= most:
        return [level[1:] for level in levels]
    return [levels[1][1:], *levels[2:]]
