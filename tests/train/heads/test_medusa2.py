"""What has changed is counted word for word, and the card says it."""

import pytest
import torch

from crossdraft.engine.loop import DecodeLoop
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.load import load_target
from crossdraft_lab.objective import Objective
from crossdraft_lab.train.capture.sources import SceneSource
from crossdraft_lab.train.heads.joint import JointModel, low_rank_of
from crossdraft_lab.train.heads.measure import DraftFigures
from crossdraft_lab.train.heads.medusa2 import OnPolicyData, PairFigures, compare_pairs, joint_card
from crossdraft_lab.train.heads.ranks import MeasuredRanks
from crossdraft_lab.train.heads.recipe import Measure
from tests.support import PairPaths
from tests.train.heads.small import medusa_for


def side(answers, tau):
    return PairFigures(
        answers, {"chain": DraftFigures(tau, (0.5,)), "medusa, T=0": DraftFigures(tau + 1, ())}, MeasuredRanks()
    )


@pytest.fixture
def figures():
    before = side([(1, 2), (3,), (4, 5)], 2.0)
    after = side([(1, 2), (3, 9), (4, 5)], 2.25)
    return compare_pairs(before, after) | {"wall_s": 90.0}


def test_an_answer_is_kept_if_every_word_is(figures):
    assert (figures["kept"], figures["answers"]) == (2, 3)
    assert figures["before"]["chain"]["tau"] == 2.0
    assert figures["engine"]["medusa, T=0"]["tau"] == 3.25


def test_the_card_says_what_has_changed(figures):
    text = joint_card("medusa", "old-" * 9, "new-" * 9, figures, Measure(nodes=7, chain=3))
    assert "**The target's answers have changed.**" in text
    assert "Of 3 answers to questions about validation scenes, **2 are still the old target's word for word**" in text
    assert "| chain | 2.00 | 2.25 |" in text
    assert "trees of 7 nodes, chains of 3" in text
    assert "fingerprint new-new-new-…" in text


def test_a_card_of_what_was_not_measured_claims_nothing():
    text = joint_card("medusa", "old", "new", {"wall_s": 1.0}, Measure(pairs=0))
    assert "was not measured" in text
    assert "τ" not in text


@pytest.fixture(scope="module")
def source():
    return SceneSource(clips=2, prompts=2)


@pytest.fixture
def data(pair: PairPaths, source):
    target = load_target(str(pair.target), "cpu", packed=False)
    head = medusa_for(SharedWeights.of(target.model))
    return OnPolicyData(
        target,
        JointModel(target.model, head, Objective({"cross_entropy": 1.0}), target.traits.visual_ids, 4),
        source,
        3,
    )


def test_answers_are_those_of_the_target_before_training(pair, source, data):
    for layer in data.joint.layers:
        torch.nn.init.normal_(low_rank_of(layer).up)
    requests = [request for clip in range(2) for request in source.read(clip).requests(96)]
    alone = [answer.tokens for answer in DecodeLoop(load_target(str(pair.target), "cpu")).generate(requests)]
    now = [answer.tokens for answer in DecodeLoop(data.target).generate(requests)]
    assert now != alone  # it has learned
    assert [tuple(answer) for _, answer in data(0) + data(1)] == [tuple(alone[i]) for i in (0, 1, 2, 3, 0, 1)]


def test_a_step_is_a_function_of_its_number_and_prompts_take_gradients(data):
    late = data(1)
    fresh = OnPolicyData(data.target, data.joint, data.source, 3)
    fresh(0)
    assert [answer for _, answer in fresh(1)] == [answer for _, answer in late]
    assert data.describe(1) == "answers 3 to 5 of the cycle through its clips"
    joint = data.joint
    loss, _ = joint.loss(*late[0])  # what was prepared for inference alone would not learn
    loss.backward()
    assert max(float(low_rank_of(layer).up.grad.abs().max()) for layer in joint.layers) > 0
