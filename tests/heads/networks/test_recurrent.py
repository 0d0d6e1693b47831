"""Medusa, Hydra and ReDrafter as networks: what each state keeps, where the weights begin, what is stored."""

import pytest
import torch
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import config_of, load_head, make, save_head
from crossdraft.heads.networks.recurrent import INIT_SCALE
from tests.heads.consistency import IDS, VALUES, shared, some_batch, some_head

NETWORKS = ("medusa", "hydra", "hydra++", "redrafter")
MORE = {"token_size": 6, "width": 10, "layers": 2}


def fresh(network, **more):
    """A head as it is before training."""
    known = type(some_head(network, MORE).config).__dataclass_fields__
    values = {name: value for name, value in (VALUES | MORE | more).items() if name in known}
    torch.manual_seed(0)
    return make(network, config_of(network, values, "here"), shared()).double()


@pytest.mark.parametrize("network", NETWORKS)
def test_a_saved_head_is_loaded_unchanged(network, tmp_path):
    head = some_head(network, MORE)
    save_head(tmp_path, head, network, "a target", torch.double)
    again = load_head(tmp_path, shared(), "a target").double()
    batch = some_batch(head)
    for one, other in zip(head(batch), again(batch), strict=True):
        assert torch.allclose(one.logits, other.logits, atol=1e-5)  # it is loaded in float32


@pytest.mark.parametrize("network", NETWORKS)
def test_the_targets_rows_are_neither_stored_nor_trained_and_all_else_is_both(network):
    head = some_head(network, MORE)
    assert "lm_head.weight" not in head.stored()
    trained = {name for name, weight in head.named_parameters() if weight.requires_grad}
    assert trained == set(head.stored())
    sum(prediction.logits.square().mean() for prediction in head(some_batch(head))).backward()
    assert all(head.get_parameter(name).grad.any() for name in trained)  # no weight is there for nothing


@pytest.mark.parametrize("network", NETWORKS)
def test_blocks_share_no_weights(network):
    """The released Medusa and Hydra repeat one module; `parameters` would count it once."""
    head = some_head(network, MORE)
    addresses = [weight.data_ptr() for weight in head.state_dict().values()]
    assert len(set(addresses)) == len(addresses)


def test_medusa_is_initialised_with_the_targets_logits_scaled_down():
    head, batch = fresh("medusa"), some_batch(some_head("medusa"))
    logits = INIT_SCALE * head.last_feature(batch.hidden) @ shared().lm_head[list(IDS)].T
    predictions = head(batch)
    assert [prediction.offset for prediction in predictions] == [1, 2, 3, 4]
    for prediction in predictions:
        assert torch.allclose(prediction.logits, logits, atol=1e-5)


def test_medusa_by_hand():
    head, batch = some_head("medusa", layers=1), some_batch(some_head("medusa"))
    block, rows = head.heads[2]
    feature = batch.hidden[6][0, 5]
    stream = feature + F.silu(block.linear.weight @ feature + block.linear.bias)
    assert torch.allclose(head(batch)[2].logits[0, 5], rows.weight @ stream)


@pytest.mark.parametrize(
    ("network", "changed", "other"),
    [
        ("medusa", (), (5, 6, 7, 8)),  # no token at all
        ("hydra", (6, 7, 8), (5, 9)),  # head 3 at position 5: the root and two draft tokens
        ("redrafter", (6, 7, 8), (5, 9)),
        ("hydra++", (6, 7, 8), (5, 9)),
    ],
)
def test_the_third_prediction_depends_on_the_root_and_two_tokens_only(network, changed, other):
    head, batch = some_head(network, MORE), some_batch(some_head(network, MORE))
    logits = head(batch)[2].logits[0, 5].detach()
    for position in (*changed, *other):
        tokens = batch.tokens.clone()
        tokens[0, position] = 4 if tokens[0, position] != 4 else 5
        moved = head(type(batch)(tokens, batch.hidden, batch.starts, batch.lengths))[2].logits[0, 5]
        assert torch.equal(moved, logits) == (position in other)


@pytest.mark.parametrize(("network", "count"), [("medusa", 1), ("hydra", 1), ("redrafter", 1), ("hydra++", 6)])
def test_only_hydra_plus_depends_on_earlier_features(network, count):
    head, batch = some_head(network, MORE), some_batch(some_head(network, MORE))
    hidden = batch.hidden[6].requires_grad_()
    head(batch)[1].logits[0, 5].sum().backward()
    positions = hidden.grad[0].any(-1).nonzero().flatten().tolist()
    assert positions == list(range(6 - count, 6))


def test_redrafter_by_hand():
    """s1 = SiLU(W·e(root) + b), s2 = SiLU(W·e(d1) + U·s1 + b); rows · ResBlock([f; s2])."""
    head, batch = some_head("redrafter", layers=1), some_batch(some_head("redrafter"))
    root, first = shared().embeddings[batch.tokens[0, 6:8]]
    weights, bias = (head.rnn_w.weight, head.rnn_u.weight), head.rnn_u.bias
    memory = F.silu(weights[0] @ root + bias)
    memory = F.silu(weights[0] @ first + weights[1] @ memory + bias)
    pair = torch.cat((batch.hidden[6][0, 5], memory))
    linear = head.blocks[0].linear
    logits = head.rows.weight @ (pair + F.silu(linear.weight @ pair + linear.bias))
    assert torch.allclose(head(batch)[1].logits[0, 5], logits)


@pytest.mark.parametrize("wrong", [{"layers": 0}, {"steps": 0}, {"width": 0}, {"token_size": -1}])
def test_sizes_below_one_are_refused(wrong):
    with pytest.raises(CrossdraftError, match="at least 1"):
        fresh("hydra", **wrong)
