"""When drafting pays: the formulas, and a model of the running system's own timings that feeds them.

Notation: t = V(1) the time of one target pass over one token, V(n) over n; d the time of one drafting step, c = d/t;
W(γ) what the target waits for γ drafted levels, which is γ·d only where nothing is drafted ahead of time; h_j the
probability that draft position j is accepted given that the ones before it were.
"""

import math
import operator
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from crossdraft.engine.estimates import AcceptanceByDepth, Ema, LinearFit, PassTimes, RequestDifficulty


def expected_accepted(hazards: Sequence[float]) -> float:
    """E[a] = Σ_i Π_{j≤i} h_j, the expected accepted prefix of a chain with the given conditional acceptances.

    >>> expected_accepted([0.5, 0.5])
    0.75
    """
    total, reach = 0.0, 1.0
    for hazard in hazards:
        reach *= hazard
        total += reach
    return total


def steady_speedup(alpha: float, gamma: int, c: float, verify: float) -> float:
    """S = [(1 − α^{γ+1}) / (1 − α)] / [γc + V(γ+1)/t]; `verify` is V(γ+1)/t (Leviathan et al. 2023, Theorem 3.8)."""
    emitted = gamma + 1 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)
    return emitted / (gamma * c + verify)


def hidden_time(prefill: float, drafting: float, verify: float, accepted: float, new_tokens: int, step: float) -> float:
    """T = max(P_T, P_D + drafting) + V(k+1) + (N − 2 − a)⁺·t: an answer with one hidden draft, plain afterwards.

    All times in one unit; `drafting` includes the drafter's own prefill.
    """
    return max(prefill, drafting) + verify + max(0.0, new_tokens - 2 - accepted) * step


def hiding_bound(prefill: float, total: float) -> float:
    """1/ρ: no trick that hides work in the prefill is faster than this, ρ = the prefill's share of the baseline."""
    return total / prefill


FREE = 0.1  # part of V(1) that is no wait worth the name
HICCUP = 4  # times the usual wait: longer ones are the machine's doing, not the drafter's
# Without a draft every so many rounds a probe is made: at first, and at most, while probes are in vain.
PROBE_FIRST, PROBE_LAST = 4, 256
PROBE_DEPTH = 2
# With a draft every so many rounds one goes without: until it is known what that takes, and to see if that changes.
PLAIN_FIRST, PLAIN_EVERY = 16, 256
HIDING_EVERY = 32  # requests without a hidden draft behind which one is tried
READINGS = 3  # so many requests must have been read too slowly: a first one often is, on a machine that is not warm
READING_LOSS = 8  # times V(1) that a request may lose by it: less is not told from noise
READING_EVERY = 32  # of the requests that the drafter does not read, every so many is read


@dataclass(frozen=True)
class Plan:
    """A round: how many levels to draft, and the seconds that a token then takes (what an accepted node is worth).

    Raises:
        ValueError: a time is negative or no number; whoever asked for the plan then goes without a draft.
    """

    depth: int
    token_s: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.token_s) and self.token_s >= 0):
            raise ValueError(f"A plan of {self.token_s} seconds a token is none.")


def _stiff() -> LinearFit:
    """There is but one point a request, and the first ones have short drafts, on a machine that is not warm yet."""
    return LinearFit(stiffness=64.0)


@dataclass
class CostModel:
    """Times (seconds) and acceptances of the system as it runs; answers how much to draft and when to hide it.

    What a draft costs is what the target waited for it, wherever and whenever it was made. Depth is counted in levels;
    a chain's levels are its tokens.
    """

    verify: PassTimes = field(default_factory=PassTimes)  # of one request: n new tokens -> seconds
    wait: LinearFit = field(default_factory=lambda: LinearFit(anchor=2.0))  # levels drafted -> seconds waited
    wait_hidden: LinearFit = field(default_factory=_stiff)  # nodes of a hidden draft -> seconds
    ride: LinearFit = field(default_factory=_stiff)  # tokens of the ride-along pass -> seconds
    width: Ema = field(default_factory=lambda: Ema(weight=1.0, total=1.0))  # nodes of a level
    step: Ema = field(default_factory=Ema)  # a token of a hidden draft, undisturbed
    read: Ema = field(default_factory=Ema)  # the target's encode + prefill, alone
    draft_read: Ema = field(default_factory=Ema)  # the drafter's
    # What the target waited while the drafter read each of the last requests.
    read_waits: deque[float] = field(default_factory=lambda: deque(maxlen=READINGS))
    length: Ema = field(default_factory=Ema)  # tokens of an answer
    beside: Ema = field(default_factory=Ema)  # wall time of both side by side over the sum of both alone
    rounds: AcceptanceByDepth = field(default_factory=AcceptanceByDepth)  # of drafts in rounds
    hidden: AcceptanceByDepth = field(default_factory=AcceptanceByDepth)  # of hidden drafts
    trust: RequestDifficulty = field(
        default_factory=lambda: RequestDifficulty(prior=8.0, decay=0.98)
    )  # of drafters' own chances
    shared: dict[int, PassTimes] = field(default_factory=dict)  # rows -> a pass's time by row
    token_s: float = 0.0  # what a token was to take by the last plan
    idle: int = 0  # rounds since the last draft
    patience: int = PROBE_FIRST
    drafted: int = 0  # rounds with a draft since the last without
    unhidden: int = 0  # requests without a hidden draft
    unread: int = 0  # requests that the drafter did not read

    # -- what is observed ----------------------------------------------------------------------------------------

    def passes(self, rows: int) -> PassTimes:
        """V(n) of a pass that `rows` requests share, by request: each pays its part of it."""
        return self.verify if rows == 1 else self.shared.setdefault(rows, PassTimes())

    def saw_draft(self, asked: int, depth: int, nodes: int, waited: float) -> None:
        """The target waited so long for a round's draft of at most `asked` levels."""
        if not depth and waited < FREE * self.verify(1):
            return  # an empty hand that was not waited for, as between PEARL's steps, says nothing of drafts
        usual = max(self.wait(depth), self.verify(1))
        self.wait.add(depth, min(waited, HICCUP * usual) if self.wait.w and usual else waited)
        self.rounds.saw_draft(asked, depth)
        if depth:
            self.width.add(nodes / depth)

    def saw_verdict(
        self, request: RequestDifficulty, judged: int, kept: int, reach: Sequence[float] = (), *, hidden: bool = False
    ) -> None:
        """The target judged so many levels of a draft and kept the first ones.

        Args:
            request: whose draft it was.
            judged, kept: the level behind the last one kept is judged too, if the draft has it.
            reach: [judged] the drafter's own chance of each of them, given those above it; empty if it knows none.
            hidden: the draft was made for the ride-along.
        """
        hazards = self.hidden if hidden else self.rounds
        expected = hazards.chances(judged)
        if reach:
            expected = [chance**self.trust.value for chance in reach]
            self.trust.add(reach, kept)
        request.add(expected, kept)
        hazards.saw_verdict(judged, kept)

    # -- how much to draft ---------------------------------------------------------------------------------------

    def plan(self, limit: int, request: RequestDifficulty, rows: int = 1, probes: int = 0) -> Plan:
        """The γ ≤ limit of most expected tokens per second, E[1 + a] / (W(γ) + V(γ + 1)); 0 where drafting loses.

        Levels that are asked for and do not come are neither waited for nor verified. Probe rows widen every drafting
        pass, a bushy tree has several nodes a level: hence V(1 + width·γ + probes).
        """
        verify, width = self.passes(rows), self.width.value or 1.0
        t = verify(1)
        if not t or not self.wait.w:
            return Plan(limit, t)
        best, expected, reach, sent = Plan(0, t), 1.0, 1.0, 0.0
        levels = zip(self.rounds.chances(limit), self.rounds.arrivals(limit), strict=True)
        for gamma, (chance, arrives) in enumerate(levels, 1):
            reach *= chance**request.value
            expected += reach * arrives
            sent += arrives
            token_s = (self.wait(sent) + verify(1 + width * sent + probes)) / expected
            if token_s < best.token_s:
                best = Plan(gamma, token_s)
        return best

    def ask(self, planned: int, limit: int, rows: int = 1) -> int:
        """How many levels to ask for in this round, where so many are planned; counts the round.

        Where drafting loses it is off, but for a short draft now and then that notices when this has changed: less
        and less often while it does not, since a probe costs most where drafting does. And where drafting always
        pays, a round without it tells what that saves; not where several requests (`rows`) share a pass, which is as
        wide as the widest of their drafts.
        """
        if limit < 1:
            return 0
        if planned:
            self.idle, self.patience = 0, PROBE_FIRST
            self.drafted += 1
            if rows > 1 or self.drafted < (PLAIN_EVERY if self.verify.one.weight else PLAIN_FIRST):
                return planned
            self.drafted = 0
            return 0
        self.idle += 1
        self.drafted = 0
        if self.idle < self.patience:
            return 0
        self.idle, self.patience = 0, min(PROBE_LAST, 2 * self.patience)
        return min(limit, PROBE_DEPTH)

    def nodes(self, levels: int, limit: int) -> int:
        """How many nodes a draft of so many levels may have: a budget counts nodes, a cost levels."""
        return min(limit, math.ceil(levels * (self.width.value or 1.0)))

    def levels(self, nodes: int) -> int:
        """How many levels so many nodes make."""
        return min(nodes, math.ceil(nodes / (self.width.value or 1.0)))

    def longest_wait(self, levels: int, request: RequestDifficulty, rows: int = 1) -> float | None:
        """Seconds that a draft of so many levels can save at most, V(1)·E[a]: who waits longer for it loses.

        Never less than V(1), the jitter of two processes; `None` while V(1) is unknown.
        """
        t = self.passes(rows)(1)
        chances = [chance**request.value for chance in self.rounds.chances(levels)]
        return t * max(1.0, expected_accepted(chances)) if t else None

    def node_gain(self, request: RequestDifficulty, token_s: float, rows: int = 1) -> float:
        """Least path probability, in the drafter's own words, at which one more node pays: (dW/dn + dV/dn) / token_s.

        An accepted node saves the time that a token takes otherwise; it is waited for and widens the verify pass. At
        the best plan that quotient is the optimum's own condition (Dinkelbach 1967).
        """
        if not token_s or not self.wait.w:
            return 0.0
        cost = self.wait.slope / (self.width.value or 1.0) + self.passes(rows).slope
        return float(min(0.9, cost / token_s) ** (1 / (self.trust.value * request.value)))

    def worthwhile(
        self,
        parents: Sequence[int],
        reach: Sequence[float],
        request: RequestDifficulty | None = None,
        rows: int = 1,
        *,
        hidden: bool = False,
    ) -> list[int]:
        """Which nodes of a finished tree to verify, best first: those whose chance to be reached repays a wider pass.

        Args:
            parents: [n] as in a draft tree.
            reach: [n] the drafter's own chances. A node is never likelier than its parent, so it is kept with it only.
            request: how they have fared so far; `None` = they are true.
            rows: requests that share the pass.
            hidden: it is the ride-along pass.
        """
        power = 1.0 if request is None else self.trust.value * request.value
        chances: list[float] = []
        for parent, chance in zip(parents, reach, strict=True):
            chances.append(chance if parent < 0 else min(chance, chances[parent]))
        least = self._least_chance(rows, hidden=hidden)
        paying = [node for node, chance in enumerate(chances) if chance**power >= least]
        return sorted(paying, key=lambda node: -chances[node])

    def verify_depth(self, drafted: int) -> int:
        """How many nodes of a finished hidden chain to verify, where its drafter knows no chances of its own."""
        reach = accumulate(self.hidden.chances(drafted), operator.mul)
        least = self._least_chance(hidden=True)
        return sum(chance >= least for chance in reach)

    def _least_chance(self, rows: int = 1, *, hidden: bool = False) -> float:
        """Of a node that repays its place in the pass: dV/dn over the time of a token; 0 while nothing is known."""
        verify = self.passes(rows)
        token_s = self.token_s or verify(1)
        slope = self.ride.slope or verify.slope if hidden else verify.slope
        return slope / token_s if token_s else 0.0

    def hidden_nodes(self, limit: int) -> int:
        """The hidden draft's end: as far as a node repays what the target waits for it. Hidden well, that is far."""
        t, reach = self.verify(1), accumulate(self.hidden.chances(limit), operator.mul)
        return max(min(1, limit), sum(chance * t >= self.wait_hidden.slope for chance in reach))

    def reading_pays(self, most: int) -> bool:
        """Whether drafting saves an answer of at most so many tokens what the target waits for the drafter to read.

        A drafter elsewhere reads while the target does, and is not waited for. On a shared core or device an answer of
        N tokens gains N·(t − token_s) in its rounds and a·token_s from the hidden draft. Counts the request: now and
        then one is read all the same, to see whether this has changed.
        """
        t, length = self.verify(1), self.length.value
        if not t or length is None or len(self.read_waits) < READINGS:
            return True
        token_s = self.plan(16, RequestDifficulty()).token_s
        gained = max(0.0, t - token_s) * min(length, most)
        gained += expected_accepted(self.hidden.chances(16)) * token_s
        pays = min(self.read_waits) <= gained + READING_LOSS * t
        self.unread = 0 if pays or self.unread + 1 >= READING_EVERY else self.unread + 1
        return self.unread == 0

    def hiding(self, nodes: int) -> str:
        """On one shared device: draft `before` the prefill, `beside` it, or `off` (not for the prefill at all).

        Drafting k nodes before the prefill costs k·d and widens the ride-along pass; it saves the a + 1 tokens'
        share of later rounds. Side by side the same work takes `beside` times the sum of both.
        """
        t, d, read = self.verify(1), self.step.value, self.read.value
        if not t or d is None or read is None:
            return "before"  # nothing is known yet: measure one after the other first
        if self.beside.value is None:
            return "beside"  # then measure once what side by side costs
        depth = self.verify_depth(nodes)
        gained = expected_accepted(self.hidden.chances(depth))
        widened = (self.ride.slope or self.verify.slope) * depth
        drafting = nodes * d
        reading = read + (self.draft_read.value or 0.0)
        cost = {
            "off": gained * self.plan(16, RequestDifficulty()).token_s,
            "before": drafting + widened,
            "beside": self.beside.value * (reading + drafting) - reading + widened,
        }
        best = min(cost, key=lambda mode: cost[mode])
        self.unhidden = self.unhidden + 1 if best == "off" else 0
        if self.unhidden < HIDING_EVERY:
            return best
        self.unhidden = 0
        return min(("before", "beside"), key=lambda mode: cost[mode])
