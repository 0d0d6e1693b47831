"""Several answers to one request: independent draws, and a prompt that is read once."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from scipy import stats

from crossdraft.engine.drafter import Needs
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.noise import choose, seed_of
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.engine.prompt_features import SharedPrompt
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import ContextLengthError, CrossdraftError
from tests.engine.drafting import Language
from tests.engine.recurrent.tiny import ask, prompt_of, target_of, tiny
from tests.engine.scripted import Scripted
from tests.engine.test_prefix_cache import Zoo
from tests.engine.zoo import ZOO

DRAWN = Sampling(temperature=1.0, seed=3)
LENGTH = 6
RECURRENT = [("qwen3_5", "video"), ("lfm2", "text"), ("nemotron_h", "text"), ("inkling_mm_model", "text")]


def reading(target):
    """The numbers of tokens that the target's passes read from now on, drafts apart."""
    read, extend = [], target.extend

    def counted(cache, rows):
        read.extend(len(row.chunk.tokens) for row in rows)
        return extend(cache, rows)

    target.extend = counted
    return read


def alone(target, request, count):
    """What each answer is by itself, by a loop of its own; a longer one for a greater position."""
    return [DecodeLoop(target).generate([replace(one)])[0].tokens for one in request.several(count)]


@pytest.mark.parametrize("prefixes", [None, 1 << 30, 100])
@pytest.mark.parametrize(
    ("name", "batch"), [*((name, 2) for name in sorted(ZOO)), ("qwen2_5_vl", 1), ("video_llava", 4)]
)
def test_the_prompt_is_read_once_with_and_without_a_prefix_cache(name, batch, prefixes):
    zoo = Zoo(name)
    request = zoo.ask(8, 9, sampling=DRAWN, max_new_tokens=LENGTH, ignore_eos=True)
    wanted, zoo.encoded = alone(zoo.target, request, 4), 0
    read = reading(zoo.target)
    loop = DecodeLoop(zoo.target, max_batch=batch, prefixes=None if prefixes is None else PrefixCache(prefixes))
    found = loop.generate(request.several(4))
    assert [answer.tokens for answer in found] == wanted
    assert len(set(wanted)) == 4
    prompt = found[0].stats.prompt_tokens
    assert zoo.encoded == 1
    assert [answer.stats.cached_tokens for answer in found] == [0, *[prompt - 1] * 3]
    assert sum(read) == prompt + 3 + 4 * (LENGTH - 1)  # the prompt, its last token for each other one, and the roots


@pytest.mark.parametrize("namespace", [None, "anna"])
def test_a_request_that_nothing_is_kept_of_shares_its_prompt_with_its_own_answers_alone(namespace):
    zoo, prefixes = Zoo(), PrefixCache(1 << 30)
    request = zoo.ask(8, 9, sampling=DRAWN, namespace=namespace)
    loop = DecodeLoop(zoo.target, max_batch=2, prefixes=prefixes)
    cached = [[one.stats.cached_tokens for one in loop.generate(request.several(2))] for _ in range(2)]
    prompt = len(zoo.prompt)
    assert cached == [[0, prompt - 1], [prompt - 1 if namespace else 0, prompt - 1]]
    assert (prefixes.nbytes > 0) == (namespace is not None)


@pytest.mark.parametrize(("kind", "what"), RECURRENT)
def test_of_recurrent_layers_the_states_before_the_last_token_are_shared(kind, what):
    target = target_of(tiny(kind))
    request = replace(ask(prompt_of(kind, what, (10, 20, 30, 40)), LENGTH), sampling=DRAWN, ignore_eos=True)
    wanted, read = alone(target, request, 3), reading(target)
    found = DecodeLoop(target, max_batch=2).generate(request.several(3))
    assert [answer.tokens for answer in found] == wanted
    prompt = found[0].stats.prompt_tokens
    assert [answer.stats.cached_tokens for answer in found] == [0, prompt - 1, prompt - 1]
    assert sum(read) == prompt + 2 + 3 * (LENGTH - 1)


@pytest.mark.parametrize(
    "needs", [Needs(hidden_layers=(1, -1)), Needs(hidden_layers=(2,), visual_layers=(0, 2)), Needs(kv_layers=(1,))]
)
@pytest.mark.parametrize("text", [False, True])
def test_who_looks_into_the_target_sees_the_same_of_every_answer(needs, text):
    zoo = Zoo()
    request = zoo.ask(8, 9, sampling=DRAWN, max_new_tokens=5)
    if text:
        request = Request("x", inputs={"input_ids": torch.tensor([[1, 5, 6, 7, 8]])}, max_new_tokens=5, sampling=DRAWN)

    def outputs(asked):
        drafter = Scripted([DraftTree.chain((3, 4))] * 50, needs)
        loop = DecodeLoop(zoo.target, DraftRunner(drafter, "off"), adaptive=False, nodes=2)
        found = [loop.generate([one])[0] for one in asked] if asked[0].group is None else loop.generate(asked)
        return [answer.stats.cached_tokens for answer in found], [answer.tokens for answer in found], drafter.outputs

    cached, tokens, shared = outputs(request.several(3))
    _, wanted, single = outputs([replace(one) for one in request.several(3)])
    prompt = 5 if text else len(zoo.prompt)
    assert cached == [0, prompt - 1, prompt - 1]
    assert tokens == wanted
    for ours, theirs in zip(shared, single, strict=True):
        assert ours.tokens == theirs.tokens
        for layer, features in theirs.hidden.items():
            torch.testing.assert_close(ours.hidden[layer], features, atol=1e-10, rtol=0)
        for layer, pair in theirs.kv.items():
            torch.testing.assert_close(ours.kv[layer], pair, atol=1e-10, rtol=0)
        assert (ours.prompt is None) == (theirs.prompt is None)
        if theirs.prompt is not None:
            assert (ours.prompt.tokens, ours.prompt.visual_tokens) == (
                theirs.prompt.tokens,
                theirs.prompt.visual_tokens,
            )
            for layer, features in theirs.prompt.visual.items():
                torch.testing.assert_close(ours.prompt.visual[layer], features, atol=1e-10, rtol=0)


def test_a_prompt_that_was_another_s_would_be_seen(monkeypatch):
    """The same with keys that are off by one token."""
    zoo, keep = Zoo(), SharedPrompt.keep
    request = zoo.ask(8, 9, sampling=DRAWN)
    wanted = alone(zoo.target, request, 2)

    def wrong(self, known, *given, **more):
        keep(self, known, *given, **more)
        if self.known is not None:
            for keys, _ in self.known.prefix.parts[0][0].layers.values():
                keys.copy_(keys.roll(1, -2))

    monkeypatch.setattr(SharedPrompt, "keep", wrong)
    found = DecodeLoop(zoo.target).generate(request.several(2))
    assert found[0].tokens == wanted[0]
    assert found[1].tokens != wanted[1]


def test_a_copy_with_another_question_shares_nothing():
    zoo = Zoo()
    first, second = zoo.ask(8, 9, sampling=DRAWN).several(2)
    other = replace(second, inputs=zoo.ask(11, 12).inputs)
    found = DecodeLoop(zoo.target).generate([first, other])
    assert (first.group is not None, other.group) == (True, None)
    assert found[1].stats.cached_tokens == 0
    assert found[1].tokens == DecodeLoop(zoo.target).generate([other])[0].tokens


@pytest.mark.parametrize("after", [0, 1, 3])
def test_if_the_first_is_cancelled_the_next_one_reads_for_the_others(after):
    zoo = Zoo()
    request = zoo.ask(8, 9, sampling=DRAWN)
    wanted = alone(zoo.target, request, 3)
    loop = DecodeLoop(zoo.target, max_batch=2, prefill_chunk=8)
    numbers = [loop.submit(one) for one in request.several(3)]
    for _ in range(after):
        loop.step()
    loop.cancel(numbers[0])
    while loop.busy:
        loop.step()
    found = [loop.answer(number) for number in numbers[1:]]
    assert [answer.tokens for answer in found] == wanted[1:]
    assert found[1].stats.cached_tokens == len(zoo.prompt) - 1


def test_answers_that_lose_their_rows_go_on():
    zoo = Zoo()
    request = zoo.ask(8, 9, sampling=DRAWN, max_new_tokens=20, ignore_eos=True)
    wanted = alone(zoo.target, request, 3)
    loop = DecodeLoop(zoo.target, max_batch=2)
    numbers = [loop.submit(one) for one in request.several(3)]
    for _ in range(4):
        loop.step()
    loop.submit(replace(zoo.ask(11, 12), priority=1))
    while loop.busy:
        loop.step()
    assert [loop.answer(number).tokens for number in numbers] == wanted


def test_what_they_share_is_let_go_when_the_last_one_has_begun():
    zoo = Zoo()
    asked = zoo.ask(8, 9, sampling=DRAWN, max_new_tokens=20, ignore_eos=True).several(3)
    loop = DecodeLoop(zoo.target, max_batch=3)
    for one in asked:
        loop.submit(one)
    kept, shared = [], loop._admission._shared
    while loop.busy:
        loop.step()
        shared = loop._admission._shared
        kept += [weakref.ref(span) for one in shared.values() if one.known for span, _ in one.known.prefix.parts]
        gc.collect()
        if len(loop.queue.rows) == 3 and all(row.tokens for row in loop.queue.rows):
            assert kept
            assert not any(ref() for ref in kept)
    assert not shared


def test_a_prompt_that_is_refused_is_refused_for_each():
    zoo = Zoo()
    loop = DecodeLoop(zoo.target)
    numbers = [loop.submit(one) for one in zoo.ask(8, 9, sampling=DRAWN, max_new_tokens=10**6).several(2)]
    while loop.busy:
        loop.step()
    for number in numbers:
        with pytest.raises(ContextLengthError):
            loop.answer(number)


def test_seeds_are_those_of_single_requests():
    asked = Request("What is ahead?", sampling=Sampling(temperature=1.0, seed=11)).several(3)
    assert [one.sampling.seed for one in asked] == [11, seed_of(11, 1), seed_of(11, 2)]
    assert all(0 <= one.sampling.seed < 2**63 for one in asked)
    assert Request("Why?").several(1)[0].group is None
    assert {one.sampling.seed for one in Request("Why?").several(4)} == {None}
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(CrossdraftError, match="count"):
            Request("Why?").several(wrong)


@pytest.mark.parametrize(("pair", "position"), [((0, 1), 0), ((0, 7), 1), ((1, 2), 7), ((3, 6), 0)])
def test_answers_are_independent(pair, position):
    """A chi-square test of the joint draws of two answers over many seeds, against the product of their weights."""
    weights, seeds = Language(5, seed=11, sharpness=1.5)(()), 5000
    counts = torch.zeros(5, 5, dtype=torch.double)
    for seed in range(seeds):
        drawn = [choose(weights, seed_of(seed, answer), position) for answer in pair]
        counts[drawn[0], drawn[1]] += 1
    joint = (weights.double()[:, None] * weights.double()[None]).flatten()
    assert stats.chisquare(counts.flatten().numpy(), (seeds * joint / joint.sum()).numpy()).pvalue > 1e-3
    same = torch.zeros(5, 5, dtype=torch.double)  # the same with one seed for both would show
    for seed in range(1000):
        drawn = [choose(weights, seed, position) for _ in pair]
        same[drawn[0], drawn[1]] += 1
    assert stats.chisquare(same.flatten().numpy(), (1000 * joint / joint.sum()).numpy()).pvalue < 1e-9
