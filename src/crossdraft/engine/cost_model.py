"""Costs and yields of drafting, modelled from the running system's own timings.

Notation: t = V(1) the time of one target pass over one token, V(n) over n; d the time of one drafting step, c = d/t;
W(γ) what the target waits for γ drafted levels, which is γ·d only where nothing is drafted in parallel; h_j the
acceptance rate at depth j: the probability that a node there is accepted given that its parent was.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from crossdraft.engine.estimates import (
    AcceptanceByDepth,
    Ema,
    LinearFit,
    PassTimes,
    RequestDifficulty,
    expected_accepted,
)

FREE = 0.1  # share of V(1) below which a wait counts as none
OUTLIER = 4  # times the usual wait: longer waits are caused by the machine, not the drafter
READINGS = 3  # requests that must all have been read too slowly: the first one often is, on a cold machine
READING_LOSS = 8  # most passes V(1) that a request may lose by the drafter's reading,
READING_LOSS_S = 0.02  # and most seconds, since a smaller loss cannot be told from noise
SURE = 0.5  # least probability of a draft's first token that counts as likely
FADING = 0.99  # factor on a cost after each round, or request, that does not measure it again,
NARROW_FADING = 0.997  # and on what a width costs beyond V(1) after each narrower pass, as trees differ in size,
UNREAD_FADING = 0.95  # and after each request that is not read: its answer takes as long as many rounds
THIRDS = (0.45, 0.90, 1.65)  # mean difficulties of the easiest third of requests, the middle and the hardest one


def is_sure(parents: Sequence[int], path_probs: Sequence[float]) -> bool:
    """True if a draft begins with a likely token, by its own probabilities, or has no probabilities."""
    first = [prob for parent, prob in zip(parents, path_probs, strict=False) if parent < 0]
    return max(first, default=1.0) >= SURE


def calibrated(parents: Sequence[int], path_probs: Sequence[float], power: float) -> list[float]:
    """[n] path probabilities if every level's, given its parent, is raised to a power and divided as before.

    A level's probability is the sum of its siblings', at most 1. No node gets more than its own, raised alone: a level
    that is certain by the drafter's figures says nothing of the one among them.

    >>> calibrated((-1, -1, 0), (0.16, 0.09, 0.04), 0.5)
    [0.32, 0.18, 0.16]
    """
    levels = dict.fromkeys(parents, 0.0)
    for parent, prob in zip(parents, path_probs, strict=True):
        levels[parent] += prob
    probs: list[float] = []
    for parent, prob in zip(parents, path_probs, strict=True):
        own, above = (1.0, 1.0) if parent < 0 else (path_probs[parent], probs[parent])
        level = min(1.0, levels[parent] / own) if own > 0 else 0.0
        # At most `above`, rounded as well.
        probs.append(above * min(prob / levels[parent] * level**power, (prob / own) ** power) if level > 0 else 0.0)
    return probs


@dataclass(frozen=True)
class ExpectedRound:
    """A round of some number of drafted levels: its seconds, and the tokens that it yields on average."""

    depth: int
    seconds: float
    tokens: float

    @property
    def token_s(self) -> float:
        """Seconds a token."""
        return self.seconds / self.tokens


@dataclass(frozen=True)
class DraftDepth:
    """Depth of a round's draft in levels, and the seconds a token then takes, which an accepted node saves.

    Args:
        nearest: where nothing is drafted, the round with a draft that is nearest to paying.
    """

    depth: int
    token_s: float
    nearest: ExpectedRound | None = None


# Ridge for fits with one point a request: the first points come from short drafts on a cold machine.
RIDGE = partial(LinearFit, ridge=64.0)
WAIT = partial(LinearFit, anchor=2.0)


@dataclass
class RoundCosts:
    """Costs of a round that several requests share, divided among them.

    Args:
        verify: V, tokens of a row -> seconds.
        wait: W, levels drafted -> seconds that the target waits for them.
    """

    verify: PassTimes = field(default_factory=PassTimes)
    wait: LinearFit = field(default_factory=WAIT)


@dataclass
class CostModel:
    """Measured times (seconds) and acceptances, and the choices that follow: how much to draft, and when.

    The cost of a draft is the target's wait for it, wherever and whenever it was made. Depth is counted in levels; a
    chain's levels are its tokens.
    """

    verify: PassTimes = field(default_factory=PassTimes)  # of one request: n new tokens -> seconds
    wait: LinearFit = field(default_factory=WAIT)  # levels drafted -> seconds waited, of one request
    wait_hidden: LinearFit = field(default_factory=RIDGE)  # nodes of a hidden draft -> seconds
    ride: LinearFit = field(default_factory=RIDGE)  # tokens of the ride-along pass -> seconds
    width: Ema = field(default_factory=lambda: Ema(weight=1.0, total=1.0))  # nodes of a level
    trimmed: Ema = field(default_factory=Ema)  # levels of a draft that were waited for and are not verified
    step: Ema = field(default_factory=Ema)  # a token of a hidden draft in this process
    # Seconds that the target waited while the drafter read each of the last requests.
    read_waits: deque[float] = field(default_factory=lambda: deque(maxlen=READINGS))
    drafting: Ema = field(default_factory=Ema)  # the drafter's own time for a request, until its rounds
    length: Ema = field(default_factory=Ema)  # tokens of an answer
    rounds: AcceptanceByDepth = field(default_factory=AcceptanceByDepth)  # of drafts in rounds
    hidden: AcceptanceByDepth = field(default_factory=AcceptanceByDepth)  # of hidden drafts
    # Hidden drafts that begin with a likely token (`is_sure`), and those that do not.
    hidden_sure: dict[bool, AcceptanceByDepth] = field(
        default_factory=lambda: {sure: AcceptanceByDepth() for sure in (False, True)}
    )
    # The exponent that calibrates drafters' own probabilities.
    calibration: RequestDifficulty = field(default_factory=lambda: RequestDifficulty(prior=8.0, decay=0.98))
    shared: dict[int, RoundCosts] = field(default_factory=dict)  # by rows of a pass
    plain: LinearFit = field(default_factory=partial(LinearFit, decay=0.95))  # rows -> seconds of a plain pass
    # Time of reading a chunk of a prompt without the drafter's cores, over that with them; 0 = not measured.
    reading_worth: float = 0.0
    token_s: float = 0.0  # seconds a token by the last plan,
    planned_rows: int = 1  # which was for a pass of so many rows
    # What does not pay is not measured any more, so its cost fades with the number of rounds without a draft, requests
    # without a hidden draft, and requests that the drafter does not read; see `PassTimes.tried` for wide passes.
    undrafted: float = 0.0
    unhidden: int = 0
    unread: int = 0

    # -- what is observed ----------------------------------------------------------------------------------------

    def costs(self, rows: int) -> RoundCosts:
        """Costs of rounds of `rows` rows; estimated from those of the nearest number of rows while not measured."""
        known = {1: RoundCosts(self.verify, self.wait), **self.shared}
        if rows in known:
            return known[rows]
        near = min(known, key=lambda number: abs(math.log(number / rows)))
        one = self.plain(rows) / rows if self.plain.slope else None
        return RoundCosts(known[near].verify.of_rows(rows / near, one), known[near].wait)

    def _seen(self, rows: int) -> RoundCosts:
        """Return the costs that measurements are added to; new ones begin with what is estimated as a prior."""
        found = self.costs(rows)
        if rows > 1 and rows not in self.shared:
            self.shared[rows] = found = RoundCosts(found.verify, found.wait.as_prior())
        return found

    def saw_pass(self, rows: int, n: float, seconds: float) -> None:
        """Record a pass that `rows` requests shared, of n tokens each on average: `seconds` per request."""
        self._seen(rows).verify.add(n, seconds)
        if n == 1:
            self.plain.add(rows, rows * seconds)

    def saw_draft(
        self, asked: int, depth: int, nodes: int, waited: float, rows: int = 1, *, drafted: int | None = None
    ) -> None:
        """Record a draft whose `nodes` nodes, in `depth` of the `asked` levels, are verified.

        Args:
            waited: seconds per request that the target waited for it.
            rows: requests that share the pass.
            drafted: its levels that were waited for, if some are not verified.
        """
        one = self.costs(rows).verify(1)
        if not depth and waited < FREE * one:
            return  # an empty draft that was not waited for says nothing of drafts
        wait, levels = self._seen(rows).wait, drafted or depth
        if usual := max(wait(levels), one):  # else it is the first draft, of a cold drafter
            wait.add(levels, min(waited, OUTLIER * usual))
        self.rounds.saw_draft(asked, depth)
        self.trimmed.add(levels - depth)
        if depth:
            self.width.add(nodes / depth)

    def saw_acceptance(
        self,
        request: RequestDifficulty,
        verified: int,
        kept: int,
        probs: Sequence[float] = (),
        *,
        stated: RequestDifficulty | None = None,
        hidden: bool = False,
        sure: bool = True,
    ) -> None:
        """Record that the target verified `verified` levels of a draft and kept the first `kept` of them.

        Args:
            request: the request's difficulty, relative to the rates of all requests.
            verified, kept: the level after the last one kept is verified too, if the draft has it.
            probs: [verified] the drafter's own probability of each level, given those above it; empty if it knows none.
            stated: the request's difficulty, relative to `probs`: 1 = these are right.
            hidden: the draft was made for the ride-along.
            sure: see `is_sure`.
        """
        rates = self.hidden if hidden else self.rounds
        request.add(rates.rates(verified), kept)
        if probs:
            if stated is not None:
                stated.add([prob**self.calibration.value for prob in probs], kept)
            self.calibration.add(probs, kept)
        rates.saw_acceptance(verified, kept)
        if hidden:
            self.hidden_sure[sure].saw_acceptance(verified, kept)

    def began_round(self, depth: int, rows: int = 1) -> None:
        """Record that a round began in which `depth` levels are drafted for one of its rows."""
        self.undrafted = 0.0 if depth else self.undrafted + 1 / rows

    def began_request(self, mode: str, *, reads: bool) -> None:
        """Record that a request was taken up, whether the drafter reads it, and its hidden mode."""
        self.unread = 0 if reads else self.unread + 1
        self.unhidden = 0 if reads and mode != "off" else self.unhidden + 1

    # -- how much to draft ---------------------------------------------------------------------------------------

    def plan(self, limit: int, request: RequestDifficulty, rows: int = 1) -> DraftDepth:
        """Choose the γ ≤ limit with most expected tokens per second, E[1 + a] / (W(γ) + V(γ + 1)); 0 if drafting loses.

        Levels that are asked for and do not come are neither waited for nor verified; some come and are waited for,
        but not verified. A level may have several nodes: hence V(1 + width·γ).
        """
        costs = self.costs(rows)
        t = costs.verify(1)
        if not t or not costs.wait.w:
            return DraftDepth(limit, t)
        best = min(self.rounds_of(limit, request, rows), key=lambda one: one.token_s, default=None)
        if best is not None and best.token_s * FADING**self.undrafted < t:
            return DraftDepth(best.depth, best.token_s)
        return DraftDepth(0, t, best)

    def rounds_of(self, limit: int, request: RequestDifficulty, rows: int = 1) -> Iterator[ExpectedRound]:
        """Rounds of 1 to `limit` drafted levels: what each is expected to take and to yield."""
        costs, width = self.costs(rows), self.width.value or 1.0
        expected, path_prob, sent = 1.0, 1.0, 0.0
        levels = zip(self.rounds.rates(limit), self.rounds.arrivals(limit), strict=True)
        for depth, (rate, arrives) in enumerate(levels, 1):
            path_prob *= rate**request.value
            expected += path_prob * arrives
            sent += arrives
            waited = min(depth, sent + (self.trimmed.value or 0.0))
            yield ExpectedRound(depth, costs.wait(waited) + costs.verify(1 + width * sent), expected)

    def beats(self, nodes: int, accepted: float, plan: DraftDepth, rows: int = 1) -> bool:
        """True if a draft of `nodes` nodes that cost nothing spares a drafter's plan that has to be waited for.

        `accepted`: how many of its nodes are expected to be accepted.
        """
        costs = self.costs(rows)
        waits = costs.wait(plan.depth) >= FREE * costs.verify(1)
        return waits and costs.verify(1 + nodes) / (1 + accepted) < plan.token_s

    def nodes(self, levels: int, limit: int) -> int:
        """Number of nodes that a draft of `levels` levels may have: budgets count nodes, costs count levels."""
        return min(limit, math.ceil(levels * (self.width.value or 1.0)))

    def levels(self, nodes: int) -> int:
        """Number of levels that a draft of `nodes` nodes has."""
        return min(nodes, math.ceil(nodes / (self.width.value or 1.0)))

    def longest_wait(self, levels: int, request: RequestDifficulty, rows: int = 1) -> float | None:
        """Most seconds that a draft of `levels` levels is expected to save, V(1)·E[a]: a longer wait for it loses.

        At least V(1), as the times of two processes vary by that much; `None` while V(1) is unknown.
        """
        t = self.costs(rows).verify(1)
        rates = [rate**request.value for rate in self.rounds.rates(levels)]
        return t * max(1.0, expected_accepted(rates)) if t else None

    def node_gain(self, stated: RequestDifficulty, token_s: float, rows: int = 1) -> float:
        """Least path probability, by the drafter's own figures, after which one more node pays.

        That is (dW/dn) / (h·token_s): an accepted node saves the time that a token takes otherwise, and is waited for.
        Whether it is also worth its place in the pass is seen once it is there (`worthwhile`). At the best plan that
        quotient is the optimum's own condition (Dinkelbach 1967). The node's own probability is known only once it is
        drafted, so the mean acceptance rate h stands for it.
        """
        costs = self.costs(rows)
        if not token_s or not costs.wait.w:
            return 0.0
        cost = costs.wait.slope / (self.width.value or 1.0)
        return self._least_stated(cost, token_s, self.rounds, stated.value)

    @property
    def hidden_gain(self) -> float:
        """Least path probability, likewise, after which one more node pays before the prefill."""
        token_s = self.token_s or self.verify(1)
        cost = (self.step.value or 0.0) + (self.ride.slope or self.verify.slope)
        return self._least_stated(cost, token_s, self.hidden) if token_s else 0.0

    def _least_stated(self, cost: float, token_s: float, rates: AcceptanceByDepth, stated: float = 1.0) -> float:
        return float(min(0.9, cost / (rates.alpha * token_s)) ** (1 / (self.calibration.value * stated)))

    def worthwhile(
        self,
        parents: Sequence[int],
        path_probs: Sequence[float],
        stated: RequestDifficulty | None = None,
        rows: int = 1,
        *,
        hidden: bool = False,
    ) -> list[int]:
        """Nodes of a finished tree to verify, best first: as many as save most time, a wider pass considered.

        Args:
            parents: [n] as in a draft tree.
            path_probs: [n] the drafter's own. A node counts as no likelier than its parent, so it is kept only with it.
            stated: the request's difficulty, relative to the probabilities; `None` = these are right.
            rows: requests that share the pass.
            hidden: it is the ride-along pass.
        """
        power = 1.0 if stated is None else self.calibration.value * stated.value
        probs = calibrated(parents, path_probs, power)
        if hidden:
            probs = self._as_hidden(parents, probs, sure=is_sure(parents, path_probs))
            for node, parent in enumerate(parents):
                probs[node] = min(probs[node], 1.0 if parent < 0 else probs[parent])
        verify, saved, best, kept = self.costs(rows).verify.tried(NARROW_FADING), 0.0, 0.0, 0
        one, each = verify(1), (self.ride.slope or self.verify.slope) if hidden else None
        token_s = (self.token_s if hidden or rows == self.planned_rows else 0.0) or one
        order = sorted(range(len(probs)), key=probs.__getitem__, reverse=True)  # stable: a parent before its children
        if not token_s:
            return order
        for count, node in enumerate(order, 1):
            saved += probs[node] * token_s
            gain = saved - (verify(1 + count) - one if each is None else each * count)
            if gain >= best and probs[node]:
                best, kept = gain, count
        return order[: max(kept, hidden)]

    def _as_hidden(self, parents: Sequence[int], probs: Sequence[float], *, sure: bool) -> list[float]:
        """Scale path probabilities so that each level's sum is at most the acceptance of hidden drafts at that depth.

        A drafter that does not know a question spreads all its probability over the answers that it knows.
        """
        depths: list[int] = []
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        claimed = [0.0] * (1 + max(depths, default=0))
        for depth, prob in zip(depths, probs, strict=True):
            claimed[depth] += prob
        yielded = self.hidden_sure[sure].path_probs(len(claimed))
        share = [min(1.0, rate / claim) if claim else 1.0 for rate, claim in zip(yielded, claimed, strict=True)]
        return [share[depth] * prob for depth, prob in zip(depths, probs, strict=True)]

    def verify_depth(self, drafted: int) -> int:
        """Number of nodes of a finished hidden chain to verify, if its drafter gives no probabilities."""
        least, token_s = self.ride.slope or self.verify.slope, self.token_s or self.verify(1)
        return sum(prob * token_s >= least for prob in self.hidden.path_probs(drafted))

    def hidden_nodes(self, limit: int) -> int:
        """Length of a hidden draft: the nodes that are expected to save what the target waits for each of them."""
        t, each = self.verify(1), max(self.wait_hidden.slope, self.step.value or 0.0)
        return max(min(1, limit), sum(prob * t >= each for prob in self.hidden.path_probs(limit)))

    def reading_pays(self, most: int, rows: int = 1) -> bool:
        """True if drafts save an answer of at most `most` tokens nearly what the drafter's reading costs, or more."""
        t = self.costs(rows).verify(1)
        if not t or self.length.value is None or len(self.read_waits) < READINGS:
            return True
        cost = self._reading_cost * UNREAD_FADING**self.unread
        return cost <= self._drafting_gain(most, rows) + min(READING_LOSS * t, READING_LOSS_S)

    def why_unread(self, most: int, rows: int = 1) -> str:
        """Explain why the drafter does not read a request whose answer has at most `most` tokens."""
        cost, saved = 1000 * self._reading_cost, 1000 * self._drafting_gain(most, rows)
        return f"The drafter did not read the request: that costs the target {cost:.0f} ms, and saves {saved:.0f} ms."

    @property
    def _reading_cost(self) -> float:
        """Seconds that the target loses: waits for the drafter, reading without its cores, the ride-along pass."""
        lent = (self.drafting.value or 0.0) * (1 - 1 / max(1.0, self.reading_worth))
        return min(self.read_waits) + lent + (self.ride.y / self.ride.w if self.ride.w else 0.0)

    def _drafting_gain(self, most: int, rows: int = 1) -> float:
        """Seconds that drafts save an answer of at most `most` tokens, if `rows` rows share a pass.

        That is N·(t − token_s) in the rounds of N tokens, and a·token_s by a accepted tokens of the hidden draft. Hard
        requests are soon answered without drafts, so they take nothing from what drafts save easy ones.
        """
        t, plans = self.costs(rows).verify(1), [self.plan(16, RequestDifficulty.known(z), rows) for z in THIRDS]
        token_s = sum(min(t, plan.token_s) for plan in plans) / len(plans)
        return (t - token_s) * min(self.length.value or 0.0, most) + sum(self.hidden.path_probs(16)) * token_s

    def hiding_pays(self, nodes: int) -> bool:
        """True if drafting `nodes` nodes before the prefill, on the target's own device, pays.

        It costs the drafting time and a wider ride-along pass; it saves the accepted tokens' share of later rounds.
        """
        t, d, depth = self.verify(1), self.step.value, self.verify_depth(nodes)
        if not t or d is None:
            return True  # nothing is known yet
        gained = sum(self.hidden.path_probs(depth)) * self.plan(16, RequestDifficulty()).token_s
        cost = nodes * d + (self.ride.slope or self.verify.slope) * depth
        return cost * FADING**self.unhidden < gained
