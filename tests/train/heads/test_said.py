"""What Medusa-2 learns from is what the target said before, however far it has learned since."""

import pytest
import torch

from crossdraft.engine.decode import Decoder
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.objective import Objective
from crossdraft.load import load_target
from crossdraft.train.capture.sources import SceneSource
from crossdraft.train.heads.joint import Joint, addition
from crossdraft.train.heads.medusa2 import OnPolicyData
from tests.support import PairPaths
from tests.train.heads.together import medusa_for


@pytest.fixture(scope="module")
def source():
    return SceneSource(clips=2, prompts=2)


@pytest.fixture
def said(pair: PairPaths, source):
    target = load_target(str(pair.target), "cpu", packed=False)
    head = medusa_for(SharedWeights.of(target.model))
    return OnPolicyData(
        target, Joint(target.model, head, Objective({"cross_entropy": 1.0}), target.traits.visual_ids, 4), source, 3
    )


def test_a_target_that_has_learned_is_asked_as_it_was(pair, source, said):
    for layer in said.joint.layers:
        torch.nn.init.normal_(addition(layer).up)
    requests = [request for clip in range(2) for request in source.read(clip).requests(96)]
    alone = [answer.tokens for answer in Decoder(load_target(str(pair.target), "cpu")).generate(requests)]
    now = [answer.tokens for answer in Decoder(said.target).generate(requests)]
    assert now != alone  # it has learned
    assert [tuple(answer) for _, answer in said(0) + said(1)] == [tuple(alone[i]) for i in (0, 1, 2, 3, 0, 1)]


def test_the_walk_is_a_function_of_the_step_and_prompts_may_learn(said):
    late = said(1)
    fresh = OnPolicyData(said.target, said.joint, said.source, 3)
    fresh(0)
    assert [answer for _, answer in fresh(1)] == [answer for _, answer in late]
    assert said.describe(1) == "answers 3 to 5 of the cycle through its clips"
    joint = said.joint
    loss, _ = joint.loss(*late[0])  # what was prepared for inference alone would not learn
    loss.backward()
    assert max(float(addition(layer).up.grad.abs().max()) for layer in joint.layers) > 0
