"""Half of the requests are drafted for while the other half is verified; nothing is said otherwise for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.decode import Decoder
from crossdraft.engine.drafter import Budget, Draft, Needs, Proposal, VerifyOutput
from crossdraft.engine.passes import Chunk
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DrafterLost, DraftRunner
from crossdraft.engine.trials import FasterWay, Trials

SHORT: dict[str, Any] = {"nodes": 2, "hidden_nodes": 2, "adaptive": False}  # drafts, so that there are many rounds
REQUESTS = [Request("x" * i, max_new_tokens=10 + 4 * i) for i in range(1, 6)]


@dataclass
class Elsewhere:
    """Drafts when it is asked, as another process would, and counts the requests that wait for a draft to be taken."""

    inner: IndependentDrafter
    lost_after: int = 10**9  # so many drafts
    waiting: int = 0
    needs: Needs = field(init=False)

    def __post_init__(self) -> None:
        self.needs = replace(self.inner.needs, runs_in=frozenset({"process"}))

    def begin(self, requests: Sequence[Request]) -> list[Any]:
        return self.inner.begin(requests)

    def propose(self, states: Sequence[Any], budgets: Sequence[Budget]) -> list[Draft]:
        return self.propose_async(states, budgets)()

    def propose_async(self, states: Sequence[Any], budgets: Sequence[Budget]) -> Proposal:
        drafts = self.inner.propose(states, budgets)
        if budgets[0].until is not None:  # the hidden one
            return lambda: drafts
        self.waiting += len(states)
        self.lost_after -= len(states)

        def wait() -> list[Draft]:
            if self.lost_after < 0:
                raise DrafterLost("its process ended")
            self.waiting -= len(states)
            return drafts

        return wait

    def commit(self, states: Sequence[Any], outputs: Sequence[VerifyOutput]) -> None:
        self.inner.commit(states, outputs)

    def fork(self, states: Sequence[Any]) -> list[Any]:
        return self.inner.fork(states)

    def end(self, states: Sequence[Any]) -> None:
        self.inner.end(states)


class AlwaysHalves(CostModel):
    """Costs of a machine on which halves are the faster way, whatever is measured."""

    def __init__(self) -> None:
        super().__init__(trials=Trials(ways={bits: FasterWay(usual=True, left=10**9) for bits in range(8)}))


@pytest.fixture(scope="module")
def alone(target):
    return [answer.tokens for answer in Decoder(target).generate(REQUESTS)]


@dataclass
class Passes:
    """Rows of each verify pass, and how many requests were being drafted for meanwhile."""

    seen: list[tuple[int, int, int]] = field(default_factory=list)  # live, verified, drafted for

    def watch(self, decoder: Decoder, drafter: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
        extend = decoder.target.extend

        def watched(cache: Any, rows: slice, chunks: Sequence[Chunk], *more: Any) -> Any:
            if cache is decoder.cache and len(chunks[0].tokens) == 1:
                self.seen.append((cache.rows, rows.stop - rows.start, drafter.waiting))
            return extend(cache, rows, chunks, *more)

        monkeypatch.setattr(decoder.target, "extend", watched)


@pytest.mark.parametrize("rows", [2, 3, 5])
def test_while_one_half_is_verified_the_other_is_drafted_for(target, kin, alone, rows, monkeypatch):
    drafter = Elsewhere(kin)
    decoder = Decoder(target, DraftRunner(drafter), max_batch=rows, **SHORT, cost=AlwaysHalves())
    passes = Passes()
    passes.watch(decoder, drafter, monkeypatch)
    answers = decoder.generate(REQUESTS)
    assert [answer.tokens for answer in answers] == alone
    rounds = [(live, verified, drafted) for live, verified, drafted in passes.seen if live > 1]
    assert all(verified in (live // 2, (live + 1) // 2) for live, verified, _ in rounds)
    waiting = [drafted for live, verified, drafted in rounds if drafted == live - verified]
    assert len(waiting) >= len(rounds) - len(REQUESTS)  # an answer's last token has no draft
    assert sum(answer.stats.accepted for answer in answers) > 0
    assert drafter.waiting == 0


def test_whole_batches_where_those_are_faster(target, kin, alone, monkeypatch):
    drafter, cost = Elsewhere(kin), CostModel(trials=Trials(ways={bits: FasterWay(left=10**9) for bits in range(8)}))
    decoder = Decoder(target, DraftRunner(drafter), max_batch=5, **SHORT, cost=cost)
    passes = Passes()
    passes.watch(decoder, drafter, monkeypatch)
    assert [answer.tokens for answer in decoder.generate(REQUESTS)] == alone
    assert all(live == verified and not drafted for live, verified, drafted in passes.seen)


@pytest.mark.parametrize("lost_after", [0, 7, 20])
def test_a_drafter_that_is_lost_while_it_drafts_for_a_half(target, kin, alone, lost_after):
    decoder = Decoder(target, DraftRunner(Elsewhere(kin, lost_after)), max_batch=4, **SHORT, cost=AlwaysHalves())
    answers = decoder.generate(REQUESTS)
    assert [answer.tokens for answer in answers] == alone
    assert any("was lost" in note for answer in answers for note in answer.other_notes)


@pytest.mark.parametrize("steps", range(1, 8))
def test_requests_that_leave_while_they_are_drafted_for(target, kin, alone, steps):
    decoder = Decoder(target, DraftRunner(Elsewhere(kin)), max_batch=4, **SHORT, cost=AlwaysHalves())
    ids = [decoder.submit(request) for request in REQUESTS]
    for _ in range(steps):
        decoder.step()
    decoder.cancel(ids[0])
    decoder.cancel(ids[3])
    while decoder.busy:
        decoder.step()
    for number, request_id in enumerate(ids):
        tokens = decoder.answer(request_id).tokens
        assert tokens == alone[number][: len(tokens) if number in (0, 3) else None]


def test_a_request_of_a_higher_priority_takes_the_row_of_one_that_is_drafted_for(target, kin, alone):
    decoder = Decoder(target, DraftRunner(Elsewhere(kin)), max_batch=2, **SHORT, cost=AlwaysHalves())
    ids = [decoder.submit(request) for request in REQUESTS[:4]]
    for _ in range(3):
        decoder.step()
    ids.append(decoder.submit(replace(REQUESTS[4], priority=1)))
    while decoder.busy:
        decoder.step()
    assert [decoder.answer(request_id).tokens for request_id in ids] == alone
