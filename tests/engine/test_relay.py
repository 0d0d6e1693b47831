"""Two placements for one answer: who drafts when, who is told what, and that the answer is the target's own."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from crossdraft.drafters.combine.tree_merger import TreeMerger
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.drafters.memory.drafter import MemoryDrafter
from crossdraft.engine.cost import CostModel
from crossdraft.engine.decode import Decoder
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.relay import Relay, Worth
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import Inline
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import DraftTree
from crossdraft.heads.pass_.ahead import AheadDrafter
from tests.engine.zoo import ZOO, as_target, noisy

REQUESTS = [Request("x" * i, max_new_tokens=6 + 5 * i) for i in range(1, 5)]


@dataclass
class Listening:
    """Proposes one token, and remembers what it was asked and told."""

    token: int
    needs: Needs = field(default_factory=Needs)
    begun: list[Request] = field(default_factory=list)
    asked: int = 0
    told: list[VerifyOutput] = field(default_factory=list)
    ended: int = 0

    def begin(self, requests: Sequence[Request]) -> list[int]:
        self.begun += requests
        return [0] * len(requests)

    def propose(self, states: Sequence[int], budgets: Sequence[Budget]) -> list[Draft]:
        self.asked += len(states)
        return [Draft(DraftTree.chain([self.token])) for _ in states]

    def commit(self, states: Sequence[int], outputs: Sequence[VerifyOutput]) -> None:
        self.told += outputs

    def fork(self, states: Sequence[int]) -> list[int]:
        return [*states]

    def end(self, states: Sequence[int]) -> None:
        self.ended += len(states)


def relayed(hidden, later, join=None) -> Relay:
    cost = CostModel()
    return Relay(Inline(hidden, cost, "before"), Inline(later, cost, "before"), join)


@pytest.fixture(scope="module")
def target():
    return as_target(*ZOO["video_llava"]())


def test_the_first_draft_is_the_hidden_ones_and_all_others_are_the_later_ones(target):
    alone = Decoder(target).generate([REQUESTS[0]])[0].tokens
    first, second = Listening(alone[0]), Listening(0)
    answer = Decoder(target, relayed(first, second), adaptive=False).generate([REQUESTS[0]])[0]
    assert answer.tokens == alone
    assert answer.stats.hidden_accepted == 1
    assert first.asked == 1
    assert second.asked >= answer.stats.rounds - 2  # the last round may have no room for a draft
    assert [token for output in second.told for token in output.tokens] == list(alone)
    assert second.told[0].path == ()  # the accepted node was the other's
    assert not first.told  # it has nothing to remember
    assert (first.ended, second.ended) == (1, 1)


def test_a_hidden_one_that_remembers_is_told_the_answer_at_its_end(target):
    first, second = Listening(0, Needs(remembers=True)), Listening(0)
    answer = Decoder(target, relayed(first, second), adaptive=False).generate([REQUESTS[0]])[0]
    assert [output.tokens for output in first.told] == [answer.tokens]


def test_they_draw_from_streams_of_their_own(target):
    first, second = Listening(0), Listening(0)
    request = Request("xx", max_new_tokens=6, sampling=Sampling(temperature=1.0, seed=5))
    Decoder(target, relayed(first, second), adaptive=False).generate([request])
    assert len({first.begun[0].sampling.seed, second.begun[0].sampling.seed, 5}) == 3


@pytest.mark.parametrize("rows", [1, 3])
def test_answers_are_the_targets_own(target, rows):
    alone = [answer.tokens for answer in Decoder(target).generate(REQUESTS)]
    model, prompt = ZOO["video_llava"]()
    hidden = IndependentDrafter(as_target(noisy(model, 1e-3), prompt))
    decoder = Decoder(target, relayed(hidden, MemoryDrafter()), max_batch=rows, adaptive=False)
    answers = decoder.generate([*REQUESTS, *REQUESTS])
    assert [answer.tokens for answer in answers] == alone * 2
    assert sum(answer.stats.hidden_accepted for answer in answers) > 0
    assert sum(answer.stats.accepted - answer.stats.hidden_accepted for answer in answers) > 0


def test_both_may_go_on_and_each_is_told_of_its_own_tree(target):
    """One knows every second word of the answer, the other the rest: only together do they get two words right."""
    alone = Decoder(target).generate([REQUESTS[0]])[0].tokens
    first, second = Listening(alone[1]), Listening(alone[1] + 1)
    answer = Decoder(target, relayed(first, second, TreeMerger(2)), adaptive=False).generate([REQUESTS[0]])[0]
    assert answer.tokens == alone
    assert [t for output in first.told for t in output.tokens] == list(alone)
    assert [t for output in second.told for t in output.tokens] == list(alone)
    taken = [output.path for output in first.told[1:] if output.tokens[0] == alone[1]]
    assert taken[0] == (0,)  # its own node, wherever it stood in the common tree
    assert all(output.path in ((), (0,)) for output in second.told)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_are_the_targets_own_with_both(target, temperature):
    model, prompt = ZOO["video_llava"]()
    hidden = IndependentDrafter(as_target(noisy(model, 1e-3), prompt))
    requests = [replace(r, sampling=Sampling(temperature=temperature, seed=3)) for r in REQUESTS]
    decoder = Decoder(target, relayed(hidden, MemoryDrafter(), TreeMerger(2)), max_batch=2, adaptive=False)
    answers = decoder.generate([*requests, *requests])
    assert all(answer.stats.accepted > 0 for answer in answers)
    if not temperature:
        alone = [answer.tokens for answer in Decoder(target).generate(REQUESTS)]
        assert [answer.tokens for answer in answers] == alone * 2


def drafted(words: int, chance: float) -> Draft:
    return Draft(DraftTree.chain(range(words)), tuple(chance**place for place in range(1, words + 1)))


def seen(worth: Worth, prepared: Draft, written: Draft, kept: int, waited: float, checked: float) -> None:
    said = tuple(range(kept))
    worth.saw((prepared, written), VerifyOutput(said, (*said, 99)), waited, checked)


def test_a_prepared_draft_is_enough_where_it_brings_more_tokens_a_second():
    """Both: 10 tokens in 5 + 5 ms. Alone it must bring more than 5 in the 5 ms of a check."""
    worth = Worth()
    assert not worth.enough(drafted(16, 1.0))  # nothing is known yet
    for _ in range(20):
        seen(worth, drafted(9, 1.0), drafted(9, 1.0), 9, 0.005, 0.005)
    assert worth.enough(drafted(5, 1.0))  # 1 + 5
    assert not worth.enough(drafted(3, 1.0))  # 1 + 3
    assert not worth.enough(drafted(16, 0.5))  # 1 + 1, by its own chances
    assert not worth.enough(Draft(DraftTree.chain(range(16))))  # without chances nothing is promised


def test_what_it_hopes_is_corrected_by_what_came_of_it():
    worth = Worth()
    for _ in range(40):
        seen(worth, drafted(9, 1.0), drafted(9, 1.0), 3, 0.005, 0.005)  # both: 4 in 10 ms, hence 2 in 5
    assert worth.enough(drafted(9, 1.0))  # 1 + 3
    assert not worth.enough(drafted(2, 1.0))  # 1 + 2/3


def test_the_later_one_is_not_asked_where_the_prepared_draft_is_enough(target, monkeypatch):
    alone = Decoder(target).generate([REQUESTS[0]])[0].tokens
    first, second = Listening(alone[0]), Listening(alone[1])
    relay = relayed(first, second, TreeMerger(2))
    monkeypatch.setattr(relay.worth, "enough", lambda prepared: True)
    answer = Decoder(target, relay, adaptive=False).generate([REQUESTS[0]])[0]
    assert answer.tokens == alone
    assert second.asked == 0 < first.asked
    assert [t for output in second.told for t in output.tokens] == list(alone)  # it may be asked next time


class Probing(AheadDrafter):
    """Remembers what it was told."""

    def __init__(self, ids: Sequence[int]) -> None:
        super().__init__(ids)
        self.told: list[VerifyOutput] = []

    def commit(self, states: Sequence, outputs: Sequence[VerifyOutput]) -> None:
        self.told += outputs
        super().commit(states, outputs)


def probed(told: Sequence[VerifyOutput]) -> int:
    return sum(bool(output.probe_top) for output in told)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_probing_drafter_hears_behind_its_probes_and_the_other_does_not(target, first, temperature):
    alone = Decoder(target).generate([REQUESTS[3]])[0].tokens
    request = replace(REQUESTS[3], sampling=Sampling(temperature=temperature, seed=3))
    probing, plain = Probing([7, 8]), Listening(alone[1])
    both = (probing, plain) if first else (plain, probing)
    answer = Decoder(target, relayed(*both, TreeMerger(2)), adaptive=False, nodes=4).generate([request])[0]
    assert not answer.notes
    assert probed(probing.told) > len(probing.told) // 2
    assert probed(plain.told) == 0
    assert all(len(output.probe_top) in (0, 2, 4, 6) for output in probing.told)
    if not temperature:
        assert answer.tokens == alone


def test_of_two_that_probe_the_first_ones_probes_are_fed(target):
    first, second = Probing([7]), Probing([8, 9])
    relay = relayed(first, second, TreeMerger(2))
    Decoder(target, relay, adaptive=False, nodes=4).generate([REQUESTS[3]])
    assert probed(first.told) > 0
    assert all(len(output.probe_top) in (0, 1, 2) for output in first.told)
    assert probed(second.told) == 0


def test_what_a_hidden_one_probed_is_not_told_to_the_one_that_takes_over(target):
    first, second = Probing([7]), Listening(0)
    Decoder(target, relayed(first, second), adaptive=False).generate([REQUESTS[0]])
    assert probed(second.told) == 0
    first, second = Listening(0), Probing([7])
    Decoder(target, relayed(first, second), adaptive=False).generate([REQUESTS[3]])
    assert probed(second.told) > 0
