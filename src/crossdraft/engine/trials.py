"""Trials: which of two ways is faster here and now is found by using both.

to alternate    drafting for one half of the requests while the other is verified, or for all at once
to read pairs   two prompts at once on half of the cores each, or one after the other on all of them
to lend         a drafter's cores to the target's reading, or to the drafter
"""

from dataclasses import dataclass, field

from crossdraft.engine.estimates import Ema

# Rounds of a trial of another way, and from one trial to the next: at first, and at most, while they fail.
TRIAL, TRIAL_FIRST, TRIAL_LAST = 8, 32, 512
# Periods, of as many answers as share a pass, before the first trial, and from one to the next.
LENDING_SOON, LENDING_GAP = 4, 8


@dataclass
class FasterWay:
    """Which of two ways takes less time for a token: both are used for a while, then the slower one now and then.

    Args:
        usual: the way in use, but for trials of the other one.
        trial: rounds of one.
        first: rounds from one trial to the next; `gap` of them, which doubles as long as trials fail.
        decay: the weight that a round keeps per new one of its way.
    """

    usual: bool = False
    trial: int = TRIAL
    first: int = TRIAL_FIRST
    gap: int = 0
    left: int = 0
    tries: bool = False
    decay: float = 0.95
    seconds: dict[bool, Ema] = field(default_factory=dict)
    tokens: dict[bool, Ema] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gap, self.left = self.gap or self.first, self.left or self.trial
        for sums in (self.seconds, self.tokens):
            sums.update({way: Ema(decay=self.decay) for way in (False, True)})

    @property
    def now(self) -> bool:
        """The way of the next round."""
        return self.usual is not self.tries

    def add(self, seconds: float, tokens: float) -> None:
        """A round of the way that is in use took so long for so many tokens."""
        self.seconds[self.now].add(seconds)
        self.tokens[self.now].add(tokens)
        self.left -= 1
        if self.left > 0:
            return
        if self.tries and self._token_s(self.now) < self._token_s(self.usual):
            self.usual, self.gap = self.now, self.first
        elif self.tries:
            self.gap = min(TRIAL_LAST, 2 * self.gap)
        self.tries = not self.tries
        self.left = self.trial if self.tries else self.gap

    def _token_s(self, way: bool) -> float:
        return (self.seconds[way].value or 0.0) / max(1e-9, self.tokens[way].value or 0.0)


@dataclass
class Period:
    """Statistics of the requests since drafting or lending was last decided.

    Args:
        rows: requests that shared a pass.
        answers, tokens, seconds: that came and went since.
        settled: its answers began when its way was in use already; else it says nothing of either way.
    """

    rows: int = 0
    answers: int = 0
    tokens: int = 0
    seconds: float = 0.0
    settled: bool = False

    @property
    def size(self) -> int:
        """Number of times that the rows are to be halved, by which row counts are grouped."""
        return (self.rows - 1).bit_length()


@dataclass
class Trials:
    """All trials; numbers of requests are grouped by how often they are to be halved.

    Args:
        ways: whether to alternate.
        pairs: whether to read pairs; the first readings, on a machine that is not warm, are soon forgotten.
        lends: whether cores are lent.
        period: since drafting or lending was last decided.
    """

    ways: dict[int, FasterWay] = field(default_factory=dict)
    pairs: FasterWay = field(default_factory=lambda: FasterWay(True, trial=4, left=TRIAL_FIRST, decay=0.8))
    lends: dict[int, FasterWay] = field(default_factory=dict)
    period: Period = field(default_factory=Period)

    def alternates(self, requests: int) -> bool:
        """True if so many requests are drafted for by halves."""
        return self.ways.setdefault(requests.bit_length(), FasterWay()).now

    def saw_round(self, requests: int, seconds: float, tokens: int, *, alternates: bool) -> None:
        """A round of so many requests, or of half of them, took so long for so many tokens."""
        if (way := self.ways.get(requests.bit_length())) is not None and way.now is alternates:
            way.add(seconds, tokens)

    def lends_cores(self, rows: int, *, usual: bool) -> bool:
        """True if cores are lent where so many requests share a pass; `usual` = until the first trial."""
        asked = Period(rows)
        if self.period.size != asked.size:
            self.period = asked
        return self.lends.setdefault(asked.size, FasterWay(usual, trial=1, first=LENDING_GAP, left=LENDING_SOON)).now

    @property
    def ended_period(self) -> Period | None:
        """The period that is over: as many answers came as requests share a pass; `None` as long as none is."""
        period = self.period
        return period if period.size in self.lends and period.answers >= period.rows else None

    def saw_period(self, usual_s: float, *, idle: bool = False) -> None:
        """A period is over, in which cores were lent or not.

        Args:
            usual_s: what its answers would take, prompts read and tokens one by one: they are of several lengths.
            idle: no other answer has begun: all of the next period's begin in its way.
        """
        period = self.period
        way = self.lends[period.size]
        before = way.now
        if period.settled:
            way.add(period.seconds, usual_s)
        self.period = Period(period.rows, settled=idle or way.now is before)
