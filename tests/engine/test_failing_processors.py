"""A logits processor that fails after a draft: as for the target alone, at the token where that would meet it."""

from dataclasses import dataclass, field

import pytest
import torch
from transformers import LogitsProcessor

from crossdraft.engine.drafter import Draft, Needs
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.noise import Noise
from crossdraft.engine.processors import TreeProcessors, verify_tree
from crossdraft.engine.request import Request
from crossdraft.engine.rules import RULES, rule_for
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from tests.engine.zoo import EOS, ZOO, as_target

CONTEXT = [3, 4]


class Failing(LogitsProcessor):
    """Cannot go on after some tokens."""

    def __init__(self, tokens, error=None):
        self.tokens, self.error = frozenset(tokens), error or ValueError("nothing is allowed")

    def __call__(self, input_ids, scores):
        if not self.tokens.isdisjoint(input_ids[:, -1].tolist()):
            raise self.error
        return scores


class Adding(LogitsProcessor):
    """Works in place, on the scores and on the ids."""

    def __call__(self, input_ids, scores):
        scores[:, 5] += 3
        input_ids[:, 0] += 1
        return scores


@dataclass
class Knowing:
    """Drafts the target's own answer."""

    answer: tuple[int, ...]
    needs: Needs = field(default_factory=Needs)

    def begin(self, requests):
        return [[0] for _ in requests]

    def propose(self, states, budgets):
        return [
            Draft(DraftTree.chain(self.answer[emitted : emitted + budget.nodes]))
            for (emitted,), budget in zip(states, budgets, strict=True)
        ]

    def commit(self, states, outputs):
        for state, output in zip(states, outputs, strict=True):
            state[0] += len(output.tokens)

    def fork(self, states):
        return [[*state] for state in states]

    def end(self, states):
        pass


@pytest.fixture(scope="module")
def target():
    return as_target(*ZOO["video_llava"]())


def processors(target, *own):
    return TreeProcessors(Sampling(processors=own), target.model, CONTEXT, (EOS,), 10)


def drafting(target, answer):
    return DecodeLoop(target, DraftRunner(Knowing(answer), "before"), adaptive=False)


def outcome(decoder, request):
    """The tokens that were streamed, and how the request ended."""
    streamed = []
    request_id = decoder.submit(request, lambda piece: streamed.extend(piece.tokens), provisional=False)
    while decoder.busy:
        decoder.step()
    try:
        return streamed, decoder.answer(request_id).tokens
    except CrossdraftError as error:
        return streamed, str(error)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1e-3, seed=1)], ids=["greedy", "sampled"])
def test_an_answer_fails_at_the_token_where_the_target_alone_fails(target, sampling, caplog):
    plain = Request("xx", max_new_tokens=12, sampling=sampling)
    answer = DecodeLoop(target).generate([plain])[0].tokens
    at = next(i for i in range(2, len(answer)) if answer[i] not in answer[:i])
    sampled = Sampling(sampling.temperature, seed=1, processors=(Failing({answer[at]}),))
    request = Request("xx", max_new_tokens=12, sampling=sampled)
    streamed, ended = outcome(DecodeLoop(target), request)
    assert streamed == list(answer[: at + 1])
    assert "A logits processor cannot go on: ValueError: nothing is allowed" in ended
    assert outcome(drafting(target, answer), request) == (streamed, ended)
    assert not caplog.records  # it is the request's fault, and raised to whoever asked


def test_an_answer_that_ends_there_is_whole(target):
    answer = DecodeLoop(target).generate([Request("xx", max_new_tokens=12)])[0].tokens
    at = next(i for i in range(2, len(answer)) if answer[i] not in answer[:i])
    request = Request("xx", max_new_tokens=at + 1, sampling=Sampling(processors=(Failing({answer[at]}),)))
    for decoder in (DecodeLoop(target), drafting(target, answer)):
        assert outcome(decoder, request)[1] == answer[: at + 1]


def test_a_grammar_without_an_entry_for_a_refused_draft_costs_nothing(target):
    request = Request("xx", max_new_tokens=12)
    answer = DecodeLoop(target).generate([request])[0].tokens
    absent = next(token for token in range(10, 90) if token not in answer)
    strict = Request("xx", max_new_tokens=12, sampling=Sampling(processors=(Failing({absent}, KeyError("state 7")),)))
    wrong = (answer[0], absent, *answer[2:])
    found = drafting(target, wrong).generate([strict])[0]
    assert found.stats.drafted > 0
    assert found.tokens == answer


def test_a_processor_that_works_on_its_input_is_applied_once(target):
    logits = torch.zeros(4, target.vocab_size)
    tree = DraftTree((7, 8, 9), (-1, -1, -1))
    warped = processors(target, Adding(), Failing({8})).warp_tree(logits, tree, CONTEXT)
    assert warped[[0, 1, 3], 5].tolist() == [3, 3, 3]
    assert warped[2].isnan().all()


@pytest.mark.parametrize("name", sorted(name for name, rule in RULES.items() if not rule.reads_logits))
def test_no_rule_says_anything_behind_a_context_that_fails(target, name):
    """Of the chain 7, 8, 9 the target would say all; after 8 the processor fails."""
    rule, tree = RULES[name], DraftTree.chain([7, 8, 9])
    logits = torch.zeros(4, target.vocab_size)
    for row, token in enumerate((7, 8, 9, 6)):
        logits[row, token] = 60
    sampling = Sampling(temperature=0 if rule.greedy else 1, processors=(Failing({8}),))
    made = TreeProcessors(sampling, target.model, CONTEXT, (EOS,), 10)
    output = verify_tree(rule, tree, made.warp_tree(logits, tree, CONTEXT), Noise(0))
    assert (output.path, output.bonus) == ((0,), 8)
    with pytest.raises(CrossdraftError, match="cannot go on"):
        made.warp_tree(logits[2:], DraftTree.chain([9]), [*CONTEXT, 7, 8])


def test_a_processor_s_own_nan_is_what_the_target_alone_makes_of_it():
    """No error: the largest of NaN is token 0, for `generate` too."""
    warped = torch.zeros(3, 9)
    warped[0, 7], warped[1:] = 1, torch.nan
    output = verify_tree(rule_for(None, Sampling()), DraftTree.chain([7, 8]), warped, Noise(0))
    assert (output.path, output.bonus) == ((), 7)
    output = verify_tree(rule_for(None, Sampling()), DraftTree.chain([8]), warped[1:], Noise(0))
    assert (output.path, output.bonus) == ((), 0)
