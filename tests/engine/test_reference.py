"""The engine gives what the definition gives, and what the definition gives does not depend on the drafter."""

from dataclasses import replace
from functools import cache

import pytest

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.drafters.memory.drafter import MemoryDrafter
from crossdraft.drafters.ngram.drafter import NgramDrafter
from crossdraft.drafters.trees.dynamic import expand_and_rerank
from crossdraft.engine.conformance import SequentialPositions, planted
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.reference import generate
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft_lab.drafters.iid.tree_model import TreeDrafter
from tests.engine.zoo import ZOO, as_target, noisy

REQUEST = Request("xx", max_new_tokens=12)
SAMPLINGS = {
    "greedy": Sampling(),
    "penalised": Sampling(repetition_penalty=1.3),
    "counted": Sampling(presence_penalty=0.02, frequency_penalty=0.01),
    "sampled and counted": Sampling(temperature=1.0, seed=5, presence_penalty=-1.0, frequency_penalty=2.0),
    "sampled": Sampling(temperature=1.0, seed=3),
    "top-p": Sampling(temperature=0.8, top_p=0.9, seed=4),
}


@cache
def target_of(name, noise=None):
    model, prompt = ZOO[name]()
    return as_target(model if noise is None else noisy(model, noise), prompt)


@cache
def wanted_of(name, sampling):
    return generate(target_of(name), None, replace(REQUEST, sampling=SAMPLINGS[sampling]))


def drafter_of(kind, name):
    """A drafter that is right now and then."""
    near = target_of(name, 0.02)
    return {
        "none": lambda: None,
        "ngram": NgramDrafter,
        "memory": MemoryDrafter,
        "model": lambda: IndependentDrafter(near),
        "tree": lambda: TreeDrafter(near, expand_and_rerank),
    }[kind]()


@pytest.mark.parametrize(  # each drafter with each sampling, and either target with each of both
    ("name", "kind", "sampling"),
    [
        (("video_llava", "qwen2_5_vl")[(row + column) % 2], kind, sampling)
        for row, kind in enumerate(("none", "ngram", "memory", "model", "tree"))
        for column, sampling in enumerate(SAMPLINGS)
    ],
)
def test_the_engine_gives_what_the_definition_gives(name, kind, sampling):
    target, request = target_of(name), replace(REQUEST, sampling=SAMPLINGS[sampling])
    wanted = wanted_of(name, sampling)
    assert generate(target, drafter_of(kind, name), request) == wanted
    drafter = drafter_of(kind, name)
    runner = None if drafter is None else DraftRunner(drafter, "before")
    (answer,) = DecodeLoop(target, runner, adaptive=False).generate([request])
    assert list(answer.tokens) == wanted


def test_with_drafts_the_definition_asks_for_fewer_rounds():
    target, rounds = as_target(*ZOO["video_llava"]()), []
    drafter = drafter_of("model", "video_llava")
    propose = drafter.propose
    drafter.propose = lambda states, budgets: rounds.append(propose(states, budgets)) or rounds[-1]
    tokens = generate(target, drafter, REQUEST)
    assert len(rounds) < len(tokens)
    assert any(len(draft.tree) for (draft,) in rounds)


def test_an_engine_that_is_wrong_differs():
    right = as_target(*ZOO["video_llava"]())
    wrong = planted(right, SequentialPositions)
    request = replace(REQUEST, max_new_tokens=40)
    runner = DraftRunner(drafter_of("tree", "video_llava"), "before")
    (answer,) = DecodeLoop(wrong, runner, adaptive=False).generate([request])
    assert list(answer.tokens) != generate(right, None, request)
