"""Training of the gate of a speculative prefill, once its adapter is trained, on clips that this was not trained on.

What it learns is, clip by clip, the share of the tokens of the target's answers that the target says again after the
predicted tokens, having read its own answer so far. On its own training clips an adapter predicts better than it will:
so the gate learns from validation clips, and from two thirds of them. It is judged, and calibrated, on the others, by
whole answers that are written after predicted tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft_lab.align.checked import rouge_l
from crossdraft_lab.align.gate import GATE_FIGURES, PrefillGate, save_gate
from crossdraft_lab.align.networks.vision import VisionAdapter
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.log import say
from crossdraft_lab.train.core.provenance import write_json
from crossdraft_lab.train.heads.clip_features import clip_events
from crossdraft_lab.train.heads.task import captured_source

STEPS, RATE, DECAY = 300, 2e-3, 0.1
FIFTH = 5  # one clip in so many tells when to stop
LEAST = 15  # clips: two thirds to learn from, of which a fifth says when to stop, and a third to judge by
MOST, ASKED = 64, 4  # clips that are judged by whole answers, and questions about each


@dataclass(frozen=True)
class Agreements:
    """Clips, and the share of the target's answers about them that survives the predicted tokens.

    Args:
        pooled: [n, 2·T·S] what the gate sees of each.
        share: [n] of the tokens of its answers, 0..1.
        clips: n numbers.
    """

    pooled: Tensor
    share: Tensor
    clips: tuple[int, ...]

    def parts(self) -> "tuple[Agreements, Agreements]":
        """Clips of the first two thirds by number, and the other clips: neighbours may share a recording."""
        order = sorted(range(len(self.clips)), key=self.clips.__getitem__)
        cut = 2 * len(order) // 3
        return self._some(order[:cut]), self._some(order[cut:])

    def _some(self, rows: Sequence[int]) -> "Agreements":
        return Agreements(self.pooled[rows], self.share[rows], tuple(self.clips[row] for row in rows))


def leave_gate(
    model: Target, adapter: VisionAdapter, store: CaptureStore | None, survival: Callable[[], Agreements], folder: Path
) -> None:
    """Fit and calibrate the gate of a speculative prefill, and leave it in the adapter's folder, with its figures.

    Where there are too few validation clips, there is no gate.

    Args:
        model, adapter: the target that reads predicted tokens, and what predicts them.
        store: of validation clips.
        survival: finds out how far the answers about them survive.
        folder: of the adapter.
    """
    config = adapter.config
    if store is None or len(captured_source(store)) < LEAST:
        say(f"The adapter gets no gate of a speculative prefill, which takes {LEAST} validation clips.")
        return
    fitted, others = survival().parts()
    gate = PrefillGate(config.source_frames, config.source_size)
    fit_gate(gate, fitted)
    known = range(0, len(others.clips), max(1, len(others.clips) // MOST))
    say(f"calibrating the gate: {len(known)} clips")
    sure = gate.logits(others.pooled[known]).sigmoid().detach()
    gate.calibrate(sure, torch.stack([_lost(model, store, others.clips[row]) for row in known]))
    save_gate(gate, folder)
    figures = {name: round(value, 4) for name, value in gate_figures(gate, others).items()}
    write_json(folder / GATE_FIGURES, figures)
    say("gate, on clips that it did not learn from: " + ", ".join(f"{name} {of:g}" for name, of in figures.items()))


def _lost(model: Target, store: CaptureStore, clip: int) -> Tensor:
    """Mean loss that a clip's predicted tokens cause in the answers to its first questions."""
    source = captured_source(store)
    requests, events = source.read(clip).requests(store.index.wanted.max_new_tokens), clip_events(source, clip)
    numbers = [number for number in range(len(store)) if source.locate(number)[0] == clip][:ASKED]
    asked = []
    for number in numbers:
        answer = store.answer(number)
        request = replace(requests[source.locate(number)[1]], events=events)
        asked.append((request, answer.tokens[answer.start :].tolist()))
    return answer_losses(model, asked).mean()


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


def answer_losses(model: Target, asked: Sequence[tuple[Request, Sequence[int]]]) -> Tensor:
    """[n] 1 - ROUGE-L of a target's answers, by tokens.

    Args:
        model: the target.
        asked: greedy requests, and the answers that were wanted.
    """
    decoder = DecodeLoop(model, None)
    said = (decoder.generate([request])[0].tokens for request, _ in asked)
    return torch.tensor([1 - rouge_l(found, wanted) for found, (_, wanted) in zip(said, asked, strict=True)])


@torch.no_grad()
def gate_figures(gate: PrefillGate, found: Agreements) -> dict[str, float]:
    """Figures on other clips: mean share expected and found, their correlation, and the share of the surer half.

    Of a calibrated gate also the mean of what was lost, and the correlation of this with the share expected.
    """
    expected = gate.logits(found.pooled).sigmoid()
    surer = expected.argsort(descending=True)[: max(1, len(expected) // 2)]
    figures = {
        "clips": len(expected),
        "expected": float(expected.mean()),
        "found": float(found.share.mean()),
        "correlation": _correlation(expected, found.share),
        "surer_half": float(found.share[surer].mean()),
    }
    if len(gate.lost):
        figures |= {"lost": float(gate.lost.mean()), "correlation_lost": _correlation(gate.sure, gate.lost)}
    return figures


def _correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((one, other)))[0, 1].nan_to_num())
