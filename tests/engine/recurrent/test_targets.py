"""Targets with recurrent layers: trees in one pass, rows that come and go, cached prompts, drafters."""

import gc
from dataclasses import replace
from functools import cache

import pytest
import torch

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.drafters.trees.dynamic import expand_and_rerank
from crossdraft.engine.cache import KVCache
from crossdraft.engine.conformance import PARENTS, check_conformance, planted
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.drafter import NO_NEEDS, Draft
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.pass_times import calibrate
from crossdraft.engine.passes import EMPTY, Chunk, PassBuilder, PassRow
from crossdraft.engine.prefill import prefill
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.engine.recurrent.cache import StateCache
from crossdraft.engine.recurrent.mixers import find_mixers
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.target import Target
from crossdraft.engine.traits import check_layers
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.drafters.iid.tree_model import TreeDrafter
from tests.engine.recurrent.tiny import (
    EXACT,
    KINDS,
    WITHOUT_POSITIONS,
    ask,
    generated,
    kernel,
    prompt_of,
    target_of,
    tiny,
)
from tests.engine.scripted import IgnoresCommits

TOKENS = range(20, 20 + len(PARENTS))
OFTEN = [
    *(("qwen3_5", "video"), ("lfm2", "text"), ("kimi_linear", "text"), ("nemotron_h", "text")),
    ("inkling_mm_model", "text"),
]
CASES = [(kind, what) for kind, inputs in KINDS.items() for what in inputs]
RARE = [pytest.param(*case, marks=pytest.mark.slow) for case in CASES if case not in OFTEN]
STATES = [kind for kind, _ in OFTEN]
LONG = tuple(10 + (7 * at) % 80 for at in range(90))  # more words than are read at once


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


@cache
def model_of(kind, dtype=torch.float64):
    return tiny(kind, dtype)


class StatesSeeAChain(PassBuilder):
    """Planted fault: attention is right, the states take a tree for a chain."""

    def paths(self, rows, width):
        return super().paths([replace(row, tree=DraftTree.chain(row.tree.tokens)) for row in rows], width)


@pytest.mark.parametrize(("kind", "what"), [*OFTEN, *RARE])
def test_trees_are_verified_in_one_pass(kind, what):
    prompt, target = prompt_of(kind, what), target_of(model_of(kind))
    found = check_conformance(target, prompt, TOKENS)
    assert found.passes(1e-10 if kind in EXACT else 1e-5), found
    assert (found.wrong_position == 0) == (kind in WITHOUT_POSITIONS)
    wrong = check_conformance(planted(target, StatesSeeAChain), prompt, TOKENS)
    assert min(wrong.riding, wrong.batched) > 1e-3


@pytest.mark.parametrize("kind", ["qwen3_5", "kimi_linear", "nemotron_h"])
def test_the_fused_kernel_reads_whole_models(kind, monkeypatch):
    rule, device = kernel()
    prompt, target = prompt_of(kind, "text"), target_of(tiny(kind, torch.float32).to(device))
    calls = []
    monkeypatch.setattr(target, "_tree_rule", lambda *given: calls.append(given) or rule(*given))
    found = check_conformance(target, prompt, TOKENS)
    assert max(found.riding, found.batched, found.compacted) < 2e-5, found
    assert found.wrong_mask > 1e-3
    assert calls


@pytest.mark.parametrize("kind", STATES)
def test_a_long_prompt_is_read_in_pieces_with_a_tree_behind_it(kind):
    prompt, target = prompt_of(kind, "text", LONG), target_of(model_of(kind))
    found = check_conformance(target, prompt, TOKENS)
    assert max(found.riding, found.batched, found.compacted) < 1e-5, found
    assert found.wrong_mask > 1e-3


class Knowing(IgnoresCommits):
    """Knows the answers, and drafts some of their tokens, wrong ones behind or beside them, or at times nothing."""

    needs = NO_NEEDS

    def __init__(self, answers, shape):
        self.answers, self.shape, self.silent = answers, shape, 0

    def begin(self, requests):
        return [[self.answers[key(request)], 0, torch.Generator().manual_seed(3)] for request in requests]

    def propose(self, states, budgets):
        return [Draft(self.tree(*state)) for state in states]

    def tree(self, answer, done, draws):
        right = answer[done : done + 4]
        count = int(torch.randint(-1, len(right) + 1, (1,), generator=draws))
        if count < 0:
            self.silent += done > 0
            return DraftTree.empty()
        good = [*right[:count], *(token % 90 + 5 for token in right[count:])]
        others = [[8, 9], [*good[:1], 10, 11], [12]] if self.shape == "tree" else []
        return DraftTree.from_paths([*others, good])

    def commit(self, states, outputs):
        for state, output in zip(states, outputs, strict=True):
            state[1] += len(output.tokens)


def key(request):
    return tuple(request.inputs["input_ids"][0].tolist())


@cache
def said(kind, what, number, length, dtype):
    """A request, and what transformers' own `generate` says to it."""
    request = ask(prompt_of(kind, what, words(number)), length)
    return request, generated(model_of(kind, dtype), request)


def identity(kind, what, asked, shape, dtype=torch.float64, **more):
    """Answers by a loop with drafts that are partly right, and transformers' own."""
    model = model_of(kind, dtype)
    requests, expected = zip(*(said(kind, what, number, length, dtype) for number, length in asked), strict=True)
    drafter = Knowing({key(request): tokens for request, tokens in zip(requests, expected, strict=True)}, shape)
    found = DecodeLoop(target_of(model), DraftRunner(drafter, "before"), adaptive=False, **more).generate(requests)
    assert sum(answer.stats.accepted for answer in found) > len(requests)
    assert drafter.silent  # steps without a draft behind accepted drafts
    return tuple(answer.tokens for answer in found), expected


def words(number):
    draws = torch.Generator().manual_seed(number)
    return tuple(torch.randint(10, 90, (3 + number % 9,), generator=draws).tolist())


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize(("kind", "what"), [*OFTEN, *RARE])
def test_greedy_answers_are_those_of_generate(kind, what, shape):
    found, expected = identity(kind, what, [(1, 40), (5, 40)], shape)
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "what"), CASES)
def test_long_greedy_answers_are_those_of_generate(kind, what, shape, dtype):
    found, expected = identity(kind, what, [(number, 300) for number in range(20)], shape, dtype)
    assert found == expected


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("kind", STATES)
def test_requests_join_and_leave_a_batch(kind, shape):
    asked = [*enumerate((3, 30, 9, 17, 1, 24))]
    found, expected = identity(kind, "text", asked, shape, max_batch=3, prefill_chunk=4)
    assert found == expected


@pytest.mark.parametrize("kind", STATES)
def test_a_request_that_lost_its_row_goes_on(kind):
    model = model_of(kind)
    first, second = (ask(prompt_of(kind, "text", words(n)), 20) for n in (2, 3))
    loop = DecodeLoop(target_of(model))
    number = loop.submit(first)
    for _ in range(6):
        loop.step()
    other = loop.submit(replace(second, priority=1))
    cancelled = loop.submit(replace(second, priority=2), cancelled=lambda: True)
    while loop.busy:
        loop.step()
    assert loop.answer(number).tokens == generated(model, first)
    assert loop.answer(other).tokens == generated(model, second)
    assert loop.answer(cancelled).tokens == ()


@pytest.mark.parametrize(("kind", "what"), OFTEN)
def test_a_second_question_and_a_second_turn_begin_where_a_state_was_kept(kind, what):
    """Of a clip: behind it; of words alone: behind a whole turn, and not in the middle of one."""
    model, prefixes = model_of(kind), PrefixCache(1 << 30)
    loop = DecodeLoop(target_of(model), prefixes=prefixes)
    first = ask(prompt_of(kind, what, words(4)), 12, namespace="")
    said = loop.generate([first])[0].tokens
    turn = torch.tensor([*key(first), *said, 33, 34, 35])
    turns = replace(first, inputs={**first.inputs, "input_ids": turn[None]})
    if what == "video":
        types = first.inputs["mm_token_type_ids"]
        longer = torch.cat((types, types.new_zeros(1, len(turn) - types.shape[1])), 1)
        turns = replace(turns, inputs={**turns.inputs, "mm_token_type_ids": longer})
    second, third = ask(prompt_of(kind, what, words(6)), 12, namespace=""), turns
    for request, cached in ((second, 15 if what == "video" else 0), (third, len(turn) - 4)):
        answer = loop.generate([request])[0]
        assert answer.tokens == generated(model, request)
        assert answer.stats.cached_tokens == cached
    assert prefixes.nbytes > 2 * loop.cache.state_bytes > 0


def test_a_prefix_whose_state_is_another_s_would_be_seen():
    model, prefixes = model_of("lfm2"), PrefixCache(1 << 30)
    loop = DecodeLoop(target_of(model), prefixes=prefixes)
    first = ask(prompt_of("lfm2", "text", words(4)), 12, namespace="")
    turn = torch.tensor([[*key(first), *loop.generate([first])[0].tokens, 33, 34]])
    for edge in prefixes._used:
        for inputs, *_ in (edge.span.states or {}).values():
            inputs.zero_()
    request = replace(first, inputs={"input_ids": turn})
    answer = loop.generate([request])[0]
    assert answer.stats.cached_tokens
    assert answer.tokens != generated(model, request)


def read(target: Target, rows: int, capacity: int = 64):
    """A cache with rows of prompts of several lengths, and the prompts."""
    made, prompts = target.new_cache(rows, capacity), [prompt_of("", "text", words(n)) for n in range(rows)]
    for prompt in prompts:
        prefill(target, made, prompt, None, capacity)
    return made, prompts


def step(target, made, row, *tokens, tree=EMPTY):
    return target.extend(made, [PassRow(row, Chunk(torch.tensor(tokens)), tree)]).logits[0]


@pytest.mark.parametrize("kind", STATES)
def test_a_copy_and_the_rows_behind_a_gap_go_on_as_before(kind):
    target = target_of(model_of(kind))
    made, prompts = read(target, 3)
    tree = DraftTree((20, 21, 22), (-1, -1, 1))
    step(target, made, 2, 30, tree=tree)
    copy = made.copy()
    for one in (made, copy):
        one.keep(2, [1, 2])
    made.drop_row(0)  # row 2 takes its place
    alone, _ = read(target, 3)
    expected = step(target, alone, 2, 30, 21, 22, 40)[-1]
    torch.testing.assert_close(step(target, made, 0, 40)[-1], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(step(target, copy, 2, 40)[-1], expected, rtol=0, atol=1e-5)
    assert copy.state_bytes == made.state_bytes > 0
    fresh = made.add_row(64)  # its states are those of an empty row
    prompt = torch.cat((prompts[0].input_ids, torch.tensor([40])))
    expected = target.extend(alone, [PassRow(0, Chunk(torch.tensor([40])))]).logits[0][-1]
    torch.testing.assert_close(step(target, made, fresh, *prompt.tolist())[-1], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", STATES)
def test_a_row_goes_back_to_where_it_was_marked(kind):
    target = target_of(model_of(kind))
    made, (prompt,) = read(target, 1)
    at = len(prompt)
    with pytest.raises(CrossdraftError, match="keeps states and cannot be cut"):
        made.truncate(0, at - 1)
    made.mark(0)
    expected = step(target, made, 0, 30, 31)[-1]
    made.mark(0)
    step(target, made, 0, 50, tree=DraftTree.chain([51, 52]))
    made.keep(0, [0, 1])
    assert made.truncate(0, at + 4) == at + 2  # the last mark in front of it
    assert made.truncate(0, at + 1) == at  # the first one
    torch.testing.assert_close(step(target, made, 0, 30, 31)[-1], expected, rtol=0, atol=1e-5)


def test_memory_is_accounted_for_and_follows_the_rows():
    target = target_of(model_of("qwen3_5"))
    made, _ = read(target, 1)
    layers = 3 * (3 * 64 * 8 + 4 * 8 * 8 * 4)  # of inputs in float64, of 4 heads' memories in float32
    assert made.state_bytes == layers
    assert made.nbytes == made.key_bytes + layers
    made, _ = read(target, 4)
    assert made.nbytes == made.key_bytes + 4 * layers
    for row in (3, 2, 1):
        made.drop_row(row)
    made.shrink(at_once=True)
    assert made.nbytes < 4 * layers + made.key_bytes


def test_what_a_pass_leaves_is_small_whatever_a_prompt_is_long():
    """At Qwen3.5's usual sizes a node leaves 56 KiB a layer in float32, 40 in bfloat16; a token of a prompt nothing."""
    target = target_of(model_of("qwen3_5"))
    made = target.new_cache(1, 512)

    def left():
        kept = [one for layer in made._states.values() for one in layer.left.values()]
        return sum(x.nbytes for one in kept for x in (one.inputs, *(one.tree or ())))

    prefill(target, made, prompt_of("", "text", 4 * LONG), None, 512)
    assert left() == 3 * 3 * 64 * 8  # the last inputs of a convolution
    step(target, made, 0, 30, tree=DraftTree.chain([5] * 15))
    node = 64 * 8 + 2 * 8 * 4 + 4 * 8 * 4 + 4 * 4  # inputs, keys, values, sums of decays
    assert left() == 3 * (3 * 64 * 8 + 16 * node)
    channels = 2 * 16 * 128 + 32 * 128
    assert channels * 4 + 16 * 128 * 4 + 32 * 128 * 4 + 32 * 4 < 57 << 10


@pytest.mark.parametrize("kind", ["lfm2", pytest.param("qwen3_5", marks=pytest.mark.slow)])
def test_a_recurrent_model_drafts_for_another(kind):
    """Its rejected tokens are taken back, as its later drafts show: all are right where the target is its own model."""
    model = model_of(kind)
    own = target_of(model)
    drafter = IndependentDrafter(own)
    requests = [ask(prompt_of(kind, "text", words(n)), 24) for n in range(2)]
    other = tiny(kind)
    for weight in other.parameters():  # the drafter is often wrong
        weight.add_(0.05 * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    found = DecodeLoop(target_of(other), DraftRunner(drafter, "before"), adaptive=False).generate(requests)
    assert [answer.tokens for answer in found] == [generated(other, request) for request in requests]
    assert 0 < sum(answer.stats.accepted for answer in found) < sum(answer.stats.drafted for answer in found)
    same = DecodeLoop(own, DraftRunner(drafter, "before"), adaptive=False).generate(requests)
    assert all(answer.stats.accepted > 16 for answer in same)
    with pytest.raises(CrossdraftError, match="keeps states, which cannot go back by one token"):
        TreeDrafter(own, expand_and_rerank)


def test_passes_are_timed():
    cost = CostModel()
    calibrate(target_of(model_of("lfm2")), cost, 2, tuple)
    assert cost.verify.one.weight


def test_a_model_outside_of_passes_is_unchanged_and_let_go():
    model = tiny("lfm2")
    ids = prompt_of("lfm2", "text").input_ids[None]
    before = model(ids).logits
    target = target_of(model)
    forward = vars(model.model.layers[0].conv)["forward"]
    target = target_of(model)  # another adapter changes no more
    assert vars(model.model.layers[0].conv)["forward"] is forward
    assert torch.equal(model(ids).logits, before)
    made = target.new_cache()
    assert isinstance(made, StateCache)
    layer = made.state_layer(0)
    del made
    gc.collect()
    with pytest.raises(ReferenceError):
        layer.owner.rows  # noqa: B018


def test_keys_and_convolutions_of_one_layer_are_both_committed(monkeypatch):
    """Inkling's layers keep keys and four convolutions' inputs; without either a pass after a tree would be wrong."""
    target = target_of(model_of("inkling_mm_model"))
    prompt = prompt_of("inkling_mm_model", "image")
    assert len(target.traits.mixers) == 4 * 4
    monkeypatch.setattr(StateCache, "settle", lambda cache: cache._segments.clear())
    assert check_conformance(target, prompt, TOKENS).compacted > 1e-3
    monkeypatch.undo()
    monkeypatch.setattr(KVCache, "keep", lambda cache, row, path: cache.advance(row, len(path)))
    assert check_conformance(target, prompt, TOKENS).compacted > 1e-3


def test_padded_rows_of_a_vocabulary_are_never_drafted():
    model = tiny("inkling_mm_model")
    model.config.text_config.unpadded_vocab_size = 90
    assert target_of(model).reserved == {*range(90, 99)}
    assert target_of(model).vocab_size == 90  # so that the draft of such an id is refused
    logits = model(prompt_of("inkling_mm_model", "text").input_ids[None]).logits
    assert logits.shape[-1] == 90


@pytest.mark.parametrize("where", ["own", "seen"])
def test_distances_are_those_along_paths(where):
    class Sequential(PassBuilder):
        def places(self, cache, rows, width, keys):
            own, seen = super().places(cache, rows, width, keys)
            count = torch.arange(keys).expand(len(rows), -1)
            return (count[:, -width:], seen) if where == "own" else (own, count)

    target, prompt = target_of(model_of("inkling_mm_model")), prompt_of("inkling_mm_model", "text")
    assert check_conformance(planted(target, Sequential), prompt, TOKENS).riding > 1e-3


def test_what_is_not_known_is_refused_by_name():
    with pytest.raises(CrossdraftError, match="M has layers of the types hybrid_mamba, whose caches and masks"):
        check_layers("M", ["full_attention", "hybrid_mamba"])
    model = tiny("inkling_mm_model")
    del model.get_decoder().layers[1].self_attn.q_norm  # as in Inkling 2, whose convolutions are others
    with pytest.raises(
        CrossdraftError, match="Layer 1 of InklingForConditionalGeneration, of type hybrid, keeps a state"
    ):
        target_of(model)
    model = tiny("lfm2")
    del model.model.layers[2].conv.out_proj
    with pytest.raises(CrossdraftError, match="Layer 2 of Lfm2ForCausalLM, of type conv, keeps a state by a rule that"):
        find_mixers(model, {0: "conv", 2: "conv"})
