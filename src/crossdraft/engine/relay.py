"""Two placements for one answer: one drafter while the target reads, another, or both, from then on.

So a drafter that senses the scene itself may work hidden in a process of its own, and one that looks into the target,
and has to live beside it, takes over when the target has begun to speak. Where both go on, the first one's draft is
what it has prepared by then: nobody waits for it. The later one's has to be waited for, so it is not asked where the
prepared draft alone brings more tokens a second.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from torch import Tensor

from crossdraft.engine.drafter import Budget, Draft, VerifyOutput
from crossdraft.engine.estimates import Ema
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import NOTHING, OnToken, Placement
from crossdraft.engine.streams import apart
from crossdraft.engine.timeline import Span
from crossdraft.engine.together import own_part, with_probes


class Join(Protocol):
    """Makes one draft of two; see `drafters.combine.tree_merger.TreeMerger`."""

    def share(self, budget: Budget, place: int, *, greedy: bool) -> Budget:
        """What the one at that place may draft."""
        ...

    def join(self, drafts: Sequence[Draft], nodes: int, *, greedy: bool) -> Draft:
        """One draft of at most so many nodes."""
        ...

    def learn(self, drafts: Sequence[Draft], said: Sequence[int]) -> None:
        """How the text went on."""
        ...


@dataclass
class Worth:
    """Whether a prepared draft is enough: tokens a second with it alone against those of rounds with both.

    Args:
        both, both_s: tokens and seconds of a round in which the later drafter wrote too.
        check_s: seconds from a draft to its verdict.
        hoped, kept: tokens of a prepared draft by its own chances, and those that were accepted.
    """

    both: Ema = field(default_factory=Ema)
    both_s: Ema = field(default_factory=Ema)
    check_s: Ema = field(default_factory=Ema)
    hoped: Ema = field(default_factory=lambda: Ema(weight=1.0, total=4.0))
    kept: Ema = field(default_factory=lambda: Ema(weight=1.0, total=4.0))

    def enough(self, prepared: Draft) -> bool:
        """True if it may go alone. Not before both have been tried."""
        both, both_s, check_s = self.both.value, self.both_s.value, self.check_s.value
        if not prepared.path_probs or both is None or both_s is None or check_s is None:
            return False
        fulfilled = (self.kept.value or 0.0) / (self.hoped.value or 1.0)
        return (1 + fulfilled * _hope(prepared)) * both_s > both * check_s

    def saw(self, drafts: tuple[Draft, Draft], output: VerifyOutput, waited: float, checked: float) -> None:
        """A round of these drafts, which took so long to write and to judge, ended so."""
        prepared, written = drafts
        if len(prepared.tree) or len(written.tree):
            self.check_s.add(checked)
        if len(written.tree):
            self.both.add(len(output.tokens))
            self.both_s.add(waited + checked)
        if prepared.path_probs:
            self.hoped.add(_hope(prepared))
            self.kept.add(len(prepared.tree.follow(output.tokens[: len(output.path)])))


def _hope(draft: Draft) -> float:
    """Tokens of its longest text that a drafter expects to be accepted."""
    return sum(draft.path_probs[node] for node in draft.tree.main_path)


@dataclass
class _Turn:
    """One answer: whether it is greedy, what was said, what each of the two has proposed, and how long that took."""

    greedy: bool
    said: tuple[int, ...] = ()
    drafts: tuple[Draft, Draft] = (NOTHING, NOTHING)
    waited: float = 0.0


class Relay:
    """See the module's text. The later drafter follows the answer from its beginning.

    Args:
        hidden: drafts while the target reads.
        later: drafts from then on.
        join: makes one draft of both's; `None` = the first one's turn is over.
    """

    def __init__(self, hidden: Placement, later: Placement, join: Join | None = None) -> None:
        self.hidden, self.later, self.join = hidden, later, join
        self.needs = replace(
            later.needs,
            video=hidden.needs.video or later.needs.video,
            visual=hidden.needs.visual or later.needs.visual,
            probes=max(hidden.needs.probes, later.needs.probes),
            remembers=hidden.needs.remembers or later.needs.remembers,
        )
        self.worth = Worth()
        self._turns: dict[int, _Turn] = {}
        self._proposed = 0.0  # when the last drafts were handed over

    def start(self, request_id: int, request: Request, nodes: int, on_token: OnToken | None) -> None:
        first, second = (apart([request], place)[0] for place in range(2))
        self._turns[request_id] = _Turn(request.sampling.greedy)
        self.hidden.start(request_id, first, nodes, on_token)
        self.later.start(request_id, second, 0, None)

    def see(self, request_id: int, features: Tensor | None) -> None:
        self.hidden.see(request_id, features)
        self.later.see(request_id, features)

    def ready(self, request_ids: Sequence[int], budgets: Sequence[Budget]) -> list[Draft]:
        return self.propose(request_ids, budgets)

    def collect(self, request_id: int) -> Draft:
        self.later.collect(request_id)
        draft = replace(self.hidden.collect(request_id), refusal=None)  # it is enough if one of them goes on
        self._turns[request_id].drafts = draft, NOTHING
        return draft

    def propose(self, request_ids: Sequence[int], budgets: Sequence[Budget]) -> list[Draft]:
        turns = [self._turns[request_id] for request_id in request_ids]
        if self.join is None:
            written = self.later.propose(request_ids, budgets)
            for turn, draft in zip(turns, written, strict=True):
                turn.drafts = NOTHING, draft
            return written
        start = time.perf_counter()
        first, second = (
            [self.join.share(b, place, greedy=t.greedy) for b, t in zip(budgets, turns, strict=True)]
            for place in range(2)
        )
        prepared = self.hidden.ready(request_ids, first)
        asked = [
            place
            for place, (turn, draft) in enumerate(zip(turns, prepared, strict=True))
            if not (turn.greedy and self.worth.enough(draft))
        ]
        wanted = self.later.propose([request_ids[place] for place in asked], [second[place] for place in asked])
        written = dict(zip(asked, wanted, strict=True))
        joined = []
        for place, (turn, draft, budget) in enumerate(zip(turns, prepared, budgets, strict=True)):
            turn.drafts = replace(draft, refusal=None), written.get(place, NOTHING)
            made = self.join.join(turn.drafts, budget.nodes, greedy=turn.greedy)
            joined.append(with_probes(made, turn.drafts))
        self._proposed = time.perf_counter()
        for turn in turns:
            turn.waited = self._proposed - start
        return joined

    def commit(self, request_ids: Sequence[int], outputs: Sequence[VerifyOutput]) -> None:
        told: tuple[list[VerifyOutput], list[VerifyOutput]] = ([], [])
        checked = time.perf_counter() - self._proposed
        for request_id, output in zip(request_ids, outputs, strict=True):
            turn = self._turns[request_id]
            if self.join is not None and turn.said and turn.greedy:
                self.join.learn(turn.drafts, output.tokens)
                self.worth.saw(turn.drafts, output, turn.waited, checked)
            turn.said += output.tokens
            for place, own in enumerate(told):
                own.append(own_part(turn.drafts, place, output))
            turn.drafts = NOTHING, NOTHING
        if self.join is not None:
            self.hidden.commit(request_ids, told[0])
        self.later.commit(request_ids, told[1])

    def end(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            turn = self._turns.pop(request_id, None)
            if turn is not None and turn.said and self.join is None and self.hidden.needs.remembers:
                self.hidden.commit([request_id], [VerifyOutput((), turn.said)])
        self.hidden.end(request_ids)
        self.later.end(request_ids)

    def drain(self) -> list[Span]:
        return [*self.hidden.drain(), *self.later.drain()]

    def spare_cores(self) -> tuple[int, ...]:
        return self.hidden.spare_cores()

    def close(self) -> None:
        self.hidden.close()
        self.later.close()

    def restarted(self) -> Self:
        hidden = self.hidden.restarted()
        try:
            return type(self)(hidden, self.later.restarted(), self.join)
        except BaseException:
            hidden.close()
            raise
