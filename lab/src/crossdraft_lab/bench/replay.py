"""`crossdraft replay`: drafters on recorded answers.

Tokens per pass are exact, for greedy acceptance depends on nothing but the tokens; but `memory` is told no likely
tokens of passes, which only a target knows. Times are simulated from those of the stages. Replay is online, in the
order of the traces: a drafter that learns knows only the answers before the present one.

With a shared clip (`ReplayConfig.shared_clip`) the traces of one scene are a conversation about it, and a prefix cache
that holds every clip is assumed: only the scene's first question pays the prefill, a later one pays a pass over its
text alone.

Intervals draw whole clips again: answers about one clip resemble each other, and are no independent evidence.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from crossdraft.engine.drafter import Budget, Draft, Drafter, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.experiments.record import Tick
from crossdraft_lab.bench.statistics import Interval, acceptance_length, by_scene, quartiles, ratio_by
from crossdraft_lab.bench.traces import Trace

QUESTION_TOKENS = 16  # of "What are the key elements in this scene? ASSISTANT:", roughly: traces hold no prompt ids


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Stage times in milliseconds; times that a trace itself states come first.

    Args:
        prefill: time of the target's prefill, encoding included.
        step: t = V(1), time of a decode step.
        verify: V(n) / t for n > 1, with one new token besides the root.
        per_node: what each further node adds to `verify`.
        draft: time of a drafted tree; `None` = as measured here.
        question_tokens: tokens of a question's text, which is read in one pass where its clip is known already.
    """

    prefill: float | None = None
    step: float | None = None
    verify: float = 1.05
    per_node: float = 0.0
    draft: float | None = None
    question_tokens: int = QUESTION_TOKENS

    def __post_init__(self) -> None:
        for name in ("prefill", "step", "verify", "per_node", "draft"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise CrossdraftError(f"The cost {name} is {value}; it must be a number that is not negative.")
        if self.verify < 1:
            raise CrossdraftError(f"V(2) / V(1) is {self.verify}; a pass over more tokens takes no less time.")
        if self.step == 0:
            raise CrossdraftError("The cost step is 0; a pass takes time.")
        if not 1 <= self.question_tokens <= 4096:
            raise CrossdraftError(f"A question of {self.question_tokens} tokens is none; give between 1 and 4096.")

    def of(self, trace: Trace) -> tuple[float, float] | None:
        """Milliseconds of prefill and step for a trace; `None` where they are unknown."""
        own = trace.measured
        if own is not None:
            return own
        return None if self.prefill is None or self.step is None else (self.prefill, self.step)

    def passed(self, nodes: int) -> float:
        """V(1 + nodes) / t."""
        return self.verify + self.per_node * (nodes - 1) if nodes else 1.0


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """Settings of drafting in a replay.

    Args:
        nodes: most nodes of a tree.
        ride_along: draft for the prefill's own pass as well; otherwise that pass gives the target's token alone.
        adaptive: leave out nodes whose path probability does not repay the wider pass.
        shared_clip: only the first of the traces of one scene pays the prefill.
    """

    nodes: int = 32
    ride_along: bool = True
    adaptive: bool = False
    shared_clip: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= 4096:
            raise CrossdraftError(f"A tree of {self.nodes} nodes makes no sense; give between 1 and 4096.")


@dataclass(frozen=True, slots=True)
class SimulatedTimes:
    """Milliseconds of an answer: by the target alone, by the target alone with the shared clip, with the drafter.

    `alone_shared` equals `alone` where no clip is shared.
    """

    alone: float
    alone_shared: float
    drafted: float


@dataclass(slots=True)
class TraceReplay:
    """Replay of one trace: its passes, and the drafts for them."""

    trace: Trace
    clip_known: bool = False  # an earlier question was about the same clip, and its keys and values are kept
    tokens: int = 0
    passes: int = 0
    hidden: int = 0  # tokens accepted in the prefill's own pass
    nodes: list[int] = field(default_factory=list)  # of each pass
    seconds: list[float] = field(default_factory=list)  # of each draft, measured

    def times(self, costs: StageCosts) -> SimulatedTimes | None:
        """Simulated milliseconds of this answer; `None` where neither the trace nor `costs` says how long stages take.

        The first pass is the prefill, which a hidden draft widens as it would widen any pass. Where the clip is known,
        this is a pass over the question's q tokens and the n nodes of the draft: V(q + n) in place of V(q).
        """
        found = costs.of(self.trace)
        if found is None:
            return None
        prefill, step = found
        drafting = [1e3 * seconds if costs.draft is None else costs.draft for seconds in self.seconds]
        widths = [costs.passed(nodes) for nodes in self.nodes]
        decode = (len(self.trace.target_tokens) - 1) * step
        reading, first = prefill, prefill + (widths[0] - 1) * step
        if self.clip_known:
            behind_root = costs.question_tokens - 1
            reading, first = (step * costs.passed(nodes) for nodes in (behind_root, behind_root + self.nodes[0]))
        return SimulatedTimes(prefill + decode, reading + decode, first + step * sum(widths[1:]) + sum(drafting))


def over_clips(
    played: Sequence[TraceReplay], numerator: Sequence[float], denominator: Sequence[float] | None = None
) -> Interval:
    """Σ numerator / Σ denominator, or the mean, over answers; answers about one clip are drawn together."""
    return ratio_by([entry.trace.scene for entry in played], numerator, denominator or [1.0] * len(played))


def hidden_over_clips(played: Sequence[TraceReplay]) -> Interval:
    """Tokens accepted in the prefill's own pass, per answer; answers about one clip are drawn together."""
    return over_clips(played, [entry.hidden for entry in played])


def tau_over_clips(played: Sequence[TraceReplay]) -> Interval:
    """Interval of τ; answers about one clip are drawn together, and n counts clips."""
    clips = [entry.trace.scene for entry in played]
    sums = by_scene([entry.tokens for entry in played], clips), by_scene([entry.passes for entry in played], clips)
    return acceptance_length([(int(tokens), int(passes)) for tokens, passes in zip(*sums, strict=True)])


class RecordedDrafter:
    """The drafter `trace`: repeats the drafts that the trace recorded, whatever the target emits.

    Raises:
        CrossdraftError: none of the traces holds a draft.
    """

    needs = Needs()

    def __init__(self, traces: Sequence[Trace]) -> None:
        if not any(trace.draft_tokens for trace in traces):
            raise CrossdraftError(
                "None of the traces holds draft_tokens, so there is no recorded drafter; name memory or ngram."
            )
        self._recorded = {(trace.question, _clip(trace)): trace.draft_tokens for trace in traces}

    def begin(self, requests: Sequence[Request]) -> list[list[int]]:
        return [list(self._recorded.get((request.prompt, str(request.video)), ())) for request in requests]

    def propose(self, states: Sequence[list[int]], budgets: Sequence[Budget]) -> list[Draft]:
        return [Draft(DraftTree.chain(state[: budget.nodes])) for state, budget in zip(states, budgets, strict=True)]

    def commit(self, states: Sequence[list[int]], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            del state[: len(output.tokens)]

    def fork(self, states: Sequence[list[int]]) -> list[list[int]]:
        return [[*state] for state in states]

    def end(self, states: Sequence[list[int]]) -> None:
        """Do nothing: a state holds no memory."""


def replay(
    traces: Sequence[Trace], drafter: Drafter[Any], config: ReplayConfig, costs: StageCosts, tick: Tick = lambda _: None
) -> dict[str, Any]:
    """Let the drafter draft for every trace, in order; return plain values.

    Everything `simulated` is `None` where not every trace has times. `simulated_speedup` is over the target alone,
    which reads its whole prompt every time; `shared` figures are for the target alone with the shared clip, `None` if
    no clip is shared. `hidden_accepted` (per answer) is `None` if nothing was drafted for the prefill's own pass,
    `first_token_accepted` counts the answers whose first drafted token was the target's.
    """
    played: list[TraceReplay] = []
    known: set[str] = set()
    for trace in traces:
        played.append(play(trace, drafter, config, costs, clip_known=config.shared_clip and trace.scene in known))
        known.add(trace.scene)
        tick(trace.scene)
    times = [found for entry in played if (found := entry.times(costs)) is not None]
    complete = len(times) == len(played)
    drafted = [each.drafted for each in times]
    alone = [each.alone for each in times] if complete else None
    shared = [each.alone_shared for each in times] if complete and config.shared_clip else None
    questions: dict[str, dict[str, Any]] = {}
    for question in dict.fromkeys(entry.trace.question for entry in played):
        own = [entry for entry in played if entry.trace.question == question]
        questions[question] = {
            "answers": len(own),
            "mean_tokens": round(fmean(len(entry.trace.target_tokens) for entry in own), 1),
            "tau": tau_over_clips(own).to_json(),
            "hidden_accepted": hidden_over_clips(own).to_json(),
            "first_token_accepted": sum(entry.hidden > 0 for entry in own),
        }
    draft = quartiles([1e3 * seconds for entry in played for seconds in entry.seconds] or [0.0])

    def over(some: Sequence[float] | None) -> dict[str, object] | None:
        return None if some is None else over_clips(played, some, drafted).to_json()

    def mean(some: Sequence[float] | None) -> float | None:
        return None if some is None else round(fmean(some), 2)

    return {
        "traces": len(played),
        "tokens": sum(entry.tokens for entry in played),
        "passes": sum(entry.passes for entry in played),
        **tau_over_clips(played).to_json("tau"),
        "of": "clips",  # what each n counts
        "hidden_accepted": hidden_over_clips(played).to_json() if config.ride_along else None,
        "draft_ms": {name: round(getattr(draft, name), 4) for name in ("median", "q1", "q3")},
        "nodes_per_pass": round(fmean(count for entry in played for count in entry.nodes), 2),
        "simulated_speedup": over(alone),
        "simulated_speedup_shared": over(shared),
        "simulated_alone_ms": mean(alone),
        "simulated_alone_shared_ms": mean(shared),
        "simulated_ms": mean(drafted if complete else None),
        "first_token_accepted": sum(found["first_token_accepted"] for found in questions.values()),
        "by_question": questions,
    }


def play(
    trace: Trace, drafter: Drafter[Any], config: ReplayConfig, costs: StageCosts, *, clip_known: bool = False
) -> TraceReplay:
    """Replay one answer, pass by pass."""
    text, played = trace.target_tokens, TraceReplay(trace, clip_known)
    (state,) = drafter.begin([Request(trace.question, _clip(trace), max_new_tokens=len(text))])
    done = 0
    while done < len(text):
        reading = done == 0
        draft = Draft(DraftTree.empty())
        if not reading or config.ride_along:
            start = time.perf_counter()
            # The last token is the target's own in any case: a node deeper than that can never be accepted.
            (draft,) = drafter.propose([state], [Budget(config.nodes)])
            played.seconds.append(time.perf_counter() - start)
        tree = worth_it(draft, costs) if config.adaptive else draft.tree.first(config.nodes)
        path = tree.follow(text[done : len(text) - 1])
        emitted = text[done : done + len(path) + 1]
        if reading:
            played.hidden = len(path)
        drafter.commit([state], [VerifyOutput(tuple(path), emitted)])
        done += len(emitted)
        played.nodes.append(len(tree))
        if not reading or config.ride_along:
            played.tokens += len(emitted)
            played.passes += 1
    drafter.end([state])
    return played


def worth_it(draft: Draft, costs: StageCosts) -> DraftTree:
    """Keep the nodes whose path probability repays the wider pass."""
    if not draft.path_probs:
        return draft.tree
    from crossdraft.engine.cost_model import CostModel
    from crossdraft.engine.estimates import WIDTHS

    cost = CostModel()
    for tokens in (1, 2, WIDTHS[-1]):  # a line
        cost.verify.add(tokens, costs.verify + costs.per_node * tokens)
    return draft.tree.keep(cost.worthwhile(draft.tree.parents, draft.path_probs))


def _clip(trace: Trace) -> str:
    """Name of a trace's clip, which is no file; absolute, so that `memory` drafts alike in every working directory."""
    return f"/scene {trace.scene}"
