"""The gate of a speculative prefill learns which clips' answers survive."""

import torch

from crossdraft.align.gate import PrefillGate, load_gate, save_gate
from crossdraft.train.heads.gate import Agreements, fit_gate, gate_figures


def clips(count, seed):
    """Frames of noise; the share that survives is 0.9 where the first feature is above 0, else 0.3."""
    source = torch.randn(count, 2, 6, 4, generator=torch.Generator().manual_seed(seed))
    source[..., 0] += 2 * (torch.arange(count) % 2 * 2 - 1)[:, None, None]
    pooled = PrefillGate.pool(source)
    return source, Agreements(pooled, torch.where(pooled[:, 0] > 0, 0.9, 0.3))


def test_what_it_sees_by_hand():
    source = torch.tensor([[[[1.0, 10], [3, 10]], [[5, 0], [5, 4]]]])  # one clip, two frames of two patches
    assert PrefillGate.pool(source).tolist() == [[2, 10, 1, 0, 5, 2, 0, 2]]


def test_at_first_it_says_the_mean():
    _, found = clips(40, 0)
    gate = PrefillGate(2, 4)
    gate.begin_at(found.pooled, found.share)
    assert torch.allclose(gate.logits(found.pooled).sigmoid(), found.share.mean().expand(40), atol=1e-5)


def test_it_knows_which_other_clips_survive(tmp_path):
    torch.manual_seed(0)
    gate = PrefillGate(2, 4)
    fit_gate(gate, clips(80, 0)[1])
    source, other = clips(60, 1)
    figures = gate_figures(gate, other)
    assert figures["correlation"] > 0.9
    assert abs(figures["expected"] - figures["found"]) < 0.05
    assert figures["surer_half"] > 0.85
    save_gate(gate, tmp_path)
    assert torch.equal(load_gate(tmp_path, 2, 4)(source), gate(source))


def test_where_nothing_can_be_learned_it_stays_at_the_mean():
    """Shares that the clips say nothing of: what is learned by heart is not kept."""
    torch.manual_seed(0)
    _, found = clips(400, 0)
    noise = Agreements(found.pooled, torch.rand(400, generator=torch.Generator().manual_seed(2)))
    gate = PrefillGate(2, 4)
    fit_gate(gate, noise)
    with torch.no_grad():
        assert gate.logits(clips(60, 1)[1].pooled).sigmoid().std() < 0.1
