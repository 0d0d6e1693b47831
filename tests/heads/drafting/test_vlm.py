"""Heads for models that see: HiViS, ViSpec, EagleVLM, SpecVLM, MASSV, through the real rehearsal and the real loop."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from crossdraft.engine.decode import Decoder
from crossdraft.engine.drafter import Budget
from crossdraft.engine.policy import CostModel
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.heads.drafting.autoregressive import AutoregressiveDrafter
from crossdraft.heads.drafting.head_drafter import TREES
from crossdraft.heads.files import make
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.specvlm import CHOICES
from crossdraft.heads.registry import HEADS, NETWORKS
from tests.engine.zoo import EOS, ZOO, as_target
from tests.heads.rehearsal import START, check_rehearsal, some_head, some_lesson, told_up_to

SEEING = ("vispec", "eaglevlm", "specvlm", "massv")
ALL = ("hivis", *SEEING)
SMALL = {"pool": 2, "prune": 2, "conv": 3, "width": 24}  # of five visual places
REQUESTS = [Request("x" * i, max_new_tokens=4 + 4 * i) for i in range(1, 4)]
drafter_of = partial(AutoregressiveDrafter, grow=TREES["dynamic"])


def head_of(network, choice=None):
    head = some_head(network, **SMALL)
    if choice is not None:
        with torch.no_grad():
            head.gate.bias[CHOICES.index(choice)] += 1000
    return head


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("network", ALL)
def test_what_is_rehearsed_is_what_is_drafted(network, pieces):
    head = head_of(network)
    assert check_rehearsal(drafter_of(head), some_lesson(head), pieces) > 20


@pytest.mark.parametrize("choice", CHOICES)
def test_specvlm_drafts_what_it_rehearsed_whatever_it_chooses(choice):
    head = head_of("specvlm", choice)
    assert check_rehearsal(drafter_of(head), some_lesson(head)) > 20


@pytest.mark.parametrize("network", SEEING)
def test_a_front_left_out_in_drafting_would_be_noticed(network):
    head = head_of(network, "conv" if network == "specvlm" else None)
    planted(head, prefix=lambda *seen: None)


@pytest.mark.parametrize(
    ("network", "bug"),
    [
        ("eaglevlm", {"positions": lambda positions: positions.flip(0)}),
        ("eaglevlm", {"start": lambda start: start + 1}),
        ("eaglevlm", {"key": lambda key: key.roll(1, 2)}),
        ("vispec", {"global_feature": torch.zeros_like}),
        ("vispec", {"value": torch.zeros_like}),
        ("massv", {"start": lambda start: start + 1}),
        ("massv", {"deeper": lambda deeper: tuple((key.roll(1, 2), value) for key, value in deeper)}),
    ],
)
def test_a_front_that_differs_in_drafting_would_be_noticed(network, bug):
    head = head_of(network)
    right = head.prefix

    def prefix(*seen):
        found = right(*seen)
        return replace(found, **{name: wrong(getattr(found, name)) for name, wrong in bug.items()})

    planted(head, prefix=prefix)


def test_a_residual_of_another_step_would_be_noticed():
    head = head_of("hivis")
    decode = head.decode
    planted(head, decode=lambda embeds, features, attend, step: decode(embeds, features, attend, 0))


def planted(head, **bugs):
    """Rehearse with the right parts, draft with the planted ones: that must not agree."""
    batch = some_lesson(head)
    predictions = head(batch)
    head.forward = lambda batch: predictions
    assert check_rehearsal(drafter_of(head), batch) > 20
    for name, wrong in bugs.items():
        setattr(head, name, wrong)
    with pytest.raises(AssertionError):
        check_rehearsal(drafter_of(head), batch)


@torch.inference_mode()
def test_the_gate_hears_the_question():
    """Of the same clip two questions are shown different things, and only what was chosen is computed."""
    head = head_of("specvlm")
    batch = some_lesson(head)
    asked = batch.hidden[head.config.num_layers][0, START - 1]
    drafter, computed = drafter_of(head), []
    for place, choice in enumerate(head.compressors):
        choice.register_forward_hook(lambda *given, place=place: computed.append(place))
    head.gate.weight.zero_()
    head.gate.bias.zero_()
    head.gate.weight[1], head.gate.weight[3] = asked, -asked
    for sign, chosen in ((1, 1), (-1, 3)):
        hidden = {layer: sign * rows for layer, rows in batch.hidden.items()}
        told_up_to(drafter, replace(batch, hidden=hidden), START)
        assert computed.pop() == chosen
        assert not computed


@pytest.mark.parametrize("network", ALL)
def test_without_a_clip_there_is_only_text(network):
    head = head_of(network)
    batch = replace(some_lesson(head), visual={}, visual_ids=None)
    assert check_rehearsal(drafter_of(head), batch) > 20


@pytest.mark.parametrize("network", ALL)
def test_drafts_stay_within_the_budget_fork_and_leave_nothing_behind(network):
    head = head_of(network)
    drafter = drafter_of(head)
    state = told_up_to(drafter, some_lesson(head), 6)
    before = drafter.propose([state], [Budget(20)])[0]
    assert 0 < len(before.tree) <= 20
    assert set(before.tree.tokens) <= set(head.config.draft_ids)
    fork = drafter.fork([state])[0]
    drafter.propose([fork], [Budget(30)])
    assert drafter.propose([state], [Budget(20)])[0].tree == before.tree


@pytest.fixture(scope="module")
def target():
    return as_target(*ZOO["video_llava"]())


@pytest.fixture(scope="module")
def alone(target):
    return [answer.tokens for answer in Decoder(target).generate(REQUESTS)]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("network", ALL)
def test_greedy_answers_are_the_targets_own(target, alone, network, batch):
    drafter = drafter_of(head_for(target, network), ends=[EOS], banned=sorted(target.reserved))
    assert HEADS[network].sees == bool(drafter.needs.visual_layers)
    cost = CostModel()
    decoder = Decoder(target, DraftRunner(drafter, "off"), cost=cost, max_batch=batch, adaptive=False)
    answers = decoder.generate(REQUESTS)
    assert [answer.tokens for answer in answers] == alone
    assert all(answer.stats.rounds and not answer.notes for answer in answers)


def head_for(target, network):
    """A small random head for a target of the zoo."""
    config = target.text_config
    kind = NETWORKS[network].config_class
    sizes = {"hidden_size": config.hidden_size, "vocab_size": target.vocab_size, "num_layers": config.num_hidden_layers}
    layer = {"heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate_size": 48, "steps": 2}
    torch.manual_seed(0)
    head = make(network, kind(**sizes, **layer, draft_ids=tuple(range(2, 95))), SharedWeights.of(target.model))
    return head.double()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("sees", [True, False])
def test_massv_drafts_though_it_reads_no_feature(target, alone, sees, batch):
    """Its blind twin too is told the prompt, and what either drafts is judged in full."""
    config = replace(head_for(target, "massv").config, sees=sees)
    head = make("massv", config, SharedWeights.of(target.model)).double()
    drafter = AutoregressiveDrafter(head, TREES["chain"], ends=[EOS], banned=sorted(target.reserved))
    cost = CostModel()
    decoder = Decoder(target, DraftRunner(drafter, "off"), cost=cost, max_batch=batch, adaptive=False)
    answers = decoder.generate(REQUESTS)
    assert [answer.tokens for answer in answers] == alone
    assert all(answer.stats.drafted for answer in answers)


@pytest.mark.parametrize("pieces", [1, 3])
def test_massvs_blind_twin_drafts_what_it_rehearsed(pieces):
    head = some_head("massv", **SMALL, sees=False)
    assert check_rehearsal(drafter_of(head), some_lesson(head), pieces) > 20
