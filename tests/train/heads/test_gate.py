"""The gate of a speculative prefill learns which clips' answers survive, and where its threshold begins."""

import math
from dataclasses import replace

import pytest
import torch

from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft_lab.align.gate import PrefillGate, load_gate, save_gate
from crossdraft_lab.train.heads.gate import Agreements, answer_losses, fit_gate, gate_figures
from tests.engine.zoo import ZOO, as_target


def clips(count, seed):
    """Frames of noise; the share that survives is 0.9 where the first feature is above 0, else 0.3."""
    source = torch.randn(count, 2, 6, 4, generator=torch.Generator().manual_seed(seed))
    source[..., 0] += 2 * (torch.arange(count) % 2 * 2 - 1)[:, None, None]
    pooled = PrefillGate.pool(source)
    return source, Agreements(pooled, torch.where(pooled[:, 0] > 0, 0.9, 0.3), tuple(range(count)))


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
    noise = replace(found, share=torch.rand(400, generator=torch.Generator().manual_seed(2)))
    gate = PrefillGate(2, 4)
    fit_gate(gate, noise)
    with torch.no_grad():
        assert gate.logits(clips(60, 1)[1].pooled).sigmoid().std() < 0.1


def test_it_learns_from_the_first_two_thirds_of_the_clips_by_number():
    """Clips 0 to 6 in the order of an epoch: 0 to 3 to learn from, 4 to 6 are the others."""
    order = (3, 6, 0, 5, 1, 4, 2)
    share = torch.tensor(order) / 10
    fitted, others = Agreements(share[:, None], share, order).parts()
    assert (fitted.clips, others.clips) == ((0, 1, 2, 3), (4, 5, 6))
    assert torch.equal(fitted.share, torch.tensor([0.0, 0.1, 0.2, 0.3]))
    assert torch.equal(others.pooled[:, 0], others.share)
    assert torch.equal(others.share, torch.tensor([0.4, 0.5, 0.6]))


def calibrated(sure, lost):
    gate = PrefillGate(1, 1)
    gate.calibrate(torch.tensor(sure), torch.tensor(lost))
    return gate


@pytest.mark.parametrize(
    ("loss", "wanted"), [(0.19, 0.9), (0.2, 0.9), (0.24, 0.9), (0.25, 0.8), (0.39, 0.8), (0.4, 0.6), (1.0, 0.6)]
)
def test_the_first_threshold_by_hand(loss, wanted):
    """Four clips: with the surest one (0 + 1) / 5 is lost at most, with three (0.25 + 1) / 5, with all (1 + 1) / 5.

    0.19 can be promised by none: it begins just above the surest. The two of 0.8 come together, or not at all.
    """
    found = calibrated([0.6, 0.9, 0.8, 0.8], [0.75, 0.0, 0.125, 0.125]).threshold(loss)
    assert found == pytest.approx(wanted)
    assert (found > torch.tensor(0.9).item()) == (loss < 0.2)


def test_the_budget_is_kept_from_the_first_request_on():
    """Over many calibrations of 30 clips, a new clip loses no more than the budget; at 1 - budget it would."""
    rng, lost, naive = torch.Generator().manual_seed(0), [], []
    for _ in range(1500):
        sure = 0.9 + 0.1 * torch.rand(31, generator=rng)
        loss = (torch.rand(31, generator=rng) < 6 * (1 - sure)).float() * 0.8  # more than 1 - sure
        first = calibrated(sure[:30].tolist(), loss[:30].tolist()).threshold(0.1)
        lost.append(float(loss[30]) * bool(sure[30] >= first))
        naive.append(float(loss[30]) * bool(sure[30] >= 0.9))
    assert 0.05 < sum(lost) / len(lost) < 0.1
    assert sum(naive) / len(naive) > 0.2


def test_a_gate_without_calibration_has_no_threshold():
    with pytest.raises(CrossdraftError, match="was not calibrated"):
        PrefillGate(1, 1).threshold(0.1)


def test_answers_of_the_target_itself_lose_nothing():
    """And those of another length what they lack: half of the tokens, a loss of a third."""
    target, request = as_target(*ZOO["video_llava"]()), Request("xx", max_new_tokens=8)
    own = DecodeLoop(target, None).generate([request])[0].tokens
    assert answer_losses(target, [(request, own)]).tolist() == [0]
    assert answer_losses(target, [(request, own[: len(own) // 2])]).item() == pytest.approx(
        1 - 2 * (len(own) // 2) / (len(own) + len(own) // 2)
    )
    assert math.isclose(answer_losses(target, [(request, [])]).item(), 1)
