"""Parallel drafting keeps the distribution of sampled drafts: a draw is made once, and goes where it belongs."""

from dataclasses import dataclass, field

import torch

from crossdraft.engine.drafter import NOTHING, Budget, Draft, Outcome, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.runner.parallel import ParallelSpeculator, ParallelState
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import DraftTree
from tests.engine.runner.test_parallel import Counting, always, never


def begun(speculator: ParallelSpeculator, seed: int, budget: Budget) -> tuple[ParallelState, Draft]:
    """A sampled request, and its first draft."""
    (state,) = speculator.begin([Request("?", sampling=Sampling(temperature=1.0, seed=seed))])
    return state, speculator.draft_hidden(state, budget)


FIVE = (Outcome((5,), 0.9),)  # that the target says that, whatever was drafted


@dataclass
class Coin:
    """A text of coins; `generator` is where they come from."""

    generator: torch.Generator
    tail: list[int] = field(default_factory=list)


class Tossing(Counting):
    """Draws every token, 0 or 1, with one half each."""

    ends = False  # whether a text ends at its first 0

    def begin(self, requests):
        return [Coin(torch.Generator().manual_seed(request.sampling.seed)) for request in requests]

    def _propose(self, state, budget):
        while len(state.tail) < budget.nodes and not budget.stopped and not (self.ends and 0 in state.tail):
            state.tail.append(int(torch.rand((), generator=state.generator) < 0.5))
            self.written += 1
            if budget.on_token is not None:
                budget.on_token(state.tail[-1])
        return Draft(DraftTree.chain(state.tail[: budget.nodes]), outcomes=self.outcomes)

    def commit(self, states, outputs):
        for state in states:
            state.tail = []


def next_toss(seed: int, drafter: Tossing) -> int | None:
    """What is drawn after a token that was not predicted; `None` if it was."""
    speculator = ParallelSpeculator(drafter, always)
    state, _ = begun(speculator, seed, Budget(1))
    speculator.work(never)
    (predicted,) = state.prepared
    output = (predicted[0], 1)
    speculator.commit([state], [VerifyOutput((0,), output)])
    return None if output == predicted else speculator.propose([state], [Budget(1)])[0].tree.tokens[0]


def share_behind_a_miss(drafter: Tossing) -> float:
    tosses = [toss for seed in range(600) if (toss := next_toss(seed, drafter)) is not None]
    assert len(tosses) > 200
    return sum(tosses) / len(tosses)


def test_what_is_drawn_follows_its_distribution_though_something_was_drawn_before():
    assert abs(share_behind_a_miss(Tossing()) - 0.5) < 0.1  # three standard errors are 0.09


class Stopping(Tossing):
    """Ends a text at the first 0, and draws it anew each time that it is asked."""

    ends = True

    def _propose(self, state, budget):
        state.tail = []
        return super()._propose(state, budget)


def next_words(seed: int) -> tuple[int, ...]:
    """What is drafted after a verify pass that ended while its draft was written, and before the target saw that.

    Of these drafts a short one is pushed in time, hence taken; a long one is asked for.
    """
    pushed: dict[tuple[int, ...], Draft] = {}
    drafter = Stopping(FIVE)
    push = lambda key, turn, tokens, draft: pushed.update({tokens: draft})  # noqa: E731
    speculator = ParallelSpeculator(drafter, always, push)
    state, _ = begun(speculator, seed, Budget(8, stop=lambda: True))  # it was late
    before = drafter.written
    late = False

    def stop() -> bool:
        nonlocal late
        late = late or drafter.written >= before + 4
        return late

    speculator.work(stop)
    in_time = {} if late else pushed
    speculator.commit([state], [VerifyOutput((), (5,))])
    if (5,) in in_time:
        return in_time[5,].tree.tokens
    return speculator.propose([state], [Budget(8)])[0].tree.tokens


def share_behind_a_late_draft() -> float:
    firsts = [words[0] for seed in range(600) if (words := next_words(seed))]
    assert len(firsts) > 200
    return sum(firsts) / len(firsts)


def test_what_came_too_late_to_be_taken_is_not_drawn_again():
    assert abs(share_behind_a_late_draft() - 0.5) < 0.09  # three standard errors are at most 0.09


def test_drawing_again_what_took_long_would_be_seen(monkeypatch):
    """The control: who asks is given another draft than the one that was drawn for that."""
    adopt = ParallelSpeculator._adopt

    def forgetful(self, state, output, *, asked):
        found = adopt(self, state, output, asked=asked)
        state.offered = NOTHING
        return found

    monkeypatch.setattr(ParallelSpeculator, "_adopt", forgetful)
    assert abs(share_behind_a_late_draft() - 0.5) > 0.15


class Lasting(Tossing):
    """Ends a text at the first 0, and keeps of it what the target agrees with."""

    ends = True
    commit = Counting.commit


def share_behind_a_missed_draft() -> float:
    """The share of 1 among the next words where the first draft went on for so long that it was not waited for."""
    firsts = []
    for seed in range(1600):
        drafter, words = Lasting(), 0

        def stop() -> bool:
            nonlocal words
            words += 1
            return words > 4

        speculator = ParallelSpeculator(drafter, always)
        state, draft = begun(speculator, seed, Budget(8, stop=stop))
        if 0 not in draft.tree.tokens:
            speculator.missed([state])
            speculator.commit([state], [VerifyOutput((), (1,))])
            firsts.append(speculator.propose([state], [Budget(8)])[0].tree.tokens[0])
    assert len(firsts) > 60
    return sum(firsts) / len(firsts)


def test_a_first_draft_that_was_not_waited_for_is_not_drafted_on():
    assert abs(share_behind_a_missed_draft() - 0.5) < 0.18  # three standard errors


def test_drafting_it_on_would_be_seen(monkeypatch):
    monkeypatch.setattr(ParallelSpeculator, "missed", lambda self, states: None)
    assert share_behind_a_missed_draft() > 0.9


def share_of_what_is_pushed() -> float:
    """The share of 1 among first words of drafts as they were pushed last."""
    last = []
    for seed in range(400):
        pushed: list[int] = []

        def push(key, turn, tokens, draft, pushed=pushed):
            if tokens == (5,):
                pushed.append(draft.tree.tokens[0])

        speculator = ParallelSpeculator(Stopping(FIVE), always, push)
        begun(speculator, seed, Budget(8))
        speculator.work(never)
        last += pushed[-1:]
    assert len(last) > 100
    return sum(last) / len(last)


def test_what_is_pushed_was_drawn_once():
    assert abs(share_of_what_is_pushed() - 0.5) < 0.1


def test_the_longer_of_two_draws_would_be_seen(monkeypatch):
    """The control: growing, as greedy drafts may."""
    monkeypatch.setattr(Sampling, "greedy", property(lambda self: True))
    assert share_of_what_is_pushed() > 0.6


def test_a_planted_bug_in_the_forks_random_numbers_is_seen():
    """The control: a fork that draws the numbers which its original will draw again."""

    class Twice(Tossing):
        def fork(self, states):
            return [Coin(state.generator.clone_state(), [*state.tail]) for state in states]

    assert abs(share_behind_a_miss(Twice()) - 0.5) > 0.4
