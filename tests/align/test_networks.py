"""Adapters by themselves: where they begin, what they may see, and that pieces of a text give what the whole gives."""

import math
from dataclasses import fields, replace

import pytest
import torch

from crossdraft.heads.files import make
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.heads.registry import NETWORKS
from crossdraft_lab.align.networks.base import TARGET, identity_projection
from crossdraft_lab.align.networks.pointwise import residual_blocks
from crossdraft_lab.align.networks.visual import clip_loss
from crossdraft_lab.networks import ADAPTERS
from tests.heads.consistency import HIDDEN, VALUES, shared, some_head
from tests.heads.test_files import SIZES

LENGTH, SOURCE = 9, 20
FUSED = ("b1", "l5f")


def some(network):
    layers = (0, 1, 2) if network == "levels" else (2,)
    return some_head(network, {**SIZES, "source_layers": layers, "positions": 16})


def some_batch(adapter, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = {layer: torch.randn(1, LENGTH, SOURCE, generator=generator, dtype=torch.double) for layer in adapter.reads}
    tokens = torch.randint(3, 40, (1, LENGTH), generator=generator)
    hidden[TARGET] = torch.randn(1, LENGTH, HIDDEN, generator=generator, dtype=torch.double)
    return TrainBatch(tokens, hidden, torch.tensor([3]), torch.tensor([LENGTH]))


@pytest.mark.parametrize("network", ADAPTERS)
def test_the_lm_head_is_the_targets_and_is_not_stored(network):
    adapter = some(network)
    assert not adapter.lm_head.weight.requires_grad
    assert not any("lm_head" in name or "embeddings" in name for name in adapter.stored())
    (first, *_) = adapter(some_batch(adapter))
    assert first.offset == 0
    assert first.features.shape == (1, LENGTH, HIDDEN)
    assert torch.equal(first.logits, adapter.lm_head(first.features))


@torch.no_grad()
@pytest.mark.parametrize("network", ADAPTERS)
def test_no_position_sees_a_later_one(network):
    """What comes after position 5, tokens and features, changes nothing up to it, at any offset."""
    adapter = some(network)
    batch, other = some_batch(adapter), some_batch(adapter, seed=1)
    other.tokens[:, :6] = batch.tokens[:, :6]
    for layer, features in batch.hidden.items():
        other.hidden[layer][:, :6] = features[:, :6]
    for one, two in zip(adapter(batch), adapter(other), strict=True):
        seen = 6 - one.offset  # a prediction of offset k was told k tokens more
        assert torch.allclose(one.logits[:, :seen], two.logits[:, :seen], atol=1e-12)
        assert not torch.allclose(one.logits[:, 6:], two.logits[:, 6:], atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("network", [name for name, one in ADAPTERS.items() if not one.network_class.reads_target])
def test_pieces_of_a_text_give_what_the_whole_gives(network):
    adapter = some(network)
    batch, past, parts = some_batch(adapter), (), []
    source = adapter.source(batch.hidden)
    for a, b in ((0, 4), (4, 5), (5, LENGTH)):
        features, past = adapter.align(source[:, a:b], batch.tokens[:, a:b], past)
        parts.append(features)
    assert torch.allclose(torch.cat(parts, 1), adapter(batch)[0].features, atol=1e-12)


@torch.no_grad()
def test_going_on_alone_is_the_training_time_test():
    adapter = some("l5")
    batch = some_batch(adapter)
    predictions, at = adapter(batch), 4
    source = adapter.source(batch.hidden)[:, : at + 1]
    features, past = adapter.align(source, batch.tokens[:, : at + 1])
    features = features[:, -1:]
    for offset in range(1, 4):
        features, past = adapter.go_on(features, batch.tokens[:, at + offset : at + offset + 1], past)
        assert torch.allclose(features[0, 0], predictions[offset].features[0, at], atol=1e-12), offset


def read_from(adapter, batch, at):
    """Features at the positions up to `at`, and past: the target's are known from the answer's second token on."""
    source, tokens, start = adapter.source(batch.hidden), batch.tokens, int(batch.starts[0])
    asked, past = adapter.align(source[:, :start], tokens[:, :start])
    rows = slice(start, at + 1)
    if at < start:
        return asked, past
    said, past = adapter.fuse(source[:, rows], batch.hidden[TARGET][:, start - 1 : at], tokens[:, rows], past)
    return torch.cat((asked, said), 1), past


@torch.no_grad()
@pytest.mark.parametrize("network", FUSED)
def test_the_targets_features_are_read_one_position_late(network):
    """Step 0 of training is what a drafter reads: nothing of the target in the question, then f(t - 1) at t."""
    adapter = some(network)
    batch = some_batch(adapter)
    features, _ = read_from(adapter, batch, LENGTH - 1)
    assert torch.allclose(features, adapter(batch)[0].features, atol=1e-12)
    moved = replace(batch, hidden={**batch.hidden, TARGET: batch.hidden[TARGET].roll(1, 1)})  # the planted bug
    assert not torch.allclose(features, adapter(moved)[0].features, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("network", FUSED)
@pytest.mark.parametrize("at", [2, 4])
def test_rollout_in_training_is_drafting_on_its_own_outputs(network, at):
    """Position 2 is the question's last: a hidden draft, which knows nothing of the target."""
    adapter = some(network)
    batch = some_batch(adapter)
    predictions, source = adapter(batch), adapter.source(batch.hidden)
    features, past = read_from(adapter, batch, at)
    before = features[:, -1:]
    for step in range(1, 4):
        rows = slice(at + step, at + step + 1)
        before, past = adapter.fuse(source[:, rows], before, batch.tokens[:, rows], past)
        assert torch.allclose(before[0, 0], predictions[step].features[0, at], atol=1e-12), step


def test_b1_reads_nothing_of_the_drafter_and_l5f_does():
    for network in FUSED:
        adapter = some(network)
        batch, other = some_batch(adapter), some_batch(adapter, seed=1)
        same = replace(batch, hidden={**other.hidden, TARGET: batch.hidden[TARGET]})
        equal = [torch.equal(a.logits, b.logits) for a, b in zip(adapter(batch), adapter(same), strict=True)]
        assert equal == [network == "b1"] * 4
    assert not any(name.startswith("project") for name in some("b1").stored())


def test_l4v_begins_as_l4_and_then_sees():
    kind = NETWORKS["l4v"].config_class
    values = {**VALUES, **SIZES, "source_layers": (2,)}
    config = kind(**{field.name: values[field.name] for field in fields(kind) if field.name in values})
    visual = {0: torch.randn(1, 15, 12, generator=torch.Generator().manual_seed(1), dtype=torch.double)}
    fresh, trained = make("l4v", config, shared()).double(), some("l4v")
    for adapter, equal in ((fresh, True), (trained, False)):
        batch = some_batch(adapter)
        seen, unseen = adapter(replace(batch, visual=visual))[0].logits, adapter(batch)[0].logits
        assert torch.allclose(seen, unseen) == equal


def test_the_contrastive_loss_by_hand():
    """Two of three answers share a clip; the third is told from them."""
    rows, same = torch.eye(3, dtype=torch.double), torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]]).bool()
    hot = 1 / 0.07
    alone = math.log(math.exp(hot) + 2) - hot
    assert float(clip_loss(rows, rows, torch.eye(3).bool())) == pytest.approx(alone, rel=1e-3)
    shared = math.log(math.exp(hot) + 2) - hot / 2  # of two partners one is found
    assert float(clip_loss(rows, rows, same)) == pytest.approx((2 * shared + alone) / 3, rel=1e-3)
    assert float(clip_loss(rows, rows[[1, 0, 2]], same)) == pytest.approx((2 * shared + alone) / 3, rel=1e-3)


def test_the_contrastive_loss_of_l4v_is_least_where_events_and_texts_agree():
    """Two answers about two clips, right and exchanged."""
    adapter = some("l4v")
    one, two = some_batch(adapter), some_batch(adapter, seed=1)
    visual = torch.randn(2, 15, 12, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    batch = TrainBatch(
        torch.cat((one.tokens, two.tokens)),
        {layer: torch.cat((rows, two.hidden[layer])) for layer, rows in one.hidden.items()},
        torch.tensor([3, 3]), torch.tensor([LENGTH, LENGTH]), {0: visual},
    )  # fmt: skip
    right = DraftLogits(0, torch.empty(0), batch.hidden[TARGET])
    wrong = replace(right, features=batch.hidden[TARGET].flip(0))
    losses = [adapter.extra_losses(batch, [one])["contrastive"].item() for one in (right, wrong)]
    assert losses[0] < losses[1]


def test_without_tokens_l5_does_not_read_any():
    blind = some_head("l5", {**SIZES, "source_layers": (2,)}, reads_tokens=False)
    batch = some_batch(blind)
    other = TrainBatch(batch.tokens.flip(1), batch.hidden, batch.starts, batch.lengths)
    assert all(torch.equal(a.logits, b.logits) for a, b in zip(blind(batch), blind(other), strict=True))
    reading = some("l5")
    assert not torch.allclose(reading(batch)[0].logits, reading(other)[0].logits)


def test_projections_begin_as_a_padded_identity():
    assert torch.equal(identity_projection(2, 3)(torch.tensor([5.0, 7.0])), torch.tensor([5.0, 7.0, 0.0]))
    assert torch.equal(identity_projection(3, 2)(torch.tensor([5.0, 7.0, 9.0])), torch.tensor([5.0, 7.0]))


@pytest.mark.parametrize(
    ("settings", "count"), [((256, 1, False), 2_113_537), ((256, 3, False), 6_324_227), ((1024, 3, True), 25_188_355)]
)
def test_l1_l2_and_l3_have_as_many_parameters_as_the_origins(settings, count):
    width, blocks, wide = settings
    with torch.device("meta"):
        made = residual_blocks(4096, width, blocks, wide=wide)
    assert sum(weight.numel() for weight in made.parameters()) == count


@torch.no_grad()
def test_several_layers_are_brought_to_one_size():
    adapter = some("levels")
    batch = some_batch(adapter)
    larger = {layer: rows * (1 + 100 * layer) for layer, rows in batch.hidden.items()}
    assert torch.allclose(adapter.source(larger), adapter.source(batch.hidden), atol=1e-5)
    assert adapter.source(larger).shape == (1, LENGTH, 3 * SOURCE)
