"""One small target for all heads' drafters, its own answers, and a random head of any network for it."""

from collections.abc import Callable
from dataclasses import fields

import pytest
import torch

from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Answer, Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.target import Target
from crossdraft.heads.drafting.head_drafter import HeadDrafter
from crossdraft.heads.files import make
from crossdraft.heads.networks.base import Head, SharedWeights
from crossdraft.heads.registry import NETWORKS
from tests.engine.zoo import EOS, VOCABULARY, ZOO, as_target

REQUESTS = [Request("x" * length, max_new_tokens=6 + 5 * length) for length in range(1, 5)]


@pytest.fixture(scope="session")
def target() -> Target:
    return as_target(*ZOO["video_llava"]())


@pytest.fixture(scope="session")
def expected(target) -> list[list[int]]:
    """The target's own answers."""
    return [answer.tokens for answer in DecodeLoop(target).generate(REQUESTS)]


@pytest.fixture
def small_head(target) -> Callable[..., Head]:
    """A random head for the target, over the ids of its answers: most of its drafts are wrong, some are not."""

    def head_of(network: str, **more: object) -> Head:
        text = target.text_config
        values = {
            "hidden_size": text.hidden_size,
            "vocab_size": text.vocab_size,
            "num_layers": text.num_hidden_layers,
            "draft_ids": (EOS, *range(5, VOCABULARY - 4)),
            "heads": 4,
            "kv_heads": 2,
            "head_dim": 16,
            "intermediate_size": 48,
            "steps": 4,
            "token_size": 8,
        } | more
        kind = NETWORKS[network].config_class
        known = {field.name for field in fields(kind)}
        torch.manual_seed(3)
        config = kind(**{name: value for name, value in values.items() if name in known})
        return make(network, config, SharedWeights.of(target.model)).double()

    return head_of


@pytest.fixture
def answers_with(target) -> Callable[[HeadDrafter, int], list[Answer]]:
    """Answers to `REQUESTS` with a drafter, so many in a batch."""

    def generate(drafter: HeadDrafter, batch: int) -> list[Answer]:
        runner = DraftRunner(drafter, "off")
        return DecodeLoop(target, runner, cost=CostModel(), adaptive=False, max_batch=batch).generate(REQUESTS)

    return generate
