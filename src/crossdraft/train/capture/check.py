"""A capture checks itself: some of its answers are read again, in one plain pass each of the model alone.

No cache, no batch, no pre-encoding, no draft: whatever the capture did to be fast must have left tokens and features
as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossdraft.engine.target import Prompt, Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.train.capture.clip import Source
from crossdraft.train.capture.store import Store

SAMPLE = 8
ROUNDED, COARSE = (0.01, 0.06)  # greatest relative error of a feature: rounded to bfloat16; computed in 16 bits, too
NEAR_TIE, NEAR_TIE_COARSE = (1e-3, 0.25)  # logits that far apart may change places between passes of other shapes


@dataclass(frozen=True)
class Checked:
    """The result of a check.

    Args:
        answers, places: how many were read again.
        differing: places where the model alone says another token, and not for a near-tie.
        near_ties: places where it does for a near-tie.
        error: greatest relative error of a feature: the length of the difference over the feature's own.
        tolerance: greatest error that rounding explains.
    """

    answers: int
    places: int
    differing: int
    near_ties: int
    error: float
    tolerance: float

    @property
    def right(self) -> bool:
        """True if the capture is what the target says and thinks."""
        return not self.differing and self.error <= self.tolerance

    def sentence(self) -> str:
        """One line for people."""
        return (
            f"{self.answers} random answers recomputed, {self.places} tokens: {self.differing} differ, "
            f"{self.near_ties} near-ties; max relative error of features "
            f"{self.error:.2g} (tolerance {self.tolerance:g})."
        )


def check_sample(store: Store, target: Target, source: Source, count: int = SAMPLE, seed: int = 0) -> Checked:
    """Read `count` answers again.

    Raises:
        CrossdraftError: the capture is not what the model says.
    """
    wanted, indices = store.index.wanted, range(len(store))
    if not indices:
        raise CrossdraftError(f"The capture {store.folder} holds no answers yet; resume it first.")
    chosen = np.random.default_rng(seed).choice(len(indices), min(count, len(indices)), replace=False)
    coarse = target.model.dtype in (torch.bfloat16, torch.float16)
    differing = near = places = 0
    error = 0.0
    for index in sorted(chosen.tolist()):
        number, asked = source.locate(index)
        clip = source.read(number)
        prompt = target.prepare(clip.requests(wanted.max_new_tokens)[asked])
        lesson = store.lesson([index], wanted.layers, wanted.visual_layers)
        told = _compare(target, prompt, lesson, NEAR_TIE_COARSE if coarse else NEAR_TIE)
        places, differing, near = places + told[0], differing + told[1], near + told[2]
        error = max(error, told[3])
    found = Checked(len(chosen), places, differing, near, error, COARSE if coarse else ROUNDED)
    if not found.right:
        raise CrossdraftError(f"The capture {store.folder} is not what the target says: {found.sentence()}")
    return found


def _compare(target: Target, prompt: Prompt, lesson: TrainBatch, near: float) -> tuple[int, int, int, float]:
    """Tokens of one answer, those that differ, near-ties, and the greatest error of a feature."""
    start, tokens = int(lesson.starts[0]), lesson.tokens[0]
    answer = tokens[start:]
    if prompt.input_ids[-start:].tolist() != tokens[:start].tolist():
        return len(answer), len(answer), 0, float("inf")  # another prompt altogether
    logits, states = plain_pass(target, prompt, answer[:-1].tolist())
    judged = logits[-len(answer) :].float()
    said = judged.gather(1, answer.to(judged.device)[:, None])[:, 0]
    behind = judged.max(1).values - said
    first = len(prompt) - start
    error = max(
        _error(states, lesson.hidden, slice(first, None), len(tokens) - 1),
        _error(states, lesson.visual, slice(0, first), first),
    )
    return len(answer), int((behind > near).sum()), int(((behind > 0) & (behind <= near)).sum()), error


def _error(states: Sequence[Tensor], found: Mapping[int, Tensor], places: slice, count: int) -> float:
    """Greatest relative error over layers and places."""
    worst = 0.0
    for layer, features in found.items():
        expected = states[layer][places].float().cpu()
        off = (features[0, :count] - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-12)
        worst = max(worst, float(off.max()) if len(off) else 0.0)
    return worst


@torch.inference_mode()
def plain_pass(target: Target, prompt: Prompt, continuation: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
    """Logits [n, V] and hidden states [n, H] of prompt + continuation, by the model alone."""
    features = {name: value.to(target.device) for name, value in prompt.features.items()}
    if "mm_token_type_ids" in features:
        kinds = features["mm_token_type_ids"]
        features["mm_token_type_ids"] = torch.cat([kinds, kinds.new_zeros(1, len(continuation))], 1)
    inputs = {n: v.to(target.model.dtype) if v.is_floating_point() else v for n, v in features.items()}
    tail = torch.tensor(continuation, dtype=torch.long)
    ids = torch.cat([prompt.input_ids.cpu(), tail])[None].to(target.device)
    out: Any = target.model(input_ids=ids, **inputs, use_cache=False, output_hidden_states=True)
    return out.logits[0], [states[0] for states in out.hidden_states]
