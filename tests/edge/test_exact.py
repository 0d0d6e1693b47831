"""Sampled drafts over the wire keep the target's distribution, in exact expectation."""

import itertools
import math

import torch

from crossdraft.edge.branches import frame_of
from crossdraft.edge.committed import Committed
from crossdraft.edge.frames import decode, encode
from crossdraft.edge.held import HeldDraft
from crossdraft.engine.drafter import Draft
from crossdraft.engine.tree import DraftTree
from tests.engine.drafting import probs_of
from tests.engine.exact import distribution
from tests.engine.rules.rounds import VERIFIERS, P, Q

SESSION, LENGTH = bytes(16), 3
ROUNDING = 1e-6  # distributions travel in float32, which is what is drawn from


def wire(tokens, dists, count, draws=True):
    """The first `count` nodes of a drawn chain as they arrive, each in a frame of its own."""
    after, held = Committed(SESSION), None
    for n in range(1, count + 1):
        draft = Draft(DraftTree.chain(tokens[:n], torch.stack(dists[:n])))
        frame = decode(encode(frame_of(draft, (0, after.digest()), 1, n - 1, n - 1)))
        if held is None:
            held = HeldDraft(frame)
        else:
            assert held.extend(frame)
    return held


def answer_of(chance, arrived, late, *, truncated=False, draws=True, lies=False):
    """An answer of `LENGTH` tokens: `late` by the target alone, then a round with what has arrived of a draft."""
    tokens, dists = (), []
    for _ in range(2):
        q = Q(tokens).float()
        if truncated:  # top-k, made to sum to 1 again: what is drawn from is what is sent
            q = torch.where(q >= q.topk(2).values[-1], q, torch.zeros(()))
            q = q / q.sum()
        tokens += (0,) if lies else (chance.draw(q),)
        dists.append(q)
    count = arrived(chance, tokens)
    written = ()
    while len(written) < late:
        written += (chance.draw(P(written)),)
    known = Committed(SESSION)
    known.add(written)
    held = wire(tokens, dists, count)
    found = None if held is None else held.after(known, LENGTH, len(dists[0]), draws=draws)
    tree = DraftTree.empty() if found is None else found.tree
    output = VERIFIERS["rejection"](tree, probs_of(lambda more: P((*written, *more)), tree), chance)
    written += (*(tree.tokens[node] for node in output.path), output.bonus)
    while len(written) < LENGTH:
        written += (chance.draw(P(written)),)
    return written[:LENGTH]


def error(arrived, late, **how):
    found = distribution(lambda chance: answer_of(chance, arrived, late, **how))
    wanted = {
        tokens: math.prod(P(tokens[:i])[token].item() for i, token in enumerate(tokens))
        for tokens in itertools.product(range(P.vocabulary), repeat=LENGTH)
    }
    return max(abs(found.get(tokens, 0.0) - wanted[tokens]) for tokens in wanted)


def by_time(chance, tokens):
    return chance.draw(torch.tensor([0.2, 0.3, 0.5]))


def by_value(chance, tokens):
    """The bug: what is drawn decides whether it is here in time, as if short texts alone were."""
    return 2 if tokens[0] == 0 else 0


def test_what_arrives_by_time_is_exact():
    assert error(by_time, 0) < ROUNDING


def test_a_truncated_distribution_is_exact():
    assert error(by_time, 0, truncated=True) < ROUNDING


def test_a_draft_that_comes_after_the_target_went_on_is_exact():
    assert error(by_time, 1) < ROUNDING


def test_what_arrives_by_its_value_would_be_seen():
    assert error(by_value, 0) > 1e-3


def test_an_edge_that_lies_about_its_draws_biases_its_answer_and_not_where_it_is_not_believed():
    always = lambda chance, tokens: 2  # noqa: E731
    assert error(always, 0, lies=True) > 1e-3
    assert error(always, 0, lies=True, draws=False) < ROUNDING
