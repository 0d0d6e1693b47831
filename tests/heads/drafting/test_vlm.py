"""Drafting with heads for VLMs: HiViS, ViSpec, EagleVLM."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from crossdraft.heads.drafting.autoregressive import AutoregressiveDrafter
from crossdraft.heads.drafting.head_drafter import TREES
from tests.heads.consistency import check_consistency, some_batch, some_head

SEEING = ("vispec", "eaglevlm")
ALL = ("hivis", *SEEING)
SMALL = {"pool": 2, "width": 24}  # of five visual positions
drafter_of = partial(AutoregressiveDrafter, grow=TREES["dynamic"])


def head_of(network):
    return some_head(network, SMALL)


@pytest.mark.parametrize("network", SEEING)
def test_a_prefix_missing_in_drafting_would_be_noticed(network):
    head = head_of(network)
    planted(head, prefix=lambda *inputs: None)


@pytest.mark.parametrize(
    ("network", "bug"),
    [
        ("eaglevlm", {"positions": lambda positions: positions.flip(0)}),
        ("eaglevlm", {"start": lambda start: start + 1}),
        ("eaglevlm", {"key": lambda key: key.roll(1, 2)}),
        ("vispec", {"global_feature": torch.zeros_like}),
        ("vispec", {"value": torch.zeros_like}),
    ],
)
def test_a_prefix_that_differs_in_drafting_would_be_noticed(network, bug):
    head = head_of(network)
    right = head.prefix

    def prefix(*inputs):
        found = right(*inputs)
        return replace(found, **{name: wrong(getattr(found, name)) for name, wrong in bug.items()})

    planted(head, prefix=prefix)


def test_a_residual_of_another_step_would_be_noticed():
    head = head_of("hivis")
    decode = head.decode
    planted(head, decode=lambda embeds, features, attend, step: decode(embeds, features, attend, 0))


def planted(head, **bugs):
    """Train with the right parts, draft with the planted ones: the logits must differ."""
    batch = some_batch(head)
    predictions = head(batch)
    head.forward = lambda batch: predictions
    assert check_consistency(drafter_of(head), batch) > 20
    for name, wrong in bugs.items():
        setattr(head, name, wrong)
    with pytest.raises(AssertionError):
        check_consistency(drafter_of(head), batch)


@pytest.mark.parametrize("network", ALL)
def test_without_a_clip_there_is_only_text(network):
    head = head_of(network)
    batch = replace(some_batch(head), visual={}, visual_ids=None)
    assert check_consistency(drafter_of(head), batch) > 20
