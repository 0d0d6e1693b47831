"""`crossdraft bench recordings`: event drafters on recordings longer than the second that they were trained on.

A scene's second fills a recording of some seconds in two ways (`scenes.Pace`): spread over all of it, or at its own
speed somewhere in it, with a still scene before and after. The target sees eight frames of the whole. Measured is the
accepted hidden prefix: the number of tokens of the target's greedy answer that a draft made beforehand begins with. The
draft's length is limited by `nodes`, or by the time in which the first drafter writes `nodes` (equal drafting time).
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossdraft.checks import whole
from crossdraft.engine.drafter import Budget, Drafter
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft.engine.tree import common_prefix
from crossdraft.errors import CrossdraftError
from crossdraft.video.clip import DEFAULT_FRAMES
from crossdraft_lab import scenes
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.common import check_each_once
from crossdraft_lab.bench.experiments.record import Tick
from crossdraft_lab.bench.specs import spec_of
from crossdraft_lab.bench.statistics import ratio
from crossdraft_lab.bench.study import FigureColumn
from crossdraft_lab.bench.workload import Workload

DRAFTERS = ("event", "event:slices=5", "event:slices=10", "blind")
SPREAD, ONCE = "spread", "at its own speed"


@dataclass(frozen=True)
class RecordingsBench:
    """Settings of a measurement of long recordings.

    Args:
        models: the pair.
        seconds: lengths of the recordings in seconds.
        clips: number of scenes, of the test split.
        questions: number of questions about each clip, of kinds in turn, in held-out wordings.
        drafters: specs; the others' time is compared with the first's.
        nodes: number of nodes of a draft.
        first: index of the first scene.

    Raises:
        CrossdraftError: a spec that cannot be read or a number out of range.
    """

    models: Models
    seconds: Sequence[float] = (1.0, 4.0, 16.0)
    clips: int = 20
    questions: int = 2
    drafters: Sequence[str] = DRAFTERS
    nodes: int = 48
    first: int = 0
    max_new_tokens: int = 96

    def __post_init__(self) -> None:
        for name, count in (("clips", self.clips), ("questions", self.questions), ("nodes", self.nodes)):
            whole(f"The number of {name}", count)
        check_each_once("drafter", self.drafters)
        for spec in self.drafters:
            spec_of(spec)
        if not self.seconds:
            raise CrossdraftError("No length of recordings is named; give one or more seconds, such as 1,4,16.")
        for length in self.seconds:
            scenes.Pace(length)
        pairs = self.clips * self.questions
        Workload(pairs, max_new_tokens=self.max_new_tokens, first=self.first, questions=self.questions)  # refuses both

    @property
    def recordings(self) -> list[tuple[float, str]]:
        """Lengths, and ways to fill them; a recording of one second has one way."""
        ways = [(length, way) for length in self.seconds for way in (SPREAD, ONCE)]
        return [(length, way) for length, way in ways if length > scenes.DURATION_S or way == SPREAD]

    @property
    def runs(self) -> int:
        """Number of answers: the steps of the progress bar."""
        return len(self.recordings) * self.clips * self.questions


@dataclass(frozen=True)
class Drafted:
    """One draft: tokens that the target's answer begins with, and processor time in seconds."""

    accepted: int
    tokens: int
    begin_s: float
    draft_s: float


# Accepted: tokens of the hidden prefix. At equal time: the same in the time in which the first drafter writes `nodes`;
# gained: this number minus the first drafter's, on the same questions. Begin: median of reading, encoding and prefill.
COLUMNS = (
    FigureColumn("", "recording", lambda row: f"{row['seconds']:g} s, {row['way']}"),
    FigureColumn("seconds", "", lambda row: row["seconds"]),
    FigureColumn("way", "", lambda row: row["way"]),
    FigureColumn("drafter", "drafter", lambda row: row["drafter"]),
    FigureColumn("accepted", "accepted", lambda row: row["accepted"]),
    FigureColumn("accepted_at_equal_time", "at equal time", lambda row: row["accepted_at_equal_time"]),
    FigureColumn("gained", "gained", lambda row: row["gained"]),
    FigureColumn("begin_ms", "begin ms", lambda row: row["begin_ms"], lambda ms: f"{ms:.1f}", lambda ms: round(ms, 2)),
    FigureColumn("token_ms", "a token ms", lambda row: row["token_ms"]),
)


def compare_recordings(plan: RecordingsBench, target: Target, tick: Tick = lambda _: None) -> list[dict[str, Any]]:
    """Draft for every question with every drafter, interleaved, and compare with the target's own answer.

    Raises:
        CrossdraftError: a drafter cannot draft before the target has begun its answer.
    """
    drafters = {spec: plan.models.build(plan.models.spec(spec), target) for spec in plan.drafters}
    alone = DecodeLoop(target)
    found: list[dict[str, Any]] = []
    for seconds, way in plan.recordings:
        drafts: dict[str, list[Drafted]] = {spec: [] for spec in drafters}
        for request in _requests(plan, seconds, way):
            answer = alone.generate([request])[0].tokens
            for spec, drafter in drafters.items():
                drafts[spec].append(made := _draft(drafter, request, answer, plan.nodes))
                if not made.tokens:
                    raise CrossdraftError(
                        f"The drafter '{spec}' drafts nothing before the target has spoken; compare drafters that do, "
                        "such as event."
                    )
            tick(f"{seconds:g} s, {way}")
        first = drafts[plan.drafters[0]]
        found += [_result(seconds, way, spec, made, first, plan.nodes) for spec, made in drafts.items()]
    return found


def tokens_in(time_s: float, begin_s: float, token_s: float, most: int) -> int:
    """Tokens that a drafter has after `time_s`, at most `most`.

    >>> tokens_in(0.05, 0.01, 0.001, 48), tokens_in(0.05, 0.03, 0.001, 48), tokens_in(0.05, 0.06, 0.001, 48)
    (40, 20, 0)
    """
    return min(most, max(0, int((time_s - begin_s) / token_s + 1e-6)))


def _result(
    seconds: float, way: str, spec: str, made: Sequence[Drafted], first: Sequence[Drafted], nodes: int
) -> dict[str, Any]:
    begin, token = _medians(made)
    theirs = _medians(first)
    most = tokens_in(theirs[0] + nodes * theirs[1], begin, token, nodes)
    each = [1] * len(made)
    equal = [min(one.accepted, most) for one in made]
    gained = [own - min(one.accepted, nodes) for own, one in zip(equal, first, strict=True)]
    return {
        "seconds": seconds,
        "way": way,
        "drafter": spec,
        "accepted": ratio([one.accepted for one in made], each),
        "accepted_at_equal_time": ratio(equal, each),
        "gained": ratio(gained, each),
        "begin_ms": 1e3 * begin,
        "token_ms": 1e3 * token,
    }


def _medians(made: Sequence[Drafted]) -> tuple[float, float]:
    """Median seconds until a drafter may draft, and per drafted token."""
    tokens = [one.draft_s / one.tokens for one in made]
    return float(np.median([one.begin_s for one in made])), float(np.median(tokens))


def _draft(drafter: Drafter[Any], request: Request, answer: Sequence[int], nodes: int) -> Drafted:
    start = time.process_time()
    states = drafter.begin([request])
    begun = time.process_time()
    tokens = drafter.propose(states, [Budget(nodes)])[0].tree.tokens
    done = time.process_time()
    drafter.end(states)
    return Drafted(common_prefix(tokens, answer), len(tokens), begun - start, done - begun)


def _requests(plan: RecordingsBench, seconds: float, way: str) -> Iterator[Request]:
    """Yield every question about every recording, with the recording in memory."""
    seeds = scenes.split_seeds("test")
    for clip in range(plan.clips):
        scene = scenes.make_scene(seeds[plan.first + clip])
        pace = _pace(scene.seed, seconds, way)
        total = round(seconds * scenes.VIDEO_FPS)
        times = np.linspace(0, total - 1, DEFAULT_FRAMES, dtype=int) / scenes.VIDEO_FPS
        video = scenes.render(scene, pace.at(times), scenes.VIDEO_SIZE)
        events = scenes.simulate_events(scene, pace=pace)
        for number in range(plan.questions):
            index = clip * plan.questions + number
            kind = scenes.KINDS[index % len(scenes.KINDS)]
            wording = (index // len(scenes.KINDS)) % len(scenes.wordings(kind, held_out=True))
            question = scenes.ask(scene, kind, wording, held_out=True).question
            yield Request(question, video, events, max_new_tokens=plan.max_new_tokens, sampling=Sampling())


def _pace(seed: int, seconds: float, way: str) -> scenes.Pace:
    """Choose how the scene fills the recording; the start of a scene at its own speed is drawn from the seed."""
    if way == SPREAD:
        return scenes.Pace(seconds)
    return scenes.Pace(seconds, float(np.random.default_rng([seed, 3]).uniform(0, seconds - scenes.DURATION_S)))
