"""A drafter that behaves as one in another process does, with a say in when what arrives."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from crossdraft.engine.drafter import NOTHING, Budget, Draft, Needs, Proposal, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.runner.process import ProcessState
from crossdraft.engine.runner.runner import DrafterLost
from crossdraft.engine.tree import DraftTree
from crossdraft_vllm.hosting import DraftLimits, HostedDrafts
from crossdraft_vllm.requests import QUESTION, RequestReader
from crossdraft_vllm.scheduling import HiddenDrafts
from tests.integrations.vllm.fake_vllm import FakeRequest, FakeScheduler


@dataclass
class Record:
    """What the drafter was record of one request."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    draft: tuple[int, ...] = ()
    ended: bool = False


@dataclass
class ScriptedDrafter:
    """Drafts what `believed` says of each question, from where the answer is.

    Args:
        believed: whole answers, by question.
        late: calls after which a hidden draft is there.
        slow: nothing further is ever there in time.
        greedy_for_more: drafts as much as it knows, whatever the budget.
        lost_at: the call with which its process ends.
    """

    believed: dict[str, list[int]]
    late: int = 0
    slow: bool = False
    greedy_for_more: bool = False
    lost_at: int | None = None
    needs: Needs = field(default_factory=lambda: Needs(runs_in=frozenset({"process"})))
    drain_timeout_s: float = 0.0
    records: dict[int, Record] = field(default_factory=dict)
    calls: int = 0
    restarts: int = 0

    def _called(self) -> None:
        self.calls += 1
        if self.calls == self.lost_at:
            raise DrafterLost("its process ended")

    def begin(self, requests: Sequence[Request]) -> list[ProcessState]:
        self._called()
        states = []
        for request in requests:
            key = len(self.records)
            self.records[key] = Record(request)
            states.append(ProcessState(key, certain=request.sampling.certain, launch=0))
        return states

    def propose_async(self, states: Sequence[ProcessState], budgets: Sequence[Budget]) -> Proposal:
        self._called()
        (state,), (budget,) = states, budgets
        state.hidden = self.late

        def wait() -> list[Draft]:
            assert budget.until is not None
            assert budget.until.is_set()
            return [self._arrived(state, budget)]

        state.asked = budget.nodes
        return wait

    def late_hidden(self, state: ProcessState) -> Draft | None:
        self._called()
        return self._arrived(state, Budget(state.asked or 0))

    def _arrived(self, state: ProcessState, budget: Budget) -> Draft:
        assert state.hidden is not None
        if state.hidden:
            state.hidden -= 1
            return NOTHING
        state.hidden = None
        return self._draft(state, budget)

    def propose(self, states: Sequence[ProcessState], budgets: Sequence[Budget]) -> list[Draft]:
        self._called()
        return [NOTHING if self.slow else self._draft(s, b) for s, b in zip(states, budgets, strict=True)]

    def _draft(self, state: ProcessState, budget: Budget) -> Draft:
        record = self.records[state.key]
        rest = self.believed.get(record.request.question, [])[len(record.tokens) :]
        record.draft = tuple(rest if self.greedy_for_more else rest[: budget.nodes])
        return Draft(DraftTree.chain(record.draft))

    def commit(self, states: Sequence[ProcessState], outputs: Sequence[VerifyOutput]) -> None:
        self._called()
        for state, output in zip(states, outputs, strict=True):
            record = self.records[state.key]
            assert state.hidden is None, "a draft was under way"
            assert len(output.path) < len(output.tokens)
            assert [record.draft[node] for node in output.path] == list(output.tokens[: len(output.path)])
            record.tokens += output.tokens
            record.draft = ()

    def fork(self, states: Sequence[ProcessState]) -> list[ProcessState]:
        raise NotImplementedError

    def end(self, states: Sequence[ProcessState]) -> None:
        for state in states:
            self.records[state.key].ended = True

    @property
    def alive(self) -> bool:
        return True

    def spare_cores(self) -> tuple[int, ...]:
        return ()

    def stop(self) -> None:
        pass

    def restart(self) -> None:
        self.restarts += 1

    def close(self) -> None:
        pass


class Hosting(HiddenDrafts, FakeScheduler):
    """vLLM's scheduler as the integration makes it, over the fake one."""


class NoTokenizer(PreTrainedTokenizerBase):
    """Requests here name their questions."""


def hosting(
    answers: dict[str, list[int]], drafter: Any, *, hidden: int | None = None, later: int | None = None, **fake: Any
) -> Hosting:
    """A scheduler with that drafter."""
    made = Hosting(answers, **fake)
    k = made.num_spec_tokens
    limits = DraftLimits(
        k if hidden is None else hidden, k if later is None else later, 0.0, 32, made.vocabulary, frozenset({99})
    )
    made.host(HostedDrafts(drafter, limits), RequestReader(PretrainedConfig(), NoTokenizer(), Path("/"), 100))
    return made


def ask(name: str, prompt: int = 10, most: int = 1000, **more: Any) -> FakeRequest:
    """A request that is drafted for; its question is its name."""
    return FakeRequest(name, [7] * prompt, most, {QUESTION: name}, **more)
