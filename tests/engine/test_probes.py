"""Probe rows: the target answers after them, and nothing else notices that they are there."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pytest
import torch
from torch import Tensor

from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.probes import Probes
from crossdraft.engine.reference import full_forward
from crossdraft.engine.request import Request
from crossdraft.engine.runner.restarts import Restarts
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.runner.wire import pack_draft, unpack_draft
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from tests.engine.zoo import ZOO, as_target

REQUESTS = [Request("x" * i, max_new_tokens=5 + 3 * i) for i in range(1, 4)]
BRANCHES = (-1, 0, -1)  # a right token, one after it, and a wrong one: the accepted path is not in front
BEHIND = (-1, 3, 0, 5, 2, 1)  # root, a probe, node 0, a probe of a node, nodes 2 and 1
IDS = tuple(range(60, 66))


@dataclass(eq=False)
class Asked:
    """One answer so far, and for every round what was committed before, what was fed, what came back."""

    truth: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    last: Draft | None = None
    rounds: list[tuple[list[int], Draft, VerifyOutput]] = field(default_factory=list)


class Asking:
    """Knows the answer, drafts some of it in a tree of two branches, and probes all over that tree."""

    def __init__(self, truths: Sequence[tuple[int, ...]], top: int = 1, *, probing: bool = True) -> None:
        self.truths = {one.max_new_tokens: truth for one, truth in zip(REQUESTS, truths, strict=True)}
        self.top, self.probing = top, probing
        self.needs = Needs(probes=len(IDS))
        self.states: list[Asked] = []

    def begin(self, requests: Sequence[Request]) -> list[Asked]:
        states = [Asked(self.truths[request.max_new_tokens]) for request in requests]
        self.states += states
        return states

    def propose(self, states: Sequence[Asked], budgets: Sequence[Budget]) -> list[Draft]:
        for state, budget in zip(states, budgets, strict=True):
            one, two = (*state.truth[len(state.tokens) :], 50, 51)[:2]
            tree = DraftTree((one + 1, two, one), BRANCHES) if budget.nodes >= 3 else DraftTree.empty()
            parents = BEHIND if len(tree) else (-1, 0, 1, 2, 3, 4)
            probes = Probes(IDS, parents, self.top)
            state.last = Draft(tree, probes=probes if self.probing else None)
        return [state.last for state in states]

    def commit(self, states: Sequence[Asked], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            if state.last is not None:
                state.rounds.append((list(state.tokens), state.last, output))
            state.last = None
            state.tokens += output.tokens

    def fork(self, states: Sequence[Asked]) -> list[Asked]:
        return [replace(state, tokens=[*state.tokens], rounds=[*state.rounds]) for state in states]

    def end(self, states: Sequence[Asked]) -> None:
        pass


@dataclass(frozen=True)
class WithLogits(VerifyOutput):
    """An output that also holds the logits [m, V] that `probe_top` was taken from."""

    probe_logits: Tensor | None = None


@pytest.fixture(autouse=True)
def probe_logits(monkeypatch):
    taken = VerifyOutput.with_probes

    def kept(output, probes, logits):
        return WithLogits(**vars(taken(output, probes, logits)), probe_logits=logits)

    monkeypatch.setattr(VerifyOutput, "with_probes", kept)


def decoder(target, drafter, **options):
    cost = CostModel()
    return DecodeLoop(target, DraftRunner(drafter, "before"), cost=cost, adaptive=False, **options)


def answers(target, drafter, requests=REQUESTS, **options):
    return [answer.tokens for answer in decoder(target, drafter, **options).generate(requests)]


@pytest.fixture(scope="module")
def target():
    return as_target(*ZOO["video_llava"]())


@pytest.fixture(scope="module")
def alone(target):
    return [answer.tokens for answer in DecodeLoop(target).generate(REQUESTS)]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ZOO)
def test_a_probe_is_answered_as_if_its_text_stood_alone(name, batch):
    target = as_target(*ZOO[name]())
    alone = [answer.tokens for answer in DecodeLoop(target).generate(REQUESTS)]
    drafter = Asking(alone)
    assert answers(target, drafter, max_batch=batch) == alone
    assert any(output.path == (2,) for _, _, output in drafter.states[-1].rounds)
    for request, state in zip(REQUESTS, drafter.states, strict=True):
        prompt = target.prepare(request)
        for before, draft, output in (state.rounds[0], state.rounds[-1]):  # riding along, and in a round
            texts = [draft.input_tree.path_tokens(len(draft.tree) + probe) for probe in range(len(IDS))]
            with torch.inference_mode():
                expected = torch.stack([full_forward(target, prompt, [*before, *text]) for text in texts])
            assert (output.probe_logits - expected).abs().max() < 1e-10


def test_a_node_that_sees_a_probe_is_seen(target, alone, monkeypatch):
    """The control of the test above."""

    class Leaky(DraftTree):
        @cached_property
        def visible(self) -> Tensor:
            mask = DraftTree(self.tokens, self.parents).visible.clone()
            mask[:, -1] = True
            return mask

    monkeypatch.setattr(
        Probes, "behind", lambda self, tree: Leaky(tree.tokens + self.tokens, tree.parents + self.parents)
    )
    assert answers(target, Asking(alone)) != alone


def test_without_probes_the_same_rows_are_fed(target, alone, monkeypatch):
    fed, extend = [], target.extend
    monkeypatch.setattr(target, "extend", lambda cache, rows: fed.append(rows) or extend(cache, rows))
    drafter = Asking(alone, probing=False)
    assert answers(target, drafter) == alone
    proposed = {id(draft.tree) for state in drafter.states for _, draft, _ in state.rounds}
    assert proposed <= {id(row.tree) for rows in fed for row in rows}
    assert all(not output.probe_top for state in drafter.states for _, _, output in state.rounds)


def test_the_top_ids_come_likeliest_first(target, alone):
    drafter = Asking(alone, top=2)
    assert answers(target, drafter, REQUESTS[:1]) == alone[:1]
    for _, _, output in drafter.states[0].rounds:
        assert output.probe_top == tuple(map(tuple, output.probe_logits.topk(2).indices.tolist()))


def test_sampled_answers_do_not_change_with_probes(target, alone):
    """The same draft and the same seed draw the same tokens, probed or not."""
    requests = [replace(request, sampling=Sampling(temperature=1.0, seed=3)) for request in REQUESTS]
    probed, plain = Asking(alone), Asking(alone, probing=False)
    assert answers(target, probed, requests) == answers(target, plain, requests)


def test_the_cache_has_room_for_a_draft_and_its_probes(target, alone):
    """46 tokens of prompt, 14 of answer, 3 nodes and the root would be 64 positions, the probes left out."""
    decoding = decoder(target, Asking(alone), nodes=3, hidden_nodes=3)
    decoding.cache = decoding._admission.cache = target.new_cache(1, capacity=1)
    assert [answer.tokens for answer in decoding.generate(REQUESTS[2:])] == alone[2:]


def test_drafts_with_more_probes_than_announced_are_dropped(target, alone):
    drafter = Asking(alone)
    drafter.needs = Needs(probes=5)
    found = decoder(target, drafter).generate(REQUESTS)
    assert [answer.tokens for answer in found] == alone
    assert all("6 probes, and 5 were announced" in answer.other_notes[0] for answer in found)
    assert all(answer.stats.bad_drafts > 1 and len(answer.other_notes) == 1 for answer in found)


def test_a_loop_that_began_without_its_drafter_takes_its_probes_when_it_is_back(target, alone):
    runner = DraftRunner(Asking(alone), "before", restarts=Restarts(1, backoff_s=0.0))
    runner.lose("a test")
    decoding = DecodeLoop(target, runner, adaptive=False)
    deadline = time.monotonic() + 20
    while runner.drafter is None and time.monotonic() < deadline:
        runner.resume()
        time.sleep(0.01)
    found = decoding.generate(REQUESTS)
    assert [answer.tokens for answer in found] == alone
    assert all(answer.other_notes == () and answer.stats.bad_drafts == 0 for answer in found)
    assert any(answer.stats.accepted for answer in found)


def test_probes_beyond_the_context_are_not_fed(target, alone, monkeypatch):
    prompt = len(target.prepare(REQUESTS[2]))
    monkeypatch.setattr(target, "context", prompt + REQUESTS[2].max_new_tokens)
    drafter = Asking(alone)
    assert answers(target, drafter, REQUESTS[2:]) == alone[2:]
    for before, draft, output in drafter.states[0].rounds:
        inside = prompt + len(before) + draft.input_tree.depth <= target.context
        assert bool(output.probe_top) == inside
    assert {not output.probe_top for _, _, output in drafter.states[0].rounds} == {True, False}


TREE = DraftTree((5, 6, 7), (-1, 0, -1))


@pytest.mark.parametrize(
    ("new", "parents"),
    [
        (DraftTree((7, 5, 6), (-1, -1, 1)), (-1, 3, 2, 0)),  # another order
        (DraftTree((7, 5), (-1, -1)), None),  # 5 6 is gone
        (DraftTree((5, 6, 7, 8), (-1, 0, -1, 2)), (-1, 4, 1, 2)),  # more nodes
    ],
)
def test_probes_follow_their_text_into_another_tree(new, parents):
    moved = Probes((1, 2, 3, 4), (-1, 3, 1, 2), top=1).moved(TREE, new)
    assert (moved.parents if moved else None) == parents


def test_a_cut_keeps_probabilities_and_the_probes_whose_text_stays():
    draft = Draft(TREE, (0.5, 0.4, 0.3), probes=Probes((1, 2, 3, 4), (-1, 3, 1, 2), top=1))
    moved = draft.keep([2, 0, 1])
    assert (moved.tree, moved.path_probs) == (DraftTree((7, 5, 6), (-1, -1, 1)), (0.3, 0.5, 0.4))
    assert moved.probes.parents == (-1, 3, 2, 0)
    assert draft.keep([2, 0]).probes is None
    assert draft.first(2).path_probs == (0.5, 0.4)
    assert draft.keep([0, 1, 2]) is draft.first(3) is draft


@pytest.mark.parametrize("parents", [(-1,), (-1, -2)])
def test_probes_without_a_parent_are_refused(parents):
    with pytest.raises(CrossdraftError, match="one parent"):
        Probes((1, 2), parents)


def test_probes_travel_as_plain_data():
    probes = Probes((1, 2), (-1, 3), top=4)
    assert unpack_draft(pack_draft(Draft(TREE, probes=probes))).probes == probes
    assert unpack_draft(pack_draft(Draft(TREE))).probes is None


def test_a_row_begun_without_the_drafter_has_room_for_the_probes_of_the_others(target, alone):
    """The rows of a pass are as wide as the widest of them."""
    runner = DraftRunner(Asking(alone), "before", restarts=Restarts(1, backoff_s=0.0))
    runner.lose("a test")
    assert DecodeLoop(target, runner).policy.probes == len(IDS)
