"""The engine gives what the definition gives, and what the definition gives does not depend on the drafter."""

from dataclasses import replace

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


def drafter_of(kind, name):
    """A drafter that is right now and then."""
    model, prompt = ZOO[name]()
    near = as_target(noisy(model, 0.02), prompt)
    return {
        "none": lambda: None,
        "ngram": NgramDrafter,
        "memory": MemoryDrafter,
        "model": lambda: IndependentDrafter(near),
        "tree": lambda: TreeDrafter(near, expand_and_rerank),
    }[kind]()


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("kind", ["none", "ngram", "memory", "model", "tree"])
@pytest.mark.parametrize("name", ["video_llava", "qwen2_5_vl"])
def test_the_engine_gives_what_the_definition_gives(name, kind, sampling):
    target, request = as_target(*ZOO[name]()), replace(REQUEST, sampling=sampling)
    wanted = generate(target, None, request)
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
