"""Learning while serving: the head gets better, answers stay the target's, and it can be stopped, kept and undone."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from crossdraft.drafters.trees.static import fill
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.drafter import Budget, PromptFeatures, VerifyOutput
from crossdraft.engine.fast.packed_linear import prepack
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError
from crossdraft.heads.drafting.head_drafter import TREES
from crossdraft.heads.files import config_of, load_head, make
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.registry import HEADS
from crossdraft.load import load_target
from crossdraft_lab.drafters.online import training as online_training
from crossdraft_lab.drafters.online.drafter import HeadOrigin, OnlineDrafter
from crossdraft_lab.train.heads.ranks import shape_of

CHAIN = partial(fill, shape_of([[0] * depth for depth in range(1, 4)]))
QUESTIONS = ("What is ahead?", "Is it raining?", "How far is the car?", "Who turns?", "Where is the light?", "And now?")


@pytest.fixture(scope="module")
def target(pair):
    """Its words have favourite successors: what one answer teaches is true of others."""
    return load_target(str(pair.target), "cpu", "float64", packed=False)


@pytest.fixture(scope="module")
def requests(clip):
    return [Request(question, str(clip.video), max_new_tokens=14) for question in QUESTIONS]


@pytest.fixture(scope="module")
def alone(target, requests):
    return [answer.tokens for answer in DecodeLoop(target).generate(requests)]


class Ticking:
    """Every look at the clock is a thousandth later: a piece of work costs one, whatever the machine does."""

    def __init__(self, step: float = 1e-3) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def random_head(target, network="eagle"):
    text = target.text_config
    values = {
        "hidden_size": text.hidden_size,
        "vocab_size": text.vocab_size,
        "num_layers": text.num_hidden_layers,
        "draft_ids": [token for token in range(text.vocab_size) if token not in target.reserved],
        "steps": 3,
    }
    if network != "medusa":
        values |= {"heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate_size": 48}
    torch.manual_seed(3)
    return make(network, config_of(network, values, "here"), SharedWeights.of(target.model)).double().eval()


def learning(target, method="medusa", tree="chain", **options):
    """A drafter around a small random head: hardly any of its drafts are right."""
    head = random_head(target, HEADS[method].network)
    drafter = HEADS[method].drafter_class(head, TREES.get(tree, CHAIN), target.eos, target.reserved)
    rows = SharedWeights.of(target.model).lm_head[head.draft_ids]
    options = {"seconds": 1e-3, "rate": 3e-3, "clock": Ticking()} | options
    return OnlineDrafter(drafter, rows, origin=HeadOrigin(head_network(method), "a target"), **options)


def head_network(method):
    return HEADS[method].network


def serve(target, drafter, requests, **options):
    """The answers, and tokens a round after the first."""
    cost = CostModel()
    decoder = DecodeLoop(target, DraftRunner(drafter, "off"), cost=cost, adaptive=False, nodes=4, **options)
    answers = decoder.generate(requests)
    assert not any(answer.other_notes for answer in answers)
    rounds = sum(answer.stats.rounds - 1 for answer in answers)
    return answers, sum(answer.stats.new_tokens - 1 for answer in answers) / rounds


def weights_of(drafter):
    return [weight.detach().clone() for weight in drafter.drafter.head.parameters()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("method", "batch"), [("eagle2", 1), ("medusa", 3)])
def test_acceptance_improves_and_answers_stay_the_targets_own(target, requests, alone, method, batch):
    drafter, taus = learning(target, method), []
    for _ in range(3):
        answers, tau = serve(target, drafter, requests, max_batch=batch)
        assert [answer.tokens for answer in answers] == alone
        taus.append(tau)
    stats = drafter.stats
    assert taus[-1] > taus[0] + 0.4, (taus, stats)
    assert stats.swaps >= 1
    assert stats.tau_learned > 1


def test_a_head_trained_at_other_offsets_would_be_noticed(target, requests, alone, monkeypatch):
    """The planted bug: answers are paired with features in reverse order."""
    pad_batch = online_training.pad_batch

    def backwards(*args):
        batch = pad_batch(*args)
        return replace(batch, hidden={layer: rows.flip(1) for layer, rows in batch.hidden.items()})

    monkeypatch.setattr(online_training, "pad_batch", backwards)
    with pytest.raises(AssertionError):
        test_acceptance_improves_and_answers_stay_the_targets_own(target, requests, alone, "medusa", 3)


def test_memory_stays_within_bounds(target, requests):
    drafter = learning(target, keep=8, room=30_000)
    sizes = []
    for _ in range(2):
        serve(target, drafter, requests)
        buffer = drafter.trainer.buffer
        sizes.append(drafter.stats.bytes)
        assert len(buffer) <= 8
        assert buffer.bytes <= 30_000
        assert len(buffer) == 30_000 // max(sample.bytes for sample in buffer.split(held_out=False)) or len(buffer) == 8
    own = sum(weight.numel() * 8 for weight in online_training.trained(drafter.drafter.head))
    assert max(sizes) <= 30_000 + 6 * own  # the copy, its gradients and moments, two sets to go back to


def test_time_is_bounded_however_slow_a_step(target, requests):
    for tick in (1e-3, 0.5):
        drafter = learning(target, seconds=1e-3, clock=Ticking(tick))
        answers, _ = serve(target, drafter, requests)
        rounds = sum(answer.stats.rounds for answer in answers)
        assert drafter.stats.seconds <= 1e-3 * rounds + tick


def test_frozen_weights_do_not_change(target, requests):
    drafter = learning(target)
    drafter.freeze()
    before = weights_of(drafter)
    serve(target, drafter, requests)
    serve(target, drafter, requests)
    assert same(weights_of(drafter), before)
    assert (drafter.stats.steps, drafter.stats.seconds, drafter.stats.answers) == (0, 0.0, 0)
    drafter.thaw()
    serve(target, drafter, requests)
    serve(target, drafter, requests)
    assert drafter.stats.steps > 0
    assert not same(weights_of(drafter), before)


def test_rollback_restores_weights_bit_for_bit(target, requests):
    drafter = learning(target)
    loaded, history = weights_of(drafter), [weights_of(drafter)]
    while drafter.stats.swaps < 2:
        swaps = drafter.stats.swaps
        serve(target, drafter, requests)
        if drafter.stats.swaps > swaps:
            history.append(weights_of(drafter))
    drafter.freeze()
    drafter.rollback()
    before_last = weights_of(drafter)
    assert not same(before_last, history[-1])
    assert not same(before_last, loaded)
    drafter.rollback(loaded=True)
    assert same(weights_of(drafter), loaded)
    assert same(online_training.trained(drafter.trainer._copy.network), online_training.trained(drafter.drafter.head))


def test_weights_are_evaluated_before_a_swap(target, requests, monkeypatch):
    """A copy that is no better never serves."""
    monkeypatch.setattr(online_training.StudentCopy, "step", lambda self, batch: True)  # learns nothing
    drafter = learning(target)
    before = weights_of(drafter)
    serve(target, drafter, requests)
    serve(target, drafter, requests)
    assert drafter.stats.evaluations > 0
    assert drafter.stats.swaps == 0
    assert same(weights_of(drafter), before)


def test_a_copy_with_a_loss_that_is_not_finite_is_reset(target, requests, alone, caplog):
    drafter = learning(target)
    serve(target, drafter, requests)
    steps = drafter.stats.steps
    with torch.no_grad():
        drafter.trainer._copy.masters[0].fill_(float("nan"))
    answers, _ = serve(target, drafter, requests)
    assert [answer.tokens for answer in answers] == alone
    assert drafter.stats.restarts == 1
    assert drafter.stats.steps > steps
    assert all(weight.isfinite().all() for weight in weights_of(drafter))
    assert len(caplog.records) == 1


def answered(drafter, state, tokens):
    """Run an answer through the drafter."""
    text = drafter.drafter.head.config
    rows = torch.randn(4, text.hidden_size, dtype=torch.double)
    hidden = dict.fromkeys(drafter.needs.hidden_layers, rows)
    drafter.commit([state], [VerifyOutput((), tokens[:1], hidden, PromptFeatures((7, 8, 9, 10)))])
    for token in tokens[1:]:
        drafter.commit([state], [VerifyOutput((), (token,), dict.fromkeys(hidden, rows[:1]))])


@torch.inference_mode()
def test_a_fork_is_not_trained_on(target):
    drafter = learning(target)
    state = drafter.begin([Request("?")])[0]
    answered(drafter, state, (11, 12, 13, 14, 15))
    fork = drafter.fork([state])[0]
    nothing = {layer: torch.zeros(1, target.text_config.hidden_size).double() for layer in drafter.needs.hidden_layers}
    drafter.commit([fork], [VerifyOutput((), (20,), nothing)])
    drafter.propose([fork], [Budget(4)])
    drafter.end([fork])
    assert drafter.stats.answers == 0
    drafter.end([state])
    assert [sample.tokens for sample in drafter.trainer.buffer.split(held_out=False)] == [
        (7, 8, 9, 10, 11, 12, 13, 14, 15)
    ]
    sample = drafter.trainer.buffer.split(held_out=False)[0]
    assert sample.start == 4
    assert all(
        rows.shape == (8, target.text_config.hidden_size) and not rows.is_inference() for rows in sample.hidden.values()
    )


@torch.inference_mode()
def test_a_request_without_a_namespace_is_not_trained_on(target):
    drafter = learning(target)
    short, unknown = drafter.begin([Request("?"), Request("?", namespace=None)])
    answered(drafter, short, (11, 12, 13))
    answered(drafter, unknown, (11, 12, 13, 14, 15))
    drafter.end([short, unknown])
    assert drafter.stats.answers == 0


def test_it_learns_and_needs_the_last_layer(target):
    drafter = learning(target, "eagle3")
    assert drafter.needs.learns
    assert target.text_config.num_hidden_layers in drafter.needs.hidden_layers
    assert set(drafter.drafter.needs.hidden_layers) <= set(drafter.needs.hidden_layers)


def test_sampled_answers_are_served_too(target, requests):
    drafter = learning(target, tree="dynamic")
    sampled = [replace(request, sampling=Sampling(temperature=1.0, seed=3)) for request in requests]
    serve(target, drafter, sampled, max_batch=3)
    answers, _ = serve(target, drafter, sampled)
    going_on = [answer for answer in answers if answer.stats.rounds > 1]  # one may end with its first token
    assert going_on
    assert all(answer.stats.drafted for answer in going_on)


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=1.0), Sampling(repetition_penalty=1.3), Sampling(logit_bias=((5, 1.0),))]
)
def test_only_the_targets_top_k_tokens_have_gradients(target, sampling):
    drafter = learning(target)
    plain, other = drafter.begin([Request("?"), Request("?", sampling=sampling)])
    for state in (plain, other):
        answered(drafter, state, (11, 12, 13, 14, 15))
    drafter.end([other])
    assert drafter.stats.answers == 0
    drafter.end([plain])
    assert drafter.stats.answers == 1


def test_it_is_saved_after_a_swap_and_loaded_again(target, requests, tmp_path):
    folder = tmp_path / "head"
    drafter = learning(target, folder=folder)
    assert not folder.exists()
    while not drafter.stats.swaps:
        serve(target, drafter, requests)
    serve(target, drafter, requests)
    drafter.freeze()
    (folder / "acceptance.json").write_text("{}")
    drafter.save(folder)
    assert (folder / "acceptance.json").exists()
    again = load_head(folder, SharedWeights.of(target.model), "a target", "medusa")
    for name, value in drafter.drafter.head.stored().items():
        assert torch.equal(again.stored()[name], value.float())


def test_only_a_head_is_overwritten(target, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CrossdraftError, match=r"no head in .*name an empty or a new folder"):
        learning(target).save(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_lost_folder_costs_no_answer(target, requests, alone, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    drafter = learning(target, folder=tmp_path / "file" / "head")
    while not drafter.stats.swaps:
        serve(target, drafter, requests)
    answers, _ = serve(target, drafter, requests)
    assert [answer.tokens for answer in answers] == alone
    assert sum("kept in this process alone" in record.message for record in caplog.records) == 1


def test_what_cannot_be_trained_is_refused(target):
    head = random_head(target)
    head.float()
    prepack(head)
    drafter = HEADS["eagle2"].drafter_class(head, CHAIN)
    with pytest.raises(CrossdraftError, match="packed=False"):
        OnlineDrafter(drafter, torch.zeros(1))
    with pytest.raises(CrossdraftError, match="rate is 2"):
        learning(target, rate=2.0)
    with pytest.raises(CrossdraftError, match="reads visual features"):
        learning(target, "eaglevlm")
