"""A fork drafts what the original would, disturbs nothing by going another way, and teaches nothing."""

from functools import cache, partial

import pytest
import torch

from crossdraft.drafters.combine.handover import HandoverDrafter
from crossdraft.drafters.combine.union import UnionDrafter
from crossdraft.drafters.cross_vocab.drafter import CROSS_VOCAB_METHODS
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.drafters.memory.drafter import Datastores, MemoryDrafter
from crossdraft.drafters.ngram.drafter import NgramDrafter
from crossdraft.drafters.trees.dynamic import expand_and_rerank
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.prompt import known_ids
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft_lab.drafters.iid.tree_model import TreeDrafter
from tests.drafters.combine.test_fallback import Refusing
from tests.drafters.combine.test_union import chain
from tests.drafters.cross_vocab.test_drafter import drafter as foreign
from tests.engine.zoo import ZOO, as_target, noisy

PhasedDrafter = partial(HandoverDrafter, phased=True)
FallbackDrafter = partial(HandoverDrafter, phased=False)

QUESTION, RING = "kkk", (30, 31, 32, 33)
GREEDY, WARM = Sampling(), Sampling(temperature=1.0, seed=3)


@cache
def model(noise: float = 0.0) -> Target:
    return as_target(noisy(ZOO["video_llava"]()[0], noise), ZOO["video_llava"]()[1])


def independent(noise: float = 0.0) -> IndependentDrafter:
    return IndependentDrafter(model(noise))


def ngram() -> NgramDrafter:
    return NgramDrafter()


def memory() -> MemoryDrafter:
    drafter = MemoryDrafter()
    (state,) = drafter.begin([Request("Another one.")])
    drafter.commit([state], [VerifyOutput((), (*RING, *RING[::-1]))])
    drafter.end([state])
    return drafter


DRAFTERS = {
    "independent": independent,
    "tree": lambda: TreeDrafter(model(), partial(expand_and_rerank, beam=2, width=lambda probs: 2)),
    "ngram": ngram,
    "memory": memory,
    **{how: partial(foreign, "video_llava", how) for how in CROSS_VOCAB_METHODS},
    "union": lambda: UnionDrafter([independent(), ngram()]),
    "phased": lambda: PhasedDrafter(independent(), ngram()),
    "phased, refused": lambda: PhasedDrafter(Refusing(chain()), ngram()),
    "fallback": lambda: FallbackDrafter(independent(), ngram()),
}


def output(draft, bonus: int) -> VerifyOutput:
    """Of the main path two nodes are accepted, and a word is put after them."""
    path = draft.tree.path(len(draft.tree) - 1)[:2]
    tokens = (*(draft.tree.tokens[node] for node in path), bonus)
    return VerifyOutput(tuple(path), tokens)


def propose(drafter, state):
    return drafter.propose([state], [Budget(6)])[0]


def drafted(name: str, sampling: Sampling, rounds: int):
    """A drafter that has written for so many rounds, and its draft that is judged now."""
    drafter = DRAFTERS[name]()
    (state,) = drafter.begin([Request(QUESTION, max_new_tokens=64, sampling=sampling, prompt_ids=known_ids(RING * 2))])
    draft = propose(drafter, state)
    for bonus in (*RING, *RING)[:rounds]:
        drafter.commit([state], [output(draft, bonus)])
        draft = propose(drafter, state)
    return drafter, state, draft


def same(one, two) -> bool:
    distributions = [None if draft.tree.dists is None else draft.tree.dists.tolist() for draft in (one, two)]
    plain = [(draft.tree.tokens, draft.tree.parents, draft.path_probs) for draft in (one, two)]
    return plain[0] == plain[1] and distributions[0] == distributions[1]


@pytest.mark.parametrize("rounds", [0, 6])
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_fork_goes_its_own_way(name, rounds):
    twin, untouched, _ = drafted(name, GREEDY, rounds)
    drafter, state, draft = drafted(name, GREEDY, rounds)
    alike, astray = drafter.fork([state, state])
    drafter.commit([astray], [output(draft, 40)])
    drafter.commit([astray], [output(propose(drafter, astray), 41)])
    for bonus in RING:
        draft = propose(twin, untouched)
        assert same(propose(drafter, state), draft)
        assert propose(drafter, alike).tree.tokens == draft.tree.tokens
        drafter.commit([state, alike], [output(draft, bonus)] * 2)
        twin.commit([untouched], [output(draft, bonus)])
    if rounds:
        assert len(draft.tree)


def test_no_number_is_drawn_twice():
    """What a fork drew is known: the original must not draw it again where the outcome was another."""
    drafter, state, _ = drafted("union", WARM, 1)
    (fork,) = drafter.fork([state])
    assert fork.parts[0].draws is state.parts[0].draws


def test_a_dropped_fork_is_not_remembered(tmp_path):
    drafter = MemoryDrafter(Datastores(tmp_path / "memory"))
    (state,) = drafter.begin([Request(QUESTION)])
    (fork,) = drafter.fork([state])
    drafter.commit([fork], [VerifyOutput((), RING)])
    drafter.end([state])
    assert not (tmp_path / "memory").exists()


def test_what_a_fork_received_teaches_a_union_nothing():
    drafter, state, draft = drafted("union", GREEDY, 0)
    before = [vars(weight).copy() for weight in drafter.merger.weights]
    (fork,) = drafter.fork([state])
    drafter.commit([fork], [output(draft, 40)])
    assert [vars(weight) for weight in drafter.merger.weights] == before
    drafter.commit([state], [output(draft, 40)])
    assert [vars(weight) for weight in drafter.merger.weights] != before


@torch.inference_mode()
def test_nor_one_of_another_vocabulary():
    drafter = foreign("video_llava", "omni")
    (page,) = drafter.begin([Request("What is that?")])
    letter = next(i for i in range(80, 96) if len(drafter.own.encode(chr(48 + i))) == 2)
    (fork,) = drafter.fork([page])
    drafter.commit([fork], [VerifyOutput((), (20, letter, 21))])
    assert drafter.grams.get(fork.namespace) is None
    by_text = foreign("video_llava", "slem")
    (page,) = by_text.begin([Request("What is that?")])
    by_text.commit(by_text.fork([page]), [VerifyOutput((), (20,))])
    assert by_text.target_prefixes.get(page.namespace) is None
