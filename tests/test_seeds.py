"""A seed repeats: the same request and seed give the same text, whatever drafts, learned or shares the pass."""

from contextlib import ExitStack
from dataclasses import replace

import pytest

import crossdraft as cd
from crossdraft.engine.request import Origin
from crossdraft.engine.request_state import RequestState

SEEDS = (7, 8)
INLINE = {"placement": "inline", "adaptive": False}
# Deterministic proposals, tokens drawn one by one, drawn trees, drafters of several, drafters with another vocabulary;
# then more of each kind, for the slow suite.
DRAFTERS = (
    "event", "glance", "ngram", "union:event,memory,eagle2", "text:how=slem", "eagle3",
    "dflash",
)  # fmt: skip
MORE = (
    "union:memory,ngram", "phased:event,eagle3", "text:how=tli", "eagle1",
    "medusa", "hydra", "redrafter",
)  # fmt: skip
pytestmark = pytest.mark.usefixtures("one_target")


@pytest.fixture(scope="module")
def requests(clip):
    question = "What is the car in front doing, and what is beside the road?"
    warm = [cd.Sampling(temperature=1.6, seed=seed) for seed in SEEDS]
    penalties = {"repetition_penalty": 1.1, "presence_penalty": 0.6, "frequency_penalty": -0.5}
    nucleus = cd.Sampling(temperature=1.8, top_p=0.9, top_k=40, seed=SEEDS[0], **penalties)
    return [
        cd.Request(question, str(clip.video), str(clip.events), max_new_tokens=24, sampling=sampling)
        for sampling in (*warm, nucleus)
    ]


@pytest.fixture(scope="module")
def alone(requests):
    """What the target says by itself."""
    with cd.Engine.load("reference", None) as engine:
        answers = [engine.generate(request) for request in requests]
    texts = [answer.tokens for answer in answers]
    assert len({*texts}) == len(texts)
    assert all(answer.stats.rule == "gumbel" and answer.stats.lossless for answer in answers)
    return texts


@pytest.mark.parametrize("drafter", [*DRAFTERS, *(pytest.param(spec, marks=pytest.mark.slow) for spec in MORE)])
def test_a_seed_repeats_whatever_drafts(drafter, requests, alone):
    """Asked twice: the second time with what was learned from the first."""
    with cd.Engine.load("reference", drafter, cd.Options(**INLINE)) as engine:
        answers = [engine.generate(request) for request in (*requests, *requests)]
    assert [answer.tokens for answer in answers] == [*alone, *alone]
    assert sum(answer.stats.accepted for answer in answers)


def test_a_memory_that_has_learned_the_answer_drafts_it(requests, alone):
    with cd.Engine.load("reference", "union:memory,ngram", cd.Options(**INLINE)) as engine:
        answers = [engine.generate(requests[0]) for _ in range(4)]
    assert [answer.tokens for answer in answers] == [alone[0]] * 4
    assert [answer.stats.seed for answer in answers] == [SEEDS[0]] * 4
    first, last = answers[0].stats, answers[-1].stats
    assert last.rounds < first.rounds / 2


@pytest.mark.parametrize(
    "options",
    [
        {"max_batch": 3, "adaptive": False, "placement": "inline"},
        {"max_batch": 2, "prefill_chunk": 16, "placement": "inline"},
        {"placement": "process"},
        {"placement": "inline", "hidden": "off"},
        {"placement": "inline", "nodes": 3},
        {"placement": "process", "adaptive": False},
    ],
    ids=lambda options: ",".join(f"{name}={value}" for name, value in options.items()),
)
def test_a_seed_repeats_in_any_batch_and_placement(options, requests, alone):
    with cd.Engine.load("reference", "event", cd.Options(**options)) as engine:
        answers = engine.generate([*requests, *requests[::-1]])
        streamed = engine.stream(requests[1])
        pieces = [piece for piece in streamed if piece.origin is not Origin.PROVISIONAL]
    assert [answer.tokens for answer in answers] == [*alone, *alone[::-1]]
    assert sum((piece.tokens for piece in pieces), ()) == alone[1]


def test_an_answer_without_a_seed_can_be_had_again_by_that_of_its_stats(requests):
    with ExitStack() as stack:
        engine = stack.enter_context(cd.Engine.load("reference", "event", cd.Options(**INLINE)))
        other = stack.enter_context(cd.Engine.load("reference", None))
        asked = [
            cd.Request(r.question, r.video, r.events, max_new_tokens=24, sampling=cd.Sampling(1.0)) for r in requests
        ]
        found = [engine.generate(request) for request in asked]
        assert len({answer.stats.seed for answer in found}) == len(found)
        for request, answer in zip(asked, found, strict=True):
            again = replace(request, sampling=replace(request.sampling, seed=answer.stats.seed), events=None)
            assert other.generate(again).tokens == answer.tokens


def of_the_draft(state, tree):
    """Noise that depends on the drafted tokens."""
    return sum(tree.tokens)


def of_the_round(state, tree):
    """Noise that depends on where a round began."""
    return len(state.tokens)


@pytest.mark.parametrize("planted", [of_the_draft, of_the_round])
def test_noise_of_anything_else_would_be_noticed(planted, requests, alone, monkeypatch):
    verify = RequestState.verify

    def wrong(state, tree, logits):
        right, state.seed = state.seed, state.seed + planted(state, tree)
        accepted = verify(state, tree, logits)
        state.seed = right
        return accepted

    monkeypatch.setattr(RequestState, "verify", wrong)
    with cd.Engine.load("reference", "event", cd.Options(**INLINE)) as engine:
        assert [engine.generate(request).tokens for request in requests] != alone
