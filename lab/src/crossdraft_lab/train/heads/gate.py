"""Training of the gate of a speculative prefill, on clips that its adapter was not trained on.

For each clip the gate learns the share of tokens in the target's answers that the target predicts again after the
predicted visual tokens, given its own answer so far. On its own training clips an adapter predicts better than later:
so the gate learns from validation clips, from two thirds of them. It is measured and calibrated on the others, by whole
answers that are generated after predicted tokens.
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
FIFTH = 5  # one clip in five decides when to stop
LEAST = 15  # clips: two thirds to learn from (a fifth of these decides when to stop), a third to measure on
MOST, ASKED = 64, 4  # clips that are measured by whole answers, and questions about each


@dataclass(frozen=True)
class Agreements:
    """Clips, and the share of the target's answers about them that is equal after the predicted tokens.

    Args:
        pooled: [n, 2·T·S] the gate's input for each clip.
        share: [n] share of equal tokens of each clip's answers, 0..1.
        clips: numbers of the n clips.
    """

    pooled: Tensor
    share: Tensor
    clips: tuple[int, ...]

    def parts(self) -> "tuple[Agreements, Agreements]":
        """Split into the first two thirds of the clips by number, and the rest: neighbours may share a recording."""
        order = sorted(range(len(self.clips)), key=self.clips.__getitem__)
        cut = 2 * len(order) // 3
        return self._some(order[:cut]), self._some(order[cut:])

    def _some(self, rows: Sequence[int]) -> "Agreements":
        return Agreements(self.pooled[rows], self.share[rows], tuple(self.clips[row] for row in rows))


def leave_gate(
    model: Target, adapter: VisionAdapter, store: CaptureStore | None, survival: Callable[[], Agreements], folder: Path
) -> None:
    """Fit and calibrate the gate of a speculative prefill, and save it in the adapter's folder, with its figures.

    With too few validation clips, no gate is made.

    Args:
        model, adapter: the target that reads predicted tokens, and the adapter that predicts them.
        store: capture of validation clips.
        survival: measures the share of equal answer tokens of each clip.
        folder: folder of the adapter.
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
    """Minimise the cross-entropy with the shares; one clip in five is left out, to choose the best step."""
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
    """Return 1 - ROUGE-L, by tokens, of each of a target's answers, [n].

    Args:
        model: the target.
        asked: greedy requests, and the expected answers.
    """
    decoder = DecodeLoop(model, None)
    said = (decoder.generate([request])[0].tokens for request, _ in asked)
    return torch.tensor([1 - rouge_l(found, wanted) for found, (_, wanted) in zip(said, asked, strict=True)])


@torch.no_grad()
def gate_figures(gate: PrefillGate, found: Agreements) -> dict[str, float]:
    """Figures on other clips: mean share expected and measured, their correlation, and the share of the surer half.

    A calibrated gate also has the mean loss, and the correlation of the loss with the expected share.
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
