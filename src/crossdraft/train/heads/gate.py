"""Training of the gate of a speculative prefill, once its adapter is trained.

What it learns is, clip by clip, the share of the tokens of the target's answers that the target says again after the
predicted tokens, having read its own answer so far.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.align.gate import PrefillGate

STEPS, RATE, DECAY = 300, 2e-3, 0.1
FIFTH = 5  # one clip in so many tells when to stop
LEAST = 10  # clips


@dataclass(frozen=True)
class Agreements:
    """Clips, and how far the target's answers about them survive.

    Args:
        pooled: [n, 2·T·S] what the gate sees of each.
        share: [n] of the tokens of its answers, 0..1.
    """

    pooled: Tensor
    share: Tensor


def fit_gate(gate: PrefillGate, found: Agreements) -> None:
    """Minimise the cross-entropy with the shares; one clip in five is kept back, and the step best for it is kept."""
    back = torch.arange(len(found.share)) % FIFTH == 0
    gate.begin_at(found.pooled[~back], found.share[~back])
    optimiser = torch.optim.AdamW(gate.parameters(), RATE, weight_decay=DECAY)
    best, kept = _loss(gate, found, back).item(), {name: value.clone() for name, value in gate.state_dict().items()}
    for _ in range(STEPS):
        optimiser.zero_grad()
        _loss(gate, found, ~back).backward()
        optimiser.step()
        with torch.no_grad():
            loss = _loss(gate, found, back).item()
        if loss < best:
            best, kept = loss, {name: value.clone() for name, value in gate.state_dict().items()}
    gate.load_state_dict(kept)


def _loss(gate: PrefillGate, found: Agreements, rows: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(gate.logits(found.pooled[rows]), found.share[rows])


@torch.no_grad()
def gate_figures(gate: PrefillGate, found: Agreements) -> dict[str, float]:
    """On other clips: mean share expected and found, their correlation, and the share of the surer half."""
    expected = gate.logits(found.pooled).sigmoid()
    surer = expected.argsort(descending=True)[: max(1, len(expected) // 2)]
    return {
        "clips": len(expected),
        "expected": float(expected.mean()),
        "found": float(found.share.mean()),
        "correlation": float(torch.corrcoef(torch.stack((expected, found.share)))[0, 1].nan_to_num()),
        "surer_half": float(found.share[surer].mean()),
    }
